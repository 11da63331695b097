"""Counting, exact scores, codes of eight bits and lists, compiled by numba; without the interpreter's lock."""

import math
from collections.abc import Sequence
from typing import Any, TypeVar, cast, no_type_check

import numba
import numpy as np
from torch import Tensor

Function = TypeVar("Function")

# Up to this number of thresholds of a query its scores are compared with each in turn, as integers of 16 bits, which
# vectorises; beyond it, they are looked up in a table of cells, whose cost hardly grows with their number.
MOST_DIRECT = 64
# Picking a score that reaches a threshold takes as long as comparing so many with one in turn; writing their integers
# takes as long as comparing with DIRECT_BESIDE; beyond MOST_PICKED thresholds picking gains no more.
DIRECT_FOR_ONE, DIRECT_BESIDE, MOST_PICKED = 67, 6, 14
RARE = 1024  # such scores that are always picked
STRETCH = 1024  # scores of a row that are looked at at a time,
DEPTH = 64  # and picked scores of a column
STRIP = 64  # columns copied at a time
CELLS = 4  # of the table, for each threshold,
TABLE_CELLS = 2**12  # and at most: finer would not fit in the first-level cache
PADDING = 16  # numbers beyond a power of two, so that the columns of a strip do not share a cache set
WIDE = 256  # columns compared at a time with their thresholds
STEPS_UP = 32766  # of the highest threshold as an integer; the lowest is -STEPS_UP, and what is below it one less
LONGEST = 2**14  # scores of which an integer of 16 bits holds the count


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
            if pairs.shape[1] > 0:
                if found == pairs.shape[1] - MOST_DIRECT:
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
def marked(words: Any, marks: Any, size: int, columns: Any) -> int:
    """Write the numbers of the marks that are set, and return how many are; `words` are the marks, eight bytes each."""
    found, each = 0, 8 // marks.itemsize
    for word in range((size + each - 1) // each):
        if words[word] != 0:
            for column in range(each * word, each * word + each):
                columns[found] = column
                found += marks[column]
    return found


@compiled
@no_type_check
def count_picked(scores: Any, others: Any, query: int, view: Any, found: int) -> int:
    """Count some scores of a query, list what they are near to; return how many are listed, or -1 for too many."""
    offset, low, high, above, near, pairs = view
    for threshold in range(offset[query], offset[query + 1]):
        bottom, top = low[threshold], high[threshold]
        over, reached = np.int32(0), np.int32(0)
        for at in range(len(scores)):
            over = np.int32(over + np.int32(scores[at] > top))  # np.int32 again: numba's sums are int64
            reached = np.int32(reached + np.int32(scores[at] >= bottom))
        if reached == 0:
            break
        above[threshold] += over
        if reached == over:
            continue
        near[threshold] += reached - over
        if pairs.shape[1] > 0:
            if found + reached - over > pairs.shape[1] - MOST_DIRECT:
                return -1
            for at in range(len(scores)):
                if bottom <= scores[at] <= top:
                    pairs[0, found] = threshold
                    pairs[1, found] = others[at]
                    found += 1
    return found


@compiled
@no_type_check
def count_rare(scores: Any, rows: Any, columns: Any, kept: Any, places: Any, rare: int, most: int) -> tuple[int, int]:
    """Count the queries in the rows and, where given, in the columns of the scores, if few reach a threshold.

    Return how many near pairs are listed of both, -1 where too many, and -2 where too many scores reach a threshold.
    """
    height, width = scores.shape
    offset, low, _, above, near, _ = rows
    offsets, lows, _, aboves, nears, _ = columns
    both, depth = len(offsets) > 0, kept.shape[1]
    words, picked = np.zeros(STRETCH // 8 + 1, np.uint64), np.empty(STRETCH + 8, np.int32)
    marks, values = words.view(np.uint8), np.empty(STRETCH, scores.dtype)
    least, filled = np.empty(width + 1, scores.dtype), np.zeros(width, np.int64)
    found, others, seen = 0, 0, 0
    above[:] = near[:] = aboves[:] = nears[:] = 0
    least[:] = np.inf
    for column in range(width if both else 0):
        if offsets[column] < offsets[column + 1]:
            least[column] = lows[offsets[column]]
    for row in range(height):
        reached = least[width]  # as the scores have it, not as Python
        if offset[row] < offset[row + 1]:
            reached = low[offset[row]]
        elif not both:
            continue
        for left in range(0, width, STRETCH):
            wide = min(STRETCH, width - left)
            line, edge = scores[row, left : left + wide], least[left : left + wide]
            for column in range(wide):
                marks[column] = np.uint8(line[column] >= reached) | np.uint8(line[column] >= edge[column])
            marks[wide : wide + 8] = 0
            size = marked(words, marks, wide, picked)
            seen += size
            if seen > rare + most * (row + 1) // height:
                return -2, -2
            for at in range(size):
                values[at] = line[picked[at]]
                picked[at] += left
            found = count_picked(values[:size], picked, row, rows, found)
            for at in range(size if both else 0):
                column = picked[at]
                end = filled[column]
                kept[column, end], places[column, end] = values[at], row
                filled[column] += values[at] >= least[column]
                if end == depth - 1:  # makes room where it is, or will be, full
                    others = count_picked(kept[column, : filled[column]], places[column], column, columns, others)
                    filled[column] = 0
                if others < 0:
                    break
            if found < 0 or others < 0:
                return -1, -1
    for column in range(width if both else 0):
        others = count_picked(kept[column, : filled[column]], places[column], column, columns, others)
        if others < 0:
            return -1, -1
    return found, others


@compiled
@no_type_check
def write_steps(values: Any, start: Any, scale: Any, steps: Any) -> None:
    """Write numbers as integers of 16 bits that are in the same order, but that close ones become equal."""
    most = start * 0 + STEPS_UP  # a number as the values have it
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            step = (values[row, column] - start) * scale - most
            step = -most - 1 if step < -most - 1 else step
            steps[row, column] = np.int16(np.int32(most if step > most else step))


@compiled
@no_type_check
def decide_step(score: Any, step: Any, query: int, other: int, bottom: Any, top: Any, view: Any, found: int) -> int:
    """Count a score for the thresholds that have its step, list what it is near to; return how many are listed."""
    offset, low, high, above, near, pairs = view
    for threshold in range(offset[query], offset[query + 1]):  # without branches, which nobody could foretell
        inside = (step >= bottom[threshold]) & (step <= top[threshold])
        over = inside & (score > high[threshold])
        close = inside & (score >= low[threshold]) & (score <= high[threshold])
        above[threshold] += over
        near[threshold] += close
        if pairs.shape[1] > 0:
            pairs[0, found] = threshold
            pairs[1, found] = other
            found += close
    return found


@compiled
@no_type_check
def count_over(line: Any, most: Any) -> Any:
    over = np.int16(0)
    for column in range(len(line)):
        over = np.int16(over + np.int16(line[column] > most))  # np.int16 again: numba's sums are int64
    return over


@compiled
@no_type_check
def mark_between(line: Any, least: Any, most: Any, marks: Any) -> None:
    for column in range(len(line)):
        marks[column] |= np.int16(line[column] >= least) & np.int16(line[column] <= most)


@compiled
@no_type_check
def compare_strip(line: Any, least: Any, most: Any, over: Any, size: int, marks: Any) -> None:
    """Compare a row of a strip with the edges of each of its columns."""
    for threshold in range(size):
        for column in range(WIDE):
            over[threshold, column] += np.int16(line[column] > most[threshold, column])
        for column in range(WIDE):
            reached = np.int16(line[column] >= least[threshold, column])
            marks[column] |= reached & np.int16(line[column] <= most[threshold, column])


@compiled
@no_type_check
def count_steps_of_rows(scores: Any, steps: Any, bottom: Any, top: Any, view: Any, words: Any) -> int:
    """Count the queries in the rows by the steps of scores and edges; list near pairs, return how many or -1."""
    offset, above, near = view[0], view[3], view[4]
    height, width, found = scores.shape[0], scores.shape[1], 0
    room = view[5].shape[1] - MOST_DIRECT if view[5].shape[1] > 0 else 2**62
    marks, columns = words.view(np.int16), np.empty(4 * len(words), np.int32)
    for row in range(height):
        if offset[row] == offset[row + 1]:
            continue
        line = steps[row, :width]
        marks[:] = 0
        for threshold in range(offset[row], offset[row + 1]):
            least, most = bottom[threshold], top[threshold]
            above[threshold] = near[threshold] = 0
            for left in range(0, width, LONGEST):
                above[threshold] += count_over(line[left : min(left + LONGEST, width)], most)
            mark_between(line, least, most, marks)
        for at in range(marked(words, marks, width, columns)):
            column = columns[at]
            found = decide_step(scores[row, column], line[column], row, column, bottom, top, view, found)
            if found > room:
                return -1
    return found


@compiled
@no_type_check
def count_steps_of_columns(scores: Any, steps: Any, bottom: Any, top: Any, view: Any, words: Any) -> int:
    """Count the queries in the columns as `count_steps_of_rows`; `steps` are padded to a multiple of WIDE."""
    offset, above, near = view[0], view[3], view[4]
    height, width, found = scores.shape[0], scores.shape[1], 0
    room = view[5].shape[1] - MOST_DIRECT if view[5].shape[1] > 0 else 2**62
    marks, columns = words.view(np.int16), np.empty(4 * len(words), np.int32)
    above[:] = near[:] = 0
    shape = (MOST_DIRECT, WIDE)
    least, most, over = np.empty(shape, np.int16), np.empty(shape, np.int16), np.empty(shape, np.int16)
    for left in range(0, width, WIDE):
        wide = min(WIDE, width - left)
        size = 0
        for column in range(left, left + wide):
            size = max(size, offset[column + 1] - offset[column])
        if size == 0:
            continue
        least[:] = most[:] = STEPS_UP + 1
        over[:] = 0
        for column in range(wide):
            first = offset[left + column]
            for threshold in range(first, offset[left + column + 1]):
                least[threshold - first, column] = bottom[threshold]
                most[threshold - first, column] = top[threshold]
        for row in range(height):
            for column in range(WIDE):
                marks[column] = 0
            compare_strip(steps[row, left : left + WIDE], least, most, over, size, marks)
            for at in range(marked(words, marks, WIDE, columns)):
                column = columns[at]
                score, query = scores[row, left + column], left + column
                found = decide_step(score, steps[row, query], query, row, bottom, top, view, found)
                if found > room:
                    return -1
        for column in range(wide):
            first = offset[left + column]
            for threshold in range(first, offset[left + column + 1]):
                above[threshold] += over[threshold - first, column]
    return found


@compiled
@no_type_check
def count_all(scores: Any, view: Any, work: Any, strip: Any) -> int:
    """Count by the table for queries in the rows of the scores or, with a strip to copy them to, in its columns."""
    offset, low, high, above, near, pairs = view
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
        found = count_by_table(line[:size], low[a:b], high[a:b], above[a:b], near[a:b], work, edges, a, pairs, found)
        if found < 0:
            return -1
    return found


class CompiledKernel:
    """A kernel in compiled loops; keeps its memory from tile to tile, since fresh pages cost more than the counting."""

    def __init__(self, rare: int = RARE) -> None:
        self.rare = rare
        self.memory: dict[Any, np.ndarray] = {}

    def count(self, scores: Tensor, edges: Sequence[Any], *, room: int | None) -> list[Any] | None:
        """Count as `tiles.make_kernel` says."""
        tile, views = scores.numpy(), []
        for side in range(2):
            offset, low, high = (
                edges[side] if side < len(edges) else (np.empty(0, np.int64), *[np.empty(0, tile.dtype)] * 2)
            )
            counts = (self._kept((name, side), (len(low),), np.int32) for name in ("above", "near"))
            pairs = self._kept(("pairs", side), (2, 0 if room is None else max(room, 0) + MOST_DIRECT), np.int64)
            views.append((offset, low, high, *counts, pairs))
        each = sum(len(low) for _, low, _ in edges) // sum(len(offset) for offset, *_ in edges)
        most = tile.size * (DIRECT_BESIDE + min(each, MOST_PICKED)) // DIRECT_FOR_ONE
        shape = (tile.shape[1] if len(edges) == 2 else 0), DEPTH
        kept, places = self._kept("kept", shape, tile.dtype), self._kept("places", shape, np.int32)
        found = count_rare(tile, *views, kept, places, self.rare, most)
        if found[0] == -2:
            found = self._count_dense(tile, views[: len(edges)])
        if min(found) < 0:
            return None
        return [(*view[3:5], *view[5][:, :size]) for view, size in zip(views, found, strict=False)][: len(edges)]

    def _count_dense(self, tile: np.ndarray, views: list[Any]) -> list[int]:
        height, width = tile.shape
        most = max(int(np.diff(view[0]).max(initial=0)) for view in views)
        if most > MOST_DIRECT:
            work = self._kept("work", (3, max(TABLE_CELLS, most + 1)), np.int32)
            strips = np.empty((0, 0), tile.dtype), self._kept("strip", (STRIP, height + PADDING), tile.dtype)
            return [count_all(tile, view, work, strip) for view, strip in zip(views, strips, strict=False)]
        start = min(view[1].min(initial=0) for view in views)
        end = max(view[2].max(initial=0) for view in views)
        how = start, tile.dtype.type(2 * STEPS_UP / max(float(end) - float(start), 1e-30))
        words = self._kept("words", (max(width, WIDE) // 4 + 1,), np.uint64)
        steps = self._kept("steps", (height, -(-width // WIDE) * WIDE), np.int16)
        write_steps(tile, *how, steps)
        found = []
        for side, (view, count) in enumerate(zip(views, (count_steps_of_rows, count_steps_of_columns), strict=False)):
            bounds = [self._kept(("bounds", side, edge), (1, len(view[edge])), np.int16) for edge in (1, 2)]
            for edge, bound in zip(view[1:3], bounds, strict=True):
                write_steps(edge[None], *how, bound)
            found.append(count(tile, steps, bounds[0][0], bounds[1][0], view, words))
        return found

    def _kept(self, name: Any, shape: tuple[int, ...], kind: Any) -> np.ndarray:
        size, kept = math.prod(shape), self.memory.get(name)
        if kept is None or len(kept) < size or kept.dtype != kind:
            kept = self.memory[name] = np.zeros(size, kind)
        return kept[:size].reshape(shape)


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


@compiled_in_any_order
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


@compiled_in_any_order
@no_type_check
def rough_dot(left: Any, right: Any) -> Any:
    total = left[0] * right[0]  # in float32, as the rows
    for at in range(1, len(left)):
        total += left[at] * right[at]
    return total


@compiled
@no_type_check
def decide(
    left: Any,
    right: Any,
    row: Any,
    column: Any,
    threshold: Any,
    factor: float,
    rough: float,
    error: float,
    at: Any,
    above: Any,
) -> Any:
    """Decide near pairs (row, column) by single products of features with these errors; return which stay near."""
    kept, unsure = 0, np.empty(len(at), np.int64)
    for pair in range(len(at)):
        one, other, middle = left[row[pair]], right[column[pair]], threshold[pair] / factor
        product, room = middle, rough
        if rough < np.inf:  # else a product in float32 has found them near
            product = np.float64(rough_dot(one, other))
        if abs(product - middle) <= rough:
            product, room = dot(one, other), error
        if product > middle + room:
            above[at[pair]] += 1
        elif product >= middle - room:
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
def reaching(scores: Any, rows: Any, columns: Any, first: int, pairs: Any) -> Any:
    """List pairs above the bar of their row or column, from a row on, while there is room for a whole row more.

    Return how many, and the row that is next.
    """
    found = 0
    for row in range(first, scores.shape[0]):
        if found + scores.shape[1] > pairs.shape[1]:
            return found, row
        for start in range(0, scores.shape[1], BLOCK):
            stop = min(start + BLOCK, scores.shape[1])
            above = np.int32(0)
            for column in range(start, stop):
                above += np.int32(scores[row, column] > min(rows[row], columns[column]))
            if above == 0:
                continue
            for column in range(start, stop):
                if scores[row, column] > min(rows[row], columns[column]):
                    pairs[0, found], pairs[1, found] = row, column
                    found += 1
    return found, scores.shape[0]


@compiled
@no_type_check
def multiply_pairs(scores: Any, left: Any, right: Any, pairs: Any) -> None:
    """Put products of features in place of the scores of pairs."""
    for pair in range(pairs.shape[1]):
        row, column = pairs[0, pair], pairs[1, pair]
        scores[row, column] = rough_dot(left[row], right[column])


@compiled
@no_type_check
def keep_greatest(scores: Any, pairs: Any, value: Any, place: Any, start: int, transposed: bool) -> None:
    """Put the scores of pairs into the decreasing lists of their rows or, transposed, of their columns."""
    for pair in range(pairs.shape[1]):
        row, column = pairs[0, pair], pairs[1, pair]
        query, other = (column, row) if transposed else (row, column)
        if scores[row, column] > value[query, -1]:
            insert(value[query], place[query], scores[row, column], start + other)
