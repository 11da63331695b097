"""One threshold for the pairs of all queries: where it has to lie for a wanted rate, and true matches at false ones.

A pair of a query and a gallery row is a *match* if it scores at least the threshold. Rates are over all pairs at once,
as in face verification (LFW, IJB), not means over queries. All counts are integers, and rates exact fractions.
"""

from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64

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


def _lowest(
    scores: PairScores, distinct: Float64[np.ndarray, " score"], allowed: Int64[np.ndarray, " score"]
) -> float | None:
    """Return the lowest of some increasing scores that no more negatives reach than are allowed there."""
    least, most = scores.bracket(distinct)
    certain = np.flatnonzero(most <= allowed)[:1]
    end = certain[0] if len(certain) else len(distinct)
    unsure = distinct[np.append(np.flatnonzero(least[:end] <= allowed[:end]), certain)]
    places = np.searchsorted(distinct, unsure)
    right = unsure[scores.negatives_at_least(unsure) <= allowed[places]]
    return float(right[0]) if len(right) else None
