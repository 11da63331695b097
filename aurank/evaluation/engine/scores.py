"""The score of two rows: exact in a stated sense, and products that come close to it with a rigorous bound.

The score that decides is `tree_sum(x * y) / (|x| * |y|)`, `tree_sum(x * y)` or `-tree_sum((x - y)²)` in float64: its
value depends on the two rows alone. Matrix products serve where their bound proves on which side the score falls.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from aurank.arrays import MappedRows
from aurank.errors import UserError
from aurank.evaluation.engine.problem import Embeddings, RetrievalProblem, device_of, importable, require_one_of

# Squares of lengths in this range, and products of two such lengths, stay far from overflow and underflow in float64.
SHORTEST, LONGEST = 1e-140, 1e140
ELEMENTS = 2**17  # read at a time while lengths are taken
DISTANCES = ("cosine", "dot", "euclidean")


def tree_sum(terms: Float64[Tensor, "*shape dim"]) -> Float64[Tensor, "*shape"]:
    """Return the sum over the last dimension, by folding it in halves; `terms` is overwritten.

    Plain `sum` would not do: its order of addition changes with shape, device and number of threads.
    """
    size = terms.shape[-1]
    while size > 1:
        half = (size + 1) // 2
        terms[..., : size - half] += terms[..., half:size]
        size = half
    return terms[..., 0]


@dataclass(frozen=True)
class Distance:
    """How two rows are scored, larger being closer, and how a matrix product can stand for that score."""

    name: str
    query_scale: float = 1.0
    gallery_scale: float = 1.0

    @property
    def squared(self) -> bool:
        return self.name == "euclidean"

    @property
    def factor(self) -> float:
        return (2.0 if self.squared else 1.0) * self.query_scale * self.gallery_scale

    def width(self, dim: int) -> int:
        return dim + 2 if self.squared else dim

    def units(self, lengths: Float64[Tensor, " row"]) -> Float64[Tensor, " row"]:
        return lengths if self.name == "cosine" else torch.ones_like(lengths)

    def pairs(
        self,
        first: Float64[Tensor, "*pair dim"],
        second: Float64[Tensor, "*#pair dim"],
        units: Float64[Tensor, "*pair"],
    ) -> Float64[Tensor, "*pair"]:
        if self.squared:
            first.sub_(second)
            return -tree_sum(first.mul_(first)) / units
        return tree_sum(first.mul_(second)) / units

    def features(
        self, rows: Float64[Tensor, "row dim"], lengths: Float64[Tensor, " row"], *, gallery: bool
    ) -> Float64[Tensor, "row width"]:
        """Return features of rows of one side; `rows` is overwritten."""
        if self.name == "cosine":
            return rows.div_(lengths[:, None])
        scale = self.gallery_scale if gallery else self.query_scale
        rows.div_(scale)
        if not self.squared:
            return rows
        square = -((lengths / scale) ** 2 / 2)[:, None]
        one = torch.ones_like(square)
        return torch.cat([rows, one, square] if gallery else [rows, square, one], dim=1)

    def error(self, dim: int, dtype: torch.dtype) -> float:
        """Return how far a product of two `dtype` features may be from score / factor, in any order of summation.

        A sum of n products errs by at most gamma(n) = n u / (1 - n u) times the sum of their sizes (Higham, Accuracy
        and Stability of Numerical Algorithms, section 3.1), which is at most 1, and 2 for the Euclidean distance.
        float32: two rounded inputs and six roundings to spare. float64: product, score, lengths and divisions each.
        """
        rounding = torch.finfo(dtype).eps / 2
        width = self.width(dim)
        count = width + 8 if dtype == torch.float32 else 4 * width + 32
        if count * rounding > 0.01:
            return float("inf")
        return (4.08 if self.squared else 1.02) * count * rounding

    def feature_error(self, dim: int) -> float:
        rounding = torch.finfo(torch.float32).eps / 2
        return (4.08 if self.squared else 1.02) * 8 * rounding + self.error(dim, torch.float64)


def make_distance(name: str, longest_query: float, longest_gallery: float) -> Distance:
    """Return the Distance for rows of at most these lengths; UserError for an unknown name."""
    require_one_of(DISTANCES, distance=name)
    if name == "cosine":
        return Distance(name)
    if name == "euclidean":
        longest_query = longest_gallery = max(longest_query, longest_gallery)
    return Distance(name, longest_query or 1.0, longest_gallery or 1.0)


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute float32 products at full precision and no graph inside; restore the caller's settings afterwards."""
    with ExitStack() as restored, torch.no_grad():
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # torch 2.9 and later
            backends: Any = torch.backends
            for switch in (backends.cuda.matmul, backends.mkldnn.matmul):
                restored.callback(setattr, switch, "fp32_precision", switch.fp32_precision)
                switch.fp32_precision = "ieee"
        else:
            restored.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        yield


@contextmanager
def one_thread_each(wanted: bool) -> Iterator[None]:
    """Let every thread compute by itself inside, if wanted: tiles are shared out among threads, not what is in one."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def read(embeddings: Embeddings, index: Int64[Tensor, " row"]) -> Float64[Tensor, "row dim"]:
    if isinstance(embeddings, Tensor):
        return embeddings.detach().index_select(0, index).to(torch.float64)
    return torch.from_numpy(np.asarray(embeddings[index.numpy()], dtype=np.float64))


def pieces(embeddings: Embeddings) -> Iterator[Float64[Tensor, "row dim"]]:
    index = torch.arange(len(embeddings), device=device_of(embeddings))
    return (read(embeddings, some) for some in torch.split(index, max(1, ELEMENTS // embeddings.shape[1])))


def plain_array(embeddings: Embeddings) -> np.ndarray[Any, np.dtype[Any]] | None:
    """Return the embeddings as compiled code reads them, C-ordered float32 or float64; None if they are not."""
    if isinstance(embeddings, Tensor):
        if embeddings.is_cuda or embeddings.dtype not in (torch.float32, torch.float64):
            return None
        embeddings = embeddings.detach().numpy()
    if isinstance(embeddings, MappedRows):
        return None
    native = embeddings.dtype in (np.float32, np.float64) and embeddings.dtype.isnative
    return np.asarray(embeddings) if native and embeddings.flags.c_contiguous else None


def row_lengths(embeddings: Embeddings, *, side: str, distance: str, compiled: bool) -> Float64[Tensor, " row"]:
    """Return the Euclidean length of every row, in the caller's order, where the embeddings live."""
    array = plain_array(embeddings) if compiled else None
    if array is not None:
        from aurank.evaluation.engine.compiled import exact_lengths

        lengths = torch.empty(len(array), dtype=torch.float64)
        exact_lengths(array, lengths.numpy())
    else:
        squares = torch.cat([tree_sum(torch.square(rows)) for rows in pieces(embeddings)])
        # torch's square root on the CPU is a vector routine that may err in the last digit; NumPy's never does.
        lengths = squares.sqrt() if squares.is_cuda else torch.from_numpy(np.sqrt(squares.numpy()))
    usable = lengths <= LONGEST  # False for NaN as well
    if distance == "cosine":
        usable &= lengths >= SHORTEST
    if bool(usable.all()):
        return lengths
    row = int(torch.argmin(usable.to(torch.int8)))
    values, length = read(embeddings, torch.tensor([row], device=device_of(embeddings))), float(lengths[row])
    what = f"has length {length:.3g}: scale the embeddings"
    if not bool(values.isfinite().all()):
        what = "holds NaN or infinity: remove it or find out how it was made"
    elif not bool(values.any()):
        what = "is all zeros, and has no cosine with anything: remove it"
    raise UserError(f"row {row} of the {side} embeddings {what}")


class Vectors:
    """Rows of one side after sorting, given out in pieces: as they came, or as features for products."""

    def __init__(
        self,
        embeddings: Embeddings,
        lengths: Float64[Tensor, " row"],
        *,
        order: Int64[np.ndarray, " place"],
        distance: Distance,
    ) -> None:
        self.embeddings, self.distance = embeddings, distance
        self.order = torch.from_numpy(order).to(lengths.device)
        self.lengths = lengths[self.order]
        self.units = distance.units(self.lengths)
        self.dim, self.device = int(embeddings.shape[1]), lengths.device

    def raw(self, places: slice | Int64[Tensor, " place"]) -> Float64[Tensor, "place dim"]:
        return read(self.embeddings, self.order[places])

    def features(
        self, places: slice, dtype: torch.dtype, *, gallery: bool, out: Shaped[Tensor, "place width"] | None = None
    ) -> Shaped[Tensor, "place width"]:
        """Return features of these rows, computed in float64 and rounded to `dtype`; in `out` if given."""
        if out is None:
            shape = places.stop - places.start, self.distance.width(self.dim)
            out = torch.empty(shape, dtype=dtype, device=self.device)
        step = max(1, ELEMENTS // out.shape[1])
        for start in range(places.start, places.stop, step):
            here = slice(start, min(start + step, places.stop))
            piece = self.distance.features(self.raw(here), self.lengths[here], gallery=gallery)
            out[start - places.start : here.stop - places.start] = piece
        return out


Pairs: TypeAlias = Int64[np.ndarray, " pair"]
CUDA_ELEMENTS = 2**23  # at once on a GPU, where every call has a price of its own


class ExactScores:
    """Exact scores between places of two sorted sides; safe to call from several threads."""

    def __init__(self, queries: Vectors, gallery: Vectors, *, compiled: bool) -> None:
        self.queries, self.gallery = queries, gallery
        self.plain = []  # rows, order and units of both sides as compiled code reads them
        for side in (queries, gallery) if compiled else ():
            if (array := plain_array(side.embeddings)) is not None:
                self.plain.append((array, side.order.numpy(), side.units.numpy()))

    @classmethod
    def of(
        cls,
        problem: RetrievalProblem,
        query_index: Int64[np.ndarray, " query"],
        gallery_index: Int64[np.ndarray, " gallery"],
        *,
        distance: str,
        compiled: bool = True,
    ) -> "ExactScores":
        """Return the scores of the rows of both sides in these orders; UserError for a row that has none."""
        compiled = compiled and importable("numba")
        lengths = others = row_lengths(problem.embeddings, side="query", distance=distance, compiled=compiled)
        if problem.gallery is not None:
            others = row_lengths(problem.gallery, side="gallery", distance=distance, compiled=compiled)
        measure = make_distance(distance, float(lengths.max()), float(others.max()))
        queries = Vectors(problem.embeddings, lengths, order=query_index, distance=measure)
        gallery = Vectors(problem.target, others, order=gallery_index, distance=measure)
        return cls(queries, gallery, compiled=compiled)

    def pairs(self, queries: Pairs, gallery: Pairs) -> Float64[np.ndarray, " pair"]:
        """Return the score of each pair of a sorted query and a place in the sorted gallery."""
        out = np.empty(len(queries))
        if len(self.plain) == 2:
            from aurank.evaluation.engine import compiled

            (left, left_order, left_units), (right, right_order, right_units) = self.plain
            here = (left, left_order[queries], left_units[queries], right, right_order[gallery], right_units[gallery])
            compiled.exact_pairs(*here, self.queries.distance.squared, out)
            return out
        elements = CUDA_ELEMENTS if self.queries.device.type == "cuda" else ELEMENTS
        step = max(1, elements // self.queries.dim)
        for start in range(0, len(queries), step):
            row = torch.from_numpy(queries[start : start + step]).to(self.queries.device)
            column = torch.from_numpy(gallery[start : start + step]).to(self.gallery.device)
            second, units = self.gallery.raw(column).to(row.device), self.gallery.units[column].to(row.device)
            scores = self.queries.distance.pairs(self.queries.raw(row), second, self.queries.units[row] * units)
            out[start : start + step] = scores.cpu().numpy()
        return out

    @cached_property
    def product_type(self) -> torch.dtype | None:
        """The type whose products of the rows as they came are exact, as of small whole numbers; None for others."""
        largest = 0.0
        for embeddings in {id(side): side for side in (self.queries.embeddings, self.gallery.embeddings)}.values():
            for rows in pieces(embeddings):
                if bool((rows != rows.round()).any()):
                    return None
                largest = max(largest, float(rows.abs().max()))
        most = 4 * self.queries.dim * largest**2  # |x|² + |y|² + 2 |x·y|
        return next((kind for kind in (torch.float32, torch.float64) if most * torch.finfo(kind).eps < 1), None)

    def tile(self, queries: slice, gallery: slice, out: Float64[Tensor, "query gallery"]) -> None:
        """Write the score of every sorted query in a range with every place in a range of the sorted gallery."""
        if self.product_type is not None:
            self._product_tile(queries, gallery, self.product_type, out)
            return
        columns = np.arange(gallery.start, gallery.stop)
        step = max(1, ELEMENTS // len(columns))
        for start in range(queries.start, queries.stop, step):
            rows = np.arange(start, min(start + step, queries.stop))
            scores = self.pairs(np.repeat(rows, len(columns)), np.tile(columns, len(rows)))
            out[start - queries.start :][: len(rows)] = torch.from_numpy(scores).view(len(rows), -1)

    def _product_tile(
        self, queries: slice, gallery: slice, kind: torch.dtype, out: Float64[Tensor, "query gallery"]
    ) -> None:
        right = self.gallery.raw(gallery).to(out.device, kind)
        units = self.gallery.units[gallery].to(out.device)
        step = max(1, (CUDA_ELEMENTS if out.is_cuda else ELEMENTS) // len(right))
        for start in range(queries.start, queries.stop, step):
            here = slice(start, min(start + step, queries.stop))
            left, part = self.queries.raw(here).to(out.device, kind), out[start - queries.start :][: here.stop - start]
            part.copy_(left @ right.T)
            if self.queries.distance.squared:
                squares = [(side * side).sum(dim=1) for side in (left, right)]
                part.mul_(2).sub_(squares[0][:, None]).sub_(squares[1])
            part.div_(self.queries.units[here, None].to(out.device) * units)
