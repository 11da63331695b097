"""The engine's loops, compiled by numba and run without the interpreter's lock: exact scores, counts, lists."""

from typing import Any, TypeVar, cast, no_type_check

import numba
import numpy as np

Function = TypeVar("Function")

MOST_DIRECT = 256  # thresholds of a query that are compared with every score; more are looked up in cells
CELLS, MOST_CELLS = 8, 2**12  # cells for each threshold, and all together: more would leave the first-level cache
BLOCK = 64  # scores compared at a time with what few reach


def compiled(function: Function, **options: Any) -> Function:
    """Return the function, compiled on its first call; it bears `no_type_check`: type checks cannot be compiled."""
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # no folder for compiled code
        return cast(Function, numba.njit(**options)(function))


@compiled
@no_type_check
def exact_score(left: Any, right: Any, squared: bool, terms: Any) -> Any:
    """Return `scores.tree_sum` of the terms of two rows: their dot product, or minus their squared distance."""
    size = len(left)
    for column in range(size):
        if squared:
            difference = np.float64(left[column]) - np.float64(right[column])
            terms[column] = -difference * difference
        else:
            terms[column] = np.float64(left[column]) * np.float64(right[column])
    while size > 1:
        half = (size + 1) // 2
        for term in range(size - half):
            terms[term] += terms[half + term]
        size = half
    return terms[0]


@compiled
@no_type_check
def exact_pairs(left: Any, left_rows: Any, right: Any, right_rows: Any, units: Any, squared: bool, scores: Any) -> None:
    terms = np.empty(left.shape[1], np.float64)
    for pair in range(len(scores)):
        scores[pair] = exact_score(left[left_rows[pair]], right[right_rows[pair]], squared, terms) / units[pair]


@compiled
@no_type_check
def write_edges(thresholds: Any, factor: float, error: float, rounding: float, low: Any, high: Any) -> None:
    for index in range(len(thresholds)):
        threshold = thresholds[index] / factor
        room = error + rounding * abs(threshold)
        low[index], high[index] = threshold - room, threshold + room


@compiled
@no_type_check
def columns_from(line: Any, bottom: Any, columns: Any) -> int:
    """Write the columns of the scores from `bottom` on, and return how many they are."""
    size = 0
    for left in range(0, len(line), BLOCK):
        right, reaching = min(left + BLOCK, len(line)), np.int32(0)
        for column in range(left, right):
            reaching = np.int32(reaching + np.int32(line[column] >= bottom))
        for column in range(left, right if reaching else left):
            columns[size] = column
            size += line[column] >= bottom
    return size


@compiled
@no_type_check
def count(
    scores: Any, first: Any, last: Any, thresholds: Any, factor: Any, errors: Any, rounding: Any, above: Any, near: Any
) -> int:
    """Count a tile: add to `above`, for each threshold of each query (row), the scores that are above it for sure.

    Query i has the increasing thresholds `first[i]` to `last[i]`, times `factor`. A score within the error of its row
    and the rounding of a threshold is listed in `near` as its row, its column and the first threshold that it does not
    pass. Return how many are listed, or -1 where `near` has no room.
    """
    height, width = scores.shape
    size, most = 0, np.max(last - first)
    low, high = np.empty((2, most), scores.dtype)
    marks = np.zeros(width + width % 2, np.int32)
    pairs_of_marks = marks.view(np.uint64)
    memory = np.empty((3, max(MOST_CELLS, width, most) + 1 if most > MOST_DIRECT else 0), np.int32)
    for row in range(height):
        start, number = first[row], last[row] - first[row]
        line, is_near = scores[row], False
        if number > MOST_DIRECT:
            write_edges(thresholds[start : start + 1], factor, errors[row], rounding, low, high)
            reaching = columns_from(line, low[0], memory[0])
            if size + reaching > near.shape[1]:
                return -1
            if reaching > 0:
                write_edges(thresholds[start : start + number], factor, errors[row], rounding, low, high)
                columns, edges = memory[0, :reaching], (low[:number], high[:number])
                size = count_by_cells(line, columns, row, start, *edges, above, near, size, memory[1:])
            continue
        write_edges(thresholds[start : start + number], factor, errors[row], rounding, low, high)
        for index in range(number):
            bottom, top = low[index], high[index]
            over, reached = np.int32(0), np.int32(0)
            for column in range(width):  # np.int32 again: numba's sums are int64
                over = np.int32(over + np.int32(line[column] > top))
                reached = np.int32(reached + np.int32(line[column] >= bottom))
            if reached == 0:
                break
            above[start + index] += over
            if reached > over:
                is_near = True
                for column in range(width):
                    marks[column] |= np.int32(line[column] >= bottom) & np.int32(line[column] <= top)
        if not is_near:
            continue
        if size + width > near.shape[1]:
            return -1
        for pair in range(len(pairs_of_marks)):
            if pairs_of_marks[pair] == 0:
                continue
            for column in range(2 * pair, 2 * pair + 2):
                if marks[column] == 0:
                    continue
                index = 0
                while high[index] < line[column]:
                    index += 1
                near[0, size], near[1, size], near[2, size] = row, column, start + index
                size += 1
            pairs_of_marks[pair] = 0
    return size


@compiled
@no_type_check
def count_by_cells(
    line: Any, columns: Any, row: int, start: int, low: Any, high: Any, above: Any, near: Any, size: int, memory: Any
) -> int:
    """Count some scores of one query as `count` does; many scores find their thresholds by cells of equal width."""
    cell_start, counts = memory
    thresholds, zero = len(low), line.dtype.type(0)  # a number as the scores have it
    counts[: thresholds + 1] = 0
    cells = min(CELLS * thresholds, MOST_CELLS) if 2 * len(columns) > thresholds else 0
    span = high[-1] - low[0]
    scale = line.dtype.type(cells) / span if span > zero else zero
    scale = scale if np.isfinite(scale) else zero
    filled = 0
    for index in range(thresholds if cells else 0):
        cell = min(np.int32((high[index] - low[0]) * scale), cells)
        while filled <= cell:  # the first threshold whose upper edge does not lie in a cell before
            cell_start[filled] = index
            filled += 1
    cell_start[filled : cells + 1] = thresholds
    highest = -1
    for column in columns:
        score, index = line[column], 0
        if score > high[-1]:
            index = thresholds
        elif cells:
            index = cell_start[min(np.int32((score - low[0]) * scale), cells)]
            index += high[index] < score  # nearly always enough
        while index < thresholds and high[index] < score:
            index += 1
        counts[index] += 1
        highest = max(highest, index)
        if index < thresholds and low[index] <= score:
            near[0, size], near[1, size], near[2, size] = row, column, start + index
            size += 1
    total = 0
    for index in range(highest - 1, -1, -1):
        total += counts[index + 1]
        above[start + index] += total
    return size


@compiled
@no_type_check
def count_exact(near: Any, last: Any, thresholds: Any, scores: Any, above: Any, tied: Any) -> None:
    """Count near scores by their exact values."""
    for index in range(len(scores)):
        row, _, threshold = near[:, index]
        while threshold < last[row] and thresholds[threshold] < scores[index]:
            above[threshold] += 1
            threshold += 1
        while threshold < last[row] and thresholds[threshold] == scores[index]:
            tied[threshold] += 1
            threshold += 1


@compiled
@no_type_check
def keep_greatest(scores: Any, values: Any, positions: Any, start: int) -> None:
    """Put what exceeds the end of each row's decreasing list into it; its position is `start` plus its column."""
    for row in range(scores.shape[0]):
        value, position, line = values[row], positions[row], scores[row]
        for left in range(0, len(line), BLOCK):
            right, over = min(left + BLOCK, len(line)), np.int32(0)
            for column in range(left, right):
                over = np.int32(over + np.int32(line[column] > value[-1]))
            for column in range(left, right if over else left):
                if line[column] <= value[-1]:
                    continue
                slot = len(value) - 1
                while slot > 0 and value[slot - 1] < line[column]:
                    value[slot], position[slot] = value[slot - 1], position[slot - 1]
                    slot -= 1
                value[slot], position[slot] = line[column], start + column
