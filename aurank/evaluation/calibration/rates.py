"""A part of some pairs, and how sure it is."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Shaped

LEVEL = 0.95  # of intervals


@dataclass(frozen=True)
class Rate:
    """A part of some pairs or queries, with its interval."""

    count: int
    total: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The part, NaN of nothing."""
        return self.count / self.total if self.total else float("nan")

    @classmethod
    def of(cls, counts: Int64[np.ndarray, " query"], totals: Int64[np.ndarray, " query"], unit: np.ndarray) -> "Rate":
        """Return the part that counts are of totals, with the interval for queries that belong to these units."""
        low, high = clustered_interval(counts, totals, unit)
        return cls(int(counts.sum()), int(totals.sum()), low, high)


def clustered_interval(
    counts: Int64[np.ndarray, " query"],
    totals: Int64[np.ndarray, " query"],
    unit: Shaped[np.ndarray, " query"],
    *,
    level: float = LEVEL,
) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson for sum(counts) / sum(totals), of pairs that come in units.

    Pairs of one class succeed and fail together, so they say less than as many independent ones. The interval is that
    of so many independent pairs as have the variance between the units: where no unit differs from another, of all of
    them, fewer units counting for less. Of a single unit it is that of one pair. Unlike a bootstrap it does not
    shrink to a point where all pairs are right.

    Source: Korn and Graubard, Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data, Survey Methodology 24 (1998), 193-201.

    Example:
        >>> right, pairs = np.array([9, 10, 10, 8, 10, 10]), np.full(6, 10)
        >>> low, high = clustered_interval(right, pairs, np.arange(6))
        >>> round(low, 3), round(high, 3)
        (0.78, 0.998)
    """
    from scipy.special import betaincinv, stdtrit

    _, which = np.unique(unit, return_inverse=True)
    hits, sizes = (np.bincount(which, weights=values) for values in (counts, totals))
    hits, sizes = hits[sizes > 0], sizes[sizes > 0]
    total, units = sizes.sum(), len(sizes)
    if not units:
        return 0.0, 1.0
    part, effective, tail = hits.sum() / total, 1.0, (1 - level) / 2
    if units > 1:
        variance = units / (units - 1) * float(np.square(hits - part * sizes).sum()) / total**2
        independent = part * (1 - part) / variance if variance > 0 else total
        wider = (stdtrit(max(total, 2) - 1, 1 - tail) / stdtrit(units - 1, 1 - tail)) ** 2
        effective = min(total, max(1.0, independent * wider))
    hit = part * effective
    low = 0.0 if hit == 0 else float(betaincinv(hit, effective - hit + 1, tail))
    high = 1.0 if hit == effective else float(betaincinv(hit + 1, effective - hit, 1 - tail))
    return low, high


def short_rate(value: float) -> str:
    """Return a rate as text: four decimals, or two digits where it is small.

    Example:
        >>> short_rate(0.98765), short_rate(0.0000321), short_rate(0.0)
        ('0.9877', '3.2e-05', '0')
    """
    return "0" if value == 0 else f"{value:.1e}" if value < 0.001 else f"{value:.4f}"
