"""Steps that make rows shorter or coarser, so that an image takes fewer bytes; and scores from before."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from aurank.evaluation.engine.nearest import NearestRows
from aurank.evaluation.postprocessing._lists import pair_scores
from aurank.evaluation.postprocessing._step import ListStep, RowStep, Sides


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
    learns: ClassVar[dict[str, int]] = {"scale": 1}
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


@dataclass(frozen=True, kw_only=True)
class Rescore(ListStep):
    """Order the first `depth` of each list by the rows as they were before truncation and codes.

    Not transductive. An index that does so keeps the rows besides, to read `depth` of them for a query.

    Example:
        >>> str(Rescore(depth=50))
        'rescore:depth=50'
    """

    name: ClassVar[str] = "rescore"

    def scores(
        self, lists: NearestRows, sides: Sides, uncoded: Sides, *, distance: str, device: str
    ) -> Float64[np.ndarray, "query k"]:
        """Return the exact scores of the rows before the codes."""
        exists = lists.row >= 0
        found = np.full(lists.row.shape, np.nan)
        query = np.broadcast_to(lists.query[:, None], lists.row.shape)[exists]
        found[exists] = pair_scores(uncoded.queries, uncoded.target, query, lists.row[exists], distance=distance)
        return found
