"""Brute force in float64, one pair and one query at a time: what the engine must equal."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch


def exact_score(left: np.ndarray, right: np.ndarray) -> float:
    """Cosine with correctly rounded sums, from the values as they came."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    lengths = math.sqrt(math.fsum((left * left).tolist())) * math.sqrt(math.fsum((right * right).tolist()))
    return math.fsum((left * right).tolist()) / lengths


def ranked(
    scores: Sequence[float], positive: Sequence[bool], tolerance: float
) -> tuple[list[tuple[int, int, int]], int, int]:
    """For each positive, best first: (place among positives, negatives higher, negatives tied); R; number of negatives.

    Scores closer than `tolerance` tie: it stands between the rounding of a score and the smallest true difference.
    """
    own = (score for score, is_positive in zip(scores, positive, strict=True) if is_positive)
    positives = sorted(own, reverse=True)
    negatives = [score for score, is_positive in zip(scores, positive, strict=True) if not is_positive]
    found = []
    for place, score in enumerate(positives, start=1):
        higher = sum(other > score + tolerance for other in negatives)
        tied = sum(abs(other - score) <= tolerance for other in negatives)
        found.append((place, higher, tied))
    return found, len(positives), len(negatives)


def query_metrics(
    scores: Sequence[float], positive: Sequence[bool], cuts: Sequence[int], tolerance: float
) -> dict[str, float]:
    """Every metric of one query, by its definition."""
    found, count, negatives = ranked(scores, positive, tolerance)
    own = sorted((score for score, is_positive in zip(scores, positive, strict=True) if is_positive), reverse=True)
    at_least = [sum(other >= score - tolerance for other in own) for score in own]
    ranks = [place + higher + tied for place, higher, tied in found]
    result = {
        "threshold": sum(a / (a + h + t) for a, (_, h, t) in zip(at_least, found, strict=True)) / count,
        "optimistic": sum(a / (a + h) for a, (_, h, _) in zip(at_least, found, strict=True)) / count,
        "pessimistic": sum(p / (p + h + t) for p, h, t in found) / count,
        "map@r": sum(place / rank for place, rank in enumerate(ranks, 1) if rank <= count) / count,
        "r_precision": sum(rank <= count for rank in ranks) / count,
        "ndcg": sum(1 / math.log2(1 + rank) for rank in ranks)
        / sum(1 / math.log2(1 + place) for place in range(1, count + 1)),
        "mrr": 1 / ranks[0],
        "minp": count / ranks[-1],
        "auroc": 1 - sum(h + t for _, h, t in found) / max(1, count * negatives),
    }
    for k in cuts:
        result[f"recall@{k}"] = float(ranks[0] <= k)
        result[f"precision@{k}"] = sum(rank <= k for rank in ranks) / k
    return result


def brute_force(
    queries: np.ndarray,
    labels: Sequence[int],
    gallery: np.ndarray | None = None,
    gallery_labels: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    gallery_ids: Sequence[int] | None = None,
    *,
    cuts: Sequence[int] = (1, 10),
    tolerance: float = 1e-13,
) -> tuple[dict[str, float], list[int]]:
    """Means over the queries that have a positive, and those queries' rows."""
    own = gallery is None
    there: Any = queries if gallery is None else gallery
    there_labels: Any = labels if gallery_labels is None else gallery_labels
    rows, values = [], []
    for row, query in enumerate(queries):
        keep = [
            place
            for place in range(len(there))
            if not (own and place == row)
            and not (ids is not None and gallery_ids is not None and gallery_ids[place] == ids[row])
        ]
        positive = [there_labels[place] == labels[row] for place in keep]
        if any(positive):
            scores = [exact_score(query, there[place]) for place in keep]
            rows.append(row)
            values.append(query_metrics(scores, positive, cuts, tolerance))
    return {name: math.fsum(value[name] for value in values) / len(values) for name in values[0]}, rows


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
