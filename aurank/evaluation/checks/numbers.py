"""Rows and dimensions of embeddings that carry nothing, and embeddings that all are nearly one."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64

from aurank.arrays import Rows

UNIT = 1e-3  # how far from 1 the length of a normalised row is at most
FAR = 10.0  # times longer or shorter than the usual length is odd where rows are not normalised
SILENT = 1e-4  # part of the usual variance below which a dimension says nothing
LEAST_RANK, MOST_ALIKE = 5.0, 0.9  # effective rank and mean cosine beyond which embeddings have collapsed
_SAMPLE = 20_000  # rows that the spread is measured on
_BLOCK = 65_536


@dataclass(frozen=True, eq=False)
class FaultyRows:
    """Rows that cannot be compared, each in the first list it belongs to.

    Example:
        >>> faulty_rows(np.array([[1.0, 0.0], [0.0, 0.0]])).zero.tolist()
        [1]
    """

    not_finite: Int64[np.ndarray, " broken"]
    zero: Int64[np.ndarray, " zero"]
    odd_length: Int64[np.ndarray, " odd"]
    usual_length: float  # the median; NaN without any row of a length


def faulty_rows(embeddings: Float[Rows, "row dim"]) -> FaultyRows:
    """Return the rows with NaN or infinity, those of zeros, and those that are not as long as the others.

    Where most rows are of length 1, the others are odd; elsewhere those ten times longer or shorter than the median.

    Example:
        >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [np.nan, 0.0], [0.0, 0.0], [3.0, 4.0]])
        >>> found = faulty_rows(rows)
        >>> found.not_finite.tolist(), found.zero.tolist(), found.odd_length.tolist(), found.usual_length
        ([3], [4], [5], 1.0)
    """
    lengths = np.empty(len(embeddings))
    for start in range(0, len(embeddings), _BLOCK):
        block = np.asarray(embeddings[start : start + _BLOCK], np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths[start : start + len(block)] = np.linalg.norm(block, axis=1)
    finite = np.isfinite(lengths)
    has_length = finite & (lengths > 0)
    usual = float(np.median(lengths[has_length])) if has_length.any() else float("nan")
    is_unit = abs(usual - 1) <= UNIT
    odd = np.abs(lengths - 1) > UNIT if is_unit else (lengths > FAR * usual) | (lengths * FAR < usual)
    return FaultyRows(
        np.flatnonzero(~finite), np.flatnonzero(finite & ~has_length), np.flatnonzero(has_length & odd), usual
    )


@dataclass(frozen=True, eq=False)
class Spread:
    """How much of their space embeddings use, their rows brought to length 1.

    Source: effective rank as in Roy, Vetterli, EUSIPCO 2007: the exponential of the entropy of the spectrum, here of
    the covariance.

    Example:
        >>> spread(np.eye(4)).mean_cosine
        0.0
    """

    effective_rank: float
    mean_cosine: float  # of two different rows
    silent: Int64[np.ndarray, " dim"]  # dimensions that hardly vary
    dim: int

    @property
    def is_collapsed(self) -> bool:
        """Whether the rows are nearly one direction, or lie on a few."""
        return self.mean_cosine > MOST_ALIKE or self.effective_rank < min(LEAST_RANK, self.dim / 4)


def spread(embeddings: Float[Rows, "row dim"], *, seed: int = 0) -> Spread:
    """Return the spread of embeddings without faulty rows, measured on at most 20,000 of them.

    Example:
        >>> found = spread(np.eye(4).repeat(5, axis=0) * 2)
        >>> round(found.effective_rank, 3), round(found.mean_cosine, 3), found.silent.tolist(), found.is_collapsed
        (3.0, 0.211, [], False)
        >>> spread(np.column_stack([np.eye(4) + 9, np.zeros(4)])).is_collapsed
        True
    """
    chosen = np.arange(len(embeddings))
    if len(chosen) > _SAMPLE:
        chosen = np.sort(np.random.default_rng(seed).choice(len(chosen), _SAMPLE, replace=False))
    rows = np.asarray(embeddings[chosen], np.float64)
    variance = rows.var(axis=0)  # before lengths are taken off: a dimension of one value would vary with them
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    count, dim = rows.shape
    mean = rows.mean(axis=0)
    cosine = (count * float(mean @ mean) - 1) / (count - 1) if count > 1 else 1.0
    rows -= mean
    gram = rows.T @ rows if dim <= count else rows @ rows.T  # of one spectrum
    values = np.linalg.eigvalsh(gram).clip(0)
    total = float(values.sum())
    part = values[values > 1e-12 * total] / total if total > 0 else np.ones(1)
    usual = float(np.median(variance[variance > 0])) if (variance > 0).any() else 1.0
    return Spread(float(np.exp(-(part * np.log(part)).sum())), cosine, np.flatnonzero(variance < SILENT * usual), dim)
