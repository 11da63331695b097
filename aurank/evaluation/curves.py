"""The mean precision-recall curve over queries, from ranks, and what a random order scores."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from aurank.errors import UserError
from aurank.evaluation.engine.ranks import Ranks
from aurank.evaluation.metrics import precision_when_found

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
    if points is not None and points < 2:
        raise UserError(f"points must be 2 or more, such as 11 or 101, or None for the exact curve; got {points}")
    # Equal fractions divide to equal floats: a recall of 3/10 finds the step that ends at 3 of 10 positives.
    recall = np.unique(_recall_when_found(ranks)) if points is None else np.arange(points) / (points - 1)
    mean = MeanCurve(recall, len(ranks.query), interpolated=interpolated, ties=ties)
    mean.add(ranks)
    return mean.curve()


class MeanCurve:
    """The mean of queries' precision-recall curves, which may come in blocks: `precision_recall_curve` says of what."""

    def __init__(
        self, recall: Float64[np.ndarray, " point"], count: int, *, interpolated: bool = True, ties: str = "threshold"
    ) -> None:
        self.recall, self.count, self.interpolated, self.ties = recall, count, interpolated, ties
        # Precisions become integers, whose sums no order can change; `count` of them stay below 2⁶².
        self.scale = 2 ** (62 - count.bit_length())
        self.total = np.zeros(len(recall), dtype=np.int64)

    def add(self, ranks: Ranks) -> None:
        """Add the staircases of some queries; one of R positives has steps that end at recall 1/R, 2/R, …, 1."""
        precision = precision_when_found(ranks, ties=self.ties)
        if self.interpolated:
            precision = _highest_from_here(precision, ranks)
        level = np.round(precision * self.scale).astype(np.int64)
        rises = np.diff(level, append=0)  # what follows a query's last positive falls beyond recall 1, and is dropped
        changes = np.zeros(len(self.recall) + 1, dtype=np.int64)
        # A rise counts behind the step where its positive is found.
        np.add.at(changes, np.searchsorted(self.recall, _recall_when_found(ranks), side="right"), rises)
        self.total += level[ranks.offset[:-1]].sum() + np.cumsum(changes[:-1])

    def curve(self) -> Curve:
        return Curve(self.recall, self.total / self.scale / self.count)


def _recall_when_found(ranks: Ranks) -> Float64[np.ndarray, " positive"]:
    return np.asarray(ranks.place / np.repeat(ranks.num_positives, ranks.num_positives))


def random_order_ap(
    num_positives: Int64[np.ndarray, " query"], num_negatives: Int64[np.ndarray, " query"]
) -> Float64[np.ndarray, " query"]:
    count = num_positives + num_negatives
    sums = _harmonic(count)
    return np.asarray((sums + (count - sums) * (num_positives - 1) / np.maximum(count - 1, 1)) / count)


def _harmonic(count: Int64[np.ndarray, " query"]) -> Float64[np.ndarray, " query"]:
    small = np.cumsum(1 / np.arange(1, 101))
    n = count.astype(np.float64)
    series = np.log(n) + np.euler_gamma + 1 / (2 * n) - 1 / (12 * n**2) + 1 / (120 * n**4)
    return np.where(count <= 100, small[np.minimum(count, 100) - 1], series)


def _highest_from_here(values: Float64[np.ndarray, " positive"], ranks: Ranks) -> Float64[np.ndarray, " positive"]:
    highest, left = values.copy(), np.repeat(ranks.num_positives, ranks.num_positives) - ranks.place
    step = 1
    while step <= left.max(initial=0):  # after each pass an entry covers twice as many of its followers
        inside = np.flatnonzero(left >= step)
        highest[inside] = np.maximum(highest[inside], highest[inside + step])
        step *= 2
    return highest
