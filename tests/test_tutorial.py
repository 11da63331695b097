"""The tutorial runs from its first command to its last, on what those before it left; so do the notebooks."""

import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from PIL import Image
from testing.pages import ROOT, commands
from testing.processes import Shell

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SMALL = ["model.backbone=test_efficientnet", "model.pretrained=false", "train.steps=4", "optim.warmup_steps=1"]
STAND_INS = {
    r"timm:tf_efficientnet_lite0(,weights=[^,]+)?": "timm:test_efficientnet,pretrained=false",
    r"onnx:exported/onnx/model.onnx": "timm:local-dir:exported/onnx",  # a graph takes long to write
    r"^onnx$": "hf",
}


def photo(label: int, random: np.random.Generator, height: int) -> Image.Image:
    """Return noise before the colours of a class."""
    shown = random.integers(0, 80, (height, 40, 3)) + np.random.default_rng(label).integers(
        0, 175, (height // 8, 5, 3)
    ).repeat(8, axis=0).repeat(8, axis=1)
    return Image.fromarray(shown.astype(np.uint8))


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in a folder that holds what a reader of the tutorial has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AURANK_CACHE", "cache")
    random = np.random.default_rng(0)
    for label in range(12):
        Path(f"photos/thing{label}").mkdir(parents=True)
        for number in range(5):
            photo(label, random, 40).save(f"photos/thing{label}/{number}.png")
    photo(0, random, 40).save("photo.jpg")
    return tmp_path


@pytest.mark.slow
def test_the_tutorial_runs_from_above(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(monkeypatch, capsys)
    told = [words for place, words in commands() if place.startswith("docs/tutorial.md")]
    assert len(told) > 12
    written: set[str] = set()
    for words in told:
        assert words[0] == "aurank"
        for pattern, replacement in STAND_INS.items():
            words = [re.sub(pattern, replacement, word) for word in words]
        if words[1] == "train":
            words = [*words, *SMALL]
        if words[1] == "serve":  # ends when it is interrupted
            words = [*words[:2], "--help"]
        if "--out" in words and (out := words[words.index("--out") + 1]) in written:
            continue  # the same again with weights of a file
        elif "--out" in words:
            written.add(out)
        code, _, complaint = shell(*words[1:])
        assert not code or (words[1] == "doctor" and code == 1), complaint  # noise makes poor photos
    for name in ("mine.yaml", "doctor.html", "before/report.html", "runs/mine/best.safetensors", "compare.html"):
        assert (photos / name).is_file(), name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, 4).cells
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_plots_and_reports(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("AURANK_CACHE", str(tmp_path / "cache"))
    notebook = nbformat.read(path, 4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = {kind for output in outputs for kind in output.get("data", ())}
    assert "image/png" in shown
    said = [output.text for output in outputs if output.get("name") == "stderr"]
    assert not [text for text in said if "IProgress" not in text]  # a bar of tqdm, where ipywidgets are not installed
