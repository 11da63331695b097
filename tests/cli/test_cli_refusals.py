"""What cannot be meant: exit code 2, one line that names it, nothing written."""

import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from testing.galleries import MODEL, small_index, write_photos

from aurank.commands.prepare import prepare_data
from aurank.data.prepared import IMAGES
from aurank.evaluation import evaluate
from aurank.evaluation.postprocessing import PostProcessing
from aurank.files import claimed

TIMM = "evaluate --model timm:test_resnet,pretrained=false --out x"
SAVED = "evaluate --model embeddings:rows.npz --out x"
PROBE = "probe --model timm:test_resnet,pretrained=false --data folder:photos --out x"
CALIBRATE = "calibrate --model embeddings:rows.npz"
MINE = "mine --out x --model embeddings:"
SEARCH = "search index"
CLEAN = "doctor folder:photos --out clean.csv --fix repeats"

REFUSED = {
    "train no-such.yaml": "no-such.yaml",
    "train omniglot/soprc data.root=nowhere --dry-run": "omniglot",
    "train --no-such": "--no-such",
    "cp omniglot/sopcr other.yaml": "omniglot/soprc",
    "data check spo": "the published set must be one of",
    "cp omniglot/soprc photos/a/0.png": "exists already",
    "evaluate --model resnet18 --out x": "expected a run (aurank:DIR/best), embeddings:FILE",
    "evaluate --model embeddings:rows.npz --out photos/a/0.png": "--out",
    f"{TIMM} --data folder:photos --labels rows.npz": "--labels rows.npz has no use",
    f"{SAVED} --labels a.npy": "a.npy: there is no such file or folder",
    "evaluate --model timm:resnet18,weights=none.pt --out x": "none.pt: there is no such file or folder",
    "train digits/soprc model.weights=none.pt --out x": "none.pt: cannot be read",
    f"{SAVED} optim.lr=1": "optim.lr=1: only data",
    f"{SAVED} --data folder:photos": "folder:photos has no use",
    f"{SAVED} --recall-at one": "'--recall-at': 'one' is not",
    f"{SAVED} --rescore 5": "--rescore needs --dims or --precision",
    f"{TIMM}": "say which images to embed",
    f"{TIMM} --data folder:none": "none does not exist",
    f"{TIMM} --data photos": "expected READER:PATH, such as folder:photos",
    f"{TIMM} --data csv:one.csv": "expected READER:PATH, such as folder:one.csv",
    f"{TIMM} --data foldr:photos": "expected READER:PATH, such as folder:photos",
    f"{TIMM} --data folder:photos --device cuda:77": "cpu always can",
    f"{TIMM} --data folder:photos --no-cache --cache y": "--cache does not go with --no-cache",
    f"{TIMM} --protocol sop --root .": "Stanford_Online_Products",
    f"{TIMM} --protocol sop --data folder:photos": "--protocol does not go with --data",
    f"{TIMM} --protocol sop --split val": "--protocol does not go with --split",
    f"{TIMM} --protocol sopp": "did you mean 'sop'",
    f"{TIMM} --root . --data folder:photos": "--root needs --protocol",
    "embed --model embeddings:rows.npz --out parts": "these are embeddings already; name a model",
    "probe --model timm:test_resnet,pretrained=false --data table:twice.csv --out x": "'photos/a/0.png' twice",
    f"{PROBE} --protocol kn": "got 'kn'",
    f"{PROBE} --protocol 5way-1shot": "it needs 5 classes of 2 images or more",
    f"{PROBE} --protocol 2way-1shot-within": "these rows have none: leave -within out",
    f"{PROBE} --protocol omniglot-20way-1shot-unstructured": "whose files end in _01.png to _20.png",
    f"{PROBE} --labels rows.npz": "the labels come with the images",
    f"{PROBE} --split val": "no images in split 'val'",
    CALIBRATE: "give a precision above 0",
    f"{CALIBRATE} --precision 0.9 --out photos/a/0.png": "photos/a/0.png",
    f"{CALIBRATE} --precision 0.9 --fit-on rows.npz": "--fit-on needs --postprocess",
    "compare measured": "needs two reports or more; got measured",
    "compare measured measured --out page.txt": "--out page.txt",
    "doctor": "say what to examine",
    "doctor photos": "such as folder:photos",
    "doctor grocery/soprc data.root=nowhere": "grocery",
    "doctor folder:photos --embeddings rows.npz": "--embeddings does not go with DATA",
    "doctor folder:photos --labels rows.npz": "--labels needs --embeddings",
    "doctor folder:photos --fix repeats": "--fix needs --out",
    "doctor folder:photos --fix repeats --out clean.txt": "name it clean.csv",
    f"{CLEAN},repeat": "no finding is named 'repeat'; did you mean",
    f"{CLEAN},labels": "--fix labels needs --model",
    "doctor digits: --fix repeats --out clean.csv": "images of digits are no files",
    f"{CLEAN},suspects": "--fix suspects needs --negatives",
    "doctor folder:photos --negatives no.parquet": "no.parquet",
    f"{MINE}rows.npz --data folder:photos": "--data folder:photos has no use with --model",
    f"{MINE}rows.npz --per-query 0": "--per-query",
    f"{MINE}rows.npz --distance manhattan": "distance must be one of",
    "evaluate --model embeddings:pickled.npy --out x": "pickled.npy: cannot be read as plain arrays",
    "evaluate --model embeddings:one.csv --out x": "neither an archive nor an array of NumPy",
    "evaluate --model rows.npz --data folder:photos --out x": "saved embeddings are embeddings:FILE",
    "compare rows.npz bare.json": "name the --out folder of aurank evaluate",
    f"{MINE}lone.npz": "no image of lone.npz has a positive, and a negative",
    f"{MINE}repeated.npz": "'b'",
    f"{SEARCH} photos/a/0.png --class c7": "the index has no class 'c7'",
    f"{SEARCH} photos/a/0.png --k 0": "--k",
    f"{SEARCH} photos/a/0.png --html page.txt": "is of type .html",
    f"{SEARCH} photos/a/0.png --device nope": "--device 'nope' cannot be used here",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved embeddings, a report and a table of images, to be copied."""
    folder = tmp_path_factory.mktemp("files")
    rows = np.random.default_rng(1).normal(size=(60, 12)).astype(np.float32)
    labels = np.arange(60) % 6
    np.savez(folder / "rows.npz", embeddings=rows, labels=labels)
    evaluate(rows, labels, neighbours=5).save(folder / "measured" / "report.json")
    evaluate(rows, labels).save(folder / "bare.json")
    lines = ["path,label,split", *(f"photos/a/{row}.png,a,test" for row in range(4))]
    (folder / "one.csv").write_text("\n".join(lines) + "\n")
    np.savez(folder / "lone.npz", embeddings=np.eye(3), labels=[0, 1, 2])
    np.savez(folder / "repeated.npz", embeddings=np.eye(3), labels=[0, 0, 1], paths=["a", "b", "b"])
    np.save(folder / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    (folder / "no.parquet").write_bytes(b"no")
    small_index(write_photos(folder / "indexed", classes=1, images=2), folder / "index")
    (folder / "twice.csv").write_text("\n".join([*lines, "photos/a/0.png,a,test"]) + "\n")
    return folder


@pytest.mark.parametrize("command", REFUSED)
def test_what_cannot_be_meant_is_one_line_and_writes_nothing(place, files, aurank, command):
    shutil.copytree(files, place, dirs_exist_ok=True)
    before = {path.relative_to(place) for path in place.rglob("*")}
    code, output, complaint = aurank(*shlex.split(command))
    assert (code, output) == (2, "")
    assert REFUSED[command] in complaint
    assert complaint.count("\n") == 1
    assert {path.relative_to(place) for path in place.rglob("*")} == before


# -- Two commands that write to one place: the second ends with one line, before it reads anything

# What these name is no model and no report: a command that read it would say so.
IN_USE = [
    "evaluate --model timm:resnet18 --out out",
    "embed --model timm:resnet18 --out out",
    "calibrate --model timm:resnet18 --precision 0.9 --out out",
    "index build --model timm:resnet18 --out out",
    "demo --out out",
    "data prepare digits/soprc --out out",
    "embed --model timm:resnet18 --out rows.npz",
    f"compare {os.devnull} {os.devnull} --out page.html",
]


@pytest.mark.parametrize("command", IN_USE)
def test_the_second_command_that_writes_to_one_place_ends_at_once(command, aurank, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *words, out = command.split()
    with claimed(Path(out), is_file="." in out):
        complaint = aurank.refused(*words, out)
        assert "." not in out or "is in use" not in aurank(*words, f"other-{out}")[2]
    assert complaint.startswith(f"error: --out {out} is in use by another process")
    assert complaint.endswith("; wait for it or stop it, or name another place\n")
    assert not list(tmp_path.iterdir())


# -- Files whose damage no checksum tells: exit code 2 and one line that names the file


def steps_that_are_no_text(folder: Path) -> tuple[str, str]:
    rows = np.random.default_rng(0).normal(size=(12, 4))
    np.savez(folder / "e.npz", embeddings=rows, labels=np.arange(12) // 3)
    file = folder / "steps.safetensors"
    PostProcessing.parse("center").fit(rows).save(file)
    content = file.read_bytes()
    end = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:end])
    bundle = json.loads(header["__metadata__"]["bundle"])
    bundle["content"] = json.dumps({**json.loads(bundle["content"]), "steps": 5})
    header["__metadata__"]["bundle"] = json.dumps(bundle)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[end:])
    return "evaluate --model embeddings:e.npz --postprocess steps.safetensors --out out", "steps.safetensors"


def a_schema_of_other_bytes(folder: Path) -> tuple[str, str]:
    data = {"name": "folder", "root": str(folder), "params": {"path": "photos"}, "channels": 3, "image_size": 16}
    sections = {"sampler": {"batch": 8}, "loss": {"name": "soprc"}, "optim": {"lr": 0.1}, "train": {"steps": 1}}
    config = {"data": {**data, "odd_classes": "keep"}, "model": {"backbone": "test_resnet"}, **sections}
    (folder / "config.yaml").write_text(json.dumps(config))
    prepare_data(config, folder / "store", short_side=16)
    file = folder / "store" / IMAGES
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"\xff" * 200 + content[300:])
    return f"evaluate --model {MODEL} --data config.yaml data.prepared=store --no-cache --out out", "store"


@pytest.mark.slow
@pytest.mark.parametrize("damage", [steps_that_are_no_text, a_schema_of_other_bytes])
def test_a_damaged_file_ends_in_one_line_with_its_name(damage, tmp_path):
    write_photos(tmp_path / "photos", classes=2, images=2)
    command, name = damage(tmp_path)
    # In a process of its own, without the checks of types that the tests have.
    ended = subprocess.run(
        [sys.executable, "-m", "aurank", *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 2, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert name in line
