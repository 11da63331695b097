"""Thresholds against the obvious: every score tried, one after another."""

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

import aurank
from aurank.errors import UserError
from aurank.evaluation import Resampling
from aurank.evaluation.calibration import best_precision, lowest_threshold, shortest_equal, true_positive_rates
from aurank.evaluation.engine.pooled import PooledScores


class Listed(PooledScores):
    """Scores of two lists; the bracket is as wide as it is told to be."""

    def __init__(self, positives: list[float], negatives: list[float], *, slack: int = 0) -> None:
        self.positives, self.negatives, self.slack = np.sort(np.array(positives, float)), np.array(negatives), slack
        self.num_positives, self.num_negatives = len(positives), len(negatives)

    def bracket(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        exact = self.negatives_at_least(scores)
        return np.maximum(exact - self.slack, 0), np.minimum(exact + self.slack, self.num_negatives)

    def negatives_at_least(self, edges: np.ndarray) -> np.ndarray:
        assert (np.diff(edges) > 0).all()
        return np.array([int((self.negatives >= edge).sum()) for edge in edges], np.int64)


SCORES = st.lists(st.integers(-6, 6).map(lambda score: score / 8), min_size=1, max_size=20)


def rates(scores: Listed, threshold: float) -> tuple[Fraction, Fraction, Fraction]:
    """Precision, recall and false-match rate."""
    right, wrong = int((scores.positives >= threshold).sum()), int((scores.negatives >= threshold).sum())
    precision = Fraction(right, right + wrong) if right + wrong else Fraction(0)
    return precision, Fraction(right, scores.num_positives), Fraction(wrong, scores.num_negatives)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(positives=SCORES, negatives=SCORES, slack=st.integers(0, 8), percent=st.integers(1, 100))
def test_it_is_the_lowest_that_reaches_what_is_wanted(
    positives: list[float], negatives: list[float], slack: int, percent: int
) -> None:
    scores, wanted = Listed(positives, negatives, slack=slack), Fraction(percent, 100)
    all_of = sorted(set(positives))
    right = [one for one in all_of if rates(scores, one)[0] >= wanted]
    assert lowest_threshold(scores, "precision", wanted) == (right[0] if right else None)
    few = [one for one in all_of if rates(scores, one)[2] <= wanted]
    assert lowest_threshold(scores, "false_match_rate", wanted) == (few[0] if few else None)
    precisions = [rates(scores, one)[0] for one in all_of]
    best, at = best_precision(scores)
    assert best == pytest.approx(float(max(precisions)))
    assert float(rates(scores, at)[0]) == pytest.approx(best)


@settings(max_examples=100, deadline=None)
@given(positives=SCORES, negatives=SCORES, place=st.integers(0, 19))
def test_rounding_changes_no_match(positives: list[float], negatives: list[float], place: int) -> None:
    scores = Listed([one / 3 for one in positives], [one / 3 for one in negatives])
    threshold = float(scores.positives[place % len(positives)])
    rounded = shortest_equal(scores, threshold)
    assert rounded <= threshold
    assert rates(scores, rounded) == rates(scores, threshold)
    assert len(repr(rounded)) <= len(repr(threshold))


@settings(max_examples=100, deadline=None)
@given(positives=SCORES, negatives=SCORES, rate=st.sampled_from(["0.05", "1e-1", "0.5", ".99"]))
def test_tpr_at_fpr_is_that_of_the_pooled_roc_curve(positives: list[float], negatives: list[float], rate: str) -> None:
    truth = [1] * len(positives) + [0] * len(negatives)
    false, true, _ = roc_curve(truth, positives + negatives, drop_intermediate=False)
    name = f"tpr@fpr={rate}"
    found = true_positive_rates(Listed(positives, negatives), [name])[name]
    assert found == pytest.approx(true[false <= float(rate) + 1e-12].max())


def test_tpr_at_fpr_of_the_docs() -> None:
    """The lists of docs/metrics.md, and the values worked out there."""
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    head, signs = re.findall(r"^    (query 1:.*|  +[+−].*)$", page, flags=re.MULTILINE)
    pairs = list(zip(re.findall(r" (\.\d)", head), signs.split(), strict=True))
    scores = Listed(*([float(score) for score, sign in pairs if sign == wanted] for wanted in "+−"))
    values = re.findall(r"`(tpr@fpr=0\.\d)`(?:[^`]*?)(\d)/4", page)
    assert len(values) == 3
    for name, quarter in values:
        assert true_positive_rates(scores, [name]) == {name: int(quarter) / 4}


def test_tpr_at_fpr_of_embeddings_is_a_metric() -> None:
    chance = np.random.default_rng(0)
    labels = np.arange(90) % 9
    rows = chance.normal(size=(90, 8)) + chance.normal(size=(9, 8))[labels]
    names = ["mauprc", "tpr@fpr=1e-2", "tpr@fpr=0.2", "tpr@fpr=1e-6"]
    report = aurank.evaluate(rows, labels, metrics=names, resampling=Resampling(100))
    cosine = (unit := rows / np.linalg.norm(rows, axis=1, keepdims=True)) @ unit.T
    same, other = labels[:, None] == labels, ~np.eye(90, dtype=bool)
    false, true, _ = roc_curve(same[other], cosine[other].round(12), drop_intermediate=False)
    for name in names[1:]:
        assert report.metrics[name] == pytest.approx(true[false <= float(name.split("=")[1])].max()), name
    assert list(report.intervals.bounds) == ["mauprc"]
    assert "tpr@fpr=1e-6: that is less than one of 7,200 negative pairs" in report.notes[-1]
    with pytest.raises(UserError, match="no values per query"):
        report.values("tpr@fpr=1e-2")
