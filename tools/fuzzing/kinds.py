"""The kinds of files that aurank reads: for each how a whole example is made, and the commands that read it.

Commands run in the folder of the example. One that begins with "=" has to print of damaged files, which have checksums,
what it prints of whole ones, or refuse them; so has a function in place of a command, where a kind has checksums.
"""

import csv
import functools
import json
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

import aurank
from aurank import commands
from aurank.commands.prepare import prepare_data
from aurank.commands.run_options import RunOptions
from aurank.config import ModelConfig, shipped_configs
from aurank.data import TRANSFORMS, shards
from aurank.data.checks.negatives import write_negatives
from aurank.embedding import ImageSelection, index_folder
from aurank.evaluation import Index, PostProcessing
from aurank.exporting.formats import write_graph
from aurank.exporting.timm_folder import write_folder
from aurank.files import _bundle_sha256, content_sha256, file_sha256, require_ordinary
from aurank.models import Encoder
from aurank.models.adapters.by_name import load_model
from aurank.reporting.benchmark_page import read_tables
from aurank.training import read_config
from fuzzing.damage import HOSTILE_WORDS
from fuzzing.formats import FORMATS

sys.path.append(str(Path(__file__).parents[2] / "tests"))
Command = str | Callable[[], object]
_IMAGES = ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM")
_MODEL = "timm:test_vit,pretrained=false,input_size=32"


@dataclass(frozen=True)
class Kind:
    """One kind of files.

    Attributes:
        make: writes a whole example into the working folder.
        commands: that read it; {part} stands for the first folder below `damaged` that the damaged file is in.
        damaged: the file or folder that is damaged.
        is_sealed: its files have checksums, which are written anew by chance, as if damage had been written so.
        further: further arguments of the first command, by chance.
    """

    make: Callable[[], object]
    commands: tuple[Command, ...]
    damaged: str
    is_sealed: bool = False
    further: Callable[[random.Random], list[str]] = lambda chance: []


# -- whole examples ---------------------------------------------------------------------------------------------------


def _photos(folder: str = "photos", classes: int = 3) -> None:
    from testing.galleries import write_photos

    write_photos(Path(folder), classes=classes, images=4)


def _table() -> list[list[str]]:
    _photos(classes=4)
    paths = sorted(path.as_posix() for path in Path("photos").rglob("*.png"))
    splits = {"c0": "train", "c1": "train", "c2": "val", "c3": "test"}
    rows = [[path, path.split("/")[1], splits[path.split("/")[1]], "1", str(row)] for row, path in enumerate(paths)]
    return [["path", "label", "split", "is_query", "group"], *rows]


def _tables() -> None:
    header, *rows = _table()
    Path("tables").mkdir()
    with Path("tables/t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
    pyarrow.parquet.write_table(pyarrow.table(columns), "tables/t.parquet")


def _config() -> None:
    rows = _table()
    Path("data").mkdir()
    Path("photos").rename("data/photos")
    with Path("data/photos.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    data = {"name": "table", "root": "data", "params": {"file": "photos.csv"}, "image_size": 16}
    content = {
        "data": {**data, "test_transform": {"name": "resize"}},
        "sampler": {"batch": 4, "params": {"per_class": 2}},
        "model": {"backbone": "test_resnet", "pretrained": False, "dim": 4},
        "loss": {"name": "soprc"},
        "optim": {"lr": 1e-3},
        "train": {"steps": 3, "validate_every": 2, "checkpoint_every": 1},
        "evaluate": {"recall_at": [1]},
    }
    Path("config.yaml").write_text(json.dumps(content))


def _run() -> None:
    _config()
    aurank.train("config.yaml", "run", overrides=["train.steps=2"])


def _store() -> None:
    _config()
    prepare_data("config.yaml", "store", short_side=16)


def _average() -> None:
    _run()
    aurank.train("config.yaml", "other", overrides=["train.steps=2", "optim.lr=1e-4"])
    commands.average_models(["run/best", "other/best"], "mean")


def _head() -> None:
    from testing.galleries import head_config, write_rows

    config = head_config(write_rows(Path("rows.npz")), train={"steps": 2, "validate_every": 2})
    Path("head.yaml").write_text(json.dumps(config))


def _benchmark() -> None:
    _head()
    methods = {"SmoothAP": [], "SupCon": ["loss.name=sup_con"]}
    spec = {"config": "head.yaml", "methods": methods, "without_training": [""], "seeds": 2, "trials": 1}
    Path("spec.yaml").write_text(json.dumps({**spec, "choose_by": {"folds": 2}}))
    commands.run_benchmark(Path("spec.yaml"), Path("out"))


def _tuned() -> None:
    _head()
    commands.tune(read_config("head.yaml"), Path("search"), trials=3, folds=2)


def _mined() -> None:
    _config()
    images = ImageSelection("table:data", "all", overrides=["data.params.file=photos.csv"])
    write_negatives(commands.mine_model(_MODEL, images)[0], Path("mined/negatives.parquet"))


def _hf() -> None:
    _photos()
    about = {"info": {"features": {"label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}}}
    for number, suffix in enumerate(("arrow", "parquet")):
        paths = sorted(Path("photos").glob(f"*/[{2 * number}{2 * number + 1}].png"))
        images = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
        table = pyarrow.table({"image": images, "label": [int(path.parent.name[1]) for path in paths]})
        content = FORMATS[f".{suffix}"][1]({"about": {"huggingface": about}, "columns": table.to_pydict()}, b"")
        Path("hf", ("train", "test")[number]).mkdir(parents=True)
        Path("hf", ("train", "test")[number], f"data.{suffix}").write_bytes(content)


def _archive() -> None:
    _photos()
    shutil.make_archive("zips/x", "zip", "photos")


def _sets() -> None:
    from testing import trees

    made = trees.TREES
    for name, tree in made.items():
        tree(Path("sets", name))


def _pictures() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    for name in "ab":
        Path("pictures", name).mkdir(parents=True)
    for number, kind in enumerate(_IMAGES):
        suffix = {"JPEG": "jpg", "TIFF": "tif"}.get(kind, kind.lower())
        Image.fromarray(pixels).save(f"pictures/{'ab'[number % 2]}/{kind}.{suffix}", kind)
    np.save("pictures/a/array.npy", pixels)


def _rows(count: int = 12) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)


def _arrays() -> None:
    arrays: dict[str, np.ndarray] = {"embeddings": _rows(), "labels": np.arange(12) // 3, "ids": np.arange(12)}
    arrays |= {"paths": np.array([f"{row}.png" for row in range(12)]), "is_query": np.ones(12, dtype=bool)}
    arrays |= {"groups": np.full(12, -1), "classes": np.array([f"class {row}" for row in range(4)])}
    Path("arrays").mkdir()
    np.savez("arrays/e.npz", **arrays)
    np.save("arrays/e.npy", arrays["embeddings"])
    np.save("arrays/labels.npy", arrays["labels"])


def _reports() -> None:
    _arrays()
    report = commands.evaluate_model("embeddings:arrays/e.npz", neighbours=3).with_intervals()
    for name in ("a", "b"):
        report.save(f"reports/{name}.json")


def _faiss() -> None:
    rows = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    for kind in ("Flat", "HNSW8", "SQ8"):
        Index.build(rows, kind, device="cpu").save(f"faiss/{kind}/index")


def _image_index() -> None:
    _photos()
    _photos("more", classes=1)
    np.savez("steps.npz", embeddings=_rows(40 * 16).reshape(40, 64), labels=np.arange(40))
    images = ImageSelection("folder:photos")
    commands.build_index(
        _MODEL, images, out=Path("index"), postprocess="center, whiten:dim=8", fit_on=Path("steps.npz")
    )


def _steps() -> None:
    _arrays()
    Path("steps").mkdir()
    PostProcessing.parse("center, whiten:dim=2, query_expansion:k=2,alpha=1").fit(_rows()).save("steps/s.safetensors")


def _parts() -> None:
    _photos()
    commands.embed_to_folder(_MODEL, ImageSelection("folder:photos"), out=Path("parts"), shard_rows=5)


def _cache() -> None:
    _photos()
    commands.evaluate_model(_MODEL, ImageSelection("folder:photos"), running=RunOptions(cache=Path("cache"), batch=5))


def _model(kind: str) -> None:
    _photos()
    Path("model").mkdir()
    encoder = Encoder("test_resnet", dim=8, pretrained=False).eval()
    config, pipeline = ModelConfig(backbone="test_resnet", pretrained=False, dim=8), TRANSFORMS["resize"](32, 3)
    if kind == "timm":
        write_folder(encoder, config, pipeline, Path("model/model.safetensors"))
    elif kind == "transformers":
        from testing.galleries import folder_of

        folder_of(Path("model"))
    elif kind == "weights":
        weights = load_model("timm:test_resnet,pretrained=false").module.state_dict()
        torch.save({"epoch": 3, "state_dict": weights}, "model/w.pt")
        save_file(weights, "model/w.safetensors")
    else:
        write_graph(encoder, pipeline, Path("model/m.onnx"))


# -- readers that are no command, and checksums -----------------------------------------------------------------------


def _search() -> list[Any]:
    found = []
    for kind in ("Flat", "HNSW8", "SQ8"):
        near = Index.load(f"faiss/{kind}/index", device="cpu").search(np.ones((2, 8), dtype=np.float32), 3)
        found.append((near.row.tolist(), near.similarity.tolist()))
    return found


def _trained() -> object:
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    return [{**line, "images_per_second": 0, "seconds": 0} for line in lines]


def seal(damaged: Path) -> None:
    """Write anew all checksums of files, of those with the checksums of others last."""
    files = [path for path in (damaged, *damaged.rglob("*")) if path.suffix in _SEALS]
    for path in sorted(files, key=lambda path: path.name in (index_folder.ABOUT, shards.INDEX)):
        with suppress(Exception):
            require_ordinary(path)  # damage may leave a link to a device that never ends
            _SEALS[path.suffix](path)


def _seal_bundle(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["bundle"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    about["sha256"] = _bundle_sha256(about["content"], tensors)
    save_file(tensors, path, {"bundle": json.dumps(about)})


def _seal_record(path: Path) -> None:
    content = json.loads(path.read_bytes())
    if path.name == index_folder.ABOUT:
        present = [name for name in content["files"] if (path.parent / name).is_file()]
        content["files"] |= {name: file_sha256(path.parent / name) for name in present}
        content["checksum"] = content_sha256(content)
    else:  # of an index of faiss
        content["sha256"] = file_sha256(path.with_suffix(""))
    path.write_text(json.dumps(content))


def _seal_parts(path: Path) -> None:
    read, write = FORMATS[path.suffix]
    tree = read(path.read_bytes())
    about = tree["about"][shards.FORMAT]
    for file, part in about["parts"].items():
        with suppress(Exception):
            part[1] = file_sha256(path.parent / file)
    about["checksum"] = content_sha256(about)
    path.write_bytes(write(tree, path.read_bytes()))


_SEALS = {".safetensors": _seal_bundle, ".json": _seal_record, ".parquet": _seal_parts}


def _overrides(chance: random.Random) -> list[str]:
    keys = ("optim.lr", "train.steps", "loss.name", "data.params.path", "x", "", "a.b.c.d", "model", "loss.params.x[0]")
    return [f"{chance.choice(keys)}={chance.choice(HOSTILE_WORDS)}" for _ in range(chance.choice((0, 0, 1, 2)))]


def _shipped() -> None:
    Path("configs").mkdir()
    for name, path in shipped_configs().items():
        shutil.copy(path, f"configs/{name.replace('/', '-')}.yaml")


def _embedding(kind: str, name: str) -> Kind:
    embed = f"embed --model {name} --data folder:photos --out out.npz --no-cache --allow-code"
    return Kind(functools.partial(_model, kind), (embed,), "model")


_MINED = "mined/negatives.parquet"
_EVALUATE = "evaluate --out out --no-report --overwrite --no-cache --model "
KINDS: dict[str, Kind] = {
    "config": Kind(_shipped, ("config configs/{part}",), "configs", further=_overrides),
    "table": Kind(_tables, ("doctor table:. data.params.file=tables/{part}",), "tables"),
    "set": Kind(
        _sets, ("data check {part} --root sets/{part}", "doctor {part}:sets/{part} data.params.complete=false"), "sets"
    ),
    "image": Kind(
        _pictures,
        ("doctor folder:pictures", f"{_EVALUATE}{_MODEL} --data folder:pictures data.odd_classes=keep"),
        "pictures",
    ),
    "archive": Kind(_archive, ("doctor folder:zips/x.zip", "doctor unlabelled:zips/x.zip"), "zips"),
    "embeddings": Kind(
        _arrays,
        (
            f"{_EVALUATE}embeddings:arrays/e.npz",
            f"{_EVALUATE}embeddings:arrays/e.npy --labels arrays/labels.npy",
            "calibrate --model embeddings:arrays/e.npz --precision 0.3",
            "doctor --embeddings arrays/e.npz",
        ),
        "arrays",
    ),
    "report": Kind(_reports, ("compare reports/a.json reports/b.json --resamples 100",), "reports"),
    "faiss": Kind(_faiss, (_search,), "faiss", is_sealed=True),
    "index": Kind(
        _image_index,
        (
            "=search index photos/c0/0.png photos/c1/1.png --k 3 --json",
            "search index more --html found.html",
            "index remove index c0/0.png",
            "index add index --data folder:more --no-cache",
        ),
        "index",
        is_sealed=True,
    ),
    "parts": Kind(_parts, (f"={_EVALUATE}embeddings:parts --split all",), "parts", is_sealed=True),
    "cache": Kind(
        _cache,
        (f"=evaluate --out out --no-report --overwrite --cache cache --model {_MODEL} --data folder:photos",),
        "cache",
        is_sealed=True,
    ),
    "prepared": Kind(
        _store,
        (
            f"={_EVALUATE}{_MODEL} --data config.yaml data.prepared=store data.odd_classes=keep",
            "doctor config.yaml data.prepared=store",
            "data prepare config.yaml --out store --short-side 16",
            f"={_EVALUATE}{_MODEL} --data config.yaml data.prepared=store data.odd_classes=keep",
        ),
        "store",
    ),
    "checkpoint": Kind(
        _run,
        (f"={_EVALUATE}aurank:run/best.safetensors", "export run/best.safetensors --to hf --out exported"),
        "run/best.safetensors",
        is_sealed=True,
    ),
    "resume": Kind(_run, ("train config.yaml --out run --resume", _trained), "run/last.safetensors", is_sealed=True),
    "average": Kind(
        _average,
        (f"={_EVALUATE}aurank:mean/best.safetensors", "average mean/best run/best --out again"),
        "mean/best.safetensors",
        is_sealed=True,
    ),
    "lines": Kind(_benchmark, (lambda: read_tables(Path("out/lines.jsonl")),), "out/lines.jsonl"),
    "units": Kind(_benchmark, ("benchmark spec.yaml --out out",), "out/units"),
    "search": Kind(_tuned, ("tune head.yaml --out search --folds 2 --trials 3",), "search"),
    "mined": Kind(
        _mined,
        (
            f"doctor config.yaml --negatives {_MINED}",
            f"train config.yaml --dry-run sampler.batch=8 sampler.name=hard_negative sampler.params.negatives={_MINED}",
        ),
        "mined",
    ),
    "hf": Kind(_hf, ("doctor hf:hf",), "hf"),
    "steps": Kind(_steps, (f"{_EVALUATE}embeddings:arrays/e.npz --postprocess steps/s.safetensors",), "steps"),
    "onnx": _embedding("onnx", "onnx:model/m.onnx"),
    "timm": _embedding("timm", "timm:local-dir:model,pretrained=false"),
    "transformers": _embedding("transformers", "transformers:model"),
    "weights": _embedding("weights", "timm:test_resnet,weights=model/{part}"),
}
