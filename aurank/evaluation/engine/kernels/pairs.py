"""Compiled: exact scores of pairs, products of features that decide most near pairs, and lists of the greatest."""

from typing import Any, no_type_check

import numpy as np

from aurank.evaluation.engine.kernels.compiled import compiled, compiled_in_any_order

BLOCK = 64  # scores compared with the ends of lists at a time


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


@compiled_in_any_order
@no_type_check
def dot(left: Any, right: Any) -> Any:
    """Return the product of two rows in float64, in any order of summation: it is never a score, and has a bound."""
    total = 0.0
    for at in range(len(left)):
        total += np.float64(left[at]) * np.float64(right[at])
    return total


@compiled
@no_type_check
def decide(
    left: Any, right: Any, row: Any, column: Any, threshold: Any, factor: float, error: float, at: Any, above: Any
) -> Any:
    """Decide near pairs (row, column) by single products of features with this error; return which stay near.

    Those above their threshold, which is number `at`, are added to `above`.
    """
    kept, unsure = 0, np.empty(len(at), np.int64)
    for pair in range(len(at)):
        product, middle = dot(left[row[pair]], right[column[pair]]), threshold[pair] / factor
        if product > middle + error:
            above[at[pair]] += 1
        elif product >= middle - error:
            unsure[kept] = pair
            kept += 1
    return unsure[:kept]


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
