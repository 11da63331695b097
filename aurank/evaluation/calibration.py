"""The lowest score at which matches are right often enough, and the rates of all pairs at such a threshold."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64

from aurank.errors import UserError
from aurank.evaluation.engine.pooled import PooledScores
from aurank.evaluation.inputs import ProgressCallback, RetrievalProblem, note_of_equal_rows
from aurank.evaluation.metrics import pooled_rate


@dataclass(frozen=True)
class Rate:
    count: int
    total: int

    @property
    def value(self) -> float:
        return self.count / self.total if self.total else float("nan")


def short_rate(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}" if value < 0.001 else f"{value:.4f}"


STEPS = 200  # the curve's recalls, evenly spread; half as many scores are added
Aim = Literal["precision", "false_match_rate"]
PerThreshold = Float64[np.ndarray, " threshold"]
DENOMINATOR = 10**9  # the largest of a precision as a fraction, so that counts stay within 64 bits


def lowest_threshold(scores: PooledScores, aim: Aim, rate: Fraction) -> float | None:
    """Return the lowest score of a positive that has at least a precision, or at most a false-match rate, exactly."""
    distinct = np.unique(scores.positives)
    if aim == "precision":
        wrong_for_each = 1 / max(rate.limit_denominator(DENOMINATOR), Fraction(1, DENOMINATOR)) - 1
        allowed = positives_at_least(scores, distinct) * wrong_for_each.numerator // wrong_for_each.denominator
    else:
        allowed = np.full(len(distinct), rate.numerator * scores.num_negatives // rate.denominator)
    least, most = scores.bracket(distinct)
    certain = np.flatnonzero(most <= allowed)[:1]
    end = certain[0] if len(certain) else len(distinct)
    unsure = distinct[np.append(np.flatnonzero(least[:end] <= allowed[:end]), certain)]
    fits = scores.negatives_at_least(unsure) <= allowed[np.searchsorted(distinct, unsure)]
    return float(unsure[fits][0]) if fits.any() else None


def best_precision(scores: PooledScores) -> tuple[float, float]:
    """Return the highest precision at the score of any positive, and the lowest score that has it."""
    distinct = np.unique(scores.positives)
    right, (least, most) = positives_at_least(scores, distinct), scores.bracket(distinct)
    possible = np.flatnonzero(right / (right + least) >= (right / (right + most)).max())
    exact = right[possible] / (right[possible] + scores.negatives_at_least(distinct[possible]))
    return float(exact.max()), float(distinct[possible][exact.argmax()])


def positives_at_least(scores: PooledScores, edges: Float64[np.ndarray, " edge"]) -> Int64[np.ndarray, " edge"]:
    return np.asarray(len(scores.positives) - np.searchsorted(scores.positives, edges))


def shortest_equal(scores: PooledScores, threshold: float) -> float:
    """Return the threshold of fewest digits, at most the given one, that makes exactly the same matches."""
    exact = Decimal(threshold)
    rounded = {
        float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(exact)): digits for digits in range(16, 1, -1)
    }
    position = int(np.searchsorted(scores.positives, threshold))
    lower = -np.inf if position == 0 else scores.positives[position - 1]
    edges = np.array(sorted({threshold, *(edge for edge in rounded if lower < edge <= threshold)}))
    counts = scores.negatives_at_least(edges)
    equal: list[float] = edges[counts == counts[-1]].tolist()
    return min(equal, key=lambda edge: rounded.get(edge, 17)) + 0.0  # not -0.0


def true_positive_rates(scores: PooledScores, names: Iterable[str]) -> dict[str, float]:
    """Return each tpr@fpr by its name: the part of the positives that match if at most that rate of negatives do."""
    values = {}
    for name in names:
        rate = pooled_rate(name)
        assert rate is not None
        threshold = lowest_threshold(scores, "false_match_rate", rate)
        matches = 0 if threshold is None else scores.num_positives - int(np.searchsorted(scores.positives, threshold))
        values[name] = matches / scores.num_positives
    return values


def pooled_metrics(
    problem: RetrievalProblem,
    names: list[str],
    *,
    distance: str,
    device: torch.device,
    max_memory: int | str,
    distributed: bool | str | None,
) -> tuple[dict[str, float], list[str]]:
    """Return the metrics over the pairs of all queries, and a note if a rate is below one negative pair."""
    scores = PooledScores(problem, distance=distance, device=device, max_memory=max_memory, distributed=distributed)
    few = [name for name in names if (pooled_rate(name) or 0) * scores.num_negatives < 1]
    note = f"{', '.join(few)}: that is less than one of {scores.num_negatives:,} negative pairs, so none may match"
    return true_positive_rates(scores, names), [note] if few else []


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """A threshold, and the rates of the pairs that it was chosen on: a pair with this score or a higher one matches.

    A score is the cosine, the dot product, or minus the squared Euclidean distance. The threshold has the fewest digits
    of those that make the same matches. `curve` has the rates at increasing thresholds, as columns; a precision is NaN
    if nothing matches.

    Example:
        >>> rows = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.6], [0.0, 1.0], [0.1, 0.9]])
        >>> calibration = calibrate(RetrievalProblem(rows, labels=[0, 0, 1, 2, 2]), precision=1.0)
        >>> print(str(calibration).splitlines()[0])
        threshold 0.99 (cosine): a pair that scores so much or more is a match
    """

    threshold: float
    aim: Aim
    rate: float  # of the aim
    precision: Rate  # right matches of all matches
    recall: Rate  # matches of all positive pairs; 1 - recall is the false-non-match rate
    false_match_rate: Rate  # matches of all negative pairs
    answered: Rate  # queries with a match of all queries
    curve: dict[str, PerThreshold]
    distance: str
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"threshold {self.threshold!r} ({self.distance}): a pair that scores so much or more is a match"]
        rates = {
            "precision": (self.precision, "matches are right"),
            "recall": (self.recall, "positive pairs match"),
            "false-match rate": (self.false_match_rate, "negative pairs match"),
            "answered": (self.answered, "queries have a match"),
        }
        for name, (rate, meaning) in rates.items():
            lines.append(f"{name:<16}  {short_rate(rate.value):<9} {rate.count:,} of {rate.total:,} {meaning}")
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """Return all of it but the curve as plain values, with the names of the fields."""
        content: dict[str, Any] = {"threshold": self.threshold, "distance": self.distance}
        content |= {"aim": self.aim, "rate": self.rate}
        for name in ("precision", "recall", "false_match_rate", "answered"):
            rate: Rate = getattr(self, name)
            content[name] = {"value": rate.value if rate.total else None, **vars(rate)}
        return {**content, "notes": self.notes}


def check_aim(precision: float | None, false_match_rate: float | None) -> tuple[Aim, Fraction]:
    """Return the name and the value of the one rate that a threshold has to reach."""
    rates = [rate for rate in (precision, false_match_rate) if rate is not None]
    if len(rates) != 1 or not 0 < rates[0] <= 1 or false_match_rate == 1:
        raise UserError(
            "give a precision above 0 and at most 1, such as 0.99, or instead a false-match rate between 0 and 1, "
            f"such as 1e-4; got precision {precision} and false-match rate {false_match_rate}"
        )
    return "false_match_rate" if precision is None else "precision", Fraction(repr(float(rates[0])))


def calibrate(
    problem: RetrievalProblem,
    *,
    precision: float | None = None,
    false_match_rate: float | None = None,
    distance: str = "cosine",
    device: torch.device | str = "cpu",
    max_memory: int | str = "1GiB",
    progress: ProgressCallback | None = None,
) -> Calibration:
    """Return the lowest threshold with a precision, or with at most a false-match rate, over all pairs of a problem.

    Pairs are those of a query that has a positive with each gallery row that it may find. Counts are exact, in bounded
    memory; the other arguments are as for `positive_ranks`.

    Args:
        precision: the part of the matches that has to be right, above 0 and at most 1.
        false_match_rate: instead of it, the part of the negative pairs that may match.

    Raises:
        UserError: no threshold reaches the rate, the rate is below one negative pair, or `positive_ranks` refuses.

    Example:
        >>> rows = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.6], [0.0, 1.0], [0.1, 0.9]])
        >>> calibration = calibrate(RetrievalProblem(rows, labels=[0, 0, 1, 2, 2]), precision=1.0)
        >>> calibration.threshold, calibration.precision.count, calibration.recall.value
        (0.99, 4, 1.0)
    """
    aim, rate = check_aim(precision, false_match_rate)
    scores = PooledScores(
        problem, distance=distance, device=device, max_memory=max_memory, distributed=False, progress=progress
    )
    if not scores.num_positives:
        raise UserError("no query has a positive: check that labels and embeddings belong together")
    threshold, negatives = None, scores.num_negatives
    if aim == "precision" or rate * negatives >= 1:
        threshold = lowest_threshold(scores, aim, rate)
    if threshold is None:
        reason = (
            f"one of {negatives:,} negative pairs is {1 / max(negatives, 1):.2g}, and more may score as high as the "
            "highest positive; allow a higher rate"
        )
        if aim == "precision":
            reason = "the highest is {:.4f}, at {:.4f}".format(*best_precision(scores))
        raise UserError(f"no threshold has {aim}={float(rate)}: {reason}")
    threshold = shortest_equal(scores, threshold)
    matching = scores.positive_query[np.searchsorted(scores.positives, threshold) :]
    right, wrong = np.bincount(matching, minlength=len(scores.positives_each)), scores.negatives_by_query(threshold)
    has_positive = scores.positives_each > 0
    rows = np.arange(min(len(problem.embeddings), len(problem.target)))
    return Calibration(
        threshold=threshold,
        aim=aim,
        rate=float(rate),
        precision=Rate(int(right.sum()), int((right + wrong).sum())),
        recall=Rate(int(right.sum()), scores.num_positives),
        false_match_rate=Rate(int(wrong.sum()), negatives),
        answered=Rate(int(((right + wrong > 0) & has_positive).sum()), int(has_positive.sum())),
        curve=_curve(scores, threshold),
        distance=distance,
        notes=[
            *note_of_equal_rows(problem, rows, rows),
            "chosen on these pairs: try it on others before relying on it",
        ],
    )


def _curve(scores: PooledScores, threshold: float) -> dict[str, PerThreshold]:
    positives = scores.positives
    by_recall = positives[np.linspace(0, len(positives) - 1, STEPS + 1).astype(np.int64)]
    by_score = np.linspace(positives[0], positives[-1], STEPS // 2 + 1)
    edges = np.unique(np.concatenate([by_recall, by_score, [threshold]]))
    right, wrong = positives_at_least(scores, edges), scores.negatives_at_least(edges)
    recall = right / scores.num_positives
    return {
        "threshold": edges,
        "precision": np.divide(right, right + wrong, out=np.full(len(edges), np.nan), where=right + wrong > 0),
        "recall": recall,
        "false_match_rate": wrong / max(scores.num_negatives, 1),
        "false_non_match_rate": 1 - recall,
    }
