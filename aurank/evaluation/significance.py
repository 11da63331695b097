"""Tests of a difference over seeds and over classes, from values of shape [seed, class]."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.stats import friedmanchisquare, kendalltau, rankdata, studentized_range
from scipy.stats import t as student_t

Values = Float64[np.ndarray, "seed class"]


@dataclass(frozen=True)
class Answer:
    """A mean over seeds and queries, with its intervals and p-values.

    Attributes:
        half_width: of the 95 % interval over seeds, by Student's t; None for one seed.
        interval: the 95 % percentile interval of a bootstrap that draws classes and seeds; None for one class.
        p_seeds, p_classes: two-sided, of mean 0: by Student's t (None also if all seeds differ alike); by bootstrap.
        is_least: no resample has the other sign, so p_classes is an upper bound.
    """

    mean: float
    half_width: float | None
    interval: tuple[float, float] | None
    p_seeds: float | None
    p_classes: float | None
    is_least: bool = False


@dataclass(frozen=True, eq=False)
class SeedsAndClasses:
    """A bootstrap over classes, which count by their `queries`, and seeds, alike for every method."""

    queries: Float64[np.ndarray, " class"]
    resamples: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        drawn = np.random.default_rng(self.seed).integers(
            len(self.queries), size=(self.resamples, len(self.queries)), dtype=np.int32
        )
        times = np.stack([np.bincount(row, minlength=len(self.queries)) for row in drawn]) * self.queries
        object.__setattr__(self, "_of_classes", times / times.sum(axis=1, keepdims=True))

    def means(self, values: Values) -> Float64[np.ndarray, " seed"]:
        return np.asarray(values @ self.queries / self.queries.sum())

    def draws(self, values: Values) -> Float64[np.ndarray, " resample"]:
        count = len(values)
        seeds = np.random.default_rng([self.seed, count]).integers(count, size=(self.resamples, count))
        of_classes: Float64[np.ndarray, "resample class"] = self._of_classes  # type: ignore[attr-defined]
        return np.asarray(np.take_along_axis(of_classes @ values.T, seeds, axis=1).mean(axis=1))

    def answer(self, values: Values) -> Answer:
        mean, half_width, p_seeds = over_seeds(self.means(values))
        if len(self.queries) < 2:
            return Answer(mean, half_width, None, p_seeds, None)
        draws = self.draws(values)
        beyond = 1 + min(int((draws <= 0).sum()), int((draws >= 0).sum()))
        low, high = np.quantile(draws, [0.025, 0.975]).tolist()
        p_classes = min(1.0, 2 * beyond / (self.resamples + 1))
        return Answer(mean, half_width, (low, high), p_seeds, p_classes, is_least=beyond == 1)


def over_seeds(values: Float64[np.ndarray, " seed"]) -> tuple[float, float | None, float | None]:
    """Return mean, half width of its 95 % interval and p-value of 0 by Student's t; None for one seed, or all alike."""
    count, mean = len(values), math.fsum(values.tolist()) / len(values)
    if count < 2:
        return mean, None, None
    error = float(np.std(values, ddof=1)) / math.sqrt(count)
    if error < 1e-12:  # all alike, but for rounding
        return mean, 0.0, 1.0 if abs(mean) < 1e-12 else None
    return mean, error * float(student_t.ppf(0.975, count - 1)), 2 * float(student_t.sf(abs(mean) / error, count - 1))


def rank_over_classes(values: Float64[np.ndarray, "method class"]) -> tuple[list[float], float, float | None]:
    """Return mean ranks of methods over classes, 1 the best, their critical difference, and p of Friedman's test.

    Means that differ by less than the critical difference (Nemenyi, 5 %) are not told apart. There is no p for two
    methods.

    Source: section 3.2.2 of Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets (JMLR 2006),
        https://jmlr.org/papers/v7/demsar06a.html.
    """
    methods, classes = values.shape
    ranks: Float64[np.ndarray, "method class"] = rankdata(-values, axis=0)
    quantile = float(studentized_range.ppf(0.95, methods, np.inf)) / math.sqrt(2)
    p_value = None
    if methods > 2:  # ranks that are equal in every class say nothing
        p_value = float(friedmanchisquare(*values).pvalue) if np.ptp(values, axis=0).any() else 1.0
    difference = quantile * math.sqrt(methods * (methods + 1) / (6 * classes))
    return ranks.mean(axis=1).tolist(), difference, p_value


def rank_correlation(
    left: Float64[np.ndarray, "method draw"], right: Float64[np.ndarray, "method draw"]
) -> tuple[float, float, float]:
    """Return Kendall's τ of two orders of methods by the first draw; a 95 % interval by the spread of the others.

    Not by their percentiles: resampled means are noisier than the means themselves, which moves every τ towards 0.
    """
    tau, *resampled = (float(kendalltau(*draws).statistic) for draws in zip(left.T, right.T, strict=True))
    half_width = 1.96 * float(np.std(resampled))
    return tau, max(-1.0, tau - half_width), min(1.0, tau + half_width)
