"""Calibrations of embeddings and of reports, against all pairs tried one after another."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import aurank
from aurank.errors import UserError
from aurank.evaluation import Report, RetrievalProblem, calibrate, calibrate_report

CHANCE = np.random.default_rng(3)
LABELS = np.arange(80) // 4
ROWS = CHANCE.normal(size=(20, 8))[LABELS] + 0.9 * CHANCE.normal(size=(80, 8))
PROBLEM = RetrievalProblem(ROWS, LABELS)


def all_pairs() -> tuple[np.ndarray, np.ndarray]:
    """Scores of all positive and of all negative pairs, by the lists of a whole gallery."""
    lists = aurank.evaluate(ROWS, LABELS, neighbours=79).neighbours
    assert lists is not None
    return lists.score[lists.is_positive], lists.score[~lists.is_positive]


MATES, OTHERS = all_pairs()


def report(neighbours: int) -> Report:
    return aurank.evaluate(ROWS, LABELS, neighbours=neighbours)


@pytest.mark.parametrize("precision", [0.5, 0.8, 0.95, 1.0])
def test_precision_over_all_pairs(precision: float) -> None:
    found = calibrate(PROBLEM, precision=precision)
    right = [one for one in np.unique(MATES) if parts(one)[0] >= precision]
    assert found.threshold <= right[0]
    assert_rates(found.threshold, right[0])
    value, recall, false = parts(right[0])
    assert found.precision.value == value
    assert found.recall.value == recall
    assert found.false_match_rate is not None
    assert found.false_match_rate.value == pytest.approx(false)
    assert found.precision.low <= value <= found.precision.high
    assert (found.recall.total, found.false_match_rate.total) == (len(MATES), len(OTHERS))


@pytest.mark.parametrize("rate", [0.0005, 0.01, 0.3])
def test_false_match_rate_over_all_pairs(rate: float) -> None:
    found = calibrate(PROBLEM, false_match_rate=rate)
    few = [one for one in np.unique(MATES) if parts(one)[2] <= rate]
    assert_rates(found.threshold, few[0])
    assert found.false_match_rate is not None
    assert found.false_match_rate.value <= rate


def test_the_curve_is_of_all_pairs() -> None:
    curve = calibrate(PROBLEM, precision=0.9).curve
    for place in range(0, len(curve.threshold), 13):
        precision, recall, false = parts(curve.threshold[place])
        assert curve.precision[place] == pytest.approx(precision)
        assert curve.recall[place] == pytest.approx(recall)
        assert curve.false_match_rate[place] == pytest.approx(false)
        assert curve.false_non_match_rate[place] == pytest.approx(1 - recall)


@pytest.mark.parametrize("aim", [{"precision": 0.9}, {"false_match_rate": 0.02}])
def test_a_report_with_whole_lists_says_what_embeddings_say(aim: dict[str, float]) -> None:
    by_lists, by_rows = calibrate_report(report(79), **aim), calibrate(PROBLEM, **aim)
    assert json.dumps({**by_lists.to_json(), "notes": []}) == json.dumps({**by_rows.to_json(), "notes": []})
    assert "these are all pairs" in str(by_lists)


def test_a_cut_report_says_what_is_cut() -> None:
    cut = report(3)
    assert cut.neighbours is not None
    highest_last = cut.neighbours.score[:, -1].max()
    found = calibrate_report(cut, precision=0.5)
    assert found.threshold <= highest_last
    assert found.false_match_rate is None
    number = int((cut.neighbours.score[:, -1] >= found.threshold).sum())
    assert f"{number} of 80 are cut above the threshold" in str(found)
    shown = cut.neighbours.score >= found.threshold
    assert found.precision.value == pytest.approx(cut.neighbours.is_positive[shown].mean())
    beyond = found.curve.threshold > highest_last
    assert np.isnan(found.curve.false_match_rate[~beyond]).all()
    for threshold, rate in zip(found.curve.threshold[beyond], found.curve.false_match_rate[beyond], strict=True):
        assert rate == pytest.approx(parts(threshold)[2])
    with pytest.raises(UserError, match="lists are cut above the threshold, so not all negatives are known"):
        calibrate_report(cut, false_match_rate=0.3)


def test_a_saved_report_says_the_same(tmp_path: Path) -> None:
    report(5).save(tmp_path / "report.json")
    loaded = Report.load(tmp_path / "report.json")
    assert str(calibrate_report(loaded, precision=0.9)) == str(calibrate_report(report(5), precision=0.9))


def test_a_report_behind_post_processing_says_so() -> None:
    processed = aurank.evaluate(ROWS, LABELS, neighbours=5, postprocess="query_expansion:k=2")
    assert "post-processing: query_expansion:k=2" in calibrate_report(processed, precision=0.5).notes


def test_whose_pairs_are_counted_for_queries_without_labels() -> None:
    pairs = np.argwhere((LABELS[:, None] == LABELS) & ~np.eye(80, dtype=bool))
    found = calibrate(RetrievalProblem(ROWS, positives=pairs), precision=0.9)
    assert found.unit == "query"
    assert found.threshold == calibrate(PROBLEM, precision=0.9).threshold


@pytest.mark.parametrize(
    ("aim", "said"),
    [
        ({}, "give one of precision and false_match_rate, such as precision=0.99; got neither"),
        ({"precision": 0.9, "false_match_rate": 0.1}, "got both"),
        ({"precision": 0.0}, "precision must be above 0 and at most 1"),
        ({"precision": float("nan")}, "precision must be above 0 and at most 1"),
        ({"false_match_rate": 1.0}, "must lie between 0 and 1"),
        ({"false_match_rate": 1e-7}, "less than one of the 6,080 negative pairs: ask for 0.00016 or more"),
    ],
)
def test_what_is_refused(aim: dict[str, float], said: str) -> None:
    for call in (lambda: calibrate(PROBLEM, **aim), lambda: calibrate_report(report(4), **aim)):
        with pytest.raises(UserError) as caught:
            call()
        assert said in str(caught.value)


def test_a_precision_that_no_threshold_reaches() -> None:
    rows = np.array([[1.0, 0.0], [0.8, 0.6], [1.0, 0.01], [0.8, 0.61]])
    with pytest.raises(UserError, match=r"no threshold has precision 0.9: the highest is 0.4000, at 0.8000"):
        calibrate(RetrievalProblem(rows, [0, 0, 1, 1]), precision=0.9)
    with pytest.raises(UserError, match="no query has a positive"):
        calibrate(RetrievalProblem(rows, [0, 1, 2, 3]), precision=0.9)
    with pytest.raises(UserError, match="more negative pairs score as high"):
        calibrate(RetrievalProblem(rows, [0, 0, 1, 1]), false_match_rate=0.13)


def test_a_precision_that_any_threshold_has() -> None:
    assert calibrate(PROBLEM, precision=1e-12).recall.value == 1


def test_equal_rows_have_the_distance_zero() -> None:
    twins = RetrievalProblem(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1])
    assert str(calibrate(twins, precision=1.0, distance="euclidean")).startswith("threshold 0.0 (euclidean)")


def test_negatives_are_gone_through_five_times() -> None:
    told: list[tuple[int, int]] = []
    calibrate(PROBLEM, precision=0.5, progress=lambda done, total: told.append((done, total)))
    assert told == 5 * [(1, 1)]


def test_reports_that_hold_no_scores() -> None:
    whole = report(5)
    older = {name: column for name, column in whole.per_query.items() if name != "num_negatives"}
    for other in (report(0), replace(whole, per_query=older)):
        with pytest.raises(UserError, match="the report holds no neighbours"):
            calibrate_report(other, precision=0.9)
    steps = {"steps": "k_reciprocal:depth=10,k1=4,k2=2", "plain": {}}
    with pytest.raises(UserError, match="orders lists by scores of their own"):
        calibrate_report(replace(whole, postprocessing=steps), precision=0.9)


def parts(threshold: float) -> tuple[float, float, float]:
    """Precision, recall and false-match rate at a threshold."""
    right, wrong = (int(np.count_nonzero(scores >= threshold)) for scores in (MATES, OTHERS))
    return right / (right + wrong), right / len(MATES), wrong / len(OTHERS)


def assert_rates(one: float, other: float) -> None:
    assert parts(one) == parts(other)
