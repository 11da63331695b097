"""Rows in eight bits, twice: a first, fast product for most scores, with a bound that holds for each pair.

Features less a common centre, rotated, are `scale * (high + low / 254)` and a rest, u = û + r, with int8 high and low.
<u, v> = <û, v̂> + <r, v> + <û, s>, so the product of codes errs by at most |r| |v| + |û| |s|, lengths that are measured.
`HIGH` takes the product of the high codes; `BOTH` adds those of high with low ones, and counts low with low as error.
For the centre c, <f, g> = <f - c, g - c> + a + b with a = <f, c> - |c|²/2 of one row (Euclidean: -|f - c|²/2), b of the
other. The rotation changes no product; it spreads what stands out in few numbers of a row.
"""

import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int8, Int64, Shaped, UInt8
from torch import Tensor

from aurank.evaluation.engine.scores import ELEMENTS, ExactScores, Vectors, full_precision, one_thread_each, read

HIGH, BOTH = "high", "both"  # as tiers
CENTRE_ROWS = 1024  # of which the mean is taken
WIDTHS = range(16, 2**15)  # narrower rows gain nothing, sums over wider ones could exceed int32
FEWEST = 2**33  # multiplications worth a trial of this processor; beyond 512 dimensions more, as the trial takes longer
FASTER = {HIGH: 1.5, BOTH: 3.0}  # times as fast as by float32 that scores by high codes have to be: both take three
UNIT = 2.0**-24  # half the distance of 1 from the next float32


class Edges(NamedTuple):
    """Edges around the thresholds of consecutive queries: `offset` starts at 0; edges have the type of the scores."""

    offset: Int64[np.ndarray, " query_plus_one"]
    low: Shaped[np.ndarray, " threshold"]
    high: Shaped[np.ndarray, " threshold"]


@dataclass(frozen=True, eq=False)
class ByteCodes:
    """Codes of consecutive places of a side (high, low and high again) and what is known of each row, in float64."""

    planes: Int8[Tensor, "row planes"]
    numbers: Float64[np.ndarray, "6 row"]  # scale; offset a; lengths of u, of the rest behind high, both, and of low

    @classmethod
    def empty(cls, rows: int, dim: int) -> "ByteCodes":
        return cls(torch.empty((rows, 3 * dim), dtype=torch.int8), np.empty((6, rows)))

    def part(self, rows: slice) -> "ByteCodes":
        return ByteCodes(self.planes[rows], self.numbers[:, rows])

    def error(self, others: "ByteCodes", kind: str, slack: float) -> Float64[np.ndarray, " row"]:
        """Return how far the score of each row with any of the others may be from score / factor.

        `slack` bounds what float64 takes. float32: an integer, a product of scales, their product, the offsets, their
        sum and the whole are rounded, and twice as much where the second codes are added: UNIT each of at most the
        lengths and the offsets, and as much again to spare.
        """
        _, offset, length, high, both, low = self.numbers
        _, offsets, lengths, highs, boths, lows = np.abs(others.numbers).max(axis=1)
        sizes = (length + high) * (lengths + highs) + np.abs(offset) + offsets
        if kind == HIGH:
            bound = high * lengths + (length + high) * highs
        else:
            bound = both * lengths + (length + both) * boths + low * lows
        return np.asarray(bound * (1 + 1e-9) + 24 * UNIT * sizes + slack)


class Coder:
    """Makes the codes of both sides of a problem, with one centre and one rotation."""

    def __init__(self, exact: ExactScores) -> None:
        rows, side = len(exact.gallery.order), exact.gallery
        some = torch.linspace(0, rows - 1, min(rows, CENTRE_ROWS)).long()
        self.distance = side.distance
        self.centre: Float64[np.ndarray, " dim"] = self._features(side, some, gallery=True).mean(dim=0).cpu().numpy()
        self.signs: Float64[np.ndarray, " dim"] = np.random.default_rng(0).choice([-1.0, 1.0], side.dim)

    def codes(self, side: Vectors, places: slice, out: ByteCodes, *, gallery: bool) -> ByteCodes:
        """Write and return the codes of these places."""
        from aurank.evaluation.engine import compiled

        step = max(1, ELEMENTS // side.dim)
        for start in range(places.start, places.stop, step):
            stop = min(start + step, places.stop)
            rows = self._features(side, slice(start, stop), gallery=gallery).cpu().numpy()
            here = out.part(slice(start - places.start, stop - places.start))
            compiled.write_codes(
                rows, self.centre, self.signs, self.distance.squared, here.planes.numpy(), here.numbers
            )
        return out.part(slice(0, places.stop - places.start))

    def _features(self, side: Vectors, places: slice | Tensor, *, gallery: bool) -> Float64[Tensor, "place dim"]:
        rows = read(side.embeddings, side.order[places])
        if self.distance.name == "cosine":
            return rows.div_(side.lengths[places, None])
        return rows.div_(self.distance.gallery_scale if gallery else self.distance.query_scale)


def multiply_codes(
    left: ByteCodes, right: ByteCodes, kind: str, memory: UInt8[Tensor, " byte"]
) -> Float32[Tensor, "row column"]:
    """Return the scores of a tile by the high codes or, where these are in memory already, by both."""
    from aurank.evaluation.engine import compiled

    dim, shape = left.planes.shape[1] // 3, (len(left.planes), len(right.planes))
    own, others = (slice(0, dim), slice(0, dim)) if kind == HIGH else (slice(0, 2 * dim), slice(dim, 3 * dim))
    products, scores = memory[: len(memory) // 2].view(torch.int32).view(shape), scores_in(memory, shape)
    torch._int_mm(left.planes[:, own], right.planes[:, others].T, out=products)
    numbers = (side.numbers[:2].astype(np.float32) for side in (left, right))
    compiled.scale_products(products.numpy(), scores.numpy(), *numbers, kind == BOTH)
    return scores


def scores_in(memory: UInt8[Tensor, " byte"], shape: tuple[int, int]) -> Float32[Tensor, "row column"]:
    return memory[len(memory) // 2 :].view(torch.float32).view(shape)


def code_edges(
    thresholds: Float64[np.ndarray, " threshold"],
    offset: Int64[np.ndarray, " query_plus_one"],
    error: Float64[np.ndarray, " query"],
    factor: float,
) -> Edges:
    """Return edges around thresholds, between which products of codes decide nothing."""
    from aurank.evaluation.engine import compiled

    low, high = (np.empty(len(thresholds), np.float32) for _ in range(2))
    compiled.write_edges(thresholds, offset, error, factor, 4 * UNIT, low, high)
    return Edges(offset, low, high)


def code_kinds(exact: ExactScores) -> tuple[str, ...]:
    dim = exact.gallery.dim
    work = len(exact.queries.order) * len(exact.gallery.order) * dim
    if work < FEWEST * max(1, dim / 512) or dim not in WIDTHS or exact.product_type is not None:
        return ()
    return tuple(kind for kind, least in FASTER.items() if int8_speed(dim) > least)


@cache
def int8_speed(dim: int) -> float:
    """Return how many times as fast as by float32 scores by high codes are here; 0 where products are not exact."""
    chance, rows = np.random.default_rng(0), 512
    planes = torch.from_numpy(chance.choice([-127, 126, 127], (rows, 3 * dim)).astype(np.int8))
    planes[0], planes[1] = 127, -127  # too much for instructions that add up in int16
    codes, memory = ByteCodes(planes, np.ones((6, rows))), torch.empty(8 * rows * rows, dtype=torch.uint8)
    floats, out = planes[:, :dim].float(), torch.empty(rows, rows)
    steps: list[Callable[[], object]] = [
        lambda: torch.mm(floats, floats.T, out=out),
        lambda: multiply_codes(codes, codes, HIGH, memory),
    ]
    try:
        with full_precision(), one_thread_each(True):
            times = [[timeit.timeit(step, number=1) for step in steps] for _ in range(9)]
    except (AttributeError, RuntimeError):  # torch has none, or not for this processor
        return 0.0
    wide = planes[:, :dim].double()
    exact = torch.equal(memory[: 4 * rows * rows].view(torch.int32).view(rows, rows).double(), wide @ wide.T)
    slow, fast = np.min(times, axis=0)
    return float(slow / fast) if exact and fast > 0 else 0.0
