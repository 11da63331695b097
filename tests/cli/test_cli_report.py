"""`aurank evaluate` writes a page to look at, unless told otherwise."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from testing.shell import Shell

from aurank.evaluation import Report


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    labels = np.repeat(np.arange(6), 4)
    embeddings = np.random.default_rng(0).standard_normal((24, 8)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", embeddings=embeddings, labels=labels)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_saved_embeddings_get_a_page_without_pictures(rows: Path, aurank: Shell) -> None:
    code, out, _ = aurank("evaluate", "--model", "embeddings:rows.npz", "--out", "measured")
    assert code == 0
    assert "to look at: measured/report.html" in out
    page = (rows / "measured" / "report.html").read_text()
    assert "Worst queries" in page
    assert "Not looked at here: images by their pixels" in page
    assert "<img" not in page
    report = Report.load(rows / "measured" / "report.json")
    assert report.neighbours is not None
    assert report.neighbours.row.shape == (24, 10)
    assert (rows / "measured" / "per_class.csv").read_text().startswith("class,num_queries,mauprc,")


@pytest.mark.slow
def test_no_report_keeps_no_lists_and_an_old_page_goes(rows: Path, aurank: Shell) -> None:
    command = ("evaluate", "--model", "embeddings:rows.npz", "--out", "measured")
    assert aurank(*command)[0] == 0
    assert aurank(*command, "--no-report", "--overwrite")[0] == 0
    assert not (rows / "measured" / "report.html").exists()
    assert Report.load(rows / "measured" / "report.json").neighbours is None


def test_an_unknown_class_is_refused_and_the_numbers_are_kept(rows: Path, aurank: Shell) -> None:
    code, _, complaints = aurank(
        *("evaluate", "--model", "embeddings:rows.npz", "--out", "measured", "--show-class", "9", "--neighbours", "3")
    )
    assert code == 2
    assert "no query of class '9' was measured" in complaints
    assert Report.load(rows / "measured" / "report.json").neighbours is not None
    assert not (rows / "measured" / "report.html").exists()


@pytest.mark.slow
def test_images_are_shown_and_one_that_went_missing_is_named(rows: Path, aurank: Shell) -> None:
    for row in range(6):
        path = rows / "photos" / "ab"[row // 3] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((80, 80, 3), 40 * row, np.uint8)).save(path)
    model = ("--model", "timm:test_resnet,pretrained=false", "--data", "folder:photos", "data.odd_classes=keep")
    assert aurank("evaluate", *model, "--out", "measured", "--show-class", "a", "--cache", "cache")[0] == 0
    page = (rows / "measured" / "report.html").read_text()
    assert page.count("<img") >= 6
    assert "Class a" in page


def test_a_page_has_intervals_unless_they_are_switched_off(rows: Path, aurank: Shell) -> None:
    measure = ("evaluate", "--model", "embeddings:rows.npz", "--out")
    for name, words, resamples in (("page", (), 1000), ("off", ("--intervals", 0), 0), ("bare", ("--no-report",), 0)):
        code, output, _ = aurank(*measure, name, *words)
        intervals = Report.load(rows / name / "report.json").intervals
        assert code == 0
        assert (0 if intervals is None else intervals.resampling.resamples) == resamples
        assert ("95 % interval" in output) == bool(resamples)
    page = (rows / "page" / "report.html").read_text(encoding="utf-8")
    between = Report.load(rows / "page" / "report.json").interval("recall@1")[1:-1].replace(", ", " to ")
    assert f"<small>{between}</small>" in page  # in the box, and in all numbers
    assert f"<td>{between}</td>" in page
    assert "95 %" not in (rows / "off" / "report.html").read_text(encoding="utf-8")
