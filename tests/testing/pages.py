"""The pages of the project: their blocks of code, and a folder in which what they show can be run."""

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import timm
from PIL import Image
from pyarrow import parquet, table
from safetensors.torch import save_file
from testing.galleries import small_index
from testing.inputs import tars, write_photos
from testing.runs import pairs_config, tiny_config, write_table
from testing.trees import grocery_tree, omniglot_zip, pixels, sop_tree, write_tree, zip_tree

import aurank
from aurank.commands import align, build_index, embed_model, embed_to_folder, export_model, write_first_configuration
from aurank.embedding import ImageSelection
from aurank.embedding.stored.checkpoint import load_checkpoint, save_checkpoint

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
LANGUAGES = {"python", "yaml", "sh", "text"}  # text is output, or the form of a command; it is not run


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; `line` is that of its first line of code."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Return the blocks of all pages in these languages, by default in any."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for match in re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, flags=re.DOTALL | re.MULTILINE):
            line = text[: match.start(3)].count("\n") + 1
            found.append(Block(page, line, match[2], match[3]))
    return [block for block in found if not languages or block.language in languages]


def commands() -> list[tuple[str, list[str]]]:
    """Return every command of the pages with its place: comments left out, continued lines joined."""
    found = []
    for block in blocks("sh"):
        joined = re.sub(r"\\\n", lambda match: " ", block.code)
        for number, line in enumerate(joined.splitlines()):
            if words := shlex.split(re.sub(r"(^|\s)#.*", "", line)):
                found.append((f"{block.page}:{block.line + number}", words))
    return found


def write_averaged(runs: Path) -> None:
    """Write two runs that could be of one network, after `soprc`, and their average."""
    content = load_checkpoint(runs / "soprc/best.safetensors")
    content["config"]["model"]["weights"] = "weights.safetensors"
    for name in ("seed0", "seed1"):
        save_checkpoint(runs / name / "best.safetensors", content)
    aurank.average_models([runs / "seed0", runs / "seed1"], runs / "average")


def write_world(folder: Path) -> aurank.TrainResult:
    """Write what the pages speak of into a folder, and return the result of the run of images."""
    write_tree(folder, [f"photos/class{place % 8}/{place}.png" for place in range(48)], height=20, width=20)
    people = [f"people/{place // 2:04d}_c{place % 2}.png" for place in range(24)]  # identities seen by two cameras
    write_tree(folder, people, height=40, width=20)
    rows = [f"people/{n // 2:04d}_c{n % 2}.png,{n // 2},{'train' if n < 12 else 'test'},c{n % 2}\n" for n in range(24)]
    (folder / "people.csv").write_text("path,label,split,group\n" + "".join(rows), encoding="utf-8")
    write_first_configuration(folder / "people.csv", folder / "people.yaml")
    for name in ("drawing.png", "photo.jpg"):
        Image.fromarray(pixels(0, 20, 20)).save(folder / name)
    small_index(folder / "photos", folder / "index")
    small_index(folder / "photos", f"milvus:{folder}/gallery.db#photos").close()
    write_table(folder)
    write_first_configuration(folder / "photos", folder / "mine.yaml")
    weights = timm.create_model("test_efficientnet", pretrained=False).state_dict()
    save_file(weights, folder / "weights.safetensors")
    sop_tree(folder / "published")
    random, labels = np.random.default_rng(0), np.arange(60) // 10
    rows = random.normal(size=(60, 256)).astype(np.float32) + 2 * labels[:, None]
    np.savez(folder / "mine.npz", embeddings=rows, labels=labels)
    np.savez(folder / "train.npz", embeddings=random.normal(size=(300, 256)).astype(np.float32))
    for name in ("before", "after", "third", "measured", "other"):
        (folder / name).mkdir()
        noisy = rows + random.normal(size=rows.shape).astype(np.float32)
        aurank.evaluate(noisy, labels, neighbours=10).save(folder / name / "report.json")
    short = {"steps": 2, "validate_every": 2}
    result = aurank.train(tiny_config(train=short, optim={"warmup_steps": 0}), folder / "runs/soprc")
    aurank.train(pairs_config(folder, train=short, optim={"warmup_steps": 0}), folder / "runs/text_sogclr")
    few = ImageSelection(f"folder:{folder / 'photos'}")
    export_model(str(folder / "runs/soprc/best"), "hf", folder / "exported/timm", images=few)
    build_index(f"aurank:{folder}/runs/text_sogclr/best", ImageSelection(split="test"), out=folder / "words")
    write_averaged(folder / "runs")
    for name, run in {"mine": "soprc", "finetuned": "soprc", "people": "soprc", "pairs": "text_sogclr"}.items():
        (folder / "runs" / name).symlink_to(folder / "runs" / run)
    images = ImageSelection(f"folder:{folder / 'photos'}", split="all", overrides=["data.params.test_fraction=0.5"])
    embed_model("timm:test_resnet,pretrained=false,input_size=32", images).save(folder / "features.npz")
    every = ImageSelection(f"folder:{folder / 'photos'}", split="all")
    embed_to_folder("timm:resnet18,pretrained=false,input_size=32", every, out=folder / "parts", shard_rows=20)
    embed_to_folder(f"aurank:{folder}/runs/mine/best", every, out=folder / "rows.parquet")
    for name, network in {"old": "resnet18", "new": "test_efficientnet"}.items():
        embed_model(f"timm:{network},pretrained=false,input_size=32", every).save(folder / f"{name}.npz")
    align(folder / "old.npz", folder / "new.npz", out=folder / "map.safetensors")
    (head,) = [block.code for block in blocks("yaml") if "name: embeddings" in block.code]
    (folder / "head.yaml").write_text(head.replace("root: .", f"root: {folder}"), encoding="utf-8")
    aurank.train(folder / "head.yaml", folder / "runs/head", overrides=["train.steps=2", "train.validate_every=2"])
    (methods,) = [block.code for block in blocks("yaml") if "methods:" in block.code]
    methods = methods.replace("grocery/head", "head.yaml").replace("1280", "96").replace("=128", "=4")
    (folder / "methods.yaml").write_text(methods, encoding="utf-8")
    omniglot_zip(folder / "omniglot_full.zip")
    tars(write_photos(folder / "small"), folder / "shards")
    files = sorted((folder / "small/test").rglob("*.png"))
    held = table(
        {"image": [{"bytes": file.read_bytes()} for file in files], "label": [file.parts[-2] for file in files]}
    )
    (folder / "saved").mkdir()
    parquet.write_table(held, folder / "saved/test.parquet")
    groceries = grocery_tree(folder / "unpacked")
    zip_tree(groceries, folder / f"{groceries.name}.zip", prefix=f"{groceries.name}/")
    texts = [str(ROOT / "tools/grocery_texts.py"), f"{groceries.name}.zip", "--out", "grocery_texts.csv"]
    subprocess.run([sys.executable, *texts], cwd=folder, check=True)
    return result
