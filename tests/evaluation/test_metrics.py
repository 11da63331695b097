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

from aurank.evaluation import metrics
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
    ("+- +", "auroc", 0.0),
    ("- + - +", "coverage@100", 1.0),
    ("+ + -", "trapezoid_ap", 1.0),
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


def test_metrics_are_chosen_by_name_each_once() -> None:
    names = ["ndcg@10", "map@5(r)", "ndcg@10", "minp"]
    assert metrics.check_names(names) == ("ndcg@10", "map@5(r)", "minp")
    report = build_report(ranks_of([TIED]), metrics=names)
    assert list(report.metrics) == ["ndcg@10", "map@5(r)", "minp"]
    assert report.mauprc == pytest.approx(documented()["mauprc"])
