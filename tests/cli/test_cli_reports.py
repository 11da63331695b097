"""`aurank compare` and `calibrate` as typed."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from aurank.evaluation import PostProcessing, RetrievalProblem, calibrate, evaluate

FEW = ("--resamples", "100")
CHANCE = np.random.default_rng(1)
LABELS = np.arange(60) % 6
ROWS = (CHANCE.normal(size=(6, 12))[LABELS] + CHANCE.normal(size=(60, 12))).astype(np.float32)
MODEL = ("calibrate", "--model", "embeddings:rows.npz", "--precision", "0.8")


@pytest.fixture
def reports(place: Path) -> Path:
    """Beside the photos, reports of three models on them, and saved embeddings."""
    paths = np.array([f"{'ab'[row // 4]}/{row}.png" for row in range(8)])
    for dim, name in ((2, "small"), (4, "middle"), (6, "large")):
        (place / "runs" / name).mkdir(parents=True)
        report = evaluate(ROWS[:8, :dim], np.arange(8) // 4, neighbours=3).named(paths)
        report.save(place / "runs" / name / "report.json")
    np.savez(place / "rows.npz", embeddings=ROWS, labels=LABELS)
    return place


@pytest.mark.slow
def test_three_reports_and_their_pictures_become_a_page(reports, aurank):
    data = ("--data", "folder:photos", "data.odd_classes=keep")
    code, output, said = aurank("compare", "runs/small", "runs/middle", "runs/large/report.json", *FEW, *data)
    assert (code, said) == (0, "")
    assert output.count(" corrected)") == 2
    assert output.endswith("written to compare.html\n")
    page = (reports / "compare.html").read_text(encoding="utf-8")
    assert page.count('src="data:image/') > 6
    assert all(f"<h3>{name}</h3>" in page for name in ("runs/small", "runs/middle", "runs/large/report.json"))
    # Without data the paths stand in place of pictures.
    command = ("compare", "runs/small", "runs/large", *FEW, "--metric", "recall@1")
    output, _ = aurank.done(*command)  # a page of aurank is replaced
    assert output.startswith("recall@1")
    page = (reports / "compare.html").read_text(encoding="utf-8")
    assert 'src="data:image/' not in page
    assert "a/0.png" in page


def test_a_file_that_is_there_and_data_of_something_else_are_refused(reports, aurank):
    (reports / "photos" / "a").rename(reports / "photos" / "c")
    (reports / "photos" / "b").rename(reports / "photos" / "d")
    data = ("--data", "folder:photos", "data.odd_classes=keep")
    complaint = aurank("compare", "runs/small", "runs/large", *data)[2]
    assert "none of the 8 images of the reports; name the data" in complaint
    assert not (reports / "compare.html").exists()
    (reports / "compare.html").write_text("<p>mine</p>", encoding="utf-8")
    complaint = aurank.refused("compare", "runs/small", "runs/large", *FEW)
    assert "compare.html is there already and is no page of aurank; name another file" in complaint
    assert (reports / "compare.html").read_text(encoding="utf-8") == "<p>mine</p>"


@pytest.mark.slow
def test_a_threshold_comes_with_a_table_and_a_page(reports, aurank):
    said, _ = aurank.done(*MODEL, "--out", "made")
    kept = json.loads((reports / "made/calibration.json").read_text(encoding="utf-8"))
    assert said.startswith(f"threshold {kept['threshold']!r} (cosine): a pair that scores so much or more is a match\n")
    assert kept["precision"]["value"] >= 0.8
    assert kept["of"] == "embeddings:rows.npz"
    assert list(kept["curve"]) == ["threshold", "precision", "recall", "false_match_rate", "false_non_match_rate"]
    assert kept["threshold"] in kept["curve"]["threshold"]
    page = (reports / "made/calibrate.html").read_text(encoding="utf-8")
    assert f"<b>{kept['threshold']!r}</b>" in page
    assert page.count("<svg") == 1
    assert not re.search(r"(?:src|href)=\"http|@import|<link", page)


def test_the_threshold_of_another_command_is_replaced_by_overwrite_alone(reports, aurank):
    for precision, option, code in ((0.8, (), 0), (0.8, (), 0), (0.7, (), 2), (0.7, ("--overwrite",), 0)):
        ended, _, complaint = aurank(*MODEL[:3], "--precision", precision, "--out", "made", *option)
        assert ended == code, complaint
        assert (code == 0) == ("add --overwrite to replace that result" not in complaint)
    kept = json.loads((reports / "made/calibration.json").read_text(encoding="utf-8"))
    command = "aurank calibrate --model embeddings:rows.npz --precision 0.7 --out made"
    assert (kept["rate"], kept["command"].rpartition(" && ")[2]) == (0.7, command)


def test_a_threshold_behind_post_processing(reports, aurank):
    said, _ = aurank.done(*MODEL, "--postprocess", "center, query_expansion:k=2", "--fit-on", "rows.npz")
    assert "post-processing: center, query_expansion:k=2, fitted on 60 training rows; query_expansion is trans" in said
    steps = PostProcessing.parse("center, query_expansion:k=2").fit(ROWS)
    expected = calibrate(steps.apply(RetrievalProblem(ROWS, LABELS)).problem, precision=0.8)
    assert said.startswith(str(expected).splitlines()[0])
    assert expected.threshold != calibrate(RetrievalProblem(ROWS, LABELS), precision=0.8).threshold
