"""How many gallery rows score above, and how many tie with, each of a query's thresholds: the kernel of the ranks.

A query's *thresholds* are the exact scores of its positives. A score is turned into a *code*: twice the number of
thresholds below it, plus one if it equals one. A histogram of codes per query holds all that the ranks need, and
histograms of several blocks, shards or devices add up. Positives, and rows to be left out, get the score minus
infinity, whose code 0 no threshold counts.

A cheap product decides the code of a score that is farther from every threshold than the product's error bound. Around
each threshold lies a zone as wide as the bound, and overlapping zones are one; a score in a zone gets an odd code, and
is *undecided* until its exact score is taken. Where too many are undecided (a collapsed model), the whole block goes to
the next tier: float64, then exact scores throughout. Hence the code never depends on how it was found.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int32, Int64
from torch import Tensor

from aurank.errors import UserError
from aurank.evaluation.inputs import Vectors
from aurank.evaluation.scores import exact_block, exact_pairs, product_error, tile_bytes

SCORE_BYTES = 48  # of working memory for each score of a block, at worst
ROW_BYTES = 24  # for each number of a row: as it came in float64, divided by its length, rounded or transposed
THRESHOLD_BYTES = 200  # for each threshold of a block: sorting, zones, histogram
# Above this part of a block undecided, the next tier is cheaper than single exact scores: the ratio of their speeds.
UNDECIDED = {torch.float32: 1 / 32, torch.float64: 1 / 8}
DENSE = 4096  # pairs of one class from which exact_block beats exact_pairs


class Budget:
    """How large blocks may be: memory for scores, rows, single pairs and tiles, each a stated part of `size` bytes."""

    def __init__(self, size: int, *, dim: int, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.size = size
        self.dim = dim
        self.block = size // 3
        self.rows = size // 4 // (2 * ROW_BYTES * dim)
        if self.rows < 8:
            least = 8 * 4 * 2 * ROW_BYTES * dim
            raise UserError(f"max_memory is {size} bytes: embeddings of width {dim} need at least {least}")
        square = math.isqrt(self.block // SCORE_BYTES)
        self.columns = min(self.rows, max(64, 2 * square), 2**14 if cuda else 2**12)
        self.queries = min(self.rows, 2**13 if cuda else 2**10)
        self.pairs = max(1, min(size // 8 // ROW_BYTES, 2**24 if cuda else 2**20) // dim)
        # On the CPU just below the 32,768 numbers from which torch divides an operation among threads: there are so
        # many operations that on a busy machine the threads' waiting for each other took ten times the work.
        self.tile = max(8, min(math.isqrt(size // 8 // tile_bytes(dim)), 2**12 if cuda else 181))

    def holds(self, rows: int) -> bool:
        """Whether the unit vectors of so many rows may be kept in float32."""
        return rows * self.dim * 4 <= self.size // 8

    def width(self, positives: int) -> int:
        """Gallery rows in a block; more where a query has many thresholds, so that clearing histograms stays cheap."""
        return min(self.rows, max(self.columns, positives))

    def height(self, positives: Int64[np.ndarray, " query"]) -> int:
        """Queries in the next block, given the number of positives of those that follow."""
        most = np.maximum.accumulate(positives[: self.queries])
        width = np.minimum(self.rows, np.maximum(self.columns, most))
        cost = np.arange(1, len(most) + 1) * (width * SCORE_BYTES + most * THRESHOLD_BYTES)
        if cost[0] > self.size:
            raise UserError(
                f"max_memory is {self.size} bytes: a query with {most[0]} positives needs at least {cost[0]}"
            )
        return max(1, int(np.searchsorted(cost, self.block, side="right")))


@dataclass(frozen=True, eq=False)
class Task:
    """Two sides and, for each query, the gallery positions of its class and of the row to leave out."""

    queries: Vectors
    gallery: Vectors
    first: Int64[np.ndarray, " query"]
    last: Int64[np.ndarray, " query"]
    skip: Int64[np.ndarray, " query"]  # -1: none
    budget: Budget
    scratch: dict[tuple[str, torch.dtype], Tensor] = field(default_factory=dict)

    def workspace(self, name: str, dtype: torch.dtype, shape: tuple[int, int]) -> Tensor:
        """Memory to write to, the same for every block: fresh pages cost more than the product."""
        size = shape[0] * shape[1]
        kept = self.scratch.get((name, dtype))
        if kept is None or len(kept) < size:
            kept = self.scratch[name, dtype] = torch.empty(size, dtype=dtype, device=self.gallery.device)
        return kept[:size].view(shape)


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive queries of a task with their thresholds, lowest first, minus infinity where a query has fewer."""

    task: Task
    rows: slice
    thresholds: Float64[Tensor, "query positive"]
    columns: Int64[Tensor, "query positive"]  # gallery position of each threshold


def load_block(task: Task, rows: slice) -> Block:
    """The block of these queries: exact scores of all their positives, sorted."""
    device = task.gallery.device
    first, last = task.first[rows], task.last[rows]
    places = torch.arange(int((last - first).max()), device=device)
    start = torch.from_numpy(first).to(device)[:, None]
    columns = start + places
    inside = columns < torch.from_numpy(last).to(device)[:, None]
    scores = torch.full(columns.shape, -math.inf, dtype=torch.float64, device=device)
    for top, bottom, left, right in class_runs(first, last):
        if (bottom - top) * (right - left) >= DENSE:
            inside[top:bottom] = False
            here = slice(rows.start + top, rows.start + bottom)
            scores[top:bottom, : right - left] = exact_rectangle(task, here, slice(left, right))
    row, place = torch.nonzero(inside, as_tuple=True)
    scores[row, place] = exact_scores(task, row + rows.start, columns[row, place])
    scores[columns == torch.from_numpy(task.skip[rows]).to(device)[:, None]] = -math.inf
    # Stable and from the best: equal positives stand in gallery order.
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return Block(task, rows, scores.flip(1).contiguous(), columns.gather(1, order.flip(1)))


def class_runs(
    first: Int64[np.ndarray, " query"], last: Int64[np.ndarray, " query"]
) -> Iterator[tuple[int, int, int, int]]:
    """Rectangles (top, bottom, left, right) of queries and gallery positions that share a class."""
    edges = np.flatnonzero(np.diff(first)) + 1
    for top, bottom in zip([0, *edges.tolist()], [*edges.tolist(), len(first)], strict=True):
        yield top, bottom, int(first[top]), int(last[top])


def exact_scores(task: Task, rows: Int64[Tensor, " pair"], columns: Int64[Tensor, " pair"]) -> Float64[Tensor, " pair"]:
    """Exact scores of single pairs of query and gallery positions."""
    scores = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
    for start in range(0, len(rows), task.budget.pairs):
        row, column = rows[start : start + task.budget.pairs], columns[start : start + task.budget.pairs]
        lengths = task.queries.lengths[row] * task.gallery.lengths[column]
        scores[start : start + len(row)] = exact_pairs(task.queries.raw(row), task.gallery.raw(column), lengths)
    return scores


def exact_rectangle(task: Task, rows: slice, columns: slice) -> Float64[Tensor, "row column"]:
    """Exact scores of every query in `rows` with every gallery position in `columns`."""
    scores = task.workspace("exact", torch.float64, (rows.stop - rows.start, columns.stop - columns.start))
    queries, query_lengths = task.queries.raw(rows), task.queries.lengths[rows]
    for left in range(columns.start, columns.stop, task.budget.rows):
        here = slice(left, min(left + task.budget.rows, columns.stop))
        exact_block(
            queries,
            task.gallery.raw(here),
            query_lengths,
            task.gallery.lengths[here],
            tile=task.budget.tile,
            out=scores[:, here.start - columns.start : here.stop - columns.start],
        )
    return scores


def count_codes(block: Block, columns: slice) -> Int64[Tensor, "query code"]:
    """Histogram of codes, for each query of the block, over the gallery positions in `columns`."""
    codes = decide(block, columns)
    bins = 2 * block.thresholds.shape[1] + 1
    total = codes.shape[0] * bins
    dtype = torch.int32 if total < 2**31 else torch.int64
    offsets = torch.arange(0, total, bins, dtype=dtype, device=codes.device)
    keys = block.task.workspace("keys", dtype, (codes.shape[0], codes.shape[1]))
    torch.add(codes, offsets[:, None], out=keys)
    return torch.bincount(keys.view(-1), minlength=total).view(-1, bins)


def decide(block: Block, columns: slice) -> Int32[Tensor, "query column"]:
    """Code of each score of the block with the gallery positions in `columns`; odd where it ties with a threshold."""
    task, shape = block.task, (len(block.thresholds), columns.stop - columns.start)
    codes = task.workspace("codes", torch.int32, shape)
    odd = task.workspace("odd", torch.int32, shape)
    for dtype, most in UNDECIDED.items():
        error = product_error(task.gallery.dim, dtype)
        if math.isinf(error):
            continue
        scores = task.workspace("scores", dtype, shape)
        torch.mm(task.queries.unit(block.rows, dtype), task.gallery.unit(columns, dtype).T, out=scores)
        leave_out(block, columns, scores)
        # One spacing more on each side than the bound, for rounding the edges themselves.
        torch.searchsorted(
            zones(block.thresholds, error + 2 * torch.finfo(dtype).eps, dtype), scores, out_int32=True, out=codes
        )
        torch.bitwise_and(codes, 1, out=odd)
        undecided = int(torch.count_nonzero(odd))
        if undecided <= most * codes.numel():
            if undecided:
                recheck(block, columns, codes, odd)
            return codes
    scores = exact_rectangle(task, block.rows, columns)
    leave_out(block, columns, scores)
    torch.searchsorted(exact_zones(block.thresholds), scores, out_int32=True, out=codes)
    return codes


def leave_out(block: Block, columns: slice, scores: Tensor) -> None:
    """Sets to minus infinity the scores of positives and of the row that a query leaves out."""
    task = block.task
    first, last, skip = task.first[block.rows], task.last[block.rows], task.skip[block.rows]
    for top, bottom, left, right in class_runs(first, last):
        scores[top:bottom, max(left - columns.start, 0) : max(right - columns.start, 0)] = -math.inf
    row = np.flatnonzero((skip >= columns.start) & (skip < columns.stop))
    where = torch.from_numpy(row).to(scores.device)
    scores[where, torch.from_numpy(skip[row] - columns.start).to(scores.device)] = -math.inf


def zones(thresholds: Float64[Tensor, "query positive"], error: float, dtype: torch.dtype) -> Tensor:
    """Edges of the undecided zones: below, above, below, above, … from the lowest threshold; never decreasing.

    A zone that would begin inside the one before it begins at that one's end instead. The even place between the two
    is then empty, and a score equal to both edges, with an odd number of edges below it, is undecided as it must be.
    """
    below, above = thresholds - error, thresholds + error
    below[:, 1:] = torch.maximum(below[:, 1:], above[:, :-1])
    return torch.stack([below, above], dim=-1).view(len(thresholds), -1).to(dtype)


def exact_zones(thresholds: Float64[Tensor, "query positive"]) -> Float64[Tensor, "query edge"]:
    """Edges that leave only scores equal to a threshold in a zone."""
    below = torch.nextafter(thresholds, torch.full_like(thresholds, -math.inf))
    below[:, 1:] = torch.maximum(below[:, 1:], thresholds[:, :-1])
    return torch.stack([below, thresholds], dim=-1).view(len(thresholds), -1)


def recheck(block: Block, columns: slice, codes: Int32[Tensor, "query column"], odd: Tensor) -> None:
    """Replaces each undecided code by the code of the exact score."""
    flat = torch.nonzero(odd.view(-1)).view(-1)
    row, column = flat // codes.shape[1], flat % codes.shape[1]
    scores = exact_scores(block.task, row + block.rows.start, column + columns.start)
    below, ties = find(block.thresholds, row, scores)
    codes.view(-1)[flat] = (2 * below + ties).to(torch.int32)


def find(
    thresholds: Float64[Tensor, "query positive"], row: Int64[Tensor, " pair"], scores: Float64[Tensor, " pair"]
) -> tuple[Int64[Tensor, " pair"], Bool[Tensor, " pair"]]:
    """For each pair, the number of its query's thresholds below the score, and whether one equals it: bisection."""
    low = torch.zeros_like(row)
    high = torch.full_like(row, thresholds.shape[1])
    for _ in range(thresholds.shape[1].bit_length()):
        middle = (low + high) // 2
        # A search that has ended stays: low == high, and a middle past the end is looked up one place early.
        less = (thresholds[row, middle.clamp(max=thresholds.shape[1] - 1)] < scores) & (low < high)
        low, high = torch.where(less, middle + 1, low), torch.where(less, high, middle)
    return low, thresholds[row, low.clamp(max=thresholds.shape[1] - 1)] == scores


@dataclass(frozen=True, eq=False)
class Counts:
    """What is known of each threshold of a block, the best first; rows are padded with rubbish to equal length."""

    columns: Int64[Tensor, "query positive"]
    higher: Int64[Tensor, "query positive"]
    tied: Int64[Tensor, "query positive"]
    at_least: Int64[Tensor, "query positive"]


def read_off(block: Block, histogram: Int64[Tensor, "query code"]) -> Counts:
    """Negatives above and level with each threshold, and positives at least as high, from the whole histogram."""
    below = torch.searchsorted(block.thresholds, block.thresholds)
    above = histogram.flip(1).cumsum(1).flip(1)  # above[code]: scores of this code or a higher one
    return Counts(
        columns=block.columns.flip(1),
        higher=above.gather(1, 2 * below + 2).flip(1),
        tied=histogram.gather(1, 2 * below + 1).flip(1),
        at_least=(block.thresholds.shape[1] - below).flip(1),
    )
