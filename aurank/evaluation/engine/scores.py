"""The score of two rows: exact in a stated sense, and products that come close to it with a rigorous bound.

The score that decides is `tree_sum(x * y) / (|x| * |y|)`, `tree_sum(x * y)` or `-tree_sum((x - y)²)` in float64: its
value depends on the two rows alone. Matrix products serve where their bound proves on which side the score falls.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from aurank.arrays import MappedRows
from aurank.errors import UserError
from aurank.evaluation.inputs import Embeddings, RetrievalProblem, device_of, importable
from aurank.names import require_choice

# Squares of lengths in this range, and products of two such lengths, stay far from overflow and underflow in float64.
SHORTEST, LONGEST = 1e-140, 1e140
ELEMENTS = {"cpu": 2**17, "cuda": 2**23}  # numbers in float64 at a time; on a GPU every call has a price of its own
DISTANCES = ("cosine", "dot", "euclidean")
Order: TypeAlias = Int64[np.ndarray, " _"]  # the row at each position of a sorted side


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


@contextmanager
def full_precision(*, one_thread: bool = False) -> Iterator[None]:
    """Within this context, compute products at full precision and without a graph; with `one_thread`, in one thread."""
    with ExitStack() as restored, torch.no_grad():
        if one_thread:
            restored.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # torch 2.9 and later
            backends: Any = torch.backends
            for switch in (backends.cuda.matmul, backends.mkldnn.matmul):
                restored.callback(setattr, switch, "fp32_precision", switch.fp32_precision)
                switch.fp32_precision = "ieee"
        else:
            restored.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("highest")
        yield


def read(embeddings: Embeddings, index: Int64[Tensor, " row"]) -> Float64[Tensor, "row dim"]:
    if isinstance(embeddings, Tensor):
        return embeddings.detach().index_select(0, index).to(torch.float64)
    return torch.from_numpy(np.asarray(embeddings[index.numpy()], dtype=np.float64))


def pieces(embeddings: Embeddings) -> Iterator[Float64[Tensor, "row dim"]]:
    index = torch.arange(len(embeddings), device=device_of(embeddings))
    return (read(embeddings, part) for part in torch.split(index, max(1, ELEMENTS["cpu"] // embeddings.shape[1])))


def plain_array(embeddings: Embeddings) -> np.ndarray[Any, np.dtype[Any]] | None:
    """Return the embeddings as compiled code reads them, C-ordered float32 or float64; None if they are not."""
    if isinstance(embeddings, MappedRows) or (isinstance(embeddings, Tensor) and embeddings.is_cuda):
        return None
    if isinstance(embeddings, Tensor):
        if embeddings.dtype not in (torch.float32, torch.float64):
            return None
        embeddings = embeddings.detach().numpy()
    is_native = embeddings.dtype in (np.float32, np.float64) and embeddings.dtype.isnative
    return np.asarray(embeddings) if is_native and embeddings.flags.c_contiguous else None


def row_lengths(embeddings: Embeddings, *, side: str, distance: str, compiled: bool = False) -> Float64[Tensor, " row"]:
    """Return the Euclidean length of every row; UserError for a row that has no score."""
    if compiled and (array := plain_array(embeddings)) is not None:
        from aurank.evaluation.engine.compiled import exact_pairs

        rows, squares = np.arange(len(array)), torch.empty(len(array), dtype=torch.float64)
        exact_pairs(array, rows, array, rows, np.ones(len(array)), False, squares.numpy())
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
    values = read(embeddings, torch.tensor([row], device=lengths.device))
    fault = f"has length {float(lengths[row]):.3g}: scale the embeddings"
    if not bool(values.isfinite().all()):
        fault = "holds NaN or infinity: remove it or find out how it was made"
    elif not bool(values.any()):
        fault = "is all zeros, and has no cosine with anything: remove it"
    raise UserError(f"row {row} of the {side} embeddings {fault}")


class Side:
    """The queries or the gallery in sorted order. A row's place in that order is its position."""

    def __init__(self, embeddings: Embeddings, lengths: Float64[Tensor, " row"], order: Order) -> None:
        self.embeddings, self.array, self.device = embeddings, plain_array(embeddings), lengths.device
        self.order = torch.from_numpy(order).to(lengths.device)
        self.lengths = lengths[self.order]
        self.longest = float(lengths.max()) or 1.0


class ExactScores:
    """Exact scores between positions of two sides, and features whose products are score / `factor` within `error`."""

    def __init__(
        self, problem: RetrievalProblem, queries: Order, gallery: Order, *, distance: str, compiled: bool = True
    ) -> None:
        require_choice("distance", distance, DISTANCES)
        how: dict[str, Any] = {"distance": distance, "compiled": compiled and importable("numba")}
        lengths = gallery_lengths = row_lengths(problem.embeddings, side="query", **how)
        if problem.gallery is not None:
            gallery_lengths = row_lengths(problem.gallery, side="gallery", **how)
        self.queries = Side(problem.embeddings, lengths, queries)
        self.gallery = Side(problem.target, gallery_lengths, gallery)
        self.is_cosine, self.is_squared = distance == "cosine", distance == "euclidean"
        scales = self.queries.longest, self.gallery.longest
        self.scales = (1.0, 1.0) if self.is_cosine else (max(scales),) * 2 if self.is_squared else scales
        self.factor = (2.0 if self.is_squared else 1.0) * self.scales[0] * self.scales[1]
        self.dim = int(problem.embeddings.shape[1])
        self.width = self.dim + 2 * self.is_squared  # of features
        self.compiled = how["compiled"] and self.queries.array is not None and self.gallery.array is not None

    def pairs(
        self, queries: Int64[np.ndarray, " pair"], positions: Int64[np.ndarray, " pair"]
    ) -> Float64[np.ndarray, " pair"]:
        """Return the score of each pair of a sorted query and a position of the sorted gallery."""
        left, right, scores = self.queries, self.gallery, np.empty(len(queries))
        if self.compiled:
            from aurank.evaluation.engine.compiled import exact_pairs

            units = np.ones(len(queries))
            if self.is_cosine:
                units = left.lengths.numpy()[queries] * right.lengths.numpy()[positions]
            rows = left.order.numpy()[queries], right.order.numpy()[positions]
            exact_pairs(left.array, rows[0], right.array, rows[1], units, self.is_squared, scores)
            return scores
        step = max(1, ELEMENTS[left.device.type] // self.dim)
        for start in range(0, len(queries), step):
            query = torch.from_numpy(queries[start : start + step]).to(left.device)
            position = torch.from_numpy(positions[start : start + step]).to(right.device)
            first = read(left.embeddings, left.order[query])
            second = read(right.embeddings, right.order[position]).to(left.device)
            if self.is_squared:
                first.sub_(second)
                score = -tree_sum(first.mul_(first))
            else:
                score = tree_sum(first.mul_(second))
            if self.is_cosine:
                score = score / (left.lengths[query] * right.lengths[position].to(left.device))
            scores[start : start + step] = score.cpu().numpy()
        return scores

    def features(self, positions: slice, dtype: torch.dtype, *, gallery: bool) -> Shaped[Tensor, "position width"]:
        """Return features of consecutive positions of one side, computed in float64 and rounded to `dtype`."""
        side, scale = (self.gallery if gallery else self.queries), self.scales[gallery]
        features = torch.empty(positions.stop - positions.start, self.width, dtype=dtype, device=side.device)
        step = max(1, ELEMENTS["cpu"] // self.dim)
        for start in range(positions.start, positions.stop, step):
            part = slice(start, min(start + step, positions.stop))
            rows, lengths = read(side.embeddings, side.order[part]), side.lengths[part]
            block = features[start - positions.start : part.stop - positions.start]
            block[:, : self.dim] = rows.div_(lengths[:, None] if self.is_cosine else scale)
            if self.is_squared:  # x·y - |x|²/2 - |y|²/2
                block[:, self.dim + gallery] = -((lengths / scale) ** 2 / 2)
                block[:, self.dim + 1 - gallery] = 1.0
        return features

    def error(self, dtype: torch.dtype) -> float:
        """Return how far a product of two `dtype` features may be from score / factor, in any order of summation.

        A sum of n products errs by at most gamma(n) = n u / (1 - n u) times the sum of their sizes (Higham, Accuracy
        and Stability of Numerical Algorithms, section 3.1), which is at most 1, and 2 for the Euclidean distance.
        float32: two rounded inputs and six roundings to spare. float64: product, score, lengths and divisions each.
        """
        rounding = torch.finfo(dtype).eps / 2
        count = self.width + 8 if dtype == torch.float32 else 4 * self.width + 32
        if count * rounding > 0.01:
            return 1e30  # the bound holds no longer: nothing is decided
        return (4.08 if self.is_squared else 1.02) * count * rounding

    @cached_property
    def are_whole(self) -> bool:
        """Whether all rows are whole numbers so small that float64 adds up their products without rounding."""
        largest = 0.0
        for embeddings in {id(side): side for side in (self.queries.embeddings, self.gallery.embeddings)}.values():
            for rows in pieces(embeddings):
                if bool((rows != rows.round()).any()):
                    return False
                largest = max(largest, float(rows.abs().max()))
        return 4 * self.dim * largest**2 * torch.finfo(torch.float64).eps < 1  # |x|² + |y|² + 2 |x·y|

    def write_products(self, queries: slice, positions: slice, scores: Float64[Tensor, "query position"]) -> None:
        """Write the exact scores of a tile of whole numbers."""
        sides = (self.queries, queries), (self.gallery, positions)
        left, right = (read(side.embeddings, side.order[part]).to(scores.device) for side, part in sides)
        torch.mm(left, right.T, out=scores)
        if self.is_squared:
            squares = [(rows * rows).sum(dim=1) for rows in (left, right)]
            scores.mul_(2).sub_(squares[0][:, None]).sub_(squares[1])
        if self.is_cosine:
            lengths = [side.lengths[part].to(scores.device) for side, part in sides]
            scores.div_(lengths[0][:, None] * lengths[1])
