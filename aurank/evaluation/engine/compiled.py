"""Counting, exact scores, codes of eight bits and lists, compiled by numba; without the interpreter's lock."""

from typing import Any, TypeVar, cast, no_type_check

import numba
import numpy as np
from torch import Tensor

Function = TypeVar("Function")

# Up to this number of thresholds a query's scores are compared with each in turn, which vectorises; beyond it, they are
# looked up in a table of cells, whose cost hardly grows with their number.
MOST_DIRECT = 64
MOST_MARKED = 8  # thresholds of a query whose near scores are listed one after the other; of more, by the table
# A score that reaches a threshold takes as long by itself as comparing so many with a threshold in turn.
DIRECT_FOR_ONE = 256
RARE = 1024  # such scores that are always taken by themselves
STRIP = 64  # columns copied at a time, so that each is read as consecutive numbers
CELLS = 4  # of the table, for each threshold,
TABLE_CELLS = 2**12  # and at most: finer would not fit in the first-level cache
PADDING = 16  # numbers beyond a power of two, so that the columns of a strip do not share a cache set


def compiled(function: Function, **more: Any) -> Function:
    """Return the function, compiled on its first call; it bears `no_type_check`: type checks cannot be compiled."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", **more}
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # no folder to keep it in
        return cast(Function, numba.njit(**options)(function))


def compiled_in_any_order(function: Function) -> Function:
    return compiled(function, fastmath={"reassoc", "contract"})


@compiled
@no_type_check
def count_directly(scores: Any, low: Any, high: Any, above: Any, near: Any) -> int:
    """Count a query's scores above, and from low to high around, each threshold; return the sum of the latter."""
    total = 0
    for threshold in range(len(low)):
        least, most = low[threshold], high[threshold]
        over, reach = np.int32(0), np.int32(0)
        for other in range(len(scores)):
            over = np.int32(over + np.int32(scores[other] > most))  # np.int32 again: numba's sums are int64
            reach = np.int32(reach + np.int32(scores[other] >= least))
        above[threshold] = over
        near[threshold] = reach - over
        total += reach - over
    return total


@compiled
@no_type_check
def fill_table(edges: Any, table: Any, cells: int) -> Any:
    """Write to each cell how many edges lie in cells before it; return the cells of a unit of score, 0 for one cell."""
    size = len(edges)
    start, end = edges[0], edges[size - 1]
    scale = cells / (end - start) if end > start else start * 0
    if not np.isfinite(scale):
        scale = start * 0
    table[:cells] = 0
    for edge in range(size):
        cell = int((edges[edge] - start) * scale)
        if cell + 1 < cells:
            table[cell + 1] += 1
    before = 0
    for cell in range(cells):
        before += table[cell]
        table[cell] = before
    return scale


@compiled
@no_type_check
def count_by_table(
    scores: Any, low: Any, high: Any, above: Any, near: Any, work: Any, edges: Any, first: int, pairs: Any, found: int
) -> int:
    """Count as `count_directly`, by histograms over the number of thresholds that a score passes; list near pairs."""
    size = len(low)
    table, over, reach = work[0], work[1], work[2]
    bottoms, tops = edges[0], edges[1]
    cells = min(CELLS * min(size, len(scores)), TABLE_CELLS)
    start, end = high[0], high[size - 1]
    scale = fill_table(high, table, cells)
    for threshold in range(size):
        bottoms[threshold], tops[threshold] = low[threshold], high[threshold]
    bottoms[size] = tops[size] = np.inf
    over[: size + 1] = 0
    reach[: size + 1] = 0
    for other in range(len(scores)):
        score = scores[other]
        if score < bottoms[0]:
            continue
        passed = table[min(int((max(score, start) - start) * scale), cells - 1)] if score <= end else size
        passed += tops[passed] < score
        while tops[passed] < score:
            passed += 1
        reached = passed
        while bottoms[reached] <= score:
            if len(pairs) > 0:
                if found == pairs.shape[1]:
                    return -1
                pairs[0, found] = first + reached
                pairs[1, found] = other
                found += 1
            reached += 1
        over[passed] += 1
        reach[reached] += 1
    passed, reached = 0, 0
    for threshold in range(size - 1, -1, -1):
        passed += over[threshold + 1]
        reached += reach[threshold + 1]
        above[threshold] = passed
        near[threshold] = reached - passed
    return found


@compiled
@no_type_check
def list_marked(scores: Any, low: Any, high: Any, near: Any, words: Any, first: int, pairs: Any, found: int) -> int:
    """List the near pairs of a query behind the `found` first, threshold by threshold; return how many are listed."""
    marks = words.view(np.uint8)
    for threshold in range(len(low)):
        if near[threshold] == 0:
            continue
        least, most = low[threshold], high[threshold]
        for other in range(len(scores)):  # vectorises; eight marks are then looked at together
            marks[other] = np.uint8(scores[other] >= least) & np.uint8(scores[other] <= most)
        for word in range((len(scores) + 7) // 8):
            if words[word] != 0:
                for other in range(8 * word, min(8 * word + 8, len(scores))):
                    if marks[other]:
                        pairs[0, found] = first + threshold
                        pairs[1, found] = other
                        found += 1
    return found


@compiled
@no_type_check
def count_query(
    scores: Any,
    low: Any,
    high: Any,
    above: Any,
    near: Any,
    work: Any,
    edges: Any,
    words: Any,
    first: int,
    pairs: Any,
    found: int,
) -> int:
    """List a query's near pairs (threshold, other) behind the `found` first; return how many are listed, or -1."""
    if len(low) <= MOST_DIRECT:
        total = count_directly(scores, low, high, above, near)
        if total == 0 or len(pairs) == 0:
            return found
        if found + total > pairs.shape[1]:
            return -1
        marked = 0
        for threshold in range(len(low)):
            marked += near[threshold] > 0
        if marked <= MOST_MARKED:
            return list_marked(scores, low, high, near, words, first, pairs, found)
    return count_by_table(scores, low, high, above, near, work, edges, first, pairs, found)


@compiled
@no_type_check
def count_rare(
    scores: Any,
    offset: Any,
    low: Any,
    high: Any,
    above: Any,
    near: Any,
    words: Any,
    pairs: Any,
    least: Any,
    transposed: bool,
    rare: int,
    most: int,
) -> int:
    """Count queries in the rows of the scores or, transposed, in its columns, where few scores reach a threshold."""
    rows, columns = scores.shape
    marks = words.view(np.uint8)
    found, seen = 0, 0
    for threshold in range(len(above)):
        above[threshold] = near[threshold] = 0
    for column in range(columns):
        least[column] = np.inf
        if transposed and offset[column] < offset[column + 1]:
            least[column] = low[offset[column]]
    for row in range(rows):
        query = row
        if not transposed:
            if offset[row] == offset[row + 1]:
                continue
            for column in range(columns):
                least[column] = low[offset[row]]
        for column in range(columns):
            marks[column] = np.uint8(scores[row, column] >= least[column])
        for word in range((columns + 7) // 8):
            if words[word] == 0:
                continue
            for column in range(8 * word, min(8 * word + 8, columns)):
                score = scores[row, column]
                if score < least[column]:
                    continue
                seen += 1
                other = column
                if transposed:
                    query, other = column, row
                for threshold in range(offset[query], offset[query + 1]):
                    if score < low[threshold]:
                        break
                    if score > high[threshold]:
                        above[threshold] += 1
                        continue
                    near[threshold] += 1
                    if len(pairs) > 0:
                        if found == pairs.shape[1]:
                            return -1
                        pairs[0, found] = threshold
                        pairs[1, found] = other
                        found += 1
        if seen > rare + most * (row + 1) // rows:
            return -2
    return found


@compiled
@no_type_check
def count_all(
    scores: Any, offset: Any, low: Any, high: Any, above: Any, near: Any, work: Any, words: Any, pairs: Any, strip: Any
) -> int:
    """Count for queries in the rows of the scores or, with a strip to copy them to, in its columns."""
    found, edges = 0, np.empty((2, work.shape[1] + 1), scores.dtype)
    transposed, size = len(strip) > 0, scores.shape[1]
    if transposed:
        size = scores.shape[0]
    for query in range(len(offset) - 1):
        inside = query % max(1, len(strip))
        if transposed and inside == 0:
            width = min(len(strip), len(offset) - 1 - query)
            for row in range(size if offset[query] < offset[query + width] else 0):
                for column in range(width):
                    strip[column, row] = scores[row, query + column]
        a, b = offset[query], offset[query + 1]
        if a == b:
            continue
        line = strip[inside] if transposed else scores[query]
        found = count_query(
            line[:size], low[a:b], high[a:b], above[a:b], near[a:b], work, edges, words, a, pairs, found
        )
        if found < 0:
            return -1
    return found


class CompiledKernel:
    """A kernel in compiled loops; keeps its memory from tile to tile, since fresh pages cost more than the counting."""

    def __init__(self, rare: int = RARE) -> None:
        self.rare = rare
        self.above = self.near = np.empty(0, np.int32)
        self.work = np.empty((3, 0), np.int32)
        self.strip = np.empty((0, 0), np.float32)
        self.words, self.least = np.empty(0, np.uint64), np.empty(0, np.float32)
        self.pairs = np.empty((2, 0), np.int64)

    def count(
        self, scores: Tensor, edges: tuple[Any, Any, Any], *, transposed: bool, room: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """Count as `tiles.make_kernel` says."""
        offset, low, high = edges
        tile, size = scores.numpy(), len(low)
        if len(self.above) < size:
            self.above, self.near = np.empty(size, np.int32), np.empty(size, np.int32)
        width = max(TABLE_CELLS, int(np.diff(offset).max(initial=0)) + 1)
        if self.work.shape[1] < width:
            self.work = np.empty((3, width), np.int32)
        if self.pairs.shape[1] < (room or 0):
            self.pairs = np.empty((2, room or 0), np.int64)
        above, near = self.above[:size], self.near[:size]
        pairs = self.pairs[:0] if room is None else self.pairs[:, :room]
        if 8 * len(self.words) < max(tile.shape):
            self.words = np.zeros(max(tile.shape) // 8 + 1, np.uint64)
        if len(self.least) < tile.shape[1] or self.least.dtype != tile.dtype:
            self.least = np.empty(tile.shape[1], tile.dtype)
        given = (tile, offset, low, high, above, near)
        most = tile.size * min(1 + size // len(offset), 6) // DIRECT_FOR_ONE
        found = count_rare(*given, self.words, pairs, self.least, transposed, self.rare, most)
        if found == -2:
            strip = np.empty((0, 0), tile.dtype)
            if transposed:
                if self.strip.dtype != tile.dtype or self.strip.shape[1] < len(tile) + PADDING:
                    self.strip = np.empty((STRIP, len(tile) + PADDING), tile.dtype)
                strip = self.strip
            found = count_all(*given, self.work, self.words, pairs, strip)
        return None if found < 0 else (above, near, self.pairs[0, :found], self.pairs[1, :found])


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
    """Write the codes of rows [row, dim], which are overwritten, as `codes.ByteCodes` describes them."""
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
    """Write the score of each product of codes; `scores` may be the same memory."""
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
    terms = np.empty(rows.shape[1], np.float64)
    for row in range(len(out)):
        out[row] = np.sqrt(exact_score(rows[row], rows[row], False, terms))


@compiled
@no_type_check
def exact_pairs(
    left: Any, left_rows: Any, left_units: Any, right: Any, right_rows: Any, right_units: Any, squared: bool, out: Any
) -> None:
    terms = np.empty(left.shape[1], np.float64)
    for pair in range(len(out)):
        i, j = left_rows[pair], right_rows[pair]
        out[pair] = exact_score(left[i], right[j], squared, terms) / (left_units[pair] * right_units[pair])


@compiled_in_any_order
@no_type_check
def dot(left: Any, right: Any) -> Any:
    total = 0.0
    for at in range(len(left)):
        total += np.float64(left[at]) * np.float64(right[at])
    return total


@compiled
@no_type_check
def decide(
    left: Any, right: Any, row: Any, column: Any, threshold: Any, factor: float, error: float, at: Any, above: Any
) -> Any:
    """Decide near pairs (row, column) by single products of features with this error; return which stay near."""
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
    """Put the scores of a tile into the decreasing lists of its rows or, transposed, of its columns."""
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
