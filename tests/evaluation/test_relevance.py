"""nDCG of graded relevance, against scikit-learn and against lists sorted one by one."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

import aurank

CHANCE = np.random.default_rng(0)
NAMES = ("ndcg", "ndcg@1", "ndcg@3", "ndcg@100", "mauprc")


def judged(queries: int, gallery: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A table of grades 0 to 3, its pairs above 0 in any order, and their grades."""
    table = np.maximum(CHANCE.integers(-3, 4, (queries, gallery)), 0)
    table[:, 0] = 2
    pairs = CHANCE.permutation(np.argwhere(table))
    return table, pairs, table[pairs[:, 0], pairs[:, 1]]


def test_without_ties_it_is_that_of_scikit_learn() -> None:
    queries, gallery = CHANCE.normal(size=(12, 5)), CHANCE.normal(size=(20, 5))
    table, pairs, grades = judged(12, 20)
    report = aurank.evaluate(
        queries, gallery=gallery, positives=pairs, relevance=torch.from_numpy(grades), metrics=NAMES
    )
    cosine = (queries / np.linalg.norm(queries, axis=1)[:, None]) @ (
        gallery / np.linalg.norm(gallery, axis=1)[:, None]
    ).T
    for k in (None, 1, 3, 100):
        theirs = [ndcg_score(table[row : row + 1], cosine[row : row + 1], k=k) for row in range(12)]
        name = "ndcg" if k is None else f"ndcg@{k}"
        assert report.per_query[name].tolist() == pytest.approx(theirs, abs=1e-12)
    exponential = aurank.evaluate(queries, gallery=gallery, positives=pairs, relevance=2.0**grades - 1, metrics=NAMES)
    assert exponential.metrics["ndcg"] == pytest.approx(ndcg_score(2**table - 1, cosine), abs=1e-12)
    plain = aurank.evaluate(queries, gallery=gallery, positives=pairs, metrics=NAMES)
    assert plain.metrics["mauprc"] == report.metrics["mauprc"]
    alike = aurank.evaluate(queries, gallery=gallery, positives=pairs, relevance=np.full(len(pairs), 2), metrics=NAMES)
    assert alike.metrics == pytest.approx(plain.metrics, abs=1e-15)
    assert "nDCG is of graded relevance, with linear gain" in report.notes


@pytest.mark.parametrize("k", [1, 2, 4, 100])
def test_in_a_tie_the_least_relevant_stands_first_whatever_the_order_of_rows(k: int) -> None:
    queries = CHANCE.integers(-1, 2, (9, 2)) + np.array([0, 3])
    gallery = CHANCE.integers(-1, 2, (14, 2)) + np.array([0, 3])
    table, pairs, grades = judged(9, 14)
    expected = []
    for row in range(9):
        scores = queries[row] @ gallery.T
        listed = sorted(zip(-scores, table[row], strict=True))
        best = sorted(table[row].tolist(), reverse=True)
        gain = [1 / math.log2(2 + place) for place in range(min(k, 14))]
        found = sum(grade * weight for (_, grade), weight in zip(listed, gain, strict=False))
        expected.append(found / sum(grade * weight for grade, weight in zip(best, gain, strict=False)))
    order = CHANCE.permutation(14)
    for rows in (np.arange(14), order):
        place = np.argsort(rows)
        there = np.stack([pairs[:, 0], place[pairs[:, 1]]], axis=1)
        report = aurank.evaluate(
            queries, gallery=gallery[rows], positives=there, relevance=grades, metrics=[f"ndcg@{k}"], distance="dot"
        )
        assert report.per_query[f"ndcg@{k}"].tolist() == pytest.approx(expected, abs=1e-12)
