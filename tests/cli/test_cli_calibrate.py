"""`aurank calibrate` as typed."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from testing.shell import Shell

from aurank.evaluation import PostProcessing, RetrievalProblem, calibrate, evaluate

CHANCE = np.random.default_rng(1)
LABELS = np.arange(60) % 6
ROWS = (CHANCE.normal(size=(6, 12))[LABELS] + CHANCE.normal(size=(60, 12))).astype(np.float32)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    np.savez(tmp_path / "rows.npz", embeddings=ROWS, labels=LABELS)
    (tmp_path / "measured").mkdir()
    evaluate(ROWS, LABELS, neighbours=5).save(tmp_path / "measured/report.json")
    evaluate(ROWS, LABELS).save(tmp_path / "bare.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_files_and_lines(place: Path, aurank: Shell) -> None:
    words = ("--model", "embeddings:rows.npz", "--precision", "0.8", "--out", "made")
    code, said, _ = aurank("calibrate", *words)
    assert code == 0
    kept = json.loads((place / "made/calibration.json").read_text(encoding="utf-8"))
    assert said.startswith(f"threshold {kept['threshold']!r} (cosine): a pair that scores so much or more is a match\n")
    assert kept["precision"]["value"] >= 0.8
    assert kept["of"] == "embeddings:rows.npz"
    with (place / "made/calibration.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["threshold", "precision", "recall", "false_match_rate", "false_non_match_rate"]
    assert kept["threshold"] in [float(row["threshold"]) for row in rows]
    page = (place / "made/calibrate.html").read_text(encoding="utf-8")
    assert f"<b>{kept['threshold']!r}</b>" in page
    assert page.count("<svg") == 2
    assert not re.search(r"(?:src|href)=\"http|@import|<link", page)


def test_a_report_by_its_folder(place: Path, aurank: Shell) -> None:
    code, said, _ = aurank("calibrate", "measured", "--precision", "0.8", "--out", "made")
    assert code == 0
    assert "lists of 5 neighbours" in said
    page = (place / "made/calibrate.html").read_text(encoding="utf-8")
    assert "nan" not in page.replace("</title>", "")


def test_behind_post_processing(place: Path, aurank: Shell) -> None:
    words = ("--model", "embeddings:rows.npz", "--precision", "0.8")
    code, said, _ = aurank("calibrate", *words, "--postprocess", "center, query_expansion:k=2", "--fit-on", "rows.npz")
    assert code == 0
    assert "post-processing: center, query_expansion:k=2, fitted on 60 training rows; query_expansion is trans" in said
    steps = PostProcessing.parse("center, query_expansion:k=2").fit(ROWS)
    expected = calibrate(steps.apply(RetrievalProblem(ROWS, LABELS)).problem, precision=0.8)
    assert said.startswith(str(expected).splitlines()[0])
    assert expected.threshold != calibrate(RetrievalProblem(ROWS, LABELS), precision=0.8).threshold


def test_names_are_text_in_the_page(place: Path, aurank: Shell) -> None:
    (place / "measured").rename(place / "<img src=x onerror=alert(1)>")
    code, *_ = aurank("calibrate", "<img src=x onerror=alert(1)>", "--precision", "0.8", "--out", "made")
    assert code == 0
    page = (place / "made/calibrate.html").read_text(encoding="utf-8")
    assert "<img" not in page
    assert "&lt;img src=x" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("measured",), "Give --precision 0.99 or --false-match-rate 1e-4"),
        (("--precision", "0.9"), "name a report, such as DIR/report.json, or a model"),
        (("measured", "--precision", "2"), "precision must be above 0 and at most 1, such as 0.99; got 2.0"),
        (("bare.json", "--precision", "0.9"), "the report holds no neighbours"),
        (("measured", "--precision", "0.9", "--distance", "dot"), "--distance dot has no use with a report"),
        (("measured", "--precision", "0.9", "--data", "folder:x"), "--data folder:x has no use with a report"),
        (
            ("measured", "--precision", "0.9", "--postprocess", "center"),
            "--postprocess center has no use with a report",
        ),
        (("--model", "embeddings:rows.npz", "--precision", "0.9", "--postprocess", "center"), "has to be fitted"),
        (
            ("--model", "embeddings:rows.npz", "--precision", "0.9", "--postprocess", "k_reciprocal"),
            "no threshold fits",
        ),
        (("--model", "embeddings:rows.npz", "--precision", "0.9", "--fit-on", "rows.npz"), "goes with --postprocess"),
        (("none.json", "--precision", "0.9"), "none.json: cannot be read"),
        (("measured", "--false-match-rate", "1e-9"), "less than one of the 3,000 negative pairs"),
        (("measured", "--precision", "0.9", "--out", "bare.json"), "bare.json is a file"),
        (("--model", "trec:run", "--precision", "0.9"), "trec:run"),
    ],
)
def test_refusals_are_one_line(place: Path, aurank: Shell, words: tuple[str, ...], said: str) -> None:
    code, _, printed = aurank("calibrate", *words)
    assert code == 2
    assert said in printed
    assert printed.count("\n") == 1
    assert not (place / "made").exists()
