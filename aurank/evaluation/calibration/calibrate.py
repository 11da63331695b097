"""The score above which a match is right often enough, what it costs, and how sure that is."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64

from aurank.errors import UserError
from aurank.evaluation.calibration.rates import LEVEL, Rate, short_rate
from aurank.evaluation.calibration.thresholds import (
    ListedScores,
    PairScores,
    best_precision,
    exact_fraction,
    positives_at_least,
    shortest_equal,
    threshold_at_false_match_rate,
    threshold_at_precision,
)
from aurank.evaluation.engine.inputs import ProgressCallback
from aurank.evaluation.engine.pooled import PooledScores
from aurank.evaluation.engine.problem import RetrievalProblem
from aurank.evaluation.postprocessing.postprocessing import PostProcessing
from aurank.evaluation.report import Report

STEPS = 200  # of the curve: so many recalls, and half as many scores, evenly spread
Column = Float64[np.ndarray, " threshold"]


@dataclass(frozen=True, eq=False)
class ThresholdCurve:
    """Rates of all pairs at increasing thresholds; NaN where nothing matches, or lists are cut."""

    threshold: Column
    precision: Column
    recall: Column
    false_match_rate: Column
    false_non_match_rate: Column


@dataclass(frozen=True, eq=False)
class Calibration:
    """A threshold, and what it makes of the pairs it was chosen on: a pair matches if it scores at least so much.

    A score is the cosine, the dot product, or minus the squared Euclidean distance. The threshold has the fewest digits
    of those that make the same matches.

    Example:
        >>> rows = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.6], [0.0, 1.0], [0.1, 0.9]])
        >>> found = calibrate(RetrievalProblem(rows, labels=[0, 0, 1, 2, 2]), precision=1.0)
        >>> print(str(found).splitlines()[0])
        threshold 0.99 (cosine): a pair that scores so much or more is a match
    """

    threshold: float
    aim: Literal["precision", "false_match_rate"]
    wanted: float
    precision: Rate  # right matches of all matches
    recall: Rate  # matches of all positive pairs; 1 - recall is the false-non-match rate
    false_match_rate: Rate | None  # matches of all negative pairs; None where lists are cut above the threshold
    answered: Rate  # queries with a match of all queries
    curve: ThresholdCurve
    distance: str
    unit: str  # "class" or "query": what the intervals take as independent
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the threshold and its rates as lines for people."""
        rows = {"precision": (self.precision, "matches are right"), "recall": (self.recall, "positive pairs match")}
        if self.false_match_rate is not None:
            rows["false-match rate"] = (self.false_match_rate, "negative pairs match")
        rows["answered"] = (self.answered, "queries have a match")
        lines = [f"threshold {self.threshold!r} ({self.distance}): a pair that scores so much or more is a match"]
        for name, (rate, what) in rows.items():
            value, low, high = (short_rate(number) for number in (rate.value, rate.low, rate.high))
            lines.append(f"{name:<16}  {value:<9} [{low}, {high}]  {rate.count:,} of {rate.total:,} {what}")
        plural = {"class": "classes", "query": "queries"}[self.unit]
        lines.append(f"[95 % interval]: Clopper-Pearson for pairs that come in {plural} (Korn and Graubard 1998)")
        return "\n".join([*lines, *self.notes])

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values, with the names of the fields."""
        rates = ("precision", "recall", "false_match_rate", "answered")
        found: dict[str, Any] = {"threshold": self.threshold, "distance": self.distance}
        found |= {"aim": self.aim, "wanted": self.wanted, "level": LEVEL, "unit": self.unit}
        for name in rates:
            rate: Rate | None = getattr(self, name)
            found[name] = None if rate is None else {"value": rate.value if rate.total else None, **vars(rate)}
        return {**found, "notes": self.notes}


@dataclass(frozen=True)
class Aim:
    """What a threshold has to reach: a precision, or a false-match rate that it must not exceed.

    Example:
        >>> Aim(precision=0.99).name
        'precision'
    """

    precision: float | None = None
    false_match_rate: float | None = None

    def __post_init__(self) -> None:
        if (self.precision is None) == (self.false_match_rate is None):
            given = "both" if self.precision is not None else "neither"
            raise UserError(f"give one of precision and false_match_rate, such as precision=0.99; got {given}")
        if self.precision is not None and not 0 < self.precision <= 1:
            raise UserError(f"precision must be above 0 and at most 1, such as 0.99; got {self.precision}")
        if self.false_match_rate is not None and not 0 < self.false_match_rate < 1:
            raise UserError(f"the false-match rate must lie between 0 and 1, such as 1e-4; got {self.false_match_rate}")

    @property
    def name(self) -> Literal["precision", "false_match_rate"]:
        """Which of the two it is."""
        return "precision" if self.precision is not None else "false_match_rate"

    @property
    def rate(self) -> Fraction:
        """What is wanted, as the fraction that it is written as."""
        return exact_fraction(getattr(self, self.name))

    def threshold(self, scores: PairScores) -> float:
        """Return the lowest score of a positive that reaches it; UserError where none does."""
        if self.name == "precision":
            found = threshold_at_precision(scores, self.rate)
            if found is None and len(scores.positives):
                best, at = best_precision(scores)
                raise UserError(
                    f"no threshold has precision {self.precision}: the highest is {best:.4f}, at {at:.4f}; ask for less"
                )
            if found is None:
                raise UserError("no query lists a positive, so no threshold has any precision")
            return found
        negatives = scores.num_negatives
        if self.rate * negatives < 1:
            raise UserError(
                f"a false-match rate of {self.false_match_rate} is less than one of the {negatives:,} negative pairs, "
                f"which can tell rates from {1 / max(negatives, 1):.2g} on: ask for one of these, or give more images"
            )
        found = threshold_at_false_match_rate(scores, self.rate)
        if found is None:
            raise UserError(
                f"at a false-match rate of {self.false_match_rate} nothing is found: more negative pairs than that "
                "score as high as the highest positive; ask for a higher rate"
            )
        return found


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
    memory; the negatives are gone through five times.

    Args:
        problem: as for `aurank.evaluation.positive_ranks`.
        precision: the part of the matches that has to be right, above 0 and at most 1.
        false_match_rate: instead of it, the part of the negative pairs that may match.
        distance: "cosine", "dot" or "euclidean".
        device: where products are taken.
        max_memory: bound of the working memory; the embeddings and about 110 bytes per positive come on top.
        progress: called as progress(done, total) in every pass.

    Raises:
        UserError: what no threshold reaches, a rate below one negative pair, and whatever `positive_ranks` refuses.

    Example:
        >>> rows = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.6], [0.0, 1.0], [0.1, 0.9]])
        >>> found = calibrate(RetrievalProblem(rows, labels=[0, 0, 1, 2, 2]), precision=1.0)
        >>> found.threshold, found.precision.count, found.recall.value
        (0.99, 4, 1.0)
    """
    aim = Aim(precision, false_match_rate)
    scores = PooledScores(
        problem, distance=distance, device=device, max_memory=max_memory, distributed=False, progress=progress
    )
    if not scores.num_positives:
        raise UserError(
            "no query has a positive among the gallery rows: check that labels and embeddings belong together"
        )
    return _calibration(scores, aim, aim.threshold(scores), distance)


def calibrate_report(
    report: Report, *, precision: float | None = None, false_match_rate: float | None = None
) -> Calibration:
    """Return the threshold by the lists of neighbours that a report holds, with a note on where these are cut.

    Precision is that of what the lists show, as in a search for so many neighbours; where no list is cut above the
    threshold, that is all pairs. A false-match rate counts all negatives, so it is refused elsewhere.

    Raises:
        UserError: a report without neighbours or with re-ordered ones, a false-match rate that cut lists cannot tell,
            and whatever `calibrate` refuses.

    Example:
        >>> import aurank
        >>> report = aurank.evaluate(np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.6]]), [0, 0, 1], neighbours=2)
        >>> calibrate_report(report, precision=0.9).threshold
        0.99
    """
    aim = Aim(precision, false_match_rate)
    if report.neighbours is None or not report.neighbours.row.shape[1] or "num_negatives" not in report.per_query:
        raise UserError(
            "the report holds no neighbours, so no scores: evaluate again, or calibrate the model or its embeddings "
            "(--model)"
        )
    steps = (report.postprocessing or {}).get("steps", "")
    if steps:
        PostProcessing.parse(steps, distance=report.distance).require_scores_of_all_pairs()
    about = [f"post-processing: {steps}"] if steps else []
    scores = ListedScores(report)
    threshold = aim.threshold(scores)
    length, cut = scores.length, scores.cut
    if threshold > cut:
        note = f"lists of {length} neighbours: none is cut above the threshold, so these are all pairs"
        return _calibration(scores, aim, threshold, report.distance, cut=cut, notes=[*about, note])
    number = int((scores.last >= threshold).sum())
    if aim.name == "false_match_rate":
        raise UserError(
            f"the report lists {length} neighbours of each query, and {number:,} lists are cut above the threshold, so "
            "not all negatives are known: calibrate the model or its embeddings (--model)"
        )
    note = (
        f"lists of {length} neighbours: {number:,} of {len(scores.last):,} are cut above the threshold; precision and "
        f"recall are of what a search for {length} shows, and above {cut:.4f} of all pairs"
    )
    return _calibration(scores, aim, threshold, report.distance, cut=cut, notes=[*about, note])


def _calibration(
    scores: PooledScores | ListedScores,
    aim: Aim,
    lowest: float,
    distance: str,
    *,
    cut: float = -np.inf,
    notes: list[str] | None = None,
) -> Calibration:
    """Return what a threshold makes of the pairs; those that score `cut` or less are not all there."""
    threshold = shortest_equal(scores, lowest)
    if threshold <= cut < lowest:
        threshold = lowest
    right, wrong = scores.positives_by_query(threshold), scores.negatives_by_query(threshold)
    positives, negatives = scores.positives_each, scores.negatives_each
    has_positive = positives > 0
    answered = (right + wrong > 0) & has_positive
    return Calibration(
        threshold=threshold,
        aim=aim.name,
        wanted=float(aim.rate),
        precision=Rate.of(right, right + wrong, scores.labels),
        recall=Rate.of(right, positives, scores.labels),
        false_match_rate=None if threshold <= cut else Rate.of(wrong, negatives, scores.labels),
        answered=Rate.of(answered.astype(np.int64), has_positive.astype(np.int64), scores.labels),
        curve=_curve(scores, threshold, cut),
        distance=distance,
        unit=scores.unit,
        notes=[*(notes or []), "chosen on these pairs: try it on others before relying on it"],
    )


def _curve(scores: PairScores, threshold: float, cut: float) -> ThresholdCurve:
    listed = scores.positives
    by_recall = listed[np.linspace(0, len(listed) - 1, STEPS + 1).astype(np.int64)]
    edges = np.unique(np.concatenate([by_recall, np.linspace(listed[0], listed[-1], STEPS // 2 + 1), [threshold]]))
    right, wrong = positives_at_least(scores, edges), scores.negatives_at_least(edges)
    known = np.where(edges > cut, 1.0, np.nan)
    recall = right / scores.num_positives
    return ThresholdCurve(
        threshold=edges,
        precision=np.divide(right, right + wrong, out=np.full(len(edges), np.nan), where=right + wrong > 0),
        recall=recall,
        false_match_rate=known * wrong / max(scores.num_negatives, 1),
        false_non_match_rate=1 - recall,
    )
