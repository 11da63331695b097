"""The score from which on a match is right often enough, and what such a threshold makes of all pairs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64

from aurank.errors import UserError
from aurank.evaluation.engine.pooled import PooledScores
from aurank.evaluation.engine.problem import ProgressCallback, RetrievalProblem, note_of_equal_rows
from aurank.evaluation.metrics import pooled_rate
from aurank.evaluation.postprocessing.postprocessing import PostProcessing
from aurank.evaluation.report import Report, html_list, html_table
from aurank.names import accepting


@dataclass(frozen=True)
class Rate:
    count: int
    total: int

    @property
    def value(self) -> float:
        return self.count / self.total if self.total else float("nan")


def short_rate(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}" if value < 0.001 else f"{value:.4f}"


STEPS = 200  # of the curve: so many recalls, and half as many scores, evenly spread
PerThreshold = Float64[np.ndarray, " threshold"]
Counts = Int64[np.ndarray, " threshold"]
PARTS = 10**9  # a precision is taken as a fraction of at most this denominator, so that counts stay within 64 bits


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
        self.positives_each, self.negatives_each = (columns[f"num_{kind}"] for kind in ("positives", "negatives"))
        self.num_positives, self.num_negatives = int(self.positives_each.sum()), int(self.negatives_each.sum())
        self.length = lists.row.shape[1]
        # Of a list that leaves out candidates the last score; those that it leaves out score at most as much.
        is_cut = listed.sum(axis=1) < self.positives_each + self.negatives_each
        self.last = np.where(is_cut, np.min(lists.score, axis=1, initial=np.inf, where=listed), -np.inf)

    @cached_property
    def cut(self) -> float:
        return float(self.last.max(initial=-np.inf))

    def bracket(self, scores: PerThreshold) -> tuple[Counts, Counts]:
        return self.negatives_at_least(scores), self.negatives_at_least(scores)

    def negatives_at_least(self, edges: Float64[np.ndarray, " edge"]) -> Int64[np.ndarray, " edge"]:
        return np.asarray(len(self.negatives) - np.searchsorted(self.negatives, edges))

    def positives_by_query(self, edge: float) -> Int64[np.ndarray, " query"]:
        return np.bincount(self.query[self.is_positive & (self.score >= edge)], minlength=len(self.last))

    def negatives_by_query(self, edge: float) -> Int64[np.ndarray, " query"]:
        return np.bincount(self.query[~self.is_positive & (self.score >= edge)], minlength=len(self.last))


PairScores: TypeAlias = PooledScores | ListedScores


def threshold_at_false_match_rate(scores: PairScores, rate: Fraction) -> float | None:
    distinct = np.unique(scores.positives)
    return _lowest(scores, distinct, np.full(len(distinct), rate.numerator * scores.num_negatives // rate.denominator))


def threshold_at_precision(scores: PairScores, precision: Fraction) -> float | None:
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
    return np.asarray(len(scores.positives) - np.searchsorted(scores.positives, edges))


def shortest_equal(scores: PairScores, threshold: float) -> float:
    """Return the threshold of fewest digits, at most the given one, that makes exactly the same matches."""
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
    """Return the value of each tpr@fpr by its name: positives that match where at most so many negatives do."""
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
    names: list[str],
    *,
    distance: str,
    device: torch.device,
    max_memory: int | str,
    distributed: bool | str | None,
) -> tuple[dict[str, float], list[str]]:
    """Return metrics that are of the pairs of all queries, and a note where there are few pairs."""
    scores = PooledScores(problem, distance=distance, device=device, max_memory=max_memory, distributed=distributed)
    few = [name for name in names if (pooled_rate(name) or 0) * scores.num_negatives < 1]
    note = f"{', '.join(few)}: that is less than one of {scores.num_negatives:,} negative pairs, so none may match"
    return true_positive_rates(scores, names), [note] if few else []


def _lowest(scores: PairScores, distinct: PerThreshold, allowed: Counts) -> float | None:
    least, most = scores.bracket(distinct)
    certain = np.flatnonzero(most <= allowed)[:1]
    end = certain[0] if len(certain) else len(distinct)
    unsure = distinct[np.append(np.flatnonzero(least[:end] <= allowed[:end]), certain)]
    places = np.searchsorted(distinct, unsure)
    right = unsure[scores.negatives_at_least(unsure) <= allowed[places]]
    return float(right[0]) if len(right) else None


@dataclass(frozen=True, eq=False)
class Calibration:
    """A threshold, and what it makes of the pairs it was chosen on: a pair matches if it scores at least so much.

    A score is the cosine, the dot product, or minus the squared Euclidean distance. The threshold has the fewest digits
    of those that make the same matches. `curve` has rates of all pairs at increasing thresholds, as columns; NaN where
    nothing matches, or lists are cut.

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
    curve: dict[str, PerThreshold]
    distance: str
    notes: list[str] = field(default_factory=list)

    def _rows(self) -> tuple[str, list[list[str]]]:
        """Return what the threshold says, and its rates as rows of text."""
        rows = {"precision": (self.precision, "matches are right"), "recall": (self.recall, "positive pairs match")}
        if self.false_match_rate is not None:
            rows["false-match rate"] = (self.false_match_rate, "negative pairs match")
        rows["answered"] = (self.answered, "queries have a match")
        texts = []
        for name, (rate, what) in rows.items():
            texts.append([name, short_rate(rate.value), f"{rate.count:,} of {rate.total:,} {what}"])
        return f"threshold {self.threshold!r} ({self.distance}): a pair that scores so much or more is a match", texts

    def __str__(self) -> str:
        threshold, rows = self._rows()
        rates = [f"{name:<16}  {value:<9} {counts}" for name, value, counts in rows]
        return "\n".join([threshold, *rates, *self.notes])

    def _repr_html_(self) -> str:
        threshold, rows = self._rows()
        return f"<p>{threshold}</p>{html_table(['rate', 'value', 'counts'], rows)}{html_list(self.notes)}"

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values, with the names of the fields."""
        content: dict[str, Any] = {"threshold": self.threshold, "distance": self.distance}
        content |= {"aim": self.aim, "wanted": self.wanted}
        for name in ("precision", "recall", "false_match_rate", "answered"):
            rate: Rate | None = getattr(self, name)
            content[name] = None if rate is None else {"value": rate.value if rate.total else None, **vars(rate)}
        return {**content, "notes": self.notes}


@dataclass(frozen=True)
class Aim:
    """What a threshold has to reach: a precision, or a false-match rate that it must not exceed."""

    precision: float | None = None
    false_match_rate: float | None = None

    def __post_init__(self) -> None:
        wanted = [value for value in (self.precision, self.false_match_rate) if value is not None]
        if len(wanted) != 1 or not 0 < wanted[0] <= 1 or self.false_match_rate == 1:
            raise UserError(
                "give a precision above 0 and at most 1, such as 0.99, or instead a false-match rate between 0 and 1, "
                f"such as 1e-4; got precision {self.precision} and false-match rate {self.false_match_rate}"
            )

    @property
    def name(self) -> Literal["precision", "false_match_rate"]:
        return "precision" if self.precision is not None else "false_match_rate"

    @property
    def rate(self) -> Fraction:
        return Fraction(repr(float(getattr(self, self.name))))

    def threshold(self, scores: PairScores) -> float:
        """Return the lowest score of a positive that reaches it; UserError where none does."""
        if not len(scores.positives):
            raise UserError("no query has a positive: check that labels and embeddings belong together")
        negatives = scores.num_negatives
        if self.precision is not None:
            found = threshold_at_precision(scores, self.rate)
        else:
            found = threshold_at_false_match_rate(scores, self.rate) if self.rate * negatives >= 1 else None
        if found is not None:
            return found
        if self.precision is not None:
            best, at = best_precision(scores)
            why = f"a precision of {self.precision}: the highest is {best:.4f}, at {at:.4f}"
        else:
            why = f"a false-match rate of {self.false_match_rate}: one of {negatives:,} negative pairs is "
            why += f"{1 / max(negatives, 1):.2g}, and more may score as high as the highest positive; ask for more"
        raise UserError(f"no threshold has {why}")


@accepting()
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
    rows = np.arange(min(len(problem.embeddings), len(problem.target)))
    notes = note_of_equal_rows(problem, rows, rows)
    return _calibration(scores, aim, aim.threshold(scores), distance, notes=notes)


def calibrate_report(
    report: Report, *, precision: float | None = None, false_match_rate: float | None = None
) -> Calibration:
    """Return the threshold by the lists of neighbours that a report holds, with a note on where these are cut.

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
    if report.neighbours is None or not report.neighbours.row.shape[1]:
        raise UserError("the report holds no neighbours, so no scores: calibrate the model itself (--model)")
    steps = (report.postprocessing or {}).get("steps", "")
    if steps:
        PostProcessing.parse(steps, distance=report.distance).require_scores_of_all_pairs()
    scores = ListedScores(report)
    threshold, cut = aim.threshold(scores), scores.cut
    lists, number = f"lists of {scores.length} neighbours", int((scores.last >= threshold).sum())
    if number and aim.name == "false_match_rate":
        what = f"of the {lists} {number:,} are cut above the threshold"
        raise UserError(f"{what}, so not all negatives are known: calibrate the model or its embeddings (--model)")
    note = f"{lists}: none is cut above the threshold, so these are all pairs"
    if number:
        note = (
            f"{lists}: {number:,} of {len(scores.last):,} are cut above the threshold; precision and recall are of "
            f"what a search for {scores.length} shows, and above {cut:.4f} of all pairs"
        )
    notes = [f"post-processing: {steps}", note] if steps else [note]
    return _calibration(scores, aim, threshold, report.distance, cut=cut, notes=notes)


def _calibration(
    scores: PairScores, aim: Aim, lowest: float, distance: str, *, cut: float = -np.inf, notes: Iterable[str] = ()
) -> Calibration:
    """Return what a threshold makes of the pairs; those that score `cut` or less are not all there."""
    threshold = shortest_equal(scores, lowest)
    if threshold <= cut < lowest:
        threshold = lowest
    right, wrong = scores.positives_by_query(threshold), scores.negatives_by_query(threshold)
    has_positive = scores.positives_each > 0
    return Calibration(
        threshold=threshold,
        aim=aim.name,
        wanted=float(aim.rate),
        precision=Rate(int(right.sum()), int((right + wrong).sum())),
        recall=Rate(int(right.sum()), scores.num_positives),
        false_match_rate=None if threshold <= cut else Rate(int(wrong.sum()), scores.num_negatives),
        answered=Rate(int(((right + wrong > 0) & has_positive).sum()), int(has_positive.sum())),
        curve=_curve(scores, threshold, cut),
        distance=distance,
        notes=[*notes, "chosen on these pairs: try it on others before relying on it"],
    )


def _curve(scores: PairScores, threshold: float, cut: float) -> dict[str, PerThreshold]:
    listed = scores.positives
    by_recall = listed[np.linspace(0, len(listed) - 1, STEPS + 1).astype(np.int64)]
    edges = np.unique(np.concatenate([by_recall, np.linspace(listed[0], listed[-1], STEPS // 2 + 1), [threshold]]))
    right, wrong = positives_at_least(scores, edges), scores.negatives_at_least(edges)
    known = np.where(edges > cut, 1.0, np.nan)
    recall = right / scores.num_positives
    return {
        "threshold": edges,
        "precision": np.divide(right, right + wrong, out=np.full(len(edges), np.nan), where=right + wrong > 0),
        "recall": recall,
        "false_match_rate": known * wrong / max(scores.num_negatives, 1),
        "false_non_match_rate": 1 - recall,
    }
