"""Steps that shift and turn the space of the embeddings: what they do is learnt from training rows alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from aurank.errors import UserError
from aurank.evaluation.postprocessing._step import RowStep


@dataclass(frozen=True, kw_only=True)
class Centring(RowStep):
    """Take the mean of the training rows off every row.

    Not transductive: a row is changed by the training rows alone.

    Example:
        >>> center = Centring().fit(np.array([[1.0, 0.0], [3.0, 2.0]]))
        >>> center(np.array([[2.0, 2.0]])).tolist()
        [[0.0, 1.0]]
    """

    name: ClassVar[str] = "center"
    learns: ClassVar[dict[str, int]] = {"mean": 1}

    def learnt(self, rows: Float64[np.ndarray, "row dim"]) -> Mapping[str, Float64[np.ndarray, "..."]]:
        """Return the mean."""
        return {"mean": rows.mean(axis=0)}

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row dim"]:
        """Return the rows less the mean."""
        return np.asarray(rows - self.state["mean"])


@dataclass(frozen=True, kw_only=True)
class Whiten(RowStep):
    """Centre the rows, turn them to the principal axes of the training rows, and give each axis variance 1.

    Not transductive: a row is changed by the training rows alone.

    Args:
        dim: axes kept, those of the greatest variance; default: all in which the training rows vary.
        shrinkage: s in [0, 1] moves every variance v to (1 - s) v + s times their mean, as scikit-learn's
            `shrunk_covariance`; at 1 the rows are only centred and turned.

    Source:
        Jégou and Chum, Negative evidences and co-occurrences in image retrieval (ECCV 2012), section 3.1,
        https://inria.hal.science/hal-00722622; shrinkage: Ledoit and Wolf (2004).

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(500, 3)) * [1.0, 5.0, 25.0]
        >>> white = Whiten(dim=2).fit(rows)(rows)
        >>> np.cov(white.T, bias=True).round(6).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    name: ClassVar[str] = "whiten"
    learns: ClassVar[dict[str, int]] = {"mean": 1, "axes": 2}

    dim: int | None = None
    shrinkage: float = 0.0

    def __post_init__(self) -> None:
        self.require(self.dim is None or self.dim >= 1, "dim", "1 or more")
        self.require(0 <= self.shrinkage <= 1, "shrinkage", "from 0 to 1")

    def learnt(self, rows: Float64[np.ndarray, "row dim"]) -> Mapping[str, Float64[np.ndarray, "..."]]:
        """Return the mean, and the axes, each divided by the deviation along it."""
        mean = rows.mean(axis=0)
        centred = rows - mean
        variance, axes = np.linalg.eigh(centred.T @ centred / len(rows))
        variance, axes = variance[::-1].clip(0), axes.T[::-1]
        # Below this, what varies is the rounding of float32.
        rank = int((variance > variance[0] * len(variance) * np.finfo(np.float64).eps).sum())
        available = len(variance) if self.shrinkage > 0 and rank else rank
        if (self.dim or 1) > available:
            raise UserError(
                f"{self}: the {len(rows):,} training rows vary in {rank:,} of {len(variance):,} directions; choose a "
                "smaller dim, more training rows, or a shrinkage above 0"
            )
        kept = self.dim or available
        shrunk = (1 - self.shrinkage) * variance + self.shrinkage * variance.mean()
        # An axis may point either way: here its largest entry is positive, so that every machine finds the same.
        sign = np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1))
        return {"mean": mean, "axes": (axes * sign / np.sqrt(np.where(shrunk > 0, shrunk, 1))[:, None])[:kept]}

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row kept"]:
        """Return the rows in the whitened space."""
        return np.asarray((rows - self.state["mean"]) @ self.state["axes"].T)
