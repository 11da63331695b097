"""What is published: the wheel, the archive of sources, and what they say about themselves."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from packaging.metadata import Metadata
from ruamel.yaml import YAML

import aurank

ROOT = Path(__file__).parent.parent


def build(source: Path, out: Path, kind: str) -> Path:
    """Build a wheel or an sdist of a tree of sources, without the network; return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = out.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


def test_every_place_names_the_same_version_and_authors() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = YAML(typ="safe").load(ROOT / "CITATION.cff")
    assert project["version"] == aurank.__version__ == citation["version"]
    entries = [line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line[:3] == "## "]
    assert entries[0].split()[1] == project["version"]
    names = [
        author.get("name") or f"{author['given-names']} {author['family-names']}" for author in citation["authors"]
    ]
    assert names == [author["name"] for author in project["authors"]]
    addresses = set(project["urls"].values())
    assert {citation[key] for key in ("url", "repository-code") if key in citation} <= addresses


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_the_configurations_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = Metadata.from_email(archive.read(next(name for name in names if name.endswith("/METADATA"))))
    shipped = [(path, "aurank" / path.relative_to(ROOT / "aurank")) for path in (ROOT / "aurank").rglob("*")]
    shipped += [(path, "aurank" / path.relative_to(ROOT)) for path in (ROOT / "configs").rglob("*")]
    expected = {to.as_posix() for path, to in shipped if path.is_file() and "__pycache__" not in path.parts}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert {"aurank/py.typed", "aurank/configs/digits/soprc.yaml"} <= expected
    assert {PurePosixPath(name).suffix for name in expected} >= {".html", ".css", ".js", ".toml", ".md"}
    assert str(metadata.version) == aurank.__version__  # Metadata has checked each field
    assert metadata.description_content_type == "text/markdown"
    assert {"all", "train", "cli", "index", "gpu", "milvus", "serve", "export"} <= {*(metadata.provides_extra or ())}


@pytest.mark.slow
def test_the_archive_of_sources_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build(ROOT, tmp_path / "sdist", "sdist")) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(tmp_path)
    source = tmp_path / f"aurank-{aurank.__version__}"
    assert build(source, tmp_path / "wheel", "wheel").read_bytes() == wheel.read_bytes()
    for needed in ("docs/index.md", "tests/public_names.txt", "tools", "SECURITY.md", "CITATION.cff", "Makefile"):
        assert (source / needed).exists(), needed


@pytest.mark.slow
def test_a_wheel_runs_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    work = tmp_path / "work"
    work.mkdir()
    uses = """
import sys
import numpy as np
import aurank
from aurank.__main__ import main
assert aurank.__file__.startswith(sys.argv[1]), aurank.__file__
np.savez("rows.npz", embeddings=np.eye(2)[[0, 0, 1, 1]], labels=[5, 5, 6, 6])
TRAIN = "train digits/soprc train.steps=2 optim.warmup_steps=0 --out run"
for words in ("ls", "config digits/soprc", "evaluate --model embeddings:rows.npz --out out", TRAIN):
    sys.argv = ["aurank", *words.split()]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, words
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "unpacked")}
    command = [sys.executable, "-c", uses, str(tmp_path / "unpacked")]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "digits/soprc" in done.stdout
    assert (work / "out/report.html").is_file()
    assert (work / "run/best.safetensors").is_file()
