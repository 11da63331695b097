"""The mean precision-recall curve: by hand, against the sorted list, and its area against mAUPRC."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.listing import ITEMS, Item, groups, ranks_of

from aurank.evaluation import metrics
from aurank.evaluation.metrics import mean, precision_recall_curve, random_order_ap


def precision_at_recall(items: list[Item], recall: Fraction, *, interpolated: bool) -> Fraction:
    """Precision of the shortest list of whole groups that reaches the recall, or the best of all that reach it."""
    positives = total = 0
    count = sum(is_positive for _, is_positive in items)
    reached = []
    for more_positives, more_negatives in groups(items):
        positives, total = positives + more_positives, total + more_positives + more_negatives
        if more_positives and Fraction(positives, count) >= recall:
            reached.append(Fraction(positives, total))
    return max(reached) if interpolated else reached[0]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(lists=st.lists(ITEMS, min_size=1, max_size=4), interpolated=st.booleans())
def test_the_curve_equals_that_of_the_sorted_lists(lists: list[list[Item]], interpolated: bool) -> None:
    ranks = ranks_of(lists)
    for points in (11, 101):
        curve = precision_recall_curve(ranks, points=points, interpolated=interpolated)
        for place, precision in enumerate(curve.precision):
            recall = Fraction(place, points - 1)
            values = [precision_at_recall(items, recall, interpolated=interpolated) for items in lists]
            assert precision == pytest.approx(float(sum(values) / len(values)), abs=1e-12)
    exact = precision_recall_curve(ranks, points=None, interpolated=interpolated)
    for recall, precision in zip(exact.recall.tolist(), exact.precision, strict=True):
        step = Fraction(recall).limit_denominator(100)
        values = [precision_at_recall(items, step, interpolated=interpolated) for items in lists]
        assert precision == pytest.approx(float(sum(values) / len(values)), abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(lists=st.lists(ITEMS, min_size=1, max_size=6))
def test_the_area_of_the_exact_curve_is_mauprc_by_each_rule_for_ties(lists: list[list[Item]]) -> None:
    ranks = ranks_of(lists)
    for rule in metrics.TIES:
        curve = precision_recall_curve(ranks, points=None, interpolated=False, ties=rule)
        area = float(np.sum(np.diff(curve.recall, prepend=0.0) * curve.precision))
        assert area == pytest.approx(mean(metrics.average_precision(ranks, ties=rule)), abs=1e-12)


def test_a_random_order_scores_the_mean_over_all_orders() -> None:
    for count in range(1, 9):
        for positives in range(1, count + 1):
            orders = [
                sum(Fraction(found, place) for found, place in enumerate(places, 1)) / positives
                for places in combinations(range(1, count + 1), positives)
            ]
            (expected,) = random_order_ap(np.array([positives]), np.array([count - positives]))
            assert expected == pytest.approx(float(sum(orders) / len(orders)), rel=1e-14)


def test_a_random_order_of_a_long_list_scores_the_sum_over_its_places() -> None:
    positives, items = np.array([1, 7, 60, 100]), np.array([100, 101, 3000, 100])
    slow = [
        sum((1 + (place - 1) * (r - 1) / (n - 1)) / place for place in range(1, n + 1)) / n
        for r, n in zip(positives.tolist(), items.tolist(), strict=True)
    ]
    assert random_order_ap(positives, items - positives) == pytest.approx(slow, rel=1e-13)
