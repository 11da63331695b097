"""Metrics of retrieval as pure functions of `Ranks`: one float64 per query that has a positive, in its order."""

import itertools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from aurank.errors import UserError
from aurank.evaluation.engine.ranks import Ranks
from aurank.evaluation.inputs import require_at_least
from aurank.names import meant, nearest, require_choice

MACRO = "macro:"  # the prefix of a metric that is averaged over classes instead of queries


def mean(values: Iterable[float] | Float64[np.ndarray, " query"]) -> float:
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return math.fsum(listed) / len(listed)


def segment_sums(values: Float64[np.ndarray, " value"], edges: Int64[np.ndarray, " edge"]) -> Float64[np.ndarray, " _"]:
    listed, ends = values.tolist(), edges.tolist()
    return np.array([math.fsum(listed[start:end]) for start, end in itertools.pairwise(ends)], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Classes:
    """The queries of each label, for sums and means within a class; classes are in the order of their labels."""

    label: Shaped[np.ndarray, " class"]  # integers or text
    count: Int64[np.ndarray, " class"]  # queries of the class
    order: Int64[np.ndarray, " query"]  # queries, class by class

    @classmethod
    def of(cls, labels: Shaped[np.ndarray, " query"]) -> "Classes":
        label, count = np.unique(labels, return_counts=True)
        return cls(label, count.astype(np.int64), np.argsort(labels, kind="stable"))

    def sums(self, values: Float64[np.ndarray, " query"]) -> Float64[np.ndarray, " class"]:
        return segment_sums(values[self.order], np.cumsum([0, *self.count]))

    def means(self, values: Float64[np.ndarray, " query"]) -> Float64[np.ndarray, " class"]:
        return np.asarray(self.sums(values) / self.count)


def average(metric: str, values: Float64[np.ndarray, " query"], classes: Classes | None = None) -> float:
    if metric.startswith(MACRO):
        assert classes is not None
        return mean(classes.means(values))
    return mean(values)


Ties = Literal["threshold", "optimistic", "pessimistic"]
TIES: tuple[str, ...] = get_args(Ties)
Cut: TypeAlias = int | Int64[np.ndarray, " query"]  # one k for all queries, or one for each


def precision_when_found(ranks: Ranks, *, ties: str = "threshold") -> Float64[np.ndarray, " positive"]:
    """Return the precision of the list that ends at each positive."""
    require_choice("ties", ties, TIES)
    positives = ranks.place if ties == "pessimistic" else ranks.at_least
    negatives = ranks.higher if ties == "optimistic" else ranks.higher + ranks.tied
    return np.asarray(positives / (positives + negatives))


def average_precision(ranks: Ranks, *, ties: str = "threshold") -> Float64[np.ndarray, " query"]:
    return np.asarray(segment_sums(precision_when_found(ranks, ties=ties), ranks.offset) / ranks.num_positives)


def first_rank(ranks: Ranks) -> Int64[np.ndarray, " query"]:
    return np.asarray(ranks.rank[ranks.offset[:-1]])


def last_rank(ranks: Ranks) -> Int64[np.ndarray, " query"]:
    return np.asarray(ranks.rank[ranks.offset[1:] - 1])


def recall_at(ranks: Ranks, k: int) -> Float64[np.ndarray, " query"]:
    return (first_rank(ranks) <= _cut(ranks, k)).astype(np.float64)


def precision_at(ranks: Ranks, k: Cut) -> Float64[np.ndarray, " query"]:
    return np.asarray(_count(ranks, k) / (float(k) if isinstance(k, int) else k))


def map_at(ranks: Ranks, k: Cut, *, denominator: Literal["min", "r"]) -> Float64[np.ndarray, " query"]:
    precision = np.where(_is_within(ranks, k), ranks.place / ranks.rank, 0.0)
    possible = np.minimum(ranks.num_positives, _cut(ranks, k)) if denominator == "min" else ranks.num_positives
    return np.asarray(segment_sums(precision, ranks.offset) / possible)


def ndcg(ranks: Ranks, k: int | None = None) -> Float64[np.ndarray, " query"]:
    """Return nDCG: sum of relevance_j / log2(1 + rank_j), divided by that of the best order."""
    cut = ranks.num_gallery if k is None else min(k, ranks.num_gallery)
    # A table over ranks: a vectorised logarithm may round differently at different positions of an array.
    highest = min(cut, int(ranks.rank.max(initial=1)))
    gains = np.array([0.0, *(1 / math.log2(1 + rank) for rank in range(1, highest + 1)), 0.0])
    gain = gains[np.minimum(ranks.rank, highest + 1)]
    if ranks.relevance is not None:
        query = np.repeat(np.arange(len(ranks.query)), ranks.num_positives)
        best_first = ranks.relevance[np.lexsort((-ranks.relevance, query))]
        ideal = segment_sums(best_first * gains[np.minimum(ranks.place, highest + 1)], ranks.offset)
        return np.asarray(segment_sums(ranks.relevance * gain, ranks.offset) / ideal)
    counts, index = np.unique(np.minimum(ranks.num_positives, cut), return_inverse=True)
    best = np.array([math.fsum(gains[1 : count + 1].tolist()) for count in counts.tolist()], dtype=np.float64)
    return np.asarray(segment_sums(gain, ranks.offset) / best[index])


def reciprocal_rank_at(ranks: Ranks, k: int) -> Float64[np.ndarray, " query"]:
    return np.asarray(recall_at(ranks, k) / first_rank(ranks))


def trapezoid_ap(ranks: Ranks) -> Float64[np.ndarray, " query"]:
    """Return AP by trapezoids: 1/R times the sum of ((j − 1) / (rank_j − 1) + j / rank_j) / 2, 0 / 0 counting as 1.

    Source: `compute_ap` of https://github.com/filipradenovic/revisitop, python/evaluate.py (Radenović et al., 2018)
    """
    before = np.where(ranks.rank > 1, (ranks.place - 1) / np.maximum(ranks.rank - 1, 1), 1.0)
    return np.asarray(segment_sums((before + ranks.place / ranks.rank) / 2, ranks.offset) / ranks.num_positives)


def auroc(ranks: Ranks) -> Float64[np.ndarray, " query"]:
    lost = np.add.reduceat(ranks.higher + ranks.tied, ranks.offset[:-1])  # integers: exact in any order
    return np.asarray(1 - lost / np.maximum(ranks.num_positives * ranks.num_negatives, 1))


WHOLE: dict[str, Callable[[Ranks], np.ndarray]] = {
    # Section 3.2 of Musgrave et al., A Metric Learning Reality Check (ECCV 2020), https://arxiv.org/abs/2003.08505
    "map@r": lambda ranks: map_at(ranks, ranks.num_positives, denominator="r"),
    "r_precision": lambda ranks: precision_at(ranks, ranks.num_positives),
    "ndcg": ndcg,
    "mrr": lambda ranks: 1 / first_rank(ranks),
    # Section 2.3 of Ye et al., Deep Learning for Person Re-identification (TPAMI 2021), https://arxiv.org/abs/2001.04193
    "minp": lambda ranks: ranks.num_positives / last_rank(ranks),
    "trapezoid_ap": trapezoid_ap,
    "auroc": auroc,
}
AT_K: dict[str, Callable[[Ranks, int], np.ndarray]] = {
    "recall@{k}": recall_at,
    "precision@{k}": precision_at,
    # The list ends with its last positive: `compute_map` of the same file as for `trapezoid_ap`.
    "precision@{k}(last)": lambda ranks, k: precision_at(ranks, np.minimum(last_rank(ranks), _cut(ranks, k))),
    "coverage@{k}": lambda ranks, k: np.asarray(_count(ranks, k) / ranks.num_positives),
    "map@{k}(min)": partial(map_at, denominator="min"),
    "map@{k}(r)": partial(map_at, denominator="r"),
    "ndcg@{k}": ndcg,
    "mrr@{k}": reciprocal_rank_at,
}
NAMES = ("mauprc", *AT_K, *WHOLE)
HIERARCHICAL = ("h_ap", "h_ndcg")  # of super-categories: aurank.evaluation.relevance
SUPER = "super:"  # before the name of any metric above: the rows of a query's super-category are its positives
POOLED = "tpr@fpr={rate}"  # over the pairs of all queries; it has no value per query
RATE = re.compile(r"tpr@fpr=((?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:e-?[0-9]{1,2})?)")
CUT = re.compile(r"([a-z_]+@)([1-9][0-9]{0,99})(\([a-z]+\))?")


def query_values(ranks: Ranks, name: str, *, ties: str = "threshold") -> Float64[np.ndarray, " query"]:
    """Return the values whose mean is the metric of this name; `ties` applies to "mauprc" alone."""
    if name == "mauprc":
        return average_precision(ranks, ties=ties)
    if name in WHOLE:
        return WHOLE[name](ranks)
    template, k = split_cut(name)
    return AT_K[template](ranks, k)


def split_cut(name: str) -> tuple[str, int]:
    parts = CUT.fullmatch(name)
    return (f"{parts[1]}{{k}}{parts[3] or ''}", int(parts[2])) if parts else ("", 0)


def hierarchical_names(names: Iterable[str] | None) -> list[str]:
    bases = dict.fromkeys(name.removeprefix(MACRO) for name in names or ())
    return [name for name in bases if name in HIERARCHICAL or name.startswith(SUPER)]


def pooled_rate(name: str) -> Fraction | None:
    parts = RATE.fullmatch(name)
    rate = Fraction(parts[1]) if parts else Fraction(0)
    return rate if 0 < rate < 1 else None


def pooled_names(names: Iterable[str] | None) -> list[str]:
    return [name for name in names or () if pooled_rate(name) is not None]


def check_names(names: Iterable[str], *, labelled: bool = True) -> tuple[str, ...]:
    """Return the names, each once, in their order; UserError for one that no metric has, with the nearest."""
    listed = () if isinstance(names, str) else tuple(dict.fromkeys(names))
    if not listed:
        raise UserError(f'metrics must be a list of at least one name, such as ["mauprc"]; got {names!r}')
    if not labelled and any(name.startswith(MACRO) for name in listed):
        raise UserError(f"a metric with {MACRO} is a mean over classes: give the queries' labels")
    for name in listed:
        base = name.removeprefix(MACRO)
        if base in HIERARCHICAL or pooled_rate(name) is not None:
            continue
        base = base.removeprefix(SUPER)
        if base != "mauprc" and base not in WHOLE and split_cut(base)[0] not in AT_K:
            number = re.search(r"[1-9][0-9]{0,99}", base)
            examples = [metric.format(k=number[0] if number else 1) for metric in (*NAMES, *HIERARCHICAL)]
            also = f"each also as {MACRO}NAME and {SUPER}NAME, {', '.join(HIERARCHICAL)}, or {POOLED}"
            hint = meant(nearest(base, examples, most=3))
            rates = "with a rate between 0 and 1 and no prefix"
            raise UserError(f"unknown metric {name!r}, expected one of {', '.join(NAMES)}, {also} {rates}{hint}")
    return listed


def default_metrics(recall_at: tuple[int, ...] = (1, 10, 100, 1000)) -> tuple[str, ...]:
    cuts = [f"{name}@{k}" for name in ("recall", "precision") for k in recall_at]
    return ("mauprc", *cuts, "map@r", "r_precision", "ndcg", "mrr", "minp", "auroc")


def sorted_cuts(recall_at: Iterable[int]) -> tuple[int, ...]:
    """Return the cut-offs in increasing order, each once; UserError unless all are positive integers."""
    cuts = list(recall_at) if isinstance(recall_at, Iterable) else [None]
    if any(isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1 for k in cuts):
        raise UserError(f"recall_at must be a list of integers of 1 or more, such as (1, 10, 100); got {recall_at!r}")
    return tuple(sorted({int(k) for k in cuts}))


def _cut(ranks: Ranks, k: Cut) -> Cut:
    # No rank is beyond the gallery, and NumPy does not compare a k past 64 bits.
    return min(k, ranks.num_gallery) if isinstance(k, int) else k


def _is_within(ranks: Ranks, k: Cut) -> Bool[np.ndarray, " positive"]:
    return np.asarray(ranks.rank <= (_cut(ranks, k) if isinstance(k, int) else np.repeat(k, ranks.num_positives)))


def _count(ranks: Ranks, k: Cut) -> Int64[np.ndarray, " query"]:
    return np.add.reduceat(_is_within(ranks, k).astype(np.int64), ranks.offset[:-1])


# -- the mean precision-recall curve, and what a random order scores ---------------------------------------------------

POINTS = np.arange(101) / 100  # recalls of the curve in a report


@dataclass(frozen=True, eq=False)
class Curve:
    """Mean precision over queries at increasing recall.

    An exact curve is a staircase: `precision[i]` holds for recall above `recall[i - 1]` and up to `recall[i]`.

    Example:
        >>> Curve(recall=np.array([0.5, 1.0]), precision=np.array([1.0, 0.75])).precision.tolist()
        [1.0, 0.75]
    """

    recall: Float64[np.ndarray, " point"]
    precision: Float64[np.ndarray, " point"]


def precision_recall_curve(
    ranks: Ranks, *, points: int | None = 101, interpolated: bool = True, ties: str = "threshold"
) -> Curve:
    """Return the mean over queries of precision at each recall.

    A query's precision at recall r is that of the shortest list that holds at least r of its positives (one positive
    for r = 0), as `precision_when_found` defines it.

    Args:
        points: number of recalls, evenly from 0 to 1: 11 or 101 are usual. None gives the exact curve, with a point
            wherever any query's precision may change; not interpolated, its area is mAUPRC.
        interpolated: take the highest precision of that list and of all longer ones.

    Example:
        >>> from aurank.evaluation import positive_ranks
        >>> ranks = positive_ranks(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1]]), [0, 0, 1])
        >>> precision_recall_curve(ranks, points=2).precision.tolist()
        [0.5, 0.5]
    """
    if points is not None:
        require_at_least(2, points=points)
    # Equal fractions divide to equal floats: a recall of 3/10 finds the step that ends at 3 of 10 positives.
    recall = np.unique(_recall_when_found(ranks)) if points is None else np.arange(points) / (points - 1)
    curve = MeanCurve(recall, len(ranks.query), interpolated=interpolated, ties=ties)
    curve.add(ranks)
    return curve.curve()


class MeanCurve:
    """The mean of queries' precision-recall curves, added block by block; arguments as for `precision_recall_curve`."""

    def __init__(
        self, recall: Float64[np.ndarray, " point"], count: int, *, interpolated: bool = True, ties: str = "threshold"
    ) -> None:
        self.recall, self.count, self.interpolated, self.ties = recall, count, interpolated, ties
        # Precisions become integers, whose sums are exact in any order; `count` of them stay below 2⁶².
        self.scale = 2 ** (62 - count.bit_length())
        self.total = np.zeros(len(recall), dtype=np.int64)

    def add(self, ranks: Ranks) -> None:
        """Add the staircases of some queries; one of R positives has steps that end at recall 1/R, 2/R, …, 1."""
        precision = precision_when_found(ranks, ties=self.ties)
        if self.interpolated:
            later = np.repeat(ranks.num_positives, ranks.num_positives) - ranks.place  # positives after each
            step = 1
            while step <= later.max(initial=0):  # after each pass an entry is the highest of twice as many
                inside = np.flatnonzero(later >= step)
                precision[inside] = np.maximum(precision[inside], precision[inside + step])
                step *= 2
        level = np.round(precision * self.scale).astype(np.int64)
        rises = np.diff(level, append=0)  # after a query's last positive recall is beyond 1, which is dropped
        changes = np.zeros(len(self.recall) + 1, dtype=np.int64)
        # A rise counts after the step of its positive.
        np.add.at(changes, np.searchsorted(self.recall, _recall_when_found(ranks), side="right"), rises)
        self.total += level[ranks.offset[:-1]].sum() + np.cumsum(changes[:-1])

    def curve(self) -> Curve:
        return Curve(self.recall, self.total / self.scale / self.count)


def _recall_when_found(ranks: Ranks) -> Float64[np.ndarray, " positive"]:
    return np.asarray(ranks.place / np.repeat(ranks.num_positives, ranks.num_positives))


def random_order_ap(
    num_positives: Int64[np.ndarray, " query"], num_negatives: Int64[np.ndarray, " query"]
) -> Float64[np.ndarray, " query"]:
    """Return the expected AP of a random order: by the harmonic numbers H(n), from n = 101 on by their series."""
    count = num_positives + num_negatives
    n = count.astype(np.float64)
    series = np.log(n) + np.euler_gamma + 1 / (2 * n) - 1 / (12 * n**2) + 1 / (120 * n**4)
    sums = np.where(count <= 100, np.cumsum(1 / np.arange(1, 101))[np.minimum(count, 100) - 1], series)
    return np.asarray((sums + (count - sums) * (num_positives - 1) / np.maximum(count - 1, 1)) / count)
