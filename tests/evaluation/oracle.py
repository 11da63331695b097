"""Brute force in float64, one pair and one query at a time: what the engine must equal."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


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
