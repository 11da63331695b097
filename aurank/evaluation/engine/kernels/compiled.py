"""The kernel for the processor, and exact scores, compiled by numba; all run without the interpreter's lock."""

from typing import Any, TypeVar, cast, no_type_check

import numba
import numpy as np
from torch import Tensor

from aurank.evaluation.engine.kernels import Counted, Edges

Function = TypeVar("Function")

# Up to this number of thresholds a query's scores are compared with each in turn, which vectorises; beyond it, they are
# looked up in a table of cells, whose cost hardly grows with their number.
MOST_DIRECT = 20
STRIP = 16  # columns copied at a time, so that each is read as consecutive numbers
TABLE_CELLS = 2**12  # of the table at most; finer would not fit in the first-level cache
BLOCK = 64  # scores compared with the ends of lists at a time
PADDING = 16  # numbers beyond a power of two, so that the columns of a strip do not share a cache set


def compiled(function: Function) -> Function:
    """Return the function, compiled on its first call; it bears `no_type_check`: type checks cannot be compiled.

    The machine code is kept on disk, beside this file or in the user's cache; where neither can be written, as in a
    container, each process compiles anew.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # no folder to keep it in
        return cast(Function, numba.njit(**options)(function))


@compiled
@no_type_check
def count_directly(scores: Any, low: Any, high: Any, above: Any, near: Any) -> int:
    """Count a query's scores above, and from low to high around, each threshold; return the sum of the latter."""
    total = 0
    for threshold in range(len(low)):
        least, most = low[threshold], high[threshold]
        over, reach = np.int32(0), np.int32(0)
        for other in range(len(scores)):
            over += np.int32(scores[other] > most)
            reach += np.int32(scores[other] >= least)
        above[threshold] = over
        near[threshold] = reach - over
        total += reach - over
    return total


@compiled
@no_type_check
def count_by_table(scores: Any, low: Any, high: Any, above: Any, near: Any, table: Any, over: Any, reach: Any) -> int:
    """Count as `count_directly`, by histograms over the number of thresholds that a score passes.

    A cell of the table says how many upper edges lie in cells before it. The cell is a monotone function of the score,
    rounding included, so those edges are below any score of the cell, and the search goes on from there.
    """
    size = len(low)
    cells = min(2 * size, TABLE_CELLS)
    start, end = high[0], high[size - 1]
    scale = cells / (end - start) if end > start else start * 0
    if not np.isfinite(scale):
        scale = start * 0
    edge = 0
    for cell in range(cells):
        while edge < size and int((high[edge] - start) * scale) < cell:
            edge += 1
        table[cell] = edge
    over[: size + 1] = 0
    reach[: size + 1] = 0
    least = low[0]
    for other in range(len(scores)):
        score = scores[other]
        if score < least:
            continue
        passed = 0
        if score > start:
            passed = size
            if score <= end:
                passed = table[min(int((score - start) * scale), cells - 1)]
                while high[passed] < score:
                    passed += 1
        reached = passed
        while reached < size and low[reached] <= score:
            reached += 1
        over[passed] += 1
        reach[reached] += 1
    passed, reached, total = 0, 0, 0
    for threshold in range(size - 1, -1, -1):
        passed += over[threshold + 1]
        reached += reach[threshold + 1]
        above[threshold] = passed
        near[threshold] = reached - passed
        total += reached - passed
    return total


@compiled
@no_type_check
def count_query(
    scores: Any, low: Any, high: Any, above: Any, near: Any, work: Any, first: int, pairs: Any, found: int
) -> int:
    """Count one query, list its near pairs (threshold, other) behind the `found` first, and return how many are listed.

    -1 where they do not fit. Without rows in `pairs` none is listed.
    """
    if len(low) <= MOST_DIRECT:
        total = count_directly(scores, low, high, above, near)
    else:
        total = count_by_table(scores, low, high, above, near, work[0], work[1], work[2])
    if total == 0 or len(pairs) == 0:
        return found
    if found + total > pairs.shape[1]:
        return -1
    for threshold in range(len(low)):
        if near[threshold] > 0:
            for other in range(len(scores)):
                if low[threshold] <= scores[other] <= high[threshold]:
                    pairs[0, found] = first + threshold
                    pairs[1, found] = other
                    found += 1
    return found


@compiled
@no_type_check
def count_rows(scores: Any, offset: Any, low: Any, high: Any, above: Any, near: Any, work: Any, pairs: Any) -> int:
    """Count for queries in the rows of the scores; query i has the thresholds `offset[i]` to `offset[i + 1]`.

    List near pairs as (threshold, column) in the two rows of `pairs`, if it has any, and return their number, or -1
    where there are more than it has columns.
    """
    found = 0
    for row in range(scores.shape[0]):
        a, b = offset[row], offset[row + 1]
        if a < b:
            found = count_query(scores[row], low[a:b], high[a:b], above[a:b], near[a:b], work, a, pairs, found)
            if found < 0:
                return -1
    return found


@compiled
@no_type_check
def count_columns(
    scores: Any, offset: Any, low: Any, high: Any, above: Any, near: Any, work: Any, pairs: Any, strip: Any
) -> int:
    """Count as `count_rows` for queries in the columns of the scores."""
    found = 0
    rows, columns = scores.shape
    for left in range(0, columns, strip.shape[0]):
        width = min(strip.shape[0], columns - left)
        if offset[left] == offset[left + width]:
            continue
        for row in range(rows):
            for column in range(width):
                strip[column, row] = scores[row, left + column]
        for column in range(width):
            a, b = offset[left + column], offset[left + column + 1]
            if a < b:
                found = count_query(
                    strip[column, :rows], low[a:b], high[a:b], above[a:b], near[a:b], work, a, pairs, found
                )
                if found < 0:
                    return -1
    return found


@compiled
@no_type_check
def fold(terms: Any, size: int) -> Any:
    """Return `scores.tree_sum` of the first `size` terms, which are overwritten."""
    while size > 1:
        half = (size + 1) // 2
        for term in range(size - half):
            terms[term] += terms[half + term]
        size = half
    return terms[0]


@compiled
@no_type_check
def exact_score(left: Any, right: Any, squared: bool, terms: Any) -> Any:
    """Return the exact dot product of two rows, or minus the square of their distance, before any division."""
    size = len(left)
    if squared:
        for column in range(size):
            difference = np.float64(left[column]) - np.float64(right[column])
            terms[column] = difference * difference
        return -fold(terms, size)
    for column in range(size):
        terms[column] = np.float64(left[column]) * np.float64(right[column])
    return fold(terms, size)


@compiled
@no_type_check
def exact_lengths(rows: Any, out: Any) -> None:
    """Write the Euclidean length of every row to `out`."""
    terms = np.empty(rows.shape[1], np.float64)
    for row in range(len(out)):
        out[row] = np.sqrt(exact_score(rows[row], rows[row], False, terms))


@compiled
@no_type_check
def exact_pairs(
    left: Any, left_rows: Any, left_units: Any, right: Any, right_rows: Any, right_units: Any, squared: bool, out: Any
) -> None:
    """Write the exact score of each pair of rows, divided by the product of their units, to `out`."""
    terms = np.empty(left.shape[1], np.float64)
    for pair in range(len(out)):
        i, j = left_rows[pair], right_rows[pair]
        out[pair] = exact_score(left[i], right[j], squared, terms) / (left_units[pair] * right_units[pair])


class CompiledKernel:
    """`Kernel` in compiled loops; keeps its memory from tile to tile, since fresh pages cost more than the counting."""

    def __init__(self) -> None:
        self.above = self.near = np.empty(0, np.int32)
        self.work = np.empty((3, 0), np.int32)
        self.strip = np.empty((0, 0), np.float32)
        self.pairs = np.empty((2, 0), np.int64)

    def count(self, scores: Tensor, edges: Edges, *, transposed: bool, room: int | None) -> Counted | None:
        """As the protocol says."""
        tile, size = scores.numpy(), len(edges.low)
        if len(self.above) < size:
            self.above, self.near = np.empty(size, np.int32), np.empty(size, np.int32)
        width = max(TABLE_CELLS, int(np.diff(edges.offset).max(initial=0)) + 1)
        if self.work.shape[1] < width:
            self.work = np.empty((3, width), np.int32)
        if self.pairs.shape[1] < (room or 0):
            self.pairs = np.empty((2, room or 0), np.int64)
        above, near = self.above[:size], self.near[:size]
        pairs = self.pairs[:0] if room is None else self.pairs[:, :room]
        shared = (tile, edges.offset, edges.low, edges.high, above, near, self.work, pairs)
        if transposed:
            if self.strip.dtype != tile.dtype or self.strip.shape[1] < len(tile) + PADDING:
                self.strip = np.empty((STRIP, len(tile) + PADDING), tile.dtype)
            found = count_columns(*shared, self.strip)
        else:
            found = count_rows(*shared)
        return None if found < 0 else Counted(above, near, self.pairs[0, :found], self.pairs[1, :found])


@compiled
@no_type_check
def count_between(scores: Any, bounds: Any, table: Any, counts: Any, pairs: Any, lists: bool) -> int:
    """Count the scores up to the first bound, from each bound to the next, and beyond the last: `bounds` increase.

    List where those behind an even bound, up to the next one, are in the two rows of `pairs`; return how many, or -1
    where there are more than it has columns. The table works as in `count_by_table`.
    """
    size, cells, found = len(bounds), len(table), 0
    start, end = bounds[0], bounds[size - 1]
    scale = cells / (end - start) if end > start else start * 0
    if not np.isfinite(scale):
        scale = start * 0
    bound = 0
    for cell in range(cells):
        while bound < size and int((bounds[bound] - start) * scale) < cell:
            bound += 1
        table[cell] = bound
    low = 0
    for row in range(scores.shape[0]):
        for column in range(scores.shape[1]):
            score = scores[row, column]
            if score <= start:
                low += 1
                continue
            passed = size
            if score <= end:
                passed = table[min(int((score - start) * scale), cells - 1)]
                while bounds[passed] < score:
                    passed += 1
            counts[passed] += 1
            if lists and passed & 1:
                if found == pairs.shape[1]:
                    return -1
                pairs[0, found] = row
                pairs[1, found] = column
                found += 1
    counts[0] += low
    return found


def count_in_order(scores: Any, bounds: Any, room: int | None) -> tuple[Any, Any] | None:
    """Return the counts of `count_between` and its pairs; None where they do not fit into a `room`."""
    counts, table = np.zeros(len(bounds) + 1, np.int64), np.empty(TABLE_CELLS, np.int32)
    pairs = np.empty((2, room or 0), np.int64)
    found = count_between(scores, bounds, table, counts, pairs, room is not None)
    return None if found < 0 else (counts, pairs[:, :found])


@compiled
@no_type_check
def insert(value: Any, place: Any, score: Any, other: int) -> None:
    """Put a score into a decreasing list, whose last it exceeds; behind those that are equal."""
    slot = len(value) - 1
    while slot > 0 and value[slot - 1] < score:
        value[slot] = value[slot - 1]
        place[slot] = place[slot - 1]
        slot -= 1
    value[slot] = score
    place[slot] = other


@compiled
@no_type_check
def keep_greatest(scores: Any, value: Any, place: Any, start: int, transposed: bool) -> None:
    """Put the scores of a tile into the decreasing lists of its rows or, transposed, of its columns.

    `start` is added to the places of the other side. Most scores are below the end of their list: a block of them is
    first compared without a branch, which vectorises.
    """
    rows, columns = scores.shape
    ends = value[:, -1].copy()
    for row in range(rows):
        for left in range(0, columns, BLOCK):
            right = min(left + BLOCK, columns)
            exceeding = np.int32(0)
            if transposed:
                for column in range(left, right):
                    exceeding += np.int32(scores[row, column] > ends[column])
            else:
                for column in range(left, right):
                    exceeding += np.int32(scores[row, column] > ends[row])
            if exceeding == 0:
                continue
            for column in range(left, right):
                query, other = (column, row) if transposed else (row, column)
                if scores[row, column] > ends[query]:
                    insert(value[query], place[query], scores[row, column], start + other)
                    ends[query] = value[query, -1]
