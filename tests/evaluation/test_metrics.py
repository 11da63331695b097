"""Definitions worked by hand on ranks written down, and against the sorted list; ties among them."""

import re
from math import log2
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from testing.listing import ITEMS, Item, expected, ranks_of, read

from aurank.evaluation import evaluate, metrics
from aurank.evaluation.evaluate import build_report

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"\| `([^`]+)` \| .* \| `([^`]+)` \|")
TIED = read("- ++- ++ ---")  # the list of docs/metrics.md; ranks 3, 4, 5, 6


def documented() -> dict[str, float]:
    """The values worked out in docs/metrics.md, by name."""
    rows = (ROW.fullmatch(line) for line in DOCS.read_text(encoding="utf-8").splitlines())
    return {row[1]: float(eval(row[2], {"log2": log2})) for row in rows if row}


def test_every_definition_has_its_worked_value_in_the_docs() -> None:
    ranks, values = ranks_of([TIED]), documented()
    assert ranks.rank.tolist() == [3, 4, 5, 6]
    assert set(values) == {*metrics.NAMES, *metrics.TIES}
    for name in metrics.NAMES:
        assert metrics.query_values(ranks, name.format(k=3)) == pytest.approx([values[name]], abs=1e-15), name
    for rule in metrics.TIES:
        assert metrics.query_values(ranks, "mauprc", ties=rule) == pytest.approx([values[rule]], abs=1e-15), rule


BY_HAND = [
    ("+ - + - -", "mauprc", (1 + 2 / 3) / 2),
    ("+ - + - -", "map@1(min)", 1.0),
    ("+ - + - -", "map@1(r)", 1 / 2),
    ("+ - + - -", "map@3(min)", (1 + 2 / 3) / 2),
    ("+ - + - -", "map@2(r)", 1 / 2),
    ("+ - + - -", "ndcg@2", 1 / (1 + 1 / log2(3))),
    ("+ - + - -", "ndcg@1", 1.0),
    ("- + - + -", "ndcg@1", 0.0),
    ("- + - + -", "map@1(min)", 0.0),
    # k beyond R and beyond the gallery: nothing is left to find, and only precision divides by k itself
    ("+ - + - -", "recall@100", 1.0),
    ("+ - + - -", "precision@100", 2 / 100),
    ("+ - + - -", "map@100(min)", (1 + 2 / 3) / 2),
    ("+ - + - -", "map@100(r)", (1 + 2 / 3) / 2),
    ("- + - -", "ndcg@100", 1 / log2(3)),
    (f"+ - + {'-' * 7}", f"precision@{10**30}", 2 / 10**30),
    (f"+ - + {'-' * 7}", f"map@{10**30}(min)", (1 + 2 / 3) / 2),
    # a duplicate of a positive among the negatives ties with it, and stands ahead
    ("+- +", "recall@1", 0.0),
    ("+- +", "mrr", 1 / 2),
    ("+- +", "auroc", 0.0),
    ("++ -", "mauprc", 1.0),
    ("- + - +", "coverage@1", 0.0),
    ("- + - +", "coverage@3", 1 / 2),
    ("- + - +", "coverage@100", 1.0),
    ("- + - +", "mrr@1", 0.0),
    ("- + - +", "mrr@2", 1 / 2),
    ("- + - +", "trapezoid_ap", ((0 + 1 / 2) + (1 / 3 + 2 / 4)) / 2 / 2),
    ("+ + -", "trapezoid_ap", 1.0),
    ("- + - + -", "precision@1(last)", 0.0),
    ("- + - + -", "precision@3(last)", 1 / 3),
    ("- + - + -", "precision@5(last)", 2 / 4),
    ("+ + -", "precision@10(last)", 1.0),
    # nothing but positives
    ("+ ++", "auroc", 1.0),
    ("+ ++", "minp", 1.0),
]


def test_hand_computed_values() -> None:
    for text, name, value in BY_HAND:
        found = metrics.query_values(ranks_of([read(text)]), name)
        assert found == pytest.approx([value], abs=1e-15), (text, name)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(lists=st.lists(ITEMS, min_size=1, max_size=4), k=st.integers(1, 15))
def test_all_metrics_equal_those_of_the_sorted_list(lists: list[list[Item]], k: int) -> None:
    ranks = ranks_of(lists)
    for name in metrics.NAMES:
        values = [expected(items, name, k=k) for items in lists]
        assert metrics.query_values(ranks, name.format(k=k)) == pytest.approx(values, abs=1e-12), name
    for rule in metrics.TIES:
        values = [expected(items, "mauprc", ties=rule) for items in lists]
        assert metrics.query_values(ranks, "mauprc", ties=rule) == pytest.approx(values, abs=1e-12), rule


@settings(max_examples=100, deadline=None)
@given(items=ITEMS)
def test_average_precision_is_that_of_scikit_learn(items: list[Item]) -> None:
    scores, positive = zip(*items, strict=True)
    value = average_precision_score(np.array(positive, dtype=int), np.array(scores))
    assert metrics.average_precision(ranks_of([items])) == pytest.approx([value], abs=1e-12)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(items=ITEMS, seed=st.integers(0, 1000))
def test_the_tie_rules_bound_the_threshold_and_every_order_of_tied_items(items: list[Item], seed: int) -> None:
    ranks = ranks_of([items])
    low, middle, high = (
        float(metrics.average_precision(ranks, ties=rule)[0]) for rule in ("pessimistic", "threshold", "optimistic")
    )
    assert low <= middle <= high
    chance = np.random.default_rng(seed)
    shuffled = sorted(items, key=lambda item: (-item[0], chance.random()))
    value = average_precision_score([int(is_positive) for _, is_positive in shuffled], -np.arange(len(items)))
    assert low - 1e-12 <= value <= high + 1e-12


def test_macro_is_the_mean_over_classes_of_class_means() -> None:
    lists = [read("+ -"), read("- +"), read("+ -"), read("- - +")]
    names = ["macro:mauprc", "mauprc", "macro:recall@1", "recall@1"]
    report = build_report(ranks_of(lists), labels=np.array([7, 7, 7, -2]), metrics=names)
    assert list(report.metrics) == names
    assert report.metrics["mauprc"] == pytest.approx((1 + 1 / 2 + 1 + 1 / 3) / 4, abs=1e-15)
    assert report.metrics["macro:mauprc"] == pytest.approx(((1 + 1 / 2 + 1) / 3 + 1 / 3) / 2, abs=1e-15)
    assert report.metrics["recall@1"] == 2 / 4
    assert report.metrics["macro:recall@1"] == (2 / 3 + 0) / 2


def revisited(positions: np.ndarray, junk: np.ndarray, ks: tuple[int, ...]) -> tuple[float, list[float]]:
    """AP and precision at each k of one query as the revisited Oxford and Paris define them, from places in a list.

    Junk is taken out of the list, and the list ends with its last positive.
    """
    positions = np.array([place - int((junk < place).sum()) for place in np.sort(positions)])
    area = 0.0
    for found, place in enumerate(positions):
        before = 1.0 if place == 0 else found / place
        area += (before + (found + 1) / (place + 1)) / (2 * len(positions))
    cuts = [min(int(positions.max()) + 1, k) for k in ks]
    return area, [int((positions < cut).sum()) / cut for cut in cuts]


def test_trapezoids_and_precision_to_the_last_positive_are_those_of_the_revisited_landmarks() -> None:
    chance = np.random.default_rng(2)
    queries, gallery = chance.normal(size=(6, 4)), chance.normal(size=(40, 4))
    kinds = chance.choice(["positive", "junk", "negative"], size=(6, 40), p=[0.2, 0.2, 0.6])
    pairs = {kind: np.argwhere(kinds == kind) for kind in ("positive", "junk")}
    names = ["trapezoid_ap", "precision@1(last)", "precision@5(last)", "precision@10(last)"]
    report = evaluate(
        queries, gallery=gallery, positives=pairs["positive"], ignore=pairs["junk"], metrics=names, distance="dot"
    )
    found = []
    for row in range(6):
        order = np.argsort(-(gallery @ queries[row]))
        places = {kind: np.flatnonzero(kinds[row][order] == kind) for kind in ("positive", "junk")}
        area, precisions = revisited(places["positive"], places["junk"], (1, 5, 10))
        found.append([area, *precisions])
    assert [report.metrics[name] for name in names] == pytest.approx(np.mean(found, axis=0).tolist(), abs=1e-12)


def test_metrics_are_chosen_by_name_each_once() -> None:
    names = ["ndcg@10", "map@5(r)", "ndcg@10", "minp"]
    assert metrics.check_names(names) == ("ndcg@10", "map@5(r)", "minp")
    report = build_report(ranks_of([TIED]), metrics=names)
    assert list(report.metrics) == ["ndcg@10", "map@5(r)", "minp"]
    assert report.mauprc == pytest.approx(documented()["mauprc"])
