"""Brute force in float64, one pair and one query at a time: what the engine must equal."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from aurank.evaluation import RetrievalProblem


def exact_score(left: np.ndarray, right: np.ndarray) -> float:
    """Cosine with correctly rounded sums, from the values as they came."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    lengths = math.sqrt(math.fsum((left * left).tolist())) * math.sqrt(math.fsum((right * right).tolist()))
    return math.fsum((left * right).tolist()) / lengths


def all_scores(queries: np.ndarray, gallery: np.ndarray, distance: str) -> np.ndarray:
    """Every pair in float64."""
    queries, gallery = queries.astype(np.float64), gallery.astype(np.float64)
    if distance == "euclidean":
        return np.asarray(-((queries[:, None] - gallery[None]) ** 2).sum(axis=2))
    if distance == "cosine":
        queries, gallery = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (queries, gallery))
    return np.asarray(queries @ gallery.T)


def left_out(problem: RetrievalProblem, query: int, row: int) -> tuple[bool, bool]:
    """Whether a gallery row is left out of a query's list, and whether it is a positive; by the definition."""
    alone = problem.gallery is None
    labels = problem.labels if alone else problem.gallery_labels
    if problem.positives is None:
        positive = problem.labels[query] == labels[row]
    else:
        positive = [query, row] in np.asarray(problem.positives).tolist()
    if row in (problem.junk if problem.junk is not None else ()):
        return True, False
    if problem.ignore is not None and [query, row] in np.asarray(problem.ignore).tolist():
        return True, False
    if query == row if alone else problem.ids is not None and problem.ids[query] == problem.gallery_ids[row]:
        return True, False
    if positive and problem.groups is not None:
        groups = problem.groups if alone else problem.gallery_groups
        return bool(problem.groups[query] == groups[row] != -1), True
    return False, bool(positive)


def rational_score(left: Sequence[Fraction], right: Sequence[Fraction], distance: str) -> Fraction:
    """The score without any rounding; for the cosine its square with its sign, which orders the same."""
    if distance == "euclidean":
        return -sum(((a - b) ** 2 for a, b in zip(left, right, strict=True)), Fraction())
    product = sum((a * b for a, b in zip(left, right, strict=True)), Fraction())
    if distance == "dot":
        return product
    squares = sum(a * a for a in left) * sum(b * b for b in right)
    return product * abs(product) / squares


def exact_lists(
    embeddings: Any,
    labels: Sequence[int],
    gallery: Any = None,
    gallery_labels: Sequence[int] | None = None,
    *,
    ids: Sequence[int] | None = None,
    gallery_ids: Sequence[int] | None = None,
    distance: str = "cosine",
) -> dict[int, list[tuple[int, bool]]]:
    """For each query with a positive, by row: (score, positive) of what it is compared with, by exact order."""
    own = gallery is None
    left, right = ([*map(_rational, side)] for side in (embeddings, embeddings if own else gallery))
    there_labels = labels if gallery_labels is None else gallery_labels
    result = {}
    for row, query in enumerate(left):
        kept = [
            place
            for place in range(len(right))
            if (place != row if own else ids is None or gallery_ids is None or ids[row] != gallery_ids[place])
        ]
        scores = [rational_score(query, right[place], distance) for place in kept]
        number = {score: step for step, score in enumerate(sorted(set(scores)))}
        positive = [there_labels[place] == labels[row] for place in kept]
        if any(positive):
            result[row] = [(number[score], wanted) for score, wanted in zip(scores, positive, strict=True)]
    return result


def _rational(row: Any) -> list[Fraction]:
    return [Fraction(value) for value in torch.as_tensor(row).double().tolist()]
