"""`aurank evaluate`, `compare` and `data check` as typed, with models and images from elsewhere."""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

from aurank import __version__, cli
from aurank.evaluation import Report


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with eight photos in two classes, where commands are given."""
    for row in range(8):
        path = tmp_path / "photos" / "ab"[row // 4] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(row).integers(0, 120, (40, 40, 3), dtype=np.uint8)
        pixels[:, :, row // 4] += 120
        Image.fromarray(pixels).save(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AURANK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


class Shell:
    """Runs a command in this process; returns its exit code, output and complaints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["aurank", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err


@pytest.fixture
def aurank(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


TIMM = ("evaluate", "--model", "timm:test_resnet,pretrained=false", "--data", "folder:photos", "--recall-at", "1,3")


def test_a_timm_model_is_measured_twice_and_embedded_once(place: Path, aurank: Shell) -> None:
    code, first, said = aurank(*TIMM, "--out", "one")
    assert (code, said) == (0, "")
    assert sorted(path.name for path in (place / "one").iterdir()) == [
        "per_query.parquet", "pr_curve.png", "report.json"
    ]  # fmt: skip
    code, second, said = aurank(*TIMM, "--out", "two")
    assert code == 0
    assert said.startswith("read 8 embeddings from the cache")
    assert second.replace("two", "one") == first
    for name in ("per_query.parquet", "report.json"):
        assert (place / "one" / name).read_bytes() == (place / "two" / name).read_bytes()
    code, _, said = aurank(*TIMM, "--out", "three", "--no-cache")
    assert (code, said) == (0, "")
    assert len(pyarrow.parquet.read_table(place / "one" / "per_query.parquet")) == 8


def test_intervals_are_asked_for_and_seeded(place: Path, aurank: Shell) -> None:
    code, output, _ = aurank(*TIMM, "--out", "one", "--intervals", 200, "--seed", 3)
    assert code == 0
    assert "seed 3" in output
    assert Report.load(place / "one" / "report.json").intervals is not None
    code, _, complaint = aurank(*TIMM, "--out", "two", "--intervals", 5)
    assert code == 2
    assert "resamples must be 100 or more" in complaint
    assert not (place / "two").exists()


def test_intervals_that_cannot_be_had_do_not_lose_the_evaluation(place: Path, aurank: Shell) -> None:
    np.savez(place / "one.npz", embeddings=np.random.default_rng(0).normal(size=(9, 4)), labels=np.zeros(9, int))
    code, output, _ = aurank("evaluate", "--model", "embeddings:one.npz", "--out", "one", "--intervals", 200)
    assert code == 0
    assert "no intervals: an interval needs queries of 2 classes" in output
    assert Report.load(place / "one" / "report.json").intervals is None


def test_two_reports_are_compared(place: Path, aurank: Shell) -> None:
    assert aurank(*TIMM, "--out", "one")[0] == 0
    Report.load(place / "one" / "report.json").save(place / "two.json")
    code, output, _ = aurank("compare", "one", "two.json", "--metric", "recall@1", "--resamples", 100)
    assert code == 0
    assert output.startswith("recall@1")
    assert "8 equal" in output
    code, _, complaint = aurank("compare", "one", "none.json")
    assert code == 2
    assert complaint.startswith("error: cannot read the report none.json")


def test_an_incomplete_data_set_ends_with_2_and_says_what_is_missing(place: Path, aurank: Shell) -> None:
    code, output, _ = aurank("data", "check", "sop", "--root", place)
    assert code == 2
    assert "Stanford Online Products" in output
    assert "not complete" in output
    code, _, complaint = aurank("data", "check", "spo")
    assert code == 2
    assert "no benchmark 'spo' to check" in complaint


def test_the_version_is_told(aurank: Shell) -> None:
    assert aurank("--version")[:2] == (0, f"aurank {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "folder:none", "--out", "x"], "there is no none"),
        (["--data", "photos", "--out", "x"], "expected READER:PATH, such as folder:photos"),
        (["--data", "folder:photos", "--out", "x", "data.params.test_fraction=0"], "with --split train"),
        (["--out", "x"], "say which images to embed"),
        (["--data", "folder:photos", "--out", "photos/a/0.png"], "is a file"),
        (["--data", "folder:photos", "--out", "x", "--device", "cuda:77"], "cpu always can"),
        (["--data", "folder:photos", "--out", "x", "--ties", "fair"], "ties must be one of"),
        (["--data", "folder:photos", "--out", "x", "--no-cache", "--cache", "y"], "exclude each other"),
        (["--protocol", "sop", "--root", ".", "--out", "x"], "Stanford_Online_Products"),
        (["--query", "q.csv", "--out", "x"], "go together"),
        (["--protocol", "sop", "--seeds", "a", "--out", "x"], "expected whole numbers and commas"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_writes_nothing(
    place: Path, aurank: Shell, arguments: list[str], message: str
) -> None:
    code, output, complaint = aurank("evaluate", "--model", "timm:test_resnet,pretrained=false", *arguments)
    assert (code, output) == (2, "")
    assert message in complaint
    assert complaint.count("\n") == 1
    assert sorted(path.name for path in place.iterdir()) == ["photos"]


def test_pickled_embeddings_are_refused(place: Path, aurank: Shell) -> None:
    np.save(place / "rows.npy", np.array([{}], dtype=object), allow_pickle=True)
    code, _, complaint = aurank("evaluate", "--model", "embeddings:rows.npy", "--out", "x")
    assert code == 2
    assert "pickled objects, which are refused" in complaint


def test_ones_own_function_needs_leave(place: Path, aurank: Shell) -> None:
    (place / "own_model.py").write_text("import torch\ndef build():\n    return torch.nn.AdaptiveAvgPool2d(1)\n")
    command = ("evaluate", "--model", "python:own_model:build", "--data", "folder:photos", "--out", "x")
    code, _, complaint = aurank(*command)
    assert code == 2
    assert "add --allow-code" in complaint
    code, _, complaint = aurank(*command, "--allow-code")
    assert code == 2
    assert "the model returned (8, 3, 1, 1)" in complaint
    assert not (place / "x").exists()
    sys.modules.pop("own_model")


@pytest.mark.parametrize(("option", "value"), [("distance", "euclidean"), ("index", "Flat")])
def test_distance_and_index_reach_the_engine(place: Path, aurank: Shell, option: str, value: str) -> None:
    code, _, complaint = aurank(*TIMM, "--out", "x", f"--{option}", value)
    assert code == 0, complaint
    assert 0 < Report.load(place / "x" / "report.json").mauprc <= 1
