"""`aurank.evaluate` behind post-processing, and its table of codes; the text form and the file of post-processing."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import aurank
from aurank.errors import UserError
from aurank.evaluation import Codes, PostProcessing, Report

GENERATOR = np.random.default_rng(5)
LABELS = np.arange(90) % 9
ROWS = (GENERATOR.normal(size=(9, 16))[LABELS] + 1.2 * GENERATOR.normal(size=(90, 16)) + 1).astype(np.float32)
WHOLE = "center, whiten:dim=4,shrinkage=0.1, int8, query_expansion:k=3, k_reciprocal:depth=30,k1=7"


def test_a_processed_report_has_the_plain_metrics_beside() -> None:
    steps = PostProcessing.parse("whiten:dim=8,shrinkage=0.2, k_reciprocal:k1=8").fit(ROWS[:45])
    plain, report = aurank.evaluate(ROWS, LABELS), aurank.evaluate(ROWS, LABELS, postprocess=steps)
    assert report.postprocessing == {
        "steps": "whiten:dim=8,shrinkage=0.2, k_reciprocal:k1=8",
        "transductive": ["k_reciprocal"],
        "fitted_rows": 45,
        "plain": plain.metrics,
    }
    assert report.mauprc > plain.mauprc
    assert f"mauprc        {report.mauprc:.4f}  (plain {plain.mauprc:.4f})" in str(report)
    assert "fitted on 45 training rows; k_reciprocal is transductive: a score depends on other test rows" in str(report)
    comparison = aurank.compare(plain, report, resamples=100)
    assert comparison.difference == report.mauprc - plain.mauprc


@pytest.mark.parametrize("steps", ["query_expansion:k=3", "k_reciprocal:k1=8,depth=12", "binary, rescore:depth=7"])
def test_lists_shown_are_the_lists_measured(steps: str) -> None:
    report = aurank.evaluate(ROWS, LABELS, postprocess=steps, neighbours=20)
    for place, positive in enumerate(report.neighbours.is_positive):
        first = report.per_query["first_rank"][place]
        found = np.flatnonzero(positive)
        assert (found[0] + 1 == first) if first <= 20 else not len(found)
    queries, rows = report.neighbours.query, report.neighbours.row
    np.testing.assert_array_equal(report.neighbours.is_positive, LABELS[rows] == LABELS[queries][:, None])
    assert not (rows == queries[:, None]).any()
    assert all(len(set(row)) == 20 for row in rows.tolist())


@pytest.mark.parametrize(
    ("steps", "distance"),
    [
        (None, "euclidean"),
        *((steps, "cosine") for steps in (None, "k_reciprocal:k1=8,depth=12", "binary, rescore:depth=7")),
    ],
)
def test_the_first_positive_and_its_score_are_those_of_the_whole_list(steps: str | None, distance: str) -> None:
    rows = np.concatenate([ROWS, ROWS[:9]])  # some equal scores
    whole, short = (
        aurank.evaluate(rows, np.arange(99) % 9, postprocess=steps, distance=distance, neighbours=k) for k in (98, 1)
    )
    lists = whole.neighbours
    query, first = np.arange(99), lists.is_positive.argmax(axis=1)
    for report in (whole, short):
        np.testing.assert_array_equal(report.per_query["first_positive"], lists.row[query, first])
        np.testing.assert_array_equal(report.per_query["first_score"], lists.score[query, first])


def test_a_gallery_of_its_own_and_the_set_itself_agree() -> None:
    ids = np.arange(90)
    for text in ("query_expansion:k=3", "database_augmentation:k=3, query_expansion:k=2", "k_reciprocal:k1=8"):
        alone = aurank.evaluate(ROWS, LABELS, postprocess=text)
        twice = aurank.evaluate(ROWS, LABELS, ROWS, LABELS, ids=ids, gallery_ids=ids, postprocess=text)
        assert alone.metrics == twice.metrics


def test_codes_are_measured_beside() -> None:
    codes = Codes(dims=(4, 16), precisions=("float32", "int8", "binary"), rescore=30)
    report = aurank.evaluate(ROWS, LABELS, codes=codes, recall_at=(1, 5))
    found = {(code["dim"], code["precision"], code["rescored"]): code for code in report.codes}
    assert len(found) == 11  # the embeddings as they came are not rescored
    assert found[16, "float32", None]["metrics"] == {n: report.metrics[n] for n in ("mauprc", "recall@1", "recall@5")}
    assert [found[4, kind, None]["bytes"] for kind in codes.precisions] == [16, 4, 1]
    signs = np.where(ROWS > 0, 1.0, -1.0)
    assert found[16, "binary", None]["metrics"]["mauprc"] == aurank.evaluate(signs, LABELS).mauprc
    whole = aurank.evaluate(ROWS, LABELS, codes=Codes(dims=(16,)), metrics=["mauprc", "auroc"])
    assert whole.codes[0]["metrics"] == whole.metrics
    short = aurank.evaluate(ROWS[:, :4], LABELS, recall_at=(5,)).metrics
    assert found[4, "float32", None]["metrics"]["recall@5"] == short["recall@5"]
    for dim in (4, 16):
        coarse, fine = (found[dim, "binary", depth]["metrics"]["mauprc"] for depth in (None, 30))
        assert coarse < fine <= report.mauprc + 0.05
    assert "  4  int8                    4            " in str(report)


def test_a_report_with_both_is_read_back(tmp_path: Path) -> None:
    codes = Codes(precisions=("binary",), rescore=5)
    report = aurank.evaluate(ROWS, LABELS, postprocess="binary", codes=codes)
    report.save(tmp_path / "report.json")
    loaded = Report.load(tmp_path / "report.json")
    assert (loaded.postprocessing, loaded.codes) == (report.postprocessing, report.codes)
    text = (tmp_path / "report.json").read_text(encoding="utf-8")
    (tmp_path / "report.json").write_text(text.replace('"plain": {', '"plain": {"mrr@7": "x", '), encoding="utf-8")
    with pytest.raises(UserError, match=r"\(postprocessing\.plain"):
        Report.load(tmp_path / "report.json")


@pytest.mark.parametrize("text", [WHOLE, "truncate:dim=4, binary, rescore:depth=9"])
def test_the_text_form_is_read_and_written(text: str) -> None:
    assert str(PostProcessing.parse(text)) == text
    assert str(PostProcessing.parse(text.replace(", ", ",").replace("=", " = "))) == text


def test_a_saved_post_processing_does_the_same_digits(tmp_path: Path) -> None:
    processing, path = PostProcessing.parse(WHOLE).fit(ROWS), tmp_path / "steps.safetensors"
    processing.save(path)
    loaded = PostProcessing.load(path)
    assert (str(loaded), loaded.distance, loaded.fitted_rows, loaded.is_fitted) == (WHOLE, "cosine", 90, True)
    np.testing.assert_array_equal(loaded.rows(ROWS[:9]), processing.rows(ROWS[:9]))
    save_file({"mean": ROWS}, path)
    with pytest.raises(UserError, match="cannot be read as post-processing"):
        PostProcessing.load(path)
