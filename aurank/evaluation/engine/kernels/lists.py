"""Counts of scores between bounds, and the greatest scores of each query, compiled."""

from typing import Any, no_type_check

import numpy as np

from aurank.evaluation.engine.kernels.compiled import TABLE_CELLS, compiled, fill_table

BLOCK = 64  # scores compared with the ends of lists at a time


@compiled
@no_type_check
def count_between(scores: Any, bounds: Any, table: Any, counts: Any, pairs: Any, lists: bool) -> int:
    """Count the scores up to the first bound, from each bound to the next, and beyond the last: `bounds` increase.

    List where those behind an even bound, up to the next one, are in the two rows of `pairs`; return how many, or -1
    where there are more than it has columns. The table works as in `count_by_table`.
    """
    size, cells, found = len(bounds), len(table), 0
    start, end = bounds[0], bounds[size - 1]
    scale = fill_table(bounds, table, cells)
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
