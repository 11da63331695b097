"""Metrics of super-categories: the definition over sorted lists, in parts, and what is refused."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from aurank.evaluation.evaluate import evaluate

LABELS = np.array([0] * 4 + [1] * 3 + [2] * 5 + [3] * 2 + [4] * 2 + [5] * 3 + [6])
ABOVE = np.array([0, 0, 0, 1, 1, -1, 1])[LABELS]
NAMES = ["mauprc", "h_ap", "h_ndcg", "super:mauprc", "super:recall@1"]


def rows(seed: int = 0, *, ties: bool = False) -> np.ndarray:
    chance = np.random.default_rng(seed)
    found = chance.normal(size=(len(LABELS), 5)) + chance.normal(size=(7, 5))[LABELS]
    return np.round(found) if ties else found


def levels(query: int, others: list[int]) -> np.ndarray:
    """2 for the query's class, 1 for its super-category."""
    same = LABELS[others] == LABELS[query]
    return np.where(same, 2, (ABOVE[others] == ABOVE[query]) & (ABOVE[query] >= 0))


def h_ap(scores: np.ndarray, level: np.ndarray) -> float:
    """By its definition, over every two rows."""
    sizes = [(level == each).sum() for each in range(3)]
    worth = [0.0 if each == 0 else each / 2 / sizes[each] for each in level]
    total = 0.0
    for k in np.flatnonzero(level):
        ahead = np.flatnonzero(scores >= scores[k])
        total += sum(min(worth[j], worth[k]) for j in ahead) / len(ahead)
    return total / sum(worth)


def lists(embeddings: np.ndarray, queries: list[int], gallery: list[int]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Scores and levels of each query that has a positive, its own row left out."""
    unit, found = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), {}
    for query in queries:
        others = [row for row in gallery if row != query]
        level = levels(query, others)
        if (level == 2).any():
            found[query] = unit[others] @ unit[query], level
    return found


@pytest.mark.parametrize("ties", [False, True])
def test_a_gallery_of_its_own_equals_the_definition(ties: bool) -> None:
    embeddings, queries, gallery = rows(1, ties=ties), list(range(0, 20, 2)), [row for row in range(20) if row % 5]
    sides = (embeddings[queries], LABELS[queries], embeddings[gallery], LABELS[gallery])
    above = {"super_labels": ABOVE[queries], "gallery_super_labels": ABOVE[gallery]}
    report = evaluate(*sides, ids=queries, gallery_ids=gallery, **above, metrics=NAMES)
    expected = lists(embeddings, queries, gallery)
    if ties:  # a product rounds equal scores apart: to sixteenths of what a rounding changes
        expected = {query: (np.round(scores, 9), level) for query, (scores, level) in expected.items()}
    assert [queries[row] for row in report.per_query["query"]] == list(expected)
    np.testing.assert_allclose(report.values("h_ap"), [h_ap(*each) for each in expected.values()], rtol=1e-12)
    assert report.metrics["h_ap"] == pytest.approx(report.values("h_ap").mean())
    if not ties:
        gains = [ndcg_score([2.0**level - 1], [scores]) for scores, level in expected.values()]
        np.testing.assert_allclose(report.values("h_ndcg"), gains, rtol=1e-12)


def test_super_metrics_are_those_of_super_categories_for_labels() -> None:
    report = evaluate(rows(), LABELS, super_labels=ABOVE, metrics=[*NAMES, "macro:super:mauprc"])
    alone = np.where(ABOVE < 0, 9, ABOVE)
    wanted = evaluate(rows(), alone, metrics=["mauprc", "recall@1"])
    here = np.isin(wanted.per_query["query"], report.per_query["query"])
    np.testing.assert_array_equal(report.values("super:mauprc"), wanted.values("mauprc")[here])
    np.testing.assert_array_equal(report.values("super:recall@1"), wanted.values("recall@1")[here])
    assert np.isfinite(report.metrics["macro:super:mauprc"])


@pytest.mark.parametrize("above", [[-1] * 20, LABELS.tolist()])
def test_one_level_is_average_precision(above: list[int]) -> None:
    report = evaluate(rows(ties=True), LABELS, super_labels=above, metrics=["mauprc", "h_ap", "super:mauprc"])
    np.testing.assert_allclose(report.values("h_ap"), report.values("mauprc"), rtol=1e-15)
    np.testing.assert_array_equal(report.values("super:mauprc"), report.values("mauprc"))


def test_what_is_ignored_junk_or_of_the_own_camera_counts_nowhere() -> None:
    embeddings, kept = rows(), [row for row in range(20) if row not in (2, 7)]
    given: dict[str, Any] = {"super_labels": ABOVE, "metrics": NAMES[1:]}
    every = [(query, row) for query in range(20) for row in (2, 7) if query != row]
    expected = lists(embeddings, list(range(20)), kept)
    for left_out in ({"junk": [2, 7]}, {"ignore": every}):
        report = evaluate(embeddings, LABELS, **left_out, **given)
        np.testing.assert_allclose(report.values("h_ap"), [h_ap(*each) for each in expected.values()], rtol=1e-12)
    cameras = np.full(20, -1)
    cameras[[0, 4]] = 3  # of two classes of one super-category
    report = evaluate(embeddings, LABELS, groups=cameras, **given)
    assert len(report.values("h_ap")) == len(evaluate(embeddings, LABELS, **given).values("h_ap"))
