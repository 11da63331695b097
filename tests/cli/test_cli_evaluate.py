"""`aurank evaluate` and `data check` as typed: models and images from elsewhere, pages, codes."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from aurank.evaluation import PostProcessing, Report

PHOTOS = ("--data", "folder:photos", "--recall-at", "1,3", "data.odd_classes=keep")
TIMM = ("evaluate", "--model", "timm:test_resnet,pretrained=false", *PHOTOS)
ROWS = ("evaluate", "--model", "embeddings:rows.npz", "--out")
CHANCE = np.random.default_rng(1)
LABELS = np.arange(60) % 6
EMBEDDINGS = (CHANCE.normal(size=(6, 12))[LABELS] + CHANCE.normal(size=(60, 12)) + 1).astype(np.float32)


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with saved embeddings, where commands are given."""
    paths = np.array([f"{row}.png" for row in range(60)])
    np.savez(tmp_path / "rows.npz", embeddings=EMBEDDINGS, labels=LABELS, paths=paths)
    np.savez(tmp_path / "train.npz", embeddings=EMBEDDINGS[:30], labels=LABELS[:30])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report_of(name: str) -> Report:
    return Report.load(Path(name) / "report.json")


@pytest.mark.slow
def test_a_timm_model_is_measured_twice_and_embedded_once(place, aurank):
    code, first, said = aurank(*TIMM, "--out", "one")
    assert (code, said) == (0, "")
    names = sorted(path.name for path in (place / "one").iterdir())
    assert names == ["per_class.csv", "per_query.parquet", "report.html", "report.json"]
    second, said = aurank.done(*TIMM, "--out", "two")
    assert said.startswith("read 8 embeddings from the cache")
    assert second.replace("two", "one") == first
    assert (place / "one" / "per_query.parquet").read_bytes() == (place / "two" / "per_query.parquet").read_bytes()
    reports = [json.loads((place / name / "report.json").read_text()) for name in ("one", "two")]
    made = [(report.pop("command"), report.pop("date")) for report in reports]
    assert made[0][0] == " ".join(["cd", str(place), "&&", "aurank", *TIMM, "--out", "one"])
    assert reports[0] == reports[1]
    options = ("--no-cache", "--distance", "euclidean", "--index", "Flat", "--show-class", "a")
    code, _, said = aurank(*TIMM, "--out", "three", *options)
    assert (code, said) == (0, "")
    assert json.loads(Path("three/report.json").read_text())["distance"] == "euclidean"
    page = Path("three/report.html").read_text()
    assert page.count("<img") >= 6
    assert "Class a" in page
    table = pyarrow.parquet.read_table(place / "one" / "per_query.parquet")
    assert table["path"].to_pylist() == [f"{'ab'[row // 4]}/{row}.png" for row in range(8)]
    assert table["class"].to_pylist() == ["a"] * 4 + ["b"] * 4


@pytest.mark.slow
def test_a_result_is_replaced_by_its_own_command_or_when_asked_for(rows, aurank, monkeypatch):
    other = ("evaluate", "--model", "embeddings:train.npz", "--out", "out")
    assert [aurank(*ROWS, "out")[0] for _ in range(2)] == [0, 0]
    before = (rows / "out" / "report.json").read_bytes()
    complaint = aurank.refused(*other)
    assert f"--out out holds the result of another command (cd {rows} && aurank evaluate --model emb" in complaint
    assert "--overwrite" in complaint
    assert (rows / "out" / "report.json").read_bytes() == before
    assert [aurank(*other, "--overwrite")[0], aurank(*other)[0]] == [0, 0]
    # The same words in another folder are another command.
    (rows / "else").mkdir()
    (rows / "train.npz").rename(rows / "else" / "train.npz")
    monkeypatch.chdir(rows / "else")
    assert "holds the result of another command" in aurank(*other[:-1], rows / "out")[2]
    (rows / "out" / "report.json").write_text("{}")
    assert "holds the result of something else" in aurank(*other[:-1], rows / "out")[2]


@pytest.mark.slow
def test_a_page_with_intervals_is_written_unless_it_is_switched_off(rows, aurank):
    seeded = ("--intervals", 200, "--seed", 3)
    for words, resamples, lists in (((), 1000, 10), (seeded, 200, 10), (("--no-report",), 0, 0)):
        output, _ = aurank.done(*ROWS, "out", "--overwrite", *words)
        report = report_of("out")
        assert (0 if report.intervals is None else report.intervals.resamples) == resamples
        assert ("95 % interval" in output) == bool(resamples)
        assert (0 if report.neighbours is None else report.neighbours.row.shape[1]) == lists
        assert Path("out/report.html").exists() == bool(lists)
        assert ("to look at: out/report.html" in output) == bool(lists)
    aurank(*ROWS, "out", "--overwrite")
    page = Path("out/report.html").read_text(encoding="utf-8")
    between = report_of("out").interval("recall@1")
    assert f"<small>{between}</small>" in page  # in the box, and in all numbers
    assert f"<td>{between}</td>" in page
    assert "Worst queries" in page
    assert "<img" not in page
    assert Path("out/per_class.csv").read_text().startswith("class,num_queries,mauprc,")


@pytest.mark.slow
def test_what_a_page_lacks_does_not_lose_the_numbers(rows, aurank):
    complaint = aurank.refused(*ROWS, "measured", "--show-class", "9", "--neighbors", "3")
    assert "no query of class '9' was measured" in complaint
    assert report_of("measured").neighbours is not None
    assert not (rows / "measured" / "report.html").exists()


@pytest.mark.slow
def test_steps_are_measured_beside_plain_numbers_and_kept(rows, aurank):
    steps = "center, whiten:dim=4, k_reciprocal:k1=5,k2=2"
    said, _ = aurank.done(*ROWS, "out", "--postprocess", steps, "--fit-on", "train.npz")
    report = report_of("out")
    between = report.interval("mauprc")
    assert f"{report.mauprc:.4f}  {between}  (plain {report.postprocessing['plain']['mauprc']:.4f})" in said
    assert "k_reciprocal is transductive" in said
    kept = PostProcessing.load(rows / "out/postprocessing.safetensors")
    assert (str(kept), kept.fitted_rows) == (steps, 30)
    assert aurank(*ROWS, "again", "--postprocess", "out/postprocessing.safetensors")[0] == 0
    assert report_of("again").metrics == report.metrics
    assert aurank(*ROWS, "out", "--overwrite")[0] == 0
    assert not [path for path in (rows / "out").iterdir() if "postprocessing" in path.name]
    assert "\x1b" not in aurank.refused(*ROWS, "red", "--postprocess", "\x1b[31mred")


def test_an_incomplete_data_set_ends_with_2_and_says_what_is_missing(place, aurank):
    code, output, _ = aurank("data", "check", "sop", "--root", place)
    assert code == 2
    assert "Stanford Online Products" in output
    assert "not complete" in output


@pytest.mark.slow
def test_ones_own_function_needs_leave(place, aurank):
    (place / "own_model.py").write_text("import torch\ndef build():\n    return torch.nn.AdaptiveAvgPool2d(1)\n")
    command: tuple[Any, ...] = ("evaluate", "--model", "python:own_model:build", *TIMM[3:], "--out", "x")
    assert "add --allow-code" in aurank.refused(*command)
    assert "the model returned (8, 3, 1, 1)" in aurank.refused(*command, "--allow-code")
    assert not (place / "x").exists()
    sys.modules.pop("own_model")


@pytest.mark.parametrize("command", ["evaluate", "embed", "probe"])
def test_what_is_refused_while_embedding_leaves_no_folder(place, aurank, command):
    (place / "photos" / "a" / "0.png").write_bytes(b"no image")
    out = "new/x.npz" if command == "embed" else "new/x"
    assert "0.png" in aurank.refused(command, *TIMM[1:5], "data.odd_classes=keep", "--out", out, "--no-cache")
    assert sorted(path.name for path in place.iterdir()) == ["photos"]
