"""Rows in eight bits, compiled: making codes, turning their products into scores, and edges for these."""

from typing import Any, no_type_check

import numpy as np

from aurank.evaluation.engine.kernels.compiled import compiled

TOP, STEPS = 127, 254  # the greatest code; steps of the second code in one of the first
TOGETHER = 8  # numbers that are not mixed with each other: whole vectors are added


@compiled
@no_type_check
def mix(values: Any, size: int) -> None:
    """Multiply `size` values, a power of two, with an orthogonal matrix: each becomes a sum of many, plus or minus."""
    half = TOGETHER
    while half < size:
        for left in range(0, size, 2 * half):
            for at in range(left, left + half):
                one, other = values[at], values[at + half]
                values[at] = one + other
                values[at + half] = one - other
        half *= 2
    shrink = np.sqrt(TOGETHER / np.float64(half))
    for at in range(size):
        values[at] *= shrink


@compiled
@no_type_check
def write_codes(rows: Any, centre: Any, signs: Any, squared: bool, planes: Any, numbers: Any) -> None:
    """Write the codes of rows [row, dim], which are overwritten, as `codes.ByteCodes` describes them.

    Signs and two overlapping orthogonal matrices rotate a row, which spreads it evenly over its numbers.
    """
    count, dim = rows.shape
    size = 1
    while 2 * size <= dim:
        size *= 2
    square = (centre * centre).sum() / 2
    for row in range(count):
        values = rows[row]
        inner, length, top = 0.0, 0.0, 0.0
        for at in range(dim):
            inner += values[at] * centre[at]
            values[at] = (values[at] - centre[at]) * signs[at]
            length += values[at] * values[at]
        mix(values, size)
        if size < dim:
            mix(values[dim - size :], size)
        for at in range(dim):
            top = max(top, abs(values[at]))
        scale = np.float32(top / TOP)
        step = np.float64(scale)
        times = 1 / step if scale > 0 else 0.0
        first, second, low = 0.0, 0.0, 0.0
        for at in range(dim):
            code = np.rint(values[at] * times)
            rest = values[at] - code * step
            fine = np.rint(rest * times * STEPS)
            last = rest - fine * (step / STEPS)
            planes[row, at] = planes[row, 2 * dim + at] = np.int8(code)
            planes[row, dim + at] = np.int8(fine)
            first += rest * rest
            low += fine * fine
            second += last * last
        numbers[0, row] = step
        numbers[1, row] = -length / 2 if squared else inner - square
        numbers[2, row] = np.sqrt(length)
        numbers[3, row] = np.sqrt(first)
        numbers[4, row] = np.sqrt(second)
        numbers[5, row] = np.sqrt(low) * step / STEPS


@compiled
@no_type_check
def scale_products(products: Any, scores: Any, left: Any, right: Any, add: bool) -> None:
    """Write the score of each product of codes; `scores` may be the same memory.

    `left` and `right` are scale and offset of each row and column. With `add` the products are those of first with
    second codes, and their part is added to the scores.
    """
    for row in range(products.shape[0]):
        scale, offset = left[0, row], left[1, row]
        if add:
            scale = scale / np.float32(STEPS)
            for column in range(products.shape[1]):
                scores[row, column] += np.float32(products[row, column]) * (scale * right[0, column])
        else:
            for column in range(products.shape[1]):
                product = np.float32(products[row, column]) * (scale * right[0, column])
                scores[row, column] = product + (offset + right[1, column])


@compiled
@no_type_check
def write_edges(thresholds: Any, offset: Any, error: Any, factor: float, rounded: float, low: Any, high: Any) -> None:
    """Write the edges around thresholds: as far as the error of their query's scores, and what rounding them takes."""
    times = 1 / factor
    for query in range(len(error)):
        for at in range(offset[query], offset[query + 1]):
            middle = thresholds[at] * times
            room = error[query] + rounded * abs(middle)
            low[at] = middle - room
            high[at] = middle + room
