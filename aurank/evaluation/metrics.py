"""Metrics of retrieval as pure functions of `Ranks`: one float64 per query that has a positive, in its order.

In all of them but average precision a tied negative counts as ahead, and tied positives stand one after another. R is
the number of a query's positives, rank_j the rank of its j-th positive in the full gallery, from 1. Sums within a
query, and means over queries, are taken with `math.fsum`: rounded once, so the order of terms changes no digit.
"""

import itertools
import math
from collections.abc import Iterable
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float64, Int64

from aurank.errors import UserError
from aurank.evaluation.ranks import Ranks

Ties = Literal["threshold", "optimistic", "pessimistic"]
TIES: tuple[str, ...] = get_args(Ties)


def mean(values: Iterable[float] | Float64[np.ndarray, " query"]) -> float:
    """Arithmetic mean of one value or more, its sum rounded once."""
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return math.fsum(listed) / len(listed)


def average_precision(ranks: Ranks, *, ties: str = "threshold") -> Float64[np.ndarray, " query"]:
    """AP over the full gallery: mean over a query's positives of the precision where each is found.

    `ties` says what happens inside a group of equal scores:

    - "threshold": one threshold admits the whole group, so each of its positives gets the precision at the group's end
      (as `sklearn.metrics.average_precision_score`). If everything ties, AP is the prevalence.
    - "optimistic": tied negatives count as behind; tied positives all get the precision after the last of them.
    - "pessimistic": tied negatives count as ahead; tied positives are found one after another.

    The last two bound the first, and the AP of every order in which tied items could be listed.
    """
    if ties not in TIES:
        raise UserError(f"ties must be one of {', '.join(TIES)}; got {ties!r}")
    found = ranks.place if ties == "pessimistic" else ranks.at_least
    negatives = ranks.higher if ties == "optimistic" else ranks.higher + ranks.tied
    return np.asarray(_query_sums(found / (found + negatives), ranks) / ranks.num_positives)


def first_rank(ranks: Ranks) -> Int64[np.ndarray, " query"]:
    """rank_1: where the best positive stands."""
    return np.asarray(ranks.rank[ranks.offset[:-1]])


def last_rank(ranks: Ranks) -> Int64[np.ndarray, " query"]:
    """rank_R: where the worst positive stands, so how far one reads to see them all."""
    return np.asarray(ranks.rank[ranks.offset[1:] - 1])


def recall_at(ranks: Ranks, k: int) -> Float64[np.ndarray, " query"]:
    """Recall@k as retrieval papers use it: 1 if a positive is among the first k (rank_1 <= k), else 0."""
    return (first_rank(ranks) <= k).astype(np.float64)


def precision_at(ranks: Ranks, k: int) -> Float64[np.ndarray, " query"]:
    """Positives among the first k, divided by k, also where the gallery or R is smaller than k."""
    return _count(ranks, ranks.rank <= k) / k


def map_at_r(ranks: Ranks) -> Float64[np.ndarray, " query"]:
    """MAP@R = 1/R times the sum of j / rank_j over the positives with rank_j <= R.

    # Section 3.2 of Musgrave et al., A Metric Learning Reality Check (ECCV 2020).
    """
    inside = ranks.rank <= np.repeat(ranks.num_positives, ranks.num_positives)
    return np.asarray(_query_sums(np.where(inside, ranks.place / ranks.rank, 0.0), ranks) / ranks.num_positives)


def r_precision(ranks: Ranks) -> Float64[np.ndarray, " query"]:
    """Positives among the first R, divided by R."""
    inside = ranks.rank <= np.repeat(ranks.num_positives, ranks.num_positives)
    return np.asarray(_count(ranks, inside) / ranks.num_positives)


def ndcg(ranks: Ranks) -> Float64[np.ndarray, " query"]:
    """nDCG of binary relevance, uncut: sum of 1 / log2(1 + rank_j), divided by its value if all positives led."""
    # A table over ranks, since a vectorised logarithm may round differently at different places of an array.
    gains = np.array([1 / math.log2(1 + rank) for rank in range(1, ranks.num_gallery + 1)])
    best = {count: math.fsum(gains[:count].tolist()) for count in np.unique(ranks.num_positives).tolist()}
    ideal = np.array([best[count] for count in ranks.num_positives.tolist()], dtype=np.float64)
    return _query_sums(gains[ranks.rank - 1], ranks) / ideal


def reciprocal_rank(ranks: Ranks) -> Float64[np.ndarray, " query"]:
    """1 / rank_1; its mean over queries is MRR."""
    return 1 / first_rank(ranks)


def inverse_negative_penalty(ranks: Ranks) -> Float64[np.ndarray, " query"]:
    """R / rank_R, how well the hardest positive stands; its mean over queries is mINP.

    # Section 2.3 of Ye et al., Deep Learning for Person Re-identification (TPAMI 2021).
    """
    return np.asarray(ranks.num_positives / last_rank(ranks))


def auroc(ranks: Ranks) -> Float64[np.ndarray, " query"]:
    """Part of the pairs of a positive and a negative in which the positive scores strictly higher; 1 without negatives.

    Without ties the area under the ROC curve. That area counts a tie as half; here it counts as lost.
    """
    lost = np.add.reduceat(ranks.higher + ranks.tied, ranks.offset[:-1])  # integers: exact in any order
    return np.asarray(1 - lost / np.maximum(ranks.num_positives * ranks.num_negatives, 1))


def _count(ranks: Ranks, positives: np.ndarray) -> Int64[np.ndarray, " query"]:
    return np.add.reduceat(positives.astype(np.int64), ranks.offset[:-1])


def _query_sums(terms: Float64[np.ndarray, " positive"], ranks: Ranks) -> Float64[np.ndarray, " query"]:
    listed, edges = terms.tolist(), ranks.offset.tolist()
    sums = [math.fsum(listed[start:end]) for start, end in itertools.pairwise(edges)]
    return np.array(sums, dtype=np.float64)
