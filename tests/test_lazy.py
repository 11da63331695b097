"""Names that are imported when they are first used."""

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aurank
from aurank.embedding.settings import KNOWN_BACKBONES
from aurank.lazy import LazyTable
from aurank.models.adapters.timm import wrong_names


def test_a_package_is_pickled_by_its_name_as_workers_of_other_programs_need() -> None:
    for package in map(importlib.import_module, ("aurank", "aurank.losses")):
        assert pickle.loads(pickle.dumps(package)) is package


def test_a_table_lists_its_names_without_importing_them_and_takes_further_ones() -> None:
    table: LazyTable[object] = LazyTable("json", {"dumps": "nowhere:dumps", "encoder": "encoder:JSONEncoder"})
    assert "dumps" in table
    assert list(table) == ["dumps", "encoder"]
    assert len(table) == 2
    assert table["encoder"].__name__ == "JSONEncoder"
    with pytest.raises(ImportError):
        table["dumps"]
    table["dumps"] = len
    assert table["dumps"] is len
    assert list(table) == ["dumps", "encoder"]
    del table["dumps"]
    assert "dumps" not in table
    with pytest.raises(KeyError):
        table["dumps"]


LATE = {
    "saved embeddings are measured without training, albumentations or timm": """
unwanted = {"aurank.training", "albumentations", "timm"}
import aurank.commands
assert not unwanted & sys.modules.keys()
from aurank.cli import main
sys.argv = ["aurank", "evaluate", "--model", "embeddings:rows.npz", "--out", "out"]
main()
""",
    "losses are listed without torch and used without timm": """
import aurank.losses
assert "soprc" in aurank.losses.LOSSES and "hdc" in aurank.losses.MINERS and "SOPRCLoss" in dir(aurank.losses)
assert "torch" not in sys.modules
assert {name: getattr(aurank.losses, name) for name in aurank.losses.__all__}
unwanted = {"timm", "torchvision"}
""",
    "commands import drawing, statistics and tables where they use them": """
from aurank.commands import ImageIndex, build_index, calibrate_model, evaluate_model, search_photos
from aurank.training import read_config
read_config("digits/soprc")
unwanted = {"matplotlib", "sklearn", "numba", "pandas", "pyarrow", "timm", "torchvision", "accelerate"}
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LATE)
def test_what_is_heavy_is_imported_late(name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", embeddings=np.eye(2)[[0, 0, 1, 1]], labels=[5, 5, 6, 6])
    code = f"import sys\n{LATE[name]}\nassert not unwanted & sys.modules.keys(), unwanted & sys.modules.keys()"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "out" / "report.json").exists() is ("measured" in name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KNOWN_BACKBONES - {"none"}))
def test_a_backbone_that_is_taken_as_known_is_timms(name: str) -> None:
    assert wrong_names(name, {}) == {}


def test_no_folder_has_the_name_of_something_public_beside_it() -> None:
    # `import package.folder.file as name` would look for the file in the function
    root = Path(aurank.__file__).parents[1]
    for init in (root / "aurank").rglob("__init__.py"):
        folders = {path.parent.name for path in init.parent.glob("*/__init__.py")}
        package = importlib.import_module(".".join(init.parent.relative_to(root).parts))
        assert not folders & set(getattr(package, "__all__", [])), init


REFUSED = {
    "train digits/soprc --out full": "--out full is not empty",
    "evaluate --model embeddings:gone.npz --out new": "gone.npz",
    "evaluate --model timm:resnet18 --data digits: --out other": "--out other holds the result of another command",
    "embed --model aurank:gone --data folder:gone --out rows.npz": "no checkpoint at gone",
    "embed --model timm:resnet18 --data digits: --out rows.lance": "rows.lance needs pylance",
    "index build --model timm:resnet18 --data digits: --out full": "--out full holds other files",
    "search gone x.jpg": "no index at gone",
    "export gone/best --to onnx --out full": "--out full holds 'file'",
    "compare gone gone": "gone",
    "doctor folder:full --html page.txt": "page.txt",
    "init gone": "gone: there is no such file or folder",
    "init full": "mine.yaml exists already; name another file, or replace it with --overwrite",
    "evaluate --model open_clip:ViT-B-32 --data digits: --out new": "needs open-clip-torch, which cannot be imported",
    "evaluate --model timm:resnet18 --data digits: --out new --index Flat": "a search by faiss needs faiss",
    "index build --model timm:resnet18 --data digits: --to milvus:a.db#b": "a gallery in Milvus needs pymilvus",
    "tune digits/soprc --out new": "aurank tune needs optuna",
    "serve index": "needs faiss",
}


@pytest.mark.slow
def test_what_needs_no_model_is_refused_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    files = {"full/file": "", "broken.yaml": "loss: [", "index/index.json": "{}", "mine.yaml": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/report.json").write_text('{"command": "another"}')
    code = """
import shlex, sys
from aurank.cli import main
sys.modules |= dict.fromkeys(("faiss", "lance", "open_clip", "optuna", "pymilvus"))  # as if they were not there
for command in sys.stdin.read().splitlines():
    sys.argv = ["aurank", *shlex.split(command)]
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, command
    heavy = {"torch", "matplotlib", "scipy", "sklearn", "numba", "pandas", "pyarrow", "timm", "transformers"}
    heavy &= sys.modules.keys()
    assert not heavy, f"{command} imports {heavy}"
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    how = {"capture_output": True, "text": True, "cwd": tmp_path, "env": environment}
    done = subprocess.run([sys.executable, "-c", code], input="\n".join(REFUSED), check=False, **how)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(REFUSED)
    for line, (command, named) in zip(lines, REFUSED.items(), strict=True):
        assert named in line, command
