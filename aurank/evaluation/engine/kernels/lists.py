"""The greatest scores of each query, compiled."""

from typing import Any, no_type_check

import numpy as np

from aurank.evaluation.engine.kernels.compiled import compiled

BLOCK = 64  # scores compared with the ends of lists at a time


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
