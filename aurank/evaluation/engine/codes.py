"""The accelerator: rows in eight bits, twice, whose products are faster than in float32 and bound each pair's score.

Features less a common centre, rotated, are `scale * (high + low / 254)` and a rest, u = û + r, with int8 high and low.
<u, v> = <û, v̂> + <r, v> + <û, s>, so the product of codes errs by at most |r| |v| + |û| |s|, lengths that are measured.
`HIGH` takes the product of the high codes; `BOTH` adds those of high with low ones, and counts low with low as error.
For the centre c, <f, g> = <f - c, g - c> + a + b with a = <f, c> - |c|²/2 of one row (Euclidean: -|f - c|²/2), b of the
other. The rotation changes no product; it spreads what stands out in few numbers of a row.
"""

import threading
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int8, Int64
from torch import Tensor

from aurank.evaluation.engine.compiled import Function, compiled
from aurank.evaluation.engine.scores import ELEMENTS, ExactScores, full_precision, read
from aurank.evaluation.engine.tiles import Panel, Tile, TileCounter

HIGH, BOTH = "high", "both"
NEAR = {HIGH: 1 / 48, BOTH: 1 / 32}  # of a tile's scores near a threshold, beyond which the next product is cheaper
FASTER = {HIGH: 1.5, BOTH: 3.0}  # least speed of high codes against float32; both take three products
AGAIN = 16  # every so many tiles a thread begins with the fastest product again
CENTRE_ROWS = 1024  # of which the mean is taken
WIDTHS = range(16, 2**15)  # narrower rows gain nothing, sums over wider ones could exceed int32
UNIT = 2.0**-24  # half the distance of 1 from the next float32
TOP, STEPS = 127, 254  # the greatest code; steps of the second code in one of the first
TOGETHER = 8  # numbers that are not mixed with each other: whole vectors are added


@dataclass(frozen=True, eq=False)
class ByteCodes:
    """Codes of consecutive positions of a side, and what is known of each row, in float64.

    Codes stand as high, low, high again, so that high·low + low·high is one product.
    """

    planes: Int8[Tensor, "row planes"]
    numbers: Float64[np.ndarray, "6 row"]  # scale; offset a; lengths of u, of the rest behind high, both, and of low

    def part(self, rows: slice) -> "ByteCodes":
        return ByteCodes(self.planes[rows], self.numbers[:, rows])

    def error(self, across: "ByteCodes", kind: str, slack: float) -> Float64[np.ndarray, " row"]:
        """Return how far the score of each row with any of the others may be from score / factor.

        `slack` bounds what float64 takes. float32: an integer, a product of scales, their product, the offsets, their
        sum and the whole are rounded, and twice as much where the second codes are added: UNIT each of at most the
        lengths and the offsets, and as much again to spare.
        """
        _, offset, length, high, both, low = self.numbers
        _, offsets, lengths, highs, boths, lows = np.abs(across.numbers).max(axis=1)
        sizes = (length + high) * (lengths + highs) + np.abs(offset) + offsets
        if kind == HIGH:
            bound = high * lengths + (length + high) * highs
        else:
            bound = both * lengths + (length + both) * boths + low * lows
        return np.asarray(bound * (1 + 1e-9) + 24 * UNIT * sizes + slack)


class Accelerator:
    """The codes of both sides of a problem, with one centre and one rotation, made when a panel is first used."""

    def __init__(self, exact: ExactScores, kinds: tuple[str, ...] = (HIGH, BOTH)) -> None:
        self.exact, self.kinds, self.lock = exact, kinds, threading.Lock()
        rows = len(exact.gallery.order)
        sample = torch.linspace(0, rows - 1, min(rows, CENTRE_ROWS)).long()
        self.centre: Float64[np.ndarray, " dim"] = self._features(sample, gallery=True).mean(axis=0)
        self.signs: Float64[np.ndarray, " dim"] = np.random.default_rng(0).choice([-1.0, 1.0], exact.dim)

    @classmethod
    def of(cls, exact: ExactScores) -> "Accelerator | None":
        """Return codes where this processor is fast at them, else None."""
        if exact.dim not in WIDTHS:
            return None
        kinds = tuple(kind for kind, least in FASTER.items() if int8_speed(exact.dim) > least)
        return cls(exact, kinds) if kinds else None

    @property
    def feature_errors(self) -> tuple[float, float]:
        """How far products of float32 features may be from score / factor, added in float32 and in float64."""
        rounding = 8 * UNIT * (4.08 if self.exact.is_squared else 1.02)
        return self.exact.error(torch.float32), rounding + self.exact.error(torch.float64)

    def make(self, counter: TileCounter) -> Callable[[Tile], bool]:
        """Return a function for one thread that decides all pairs of a tile, or returns False to hand them back."""
        first = done = 0
        wide = self.exact.error(torch.float64)

        def settle(near: Any, last: Any, thresholds: Any, left: Tensor, right: Tensor, above: Any) -> int:
            features, errors = (left.numpy(), right.numpy()), self.feature_errors
            return int(settle_near(near, last, thresholds, self.exact.factor, *features, *errors, above))

        def decide(tile: Tile) -> bool:
            nonlocal first, done
            first = 0 if done % AGAIN == 0 else first
            done += 1
            if first == len(self.kinds):
                return False
            left = self.of_panel(tile.left, gallery=False).part(tile.left.within(tile.queries))
            right = self.of_panel(tile.right, gallery=True).part(tile.right.within(tile.gallery))
            shape = len(left.planes), len(right.planes)
            products = counter.memory("products", shape, torch.int32)
            scores = counter.memory("scores", shape, torch.float32)
            for number, kind in enumerate(self.kinds):
                multiply_codes(left, right, kind, products, scores)
                if number < first:
                    continue
                errors = left.error(right, kind, 4 * wide), right.error(left, kind, 4 * wide)
                if counter.decide(tile, scores, errors, most=NEAR[kind], settle=settle):
                    first = number
                    return True
            first = len(self.kinds)
            return False

        return decide

    def of_panel(self, panel: Panel, *, gallery: bool) -> Any:
        with self.lock:
            if panel.codes is None:
                panel.codes = self.encode(panel.rows, gallery=gallery)
        return panel.codes

    def encode(self, positions: slice, *, gallery: bool) -> ByteCodes:
        count, dim = positions.stop - positions.start, self.exact.dim
        codes = ByteCodes(torch.empty((count, 3 * dim), dtype=torch.int8), np.empty((6, count)))
        step = max(1, ELEMENTS["cpu"] // dim)
        for start in range(0, count, step):
            part = codes.part(slice(start, start + step))
            rows = slice(positions.start + start, positions.start + start + len(part.planes))
            features = self._features(rows, gallery=gallery)
            write_codes(features, self.centre, self.signs, self.exact.is_squared, part.planes.numpy(), part.numbers)
        return codes

    def _features(self, positions: slice | Int64[Tensor, " position"], *, gallery: bool) -> np.ndarray:
        side = self.exact.gallery if gallery else self.exact.queries
        rows = read(side.embeddings, side.order[positions])
        return rows.div_(side.lengths[positions, None] if self.exact.is_cosine else self.exact.scales[gallery]).numpy()


def multiply_codes(
    left: ByteCodes, right: ByteCodes, kind: str, products: Tensor, scores: Float32[Tensor, "row column"]
) -> None:
    """Write the scores of a tile by the high codes or, where these are written already, by both."""
    dim = left.planes.shape[1] // 3
    rows, columns = (slice(0, dim), slice(0, dim)) if kind == HIGH else (slice(0, 2 * dim), slice(dim, 3 * dim))
    torch._int_mm(left.planes[:, rows], right.planes[:, columns].T, out=products)
    numbers = (side.numbers[:2].astype(np.float32) for side in (left, right))
    scale_products(products.numpy(), scores.numpy(), *numbers, kind == BOTH)


def compiled_in_any_order(function: Function) -> Function:
    """Return the function, compiled to add in any order, which vectorises sums."""
    return compiled(function, fastmath={"reassoc", "contract"})


@cache
def int8_speed(dim: int) -> float:
    """Return how many times as fast as by float32 scores by high codes are here; 0 where products are not exact."""
    chance, rows = np.random.default_rng(0), 512
    planes = torch.from_numpy(chance.choice([-127, 126, 127], (rows, 3 * dim)).astype(np.int8))
    planes[0], planes[1] = 127, -127  # too much for instructions that add up in int16
    codes, products = ByteCodes(planes, np.ones((6, rows))), torch.empty(rows, rows, dtype=torch.int32)
    floats, scores = planes[:, :dim].float(), torch.empty(rows, rows)
    steps: list[Callable[[], object]] = [
        lambda: torch.mm(floats, floats.T, out=scores),
        lambda: multiply_codes(codes, codes, HIGH, products, scores),
    ]
    try:
        with full_precision(one_thread=True):
            times = [[timeit.timeit(step, number=1) for step in steps] for _ in range(9)]
    except (AttributeError, RuntimeError):  # torch has no product of int8, or none for this processor
        return 0.0
    wide = planes[:, :dim].double()
    slow, fast = np.min(times, axis=0)
    return float(slow / fast) if torch.equal(products.double(), wide @ wide.T) and fast > 0 else 0.0


@compiled
@no_type_check
def mix(values: Any, size: int) -> None:
    """Multiply `size` values, a power of two, with an orthogonal matrix: each becomes a sum of many, plus or minus."""
    half = TOGETHER
    while half < size:
        for left in range(0, size, 2 * half):
            for index in range(left, left + half):
                first, second = values[index], values[index + half]
                values[index] = first + second
                values[index + half] = first - second
        half *= 2
    shrink = np.sqrt(TOGETHER / np.float64(half))
    for index in range(size):
        values[index] *= shrink


@compiled_in_any_order
@no_type_check
def write_codes(rows: Any, centre: Any, signs: Any, squared: bool, planes: Any, numbers: Any) -> None:
    """Write the codes of rows [row, dim], which are overwritten, as `ByteCodes` describes them."""
    count, dim = rows.shape
    size = 1
    while 2 * size <= dim:
        size *= 2
    square = (centre * centre).sum() / 2
    for row in range(count):
        values = rows[row]
        inner, length, top = 0.0, 0.0, 0.0
        for index in range(dim):
            inner += values[index] * centre[index]
            values[index] = (values[index] - centre[index]) * signs[index]
            length += values[index] * values[index]
        mix(values, size)
        if size < dim:
            mix(values[dim - size :], size)
        for index in range(dim):
            top = max(top, abs(values[index]))
        scale = np.float32(top / TOP)
        step = np.float64(scale)
        times = 1 / step if scale > 0 else 0.0
        first, second, low = 0.0, 0.0, 0.0
        for index in range(dim):
            code = np.rint(values[index] * times)
            remainder = values[index] - code * step
            fine = np.rint(remainder * times * STEPS)
            last = remainder - fine * (step / STEPS)
            planes[row, index] = planes[row, 2 * dim + index] = np.int8(code)
            planes[row, dim + index] = np.int8(fine)
            first += remainder * remainder
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
    """Write the score of each product of codes, or add it."""
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


@compiled_in_any_order
@no_type_check
def rough_dot(left: Any, right: Any) -> Any:
    total = left[0] * right[0]  # in float32, as the rows
    for column in range(1, len(left)):
        total += left[column] * right[column]
    return total


@compiled_in_any_order
@no_type_check
def dot(left: Any, right: Any) -> Any:
    total = 0.0
    for column in range(len(left)):
        total += np.float64(left[column]) * np.float64(right[column])
    return total


@compiled
@no_type_check
def settle_near(
    near: Any,
    last: Any,
    thresholds: Any,
    factor: float,
    left: Any,
    right: Any,
    rough: float,
    fine: float,
    above: Any,
) -> int:
    """Decide near scores by products of float32 features, added in float32 with the error `rough`, then in float64.

    Those that stay near by the error `fine` move to the front of `near`; return how many they are.
    """
    size = 0
    for index in range(near.shape[1]):
        row, column, threshold = near[:, index]
        product, error = np.float64(rough_dot(left[row], right[column])), rough
        for attempt in range(2):
            while threshold < last[row] and product > thresholds[threshold] / factor + error:
                above[threshold] += 1
                threshold += 1
            if threshold == last[row] or product < thresholds[threshold] / factor - error:
                break
            if attempt == 0:
                product, error = dot(left[row], right[column]), fine
            else:
                near[0, size], near[1, size], near[2, size] = row, column, threshold
                size += 1
    return size
