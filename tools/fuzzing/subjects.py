"""What is read: for each kind of input a valid example, damage to it, and the reader that must survive it.

A subject is called with an empty folder and a source of chance; it writes one damaged input and reads it. It may return
or raise an AurankError; anything else is a find.
"""

import csv
import functools
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image

import aurank
from aurank.config import shipped_configs
from aurank.config.messages import Problems
from aurank.config.reading import parse_yaml
from aurank.data import READERS, FolderSource, ImageDataset, Manifest
from aurank.data.checks.contents import contents as contents_of
from aurank.data.decode import decode
from aurank.data.transforms.standard import Resize
from aurank.embedding.cache import data_sha256
from aurank.embedding.embed import Embedded
from aurank.evaluation import Index, ProbeResult
from aurank.evaluation.trec import evaluate_run, read_qrels, read_run
from aurank.training import read_config
from fuzzing.benchmarks import read_damaged
from fuzzing.damage import HOSTILE_VALUES, HOSTILE_WORDS, damage_bytes, damage_text, damage_tree

Chance = random.Random
IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM")


def _pixels(seed: int, side: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


@functools.cache
def image_bytes(kind: str, seed: int = 0) -> bytes:
    """Return a valid file of this format."""
    buffer = io.BytesIO()
    if kind == "NPY":
        np.save(buffer, _pixels(seed))
    else:
        Image.fromarray(_pixels(seed)).save(buffer, kind)
    return buffer.getvalue()


NAMES = [f"{split}/{name}/{number}.png" for split in ("train", "test") for name in "abcd" for number in range(2)]


def write_images(folder: Path, names: list[str]) -> None:
    """Write a small image under each name."""
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(image_bytes("PNG", seed % 4))


def use(manifest: Manifest) -> None:
    """Do with a manifest what the commands do: look for what is wrong, tell whether it is the same, read its images."""
    manifest.doctor()
    _ = repr(manifest), data_sha256(manifest), contents_of(manifest)
    data = ImageDataset(manifest, Resize(8, 3), channels=3, on_error="skip")
    _ = data.__getitems__(range(len(data))), data.skipped


# -- configurations ---------------------------------------------------------------------------------------------------


def config(folder: Path, chance: Chance) -> None:
    """A shipped configuration with words, or values of its tree, replaced; overrides too."""
    text = chance.choice(sorted(shipped_configs().values())).read_text(encoding="utf-8")
    file = folder / "config.yaml"
    if chance.random() < 0.5:
        text = damage_text(text, chance)
    else:
        tree = parse_yaml(text, (), Problems(), str)
        text = json.dumps(damage_tree(tree, chance), default=str)
    file.write_bytes(damage_bytes(text.encode(), chance) if chance.random() < 0.2 else text.encode())
    keys = ("optim.lr", "train.steps", "loss.name", "data.params.path", "x", "", "a.b.c.d", "model", "loss.params.x[0]")
    overrides = [f"{chance.choice(keys)}={chance.choice(HOSTILE_WORDS)}" for _ in range(chance.choice((0, 0, 1, 2)))]
    read_config(file, overrides)


# -- tables, lists, trees of images -----------------------------------------------------------------------------------


def _rows() -> list[list[str]]:
    header = ["path", "label", "split", "is_query", "group"]
    return [header, *([name, name.split("/")[1], name.split("/")[0], "1", str(row)] for row, name in enumerate(NAMES))]


def table(folder: Path, chance: Chance) -> None:
    """A csv or parquet table of images, damaged as text, as bytes, or by values of other types."""
    write_images(folder, NAMES)
    rows = _rows()
    if chance.random() < 0.5:
        buffer = io.StringIO()
        csv.writer(buffer).writerows(rows)
        text = damage_text(buffer.getvalue(), chance).encode("utf-8", "surrogatepass")
        (folder / "t.csv").write_bytes(damage_bytes(text, chance) if chance.random() < 0.3 else text)
        use(READERS["table"](folder, file="t.csv"))
        return
    columns: dict[str, Any] = {name: [row[place] for row in rows[1:]] for place, name in enumerate(rows[0])}
    odd = chance.choice((None, [1] * 16, [None] * 16, [[1, 2]] * 16, [b"\xff\x00"] * 16, [{"a": 1}] * 16, [1.5] * 16))
    if odd is not None:
        columns[chance.choice(list(columns))] = odd
    if chance.random() < 0.2:
        columns[chance.choice(HOSTILE_WORDS)[:200]] = ["x"] * 16
    buffer_ = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer_)
    content = buffer_.getvalue()
    (folder / "t.parquet").write_bytes(content if odd and chance.random() < 0.5 else damage_bytes(content, chance))
    use(READERS["table"](folder, file="t.parquet"))


def lists(folder: Path, chance: Chance) -> None:
    """Lists in the format of Stanford Online Products, or of the other two benchmarks, damaged as text."""
    what = chance.choice(("lists", "sop", "inaturalist2018", "vehicleid"))
    files: dict[str, str]
    if what in ("lists", "sop"):
        names = [f"bicycle_final/{row}_0.JPG" for row in range(8)]
        lines = [f"{row + 1} {row // 2 + 1} 1 {name}" for row, name in enumerate(names)]
        header = "image_id class_id super_class_id path"
        files = {
            "Ebay_train.txt": "\n".join([header, *lines[:4]]) + "\n",
            "Ebay_test.txt": "\n".join([header, *lines[4:]]) + "\n",
        }
    elif what == "inaturalist2018":
        names = [f"train_val2018/Plantae/{row // 2}/{row}.jpg" for row in range(8)]
        images = [{"id": row, "file_name": name} for row, name in enumerate(names)]
        marks = [{"id": row, "image_id": row, "category_id": row // 2} for row in range(8)]
        kinds = [{"id": row, "name": f"n{row}", "supercategory": "Plantae"} for row in range(4)]
        notes: Any = {"images": images, "annotations": marks, "categories": kinds}
        text = (
            json.dumps(damage_tree(notes, chance)) if chance.random() < 0.5 else damage_text(json.dumps(notes), chance)
        )
        files = {
            "Inat_dataset_splits/Inaturalist_train_set1.txt": "\n".join(names[:4]) + "\n",
            "Inat_dataset_splits/Inaturalist_test_set1.txt": "\n".join(names[4:]) + "\n",
            "train2018.json": text,
        }
    else:
        names = [f"image/{row:07d}.jpg" for row in range(8)]
        pairs = [f"{row:07d} {row // 2}" for row in range(8)]
        files = {
            "train_test_split/train_list.txt": "\n".join(pairs[:4]) + "\n",
            "train_test_split/test_list_800.txt": "\n".join(pairs[4:]) + "\n",
            "attribute/img2vid.txt": "\n".join(pairs) + "\n",
            "attribute/model_attr.txt": "\n".join(f"{row} {row % 2}" for row in range(4)) + "\n",
        }
    write_images(folder, names)
    damaged = chance.choice(sorted(files))
    for name, text in files.items():
        if name == damaged and not name.endswith(".json"):
            text = damage_text(text, chance)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    if what == "lists":
        use(READERS["lists"](folder, train="Ebay_train.txt", test="Ebay_test.txt", images=""))
    else:
        options = {"attribute": "model"} if what == "vehicleid" and chance.random() < 0.5 else {}
        use(READERS[what](folder, path=".", complete=False, **options))


def benchmark(folder: Path, chance: Chance) -> None:
    """The tree of a published set with one thing damaged: a list, a Matlab file, an image, a name or a folder."""
    use(read_damaged(folder, chance))


def image(folder: Path, chance: Chance) -> None:
    """One damaged image file of any format."""
    kind = chance.choice((*IMAGE_FORMATS, "NPY"))
    (folder / "x.img").write_bytes(damage_bytes(image_bytes(kind), chance, image_bytes(chance.choice(IMAGE_FORMATS))))
    decode(FolderSource(folder), "x.img", chance.choice((None, 1, 3, 4)))


def archive(folder: Path, chance: Chance) -> None:
    """A damaged zip of images, or one with odd members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
        for seed, name in enumerate(NAMES):
            file.writestr(name, image_bytes("PNG", seed % 4))
        if chance.random() < 0.3:
            word = chance.choice(HOSTILE_WORDS).replace("\x00", "")[:300] or "x"
            file.writestr(f"train/{word}/{chance.choice(('1.png', word))}", image_bytes("PNG"))
    content = buffer.getvalue()
    (folder / "x.zip").write_bytes(content if chance.random() < 0.1 else damage_bytes(content, chance))
    use(READERS[chance.choice(("folder", "folder", "unlabelled"))](folder, path="x.zip"))


# -- saved results ----------------------------------------------------------------------------------------------------


def _arrays(chance: Chance) -> dict[str, np.ndarray]:
    rows = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {
        "embeddings": rows.normal(size=(12, 4)).astype(np.float32),
        "labels": np.arange(12) // 3,
        "ids": np.arange(12),
        "paths": np.array([f"{row}.png" for row in range(12)]),
        "is_query": np.ones(12, dtype=bool),
        "groups": np.full(12, -1),
        "classes": np.array([f"class {row}" for row in range(4)]),
    }
    if chance.random() < 0.6:
        name = chance.choice(list(arrays))
        odd: Any = chance.choice(
            (
                *(np.zeros(0), np.zeros((0, 4)), np.zeros((12, 0)), np.zeros((12, 4, 2)), np.float64(3), np.zeros(5)),
                *(np.full((12, 4), np.nan), np.full((12, 4), 1e38), np.arange(12) * 1.5, np.arange(12) - 5),
                *(np.array(["x\x1b[31m"] * 12), np.zeros(12, dtype="datetime64[s]"), np.zeros(12, dtype=complex)),
                *(
                    np.zeros(12, dtype=[("a", "i4")]),
                    np.full(12, 2**63, dtype=np.uint64),
                    np.zeros((12, 4), dtype="f2"),
                ),
            )
        )
        arrays[name] = np.asarray(odd)
    return arrays


def embeddings(folder: Path, chance: Chance) -> None:
    """Saved embeddings, .npz or .npy, damaged or of odd arrays."""
    arrays = _arrays(chance)
    buffer = io.BytesIO()
    alone = chance.random() < 0.3
    if alone:
        np.save(buffer, arrays["embeddings"])
        np.save(folder / "labels.npy", arrays["labels"])
    else:
        np.savez(buffer, **arrays)
    content = buffer.getvalue()
    path = folder / ("e.npy" if alone else "e.npz")
    path.write_bytes(damage_bytes(content, chance) if chance.random() < 0.6 else content)
    print_report(Embedded.load(path, folder / "labels.npy" if alone else None).evaluate(recall_at=(1, 3)))


def print_report(report: aurank.Report) -> None:
    """Make the text that a command would print of a report, and compare it with itself."""
    _ = str(report), str(aurank.compare(report, report))


@functools.cache
def _report_text() -> str:
    import tempfile

    rows = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        aurank.evaluate(rows, np.arange(12) // 3).with_intervals().save(Path(name) / "report.json")
        return (Path(name) / "report.json").read_text()


def report(folder: Path, chance: Chance) -> None:
    """A damaged report.json, read, printed and compared."""
    text = _report_text()
    whole = chance.random() < 0.7
    text = json.dumps(damage_tree(json.loads(text), chance)) if whole else damage_text(text, chance)
    content = text.encode("utf-8", "surrogatepass")
    (folder / "report.json").write_bytes(damage_bytes(content, chance) if chance.random() < 0.2 else content)
    print_report(aurank.Report.load(folder / "report.json"))


def probe(folder: Path, chance: Chance) -> None:
    """A damaged result of a probe, read and printed."""
    result = ProbeResult(
        protocol="knn",
        design="halves",
        metrics={"top@1": 0.5},
        per_seed={"top@1": [0.4, 0.6]},
        seeds=[0, 1],
        num_train=6,
        num_test=6,
        num_classes=3,
        num_left_out=0,
        settings={"k": 5},
        notes=["a note"],
    )
    result.save(folder / "probe.json")
    text = (folder / "probe.json").read_text()
    whole = chance.random() < 0.7
    text = json.dumps(damage_tree(json.loads(text), chance)) if whole else damage_text(text, chance)
    (folder / "probe.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    _ = str(ProbeResult.load(folder / "probe.json"))


def trec(folder: Path, chance: Chance) -> None:
    """A damaged run, or damaged qrels, of TREC."""
    run = "".join(f"q{row // 4} Q0 d{row % 4} {row % 4 + 1} {1 - row % 4 / 8} tag\n" for row in range(12))
    qrels = "".join(f"q{row // 4} 0 d{row % 4} {row % 2}\n" for row in range(12))
    damaged = {"run": run, "qrels": qrels}
    name = chance.choice(("run", "qrels"))
    damaged[name] = damage_text(damaged[name], chance)
    for one, text in damaged.items():
        content = text.encode("utf-8", "surrogatepass")
        (folder / one).write_bytes(damage_bytes(content, chance) if chance.random() < 0.2 else content)
    print_report(evaluate_run(read_run(folder / "run"), read_qrels(folder / "qrels")))


@functools.cache
def _index_files(factory: str) -> dict[str, bytes]:
    import tempfile

    rows = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        Index.build(rows, factory).save(Path(name) / "index")
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


def index(folder: Path, chance: Chance) -> None:
    """A damaged index, or a damaged description of one, searched where it is read."""
    files, other = dict(_index_files(chance.choice(("Flat", "HNSW8", "SQ8")))), _index_files("Flat")
    name = chance.choice(("index", "index", "index.json"))
    files[name] = damage_bytes(files[name], chance, other[name])
    for one, content in files.items():
        (folder / one).write_bytes(content)
    Index.load(folder / "index").search(np.ones((2, 8), dtype=np.float32), 3)


# -- checkpoints ------------------------------------------------------------------------------------------------------


@functools.cache
def _run() -> tuple[bytes, bytes]:
    """Return best.pt and last.pt of two steps on the digits."""
    import tempfile

    settings = {
        "data": {"name": "digits", "image_size": 16, "channels": 1, "test_transform": {"name": "resize"}},
        "sampler": {"batch": 8},
        "model": {"backbone": "test_resnet", "pretrained": False, "dim": 4},
        "loss": {"name": "soprc"},
        "optim": {"lr": 1e-3},
        "train": {"steps": 2, "validate_every": 2},
    }
    with tempfile.TemporaryDirectory() as name:
        aurank.train(settings, Path(name) / "run")
        return (Path(name) / "run/best.pt").read_bytes(), (Path(name) / "run/last.pt").read_bytes()


def _nested(depth: int, item: Any) -> Any:
    """Return lists in lists, each of which refers ten times to the one below: small in a file, endless to a walk."""
    for _ in range(depth):
        item = [item] * 10
    return item


def checkpoint(folder: Path, chance: Chance) -> None:
    """A checkpoint with damaged bytes, or written anew with other content and no word of it."""
    best, last = _run()
    content = chance.choice((best, last))
    file = folder / "best.pt"
    how = chance.random()
    if how < 0.05:
        whole = torch.load(io.BytesIO(content), weights_only=True)
        key = chance.choice(sorted(whole))
        torch.save({**whole, key: _nested(chance.choice((3, 30)), whole[key])}, file)
    elif how < 0.5:
        file.write_bytes(damage_bytes(content, chance, last))
    else:
        values = (
            *HOSTILE_VALUES,
            torch.zeros(2),
            torch.zeros(0),
            torch.full((3, 3), torch.nan),
            torch.zeros(4, dtype=int),
        )
        torch.save(damage_tree(torch.load(io.BytesIO(content), weights_only=True), chance, values), file)
    aurank.load(file)


SUBJECTS: dict[str, Callable[[Path, Chance], None]] = {
    "config": config,
    "table": table,
    "lists": lists,
    "benchmark": benchmark,
    "image": image,
    "archive": archive,
    "embeddings": embeddings,
    "report": report,
    "probe": probe,
    "trec": trec,
    "index": index,
    "checkpoint": checkpoint,
}
