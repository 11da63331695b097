"""Calibrations against all pairs tried one after another."""

from collections.abc import Callable

import numpy as np
import pytest

import aurank
from aurank.evaluation import RetrievalProblem, calibrate

CHANCE = np.random.default_rng(3)
LABELS = np.arange(80) // 4
ROWS = CHANCE.normal(size=(20, 8))[LABELS] + 0.9 * CHANCE.normal(size=(80, 8))
PROBLEM = RetrievalProblem(ROWS, LABELS)


def all_pairs() -> tuple[np.ndarray, np.ndarray]:
    """Scores of all positive and of all negative pairs, by the lists of a whole gallery."""
    lists = aurank.evaluate(ROWS, LABELS, neighbours=79).neighbours
    return lists.score[lists.is_positive], lists.score[~lists.is_positive]


MATES, OTHERS = all_pairs()


@pytest.mark.parametrize(
    ("wanted", "reaches"),
    [
        *(({"precision": least}, lambda found, least=least: found[0] >= least) for least in (0.5, 0.95, 1.0)),
        *(({"false_match_rate": most}, lambda found, most=most: found[2] <= most) for most in (0.0005, 0.3)),
    ],
)
def test_a_threshold_is_the_lowest_over_all_pairs(wanted: dict[str, float], reaches: Callable[..., bool]) -> None:
    found = calibrate(PROBLEM, **wanted)
    lowest = next(one for one in np.unique(MATES) if reaches(parts(one)))
    assert found.threshold <= lowest
    precision, recall, false = parts(lowest)
    assert parts(found.threshold) == (precision, recall, false)
    assert (found.precision.value, found.recall.value) == (precision, recall)
    assert found.false_match_rate.value == pytest.approx(false)
    assert (found.recall.total, found.false_match_rate.total) == (len(MATES), len(OTHERS))


def test_the_curve_is_of_all_pairs() -> None:
    curve = calibrate(PROBLEM, precision=0.9).curve
    for place in range(0, len(curve["threshold"]), 13):
        precision, recall, false = parts(curve["threshold"][place])
        assert curve["precision"][place] == pytest.approx(precision)
        assert curve["recall"][place] == pytest.approx(recall)
        assert curve["false_match_rate"][place] == pytest.approx(false)
        assert curve["false_non_match_rate"][place] == pytest.approx(1 - recall)


def test_equal_rows_have_the_distance_zero() -> None:
    twins = RetrievalProblem(np.eye(2)[[0, 0, 1, 1]], [0, 0, 1, 1])
    assert str(calibrate(twins, precision=1.0, distance="euclidean")).startswith("threshold 0.0 (euclidean)")


def parts(threshold: float) -> tuple[float, float, float]:
    """Precision, recall and false-match rate at a threshold."""
    right, wrong = (int(np.count_nonzero(scores >= threshold)) for scores in (MATES, OTHERS))
    return right / (right + wrong), right / len(MATES), wrong / len(OTHERS)
