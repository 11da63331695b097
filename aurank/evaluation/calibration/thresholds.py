"""One threshold for the pairs of all queries: where it has to lie for a wanted rate, and true matches at false ones.

A pair of a query and a gallery row is a *match* if it scores at least the threshold. Rates are over all pairs at once,
as in face verification (LFW, IJB), not means over queries. All counts are integers, and rates exact fractions.
"""

from collections.abc import Iterable
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float64, Int64

from aurank.evaluation.engine.pooled import PooledScores
from aurank.evaluation.engine.problem import RetrievalProblem
from aurank.evaluation.metrics import pooled_names, pooled_rate
from aurank.evaluation.report import Report

PARTS = 10**9  # a precision is taken as a fraction of at most this denominator, so that counts stay within 64 bits


@runtime_checkable
class PairScores(Protocol):
    """Scores of positive pairs, and counts of negative ones, whatever they come from."""

    positives: Float64[np.ndarray, " positive"]  # increasing
    num_positives: int  # all there are; `positives` may lack some of the lowest
    num_negatives: int

    def bracket(
        self, scores: Float64[np.ndarray, " score"]
    ) -> tuple[Int64[np.ndarray, " score"], Int64[np.ndarray, " score"]]:
        """Return at least and at most how many negatives score so high."""
        ...

    def negatives_at_least(self, edges: Float64[np.ndarray, " edge"]) -> Int64[np.ndarray, " edge"]:
        """Return how many negatives score at least as high as each of some increasing edges, exactly."""
        ...


class ListedScores:
    """The pairs that a report's lists of neighbours hold, and where these are cut."""

    def __init__(self, report: Report) -> None:
        lists = report.neighbours
        assert lists is not None
        listed, own = lists.row >= 0, lists.is_positive
        self.query, _ = np.nonzero(listed)
        self.score, self.is_positive = lists.score[listed], own[listed]
        self.positives: Float64[np.ndarray, " positive"] = np.sort(self.score[self.is_positive])
        self.negatives = np.sort(self.score[~self.is_positive])
        columns = report.per_query
        self.unit = "class" if "label" in columns else "query"
        self.labels = columns.get("label", columns["query"])
        self.positives_each, self.negatives_each = (columns[f"num_{kind}"] for kind in ("positives", "negatives"))
        self.num_positives, self.num_negatives = int(self.positives_each.sum()), int(self.negatives_each.sum())
        self.length = lists.row.shape[1]
        # Of a list that leaves out candidates the last score; those that it leaves out score at most as much.
        is_cut = listed.sum(axis=1) < self.positives_each + self.negatives_each
        self.last = np.where(is_cut, np.min(lists.score, axis=1, initial=np.inf, where=listed), -np.inf)

    @cached_property
    def cut(self) -> float:
        """The score above which no list leaves out anything; minus infinity where lists are whole."""
        return float(self.last.max(initial=-np.inf))

    def bracket(
        self, scores: Float64[np.ndarray, " score"]
    ) -> tuple[Int64[np.ndarray, " score"], Int64[np.ndarray, " score"]]:
        """Return how many listed negatives score so high, twice."""
        return self.negatives_at_least(scores), self.negatives_at_least(scores)

    def negatives_at_least(self, edges: Float64[np.ndarray, " edge"]) -> Int64[np.ndarray, " edge"]:
        """Return how many listed negatives score at least as high as each edge."""
        return np.asarray(len(self.negatives) - np.searchsorted(self.negatives, edges))

    def positives_by_query(self, edge: float) -> Int64[np.ndarray, " query"]:
        """Return for each query how many of its listed positives score at least as high as an edge."""
        return self._by_query(self.is_positive & (self.score >= edge))

    def negatives_by_query(self, edge: float) -> Int64[np.ndarray, " query"]:
        """Return for each query how many of its listed negatives score at least as high as an edge."""
        return self._by_query(~self.is_positive & (self.score >= edge))

    def _by_query(self, counted: np.ndarray) -> Int64[np.ndarray, " query"]:
        return np.bincount(self.query[counted], minlength=len(self.labels))


def exact_fraction(rate: float | str) -> Fraction:
    """Return the fraction that a number is written as: 0.1 is a tenth, and not the float nearest to it.

    Example:
        >>> exact_fraction(1e-4)
        Fraction(1, 10000)
    """
    return Fraction(repr(float(rate)))


def threshold_at_false_match_rate(scores: PairScores, rate: Fraction) -> float | None:
    """Return the lowest score of a positive that at most this part of the negatives reach; None where there is none."""
    most = rate.numerator * scores.num_negatives // rate.denominator
    distinct = np.unique(scores.positives)
    return _lowest(scores, distinct, np.full(len(distinct), most))


def threshold_at_precision(scores: PairScores, precision: Fraction) -> float | None:
    """Return the lowest score of a positive at which this part of the matches is right; None where there is none."""
    wrong_for_each = 1 / max(precision.limit_denominator(PARTS), Fraction(1, PARTS)) - 1
    distinct = np.unique(scores.positives)
    allowed = positives_at_least(scores, distinct) * wrong_for_each.numerator // wrong_for_each.denominator
    return _lowest(scores, distinct, allowed)


def best_precision(scores: PairScores) -> tuple[float, float]:
    """Return the highest precision at the score of any positive, and the lowest score that has it."""
    distinct = np.unique(scores.positives)
    right, (least, most) = positives_at_least(scores, distinct), scores.bracket(distinct)
    possible = np.flatnonzero(right / (right + least) >= (right / (right + most)).max())
    exact = right[possible] / (right[possible] + scores.negatives_at_least(distinct[possible]))
    return float(exact.max()), float(distinct[possible][exact.argmax()])


def positives_at_least(scores: PairScores, edges: Float64[np.ndarray, " edge"]) -> Int64[np.ndarray, " edge"]:
    """Return how many positives score at least as high as each edge."""
    return np.asarray(len(scores.positives) - np.searchsorted(scores.positives, edges))


def shortest_equal(scores: PairScores, threshold: float) -> float:
    """Return the threshold of fewest digits, at most the given one, that makes exactly the same matches.

    It lies between two scores, so that other roundings of the same scores fall on the same sides of it.
    """
    exact = Decimal(threshold)
    rounded = {
        float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(exact)): digits for digits in range(16, 1, -1)
    }
    place = int(np.searchsorted(scores.positives, threshold))
    lower = -np.inf if place == 0 else scores.positives[place - 1]
    edges = np.array(sorted({threshold, *(one for one in rounded if lower < one <= threshold)}))
    counts = scores.negatives_at_least(edges)
    equal: list[float] = edges[counts == counts[-1]].tolist()
    return min(equal, key=lambda edge: rounded.get(edge, 17)) + 0.0  # not -0.0


def true_positive_rates(scores: PairScores, names: Iterable[str]) -> dict[str, float]:
    """Return the value of each tpr@fpr by its name: positives that match where at most so many negatives do.

    The threshold is the lowest that at most this part of the negatives reach. Of equal scores all match or none.

    Example:
        >>> rows = np.array([[1.0, 0.0], [0.8, 0.6], [0.96, 0.28], [0.0, 1.0]])
        >>> scores = PooledScores(RetrievalProblem(rows, labels=[0, 0, 1, 1]))
        >>> true_positive_rates(scores, ["tpr@fpr=0.5", "tpr@fpr=0.9"])
        {'tpr@fpr=0.5': 0.5, 'tpr@fpr=0.9': 1.0}
    """
    found = {}
    for name in names:
        rate = pooled_rate(name)
        assert rate is not None
        threshold = threshold_at_false_match_rate(scores, rate)
        matches = 0 if threshold is None else scores.num_positives - int(np.searchsorted(scores.positives, threshold))
        found[name] = matches / scores.num_positives
    return found


def pooled_metrics(
    problem: RetrievalProblem,
    names: Iterable[str] | None,
    *,
    distance: str,
    device: torch.device,
    max_memory: int | str,
    distributed: bool | str | None,
) -> tuple[dict[str, float], list[str]]:
    """Return those of some metrics that are of the pairs of all queries, and a note where there are few pairs."""
    if not (pooled := pooled_names(names)):
        return {}, []
    scores = PooledScores(problem, distance=distance, device=device, max_memory=max_memory, distributed=distributed)
    few = [name for name in pooled if (pooled_rate(name) or 0) * scores.num_negatives < 1]
    note = f"{', '.join(few)}: that is less than one of {scores.num_negatives:,} negative pairs, so none may match"
    return true_positive_rates(scores, pooled), [note] if few else []


def _lowest(
    scores: PairScores, distinct: Float64[np.ndarray, " score"], allowed: Int64[np.ndarray, " score"]
) -> float | None:
    least, most = scores.bracket(distinct)
    certain = np.flatnonzero(most <= allowed)[:1]
    end = certain[0] if len(certain) else len(distinct)
    unsure = distinct[np.append(np.flatnonzero(least[:end] <= allowed[:end]), certain)]
    places = np.searchsorted(distinct, unsure)
    right = unsure[scores.negatives_at_least(unsure) <= allowed[places]]
    return float(right[0]) if len(right) else None
