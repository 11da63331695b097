"""Steps that change each row by itself: they shift and turn the space, or make rows shorter or coarser."""

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
    learns: ClassVar[tuple[str, ...]] = ("mean",)

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
    learns: ClassVar[tuple[str, ...]] = ("mean", "axes")

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


@dataclass(frozen=True, kw_only=True)
class Truncate(RowStep):
    """Keep the first `dim` numbers of every row: the principal axes behind `whiten`, or what a model put first.

    Source:
        Kusupati et al., Matryoshka Representation Learning (NeurIPS 2022), https://arxiv.org/abs/2205.13147

    Example:
        >>> Truncate(dim=2)(np.array([[3.0, 2.0, 1.0]])).tolist()
        [[3.0, 2.0]]
    """

    name: ClassVar[str] = "truncate"
    is_scale_free: ClassVar[bool] = True
    makes_code: ClassVar[bool] = True

    dim: int = 128

    def __post_init__(self) -> None:
        self.require(self.dim >= 1, "dim", "1 or more")

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row kept"]:
        """Return the beginnings of the rows."""
        self.require(self.dim <= rows.shape[1], "dim", f"at most the {rows.shape[1]} numbers of a row")
        return rows[:, : self.dim]


@dataclass(frozen=True, kw_only=True)
class Float16(RowStep):
    """Round every number to half precision, 2 bytes.

    Example:
        >>> Float16()(np.array([[0.1]])).tolist()
        [[0.0999755859375]]
    """

    name: ClassVar[str] = "float16"
    makes_code: ClassVar[bool] = True

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row dim"]:
        """Return the rows, rounded; infinite beyond 65,504."""
        with np.errstate(over="ignore"):
            return rows.astype(np.float16).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Int8(RowStep):
    """Round every number to one of 255 steps, 1 byte: symmetric around 0, with a scale for each dimension.

    The scale is the greatest absolute value among the training rows, divided by 127; what is beyond is cut off. Scores
    are those of the decoded rows. (sentence-transformers' `quantize_embeddings` spans minimum to maximum with 256 steps
    instead, and scores the integers as they are.)

    Source:
        equation 1 with Z = 0 of Jacob et al., Quantization and Training of Neural Networks for Efficient
        Integer-Arithmetic-Only Inference (CVPR 2018), https://arxiv.org/abs/1712.05877, for each dimension

    Example:
        >>> code = Int8().fit(np.array([[127.0], [-64.0]]))
        >>> code(np.array([[1.4], [-500.0]])).tolist()
        [[1.0], [-127.0]]
    """

    name: ClassVar[str] = "int8"
    learns: ClassVar[tuple[str, ...]] = ("scale",)
    makes_code: ClassVar[bool] = True

    def learnt(self, rows: Float64[np.ndarray, "row dim"]) -> Mapping[str, Float64[np.ndarray, "..."]]:
        """Return the scales."""
        largest = np.abs(rows).max(axis=0)
        return {"scale": np.where(largest > 0, largest, 127) / 127}

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row dim"]:
        """Return the rows, decoded."""
        scale = self.state["scale"]
        return np.asarray(np.rint(rows / scale).clip(-127, 127) * scale)


@dataclass(frozen=True, kw_only=True)
class Binary(RowStep):
    """Keep the sign of every number, 1 bit: 1 where it is above 0, else -1.

    Cosine, dot product and Euclidean distance of such rows all order by the Hamming distance.

    Source:
        sentence-transformers' `quantize_embeddings(precision="binary")`, which keeps `embeddings > 0`,
        https://sbert.net/docs/package_reference/sentence_transformer/quantization.html

    Example:
        >>> Binary()(np.array([[0.3, -0.2, 0.0]])).tolist()
        [[1.0, -1.0, -1.0]]
    """

    name: ClassVar[str] = "binary"
    is_scale_free: ClassVar[bool] = True
    makes_code: ClassVar[bool] = True

    def changed(self, rows: Float64[np.ndarray, "row dim"]) -> Float64[np.ndarray, "row dim"]:
        """Return the signs."""
        return np.where(rows > 0, 1.0, -1.0)
