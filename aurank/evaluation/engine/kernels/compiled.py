"""Counting and exact scores on the CPU, compiled by numba; every function runs without the interpreter's lock."""

from typing import Any, TypeVar, no_type_check

import numba
import numpy as np

Function = TypeVar("Function")

# Up to this number of thresholds a line is compared with each in turn, which vectorises; beyond it, scores are looked
# up in a table of cells, whose cost hardly grows with their number.
DIRECT = 20
STRIP = 16  # columns copied at a time, so that a column is read as a line
CELLS = 2**12  # of the table at most; finer would not fit in the first-level cache


def compiled(function: Function) -> Function:
    """The function, compiled on its first call; it bears `no_type_check`, which cannot be compiled.

    What is compiled is kept on disk, beside this file or in the user's cache; where neither can be written, as in a
    container, each process compiles anew.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        kept: Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep it in
        kept = numba.njit(**options)(function)
    return kept


@compiled
@no_type_check
def compare(line: Any, low: Any, high: Any, above: Any, near: Any) -> int:
    """Counts scores of one line above, and from low to high around, each threshold; returns the sum of the latter."""
    total = 0
    for place in range(len(low)):
        least, most = low[place], high[place]
        over, reach = np.int32(0), np.int32(0)
        for column in range(len(line)):
            over += np.int32(line[column] > most)
            reach += np.int32(line[column] >= least)
        above[place] = over
        near[place] = reach - over
        total += reach - over
    return total


@compiled
@no_type_check
def look_up(line: Any, low: Any, high: Any, above: Any, near: Any, table: Any, over: Any, reach: Any) -> int:
    """What `compare` counts, by way of histograms over the number of thresholds that a score passes.

    A cell of the table says how many upper edges lie in cells before it. The cell is a monotone function of the score,
    rounding included, so those edges are below any score of the cell, and the search goes on from there.
    """
    size = len(low)
    cells = min(2 * size, CELLS)
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
    for column in range(len(line)):
        score = line[column]
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
    for place in range(size - 1, -1, -1):
        passed += over[place + 1]
        reached += reach[place + 1]
        above[place] = passed
        near[place] = reached - passed
        total += reached - passed
    return total


@compiled
@no_type_check
def emit(line: Any, low: Any, high: Any, near: Any, first: int, pairs: Any, found: int) -> int:
    """Lists the pairs of threshold and column that `near` has counted; returns how many are listed then."""
    for place in range(len(low)):
        if near[place] > 0:
            for column in range(len(line)):
                if low[place] <= line[column] <= high[place]:
                    pairs[0, found] = first + place
                    pairs[1, found] = column
                    found += 1
    return found


@compiled
@no_type_check
def count_line(
    line: Any, low: Any, high: Any, above: Any, near: Any, work: Any, first: int, pairs: Any, found: int
) -> int:
    """Counts one line and lists its near pairs from place `found` on; -1 when they find no room.

    Without rows in `pairs` none is listed.
    """
    if len(low) <= DIRECT:
        total = compare(line, low, high, above, near)
    else:
        total = look_up(line, low, high, above, near, work[0], work[1], work[2])
    if total == 0 or len(pairs) == 0:
        return found
    if found + total > pairs.shape[1]:
        return -1
    return emit(line, low, high, near, first, pairs, found)


@compiled
@no_type_check
def count_rows(scores: Any, offset: Any, low: Any, high: Any, above: Any, near: Any, work: Any, pairs: Any) -> int:
    """Counts for every row of scores; row i has the thresholds `offset[i]` to `offset[i + 1]`.

    Near pairs are listed as (threshold, column) in the two rows of `pairs`, if it has any. Returns their number, or -1
    when there are more than it has columns.
    """
    found = 0
    for row in range(scores.shape[0]):
        a, b = offset[row], offset[row + 1]
        if a < b:
            found = count_line(scores[row], low[a:b], high[a:b], above[a:b], near[a:b], work, a, pairs, found)
            if found < 0:
                return -1
    return found


@compiled
@no_type_check
def count_columns(
    scores: Any, offset: Any, low: Any, high: Any, above: Any, near: Any, work: Any, pairs: Any, strip: Any
) -> int:
    """`count_rows` of the transposed scores."""
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
                line = strip[column, :rows]
                found = count_line(line, low[a:b], high[a:b], above[a:b], near[a:b], work, a, pairs, found)
                if found < 0:
                    return -1
    return found


@compiled
@no_type_check
def fold(terms: Any, size: int) -> Any:
    """`scores.tree_sum` of the first `size` terms, which are overwritten."""
    while size > 1:
        half = (size + 1) // 2
        for place in range(size - half):
            terms[place] += terms[half + place]
        size = half
    return terms[0]


@compiled
@no_type_check
def exact_score(left: Any, right: Any, squared: bool, terms: Any) -> Any:
    """Exact dot product of two rows, or minus the square of their distance, before any division."""
    size = len(left)
    if squared:
        for place in range(size):
            difference = np.float64(left[place]) - np.float64(right[place])
            terms[place] = difference * difference
        return -fold(terms, size)
    for place in range(size):
        terms[place] = np.float64(left[place]) * np.float64(right[place])
    return fold(terms, size)


@compiled
@no_type_check
def exact_lengths(rows: Any, out: Any) -> None:
    """Euclidean length of every row."""
    terms = np.empty(rows.shape[1], np.float64)
    for row in range(len(out)):
        out[row] = np.sqrt(exact_score(rows[row], rows[row], False, terms))


@compiled
@no_type_check
def exact_pairs(
    left: Any, left_rows: Any, left_units: Any, right: Any, right_rows: Any, right_units: Any, squared: bool, out: Any
) -> None:
    """Exact score of each pair of rows, divided by the product of their units."""
    terms = np.empty(left.shape[1], np.float64)
    for pair in range(len(out)):
        i, j = left_rows[pair], right_rows[pair]
        out[pair] = exact_score(left[i], right[j], squared, terms) / (left_units[pair] * right_units[pair])
