"""The kernels for CUDA devices, in triton: one counts over a tile of scores in memory, one multiplies the tile itself.

The second keeps each block of products in registers while it counts for the block's rows and, in symmetric problems,
its columns, so that scores never reach the device's memory. Its products are sums of float32 products in float32 (IEEE,
no TF32), whose order no caller knows: `Distance.error` holds for any. Both count what the other kernels count, in
triton's interpreter (TRITON_INTERPRET=1, tensors on the CPU) and on an H100 (docs/results.md). They are used by name
only, after a comparison with plain torch: their speed is not measured.

Each block holds the scores of some queries with some others. A query with few thresholds compares its scores with one
threshold after another; a query with many looks up, by bisection, how many edges each score passes, and adds one to
that number's place: the counts are the sums from each place to the query's last. Near pairs draw their places in a list
from a counter, in any order, since each is decided by itself afterwards.
"""

from collections.abc import Sequence
from typing import Any, no_type_check

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from aurank.evaluation.engine.kernels import Counted, Edges

DIRECT = tl.constexpr(16)  # up to this number of thresholds a query compares
# Sizes of blocks and numbers of warps, such that scores stay in registers as compiled for sm_90 (with less of them to a
# thread where it bisects), but not tuned on a device. A block has fewer than 2^15 scores a query, see `count_few`.
QUERIES, OTHERS = 16, 128
DEPTH, SIDES, WARPS = 16, {False: 128, True: 64}, {False: 8, True: 4}
# Sizes that differ from tile to tile are no reason to compile again.
VARYING = ["queries", "others", "rows", "columns", "total", "room", "other_total", "other_room"]
# A product and a sum are one instruction; said outright because triton's default is about to change.
OPTIONS = {"enable_fp_fusion": True}


def jitted(function: Any) -> Any:
    """Return the function for triton; it bears `no_type_check`, without which the tests would wrap it."""
    return triton.jit(function, do_not_specialize=VARYING)


@jitted
@no_type_check
def list_near(near, threshold, other, pairs, found, room):
    """List the pairs that are `near`; return their number, or 0 where the list is too short for all that were found.

    `found` holds the number of pairs found; `pairs` the number listed, `room` thresholds and as many others.
    """
    number = tl.sum(near.to(tl.int32))
    if number > 0:
        before = tl.atomic_add(found, number.to(tl.int64))
        if before + number <= room:
            place = tl.atomic_add(pairs + tl.zeros_like(near).to(tl.int32), 1, mask=near)
            tl.store(pairs + 1 + place, threshold, mask=near)
            tl.store(pairs + 1 + room + place, other, mask=near)
        else:
            number = 0
    return number


@jitted
@no_type_check
def count_few(
    scores, start, size, other, edges, counts, total, pairs, found, room, AXIS: tl.constexpr,
):  # fmt: skip
    """Count a block for queries of few thresholds, one threshold of each query after another."""
    most = tl.max(size, 0)
    place = 0
    while place < most:
        at = start + place
        low = tl.load(edges + at, mask=place < size, other=float("inf"))
        high = tl.load(edges + total + at, mask=place < size, other=float("inf"))
        over = scores > tl.expand_dims(high, AXIS)
        near = (scores >= tl.expand_dims(low, AXIS)) & (scores <= tl.expand_dims(high, AXIS))
        both = tl.sum(over.to(tl.int32) + (near.to(tl.int32) << 16), AXIS)  # two sums in one
        tl.atomic_add(counts + at, both & 0xFFFF, mask=both > 0)
        tl.atomic_add(counts + total + at, both >> 16, mask=both > 0)
        list_near(near, tl.expand_dims(at, AXIS), other, pairs, found, room)
        # Thresholds increase: where no score reaches one, none reaches the next.
        place = tl.where(tl.max(both, 0) > 0, place + 1, most)


@jitted
@no_type_check
def bisect(scores, edges, size, most, STRICT: tl.constexpr):
    """Return how many of its query's `size` increasing edges each score passes, or with `STRICT` unset reaches."""
    passed = tl.zeros_like(scores).to(tl.int32)
    step = 1
    while 2 * step <= most:
        step *= 2
    while step > 0:
        edge = tl.load(edges + (passed + step - 1), mask=passed + step <= size, other=float("inf"))
        if STRICT:
            passed += tl.where(scores > edge, step, 0)
        else:
            passed += tl.where(scores >= edge, step, 0)
        step = step // 2
    return passed


@jitted
@no_type_check
def count_many(
    scores, start, size, other, edges, counts, total, pairs, found, room, AXIS: tl.constexpr,
):  # fmt: skip
    """Add one for each score of a block at the last edge that it passes, and at the last that it reaches."""
    most = tl.max(size, 0)
    if most > 0:
        first, count = tl.expand_dims(start, AXIS), tl.expand_dims(size, AXIS)
        passed = bisect(scores, edges + total + first, count, most, True)
        reached = bisect(scores, edges + first, count, most, False)
        tl.atomic_add(counts + first + passed - 1, 1, mask=passed > 0)
        tl.atomic_add(counts + total + first + reached - 1, 1, mask=reached > 0)
        going = 1
        while going > 0:
            going = list_near(passed < reached, first + passed, other, pairs, found, room)
            passed += 1


@jitted
@no_type_check
def count_block(
    scores, query, other, queries, offset, edges, counts, total, pairs, found, room,
    AXIS: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Count a block of scores whose others run along AXIS; scores of minus infinity count nowhere."""
    start = tl.load(offset + query, mask=query < queries, other=0)
    size = tl.load(offset + query + 1, mask=query < queries, other=0) - start
    other = tl.expand_dims(other, 1 - AXIS)
    few = tl.where(size > DIRECT, 0, size)
    count_few(scores, start, few, other, edges, counts, total, pairs, found, room, AXIS)
    if MANY:
        count_many(scores, start, size - few, other, edges, counts, total, pairs, found, room, AXIS)


@jitted
@no_type_check
def count_scores(
    scores, query_stride, other_stride, others,
    queries, offset, edges, counts, total, pairs, found, room,
    MANY: tl.constexpr, QUERIES: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """Count one block of a tile of scores; `MANY`: some query has many thresholds."""
    query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    other = tl.program_id(1) * OTHERS + tl.arange(0, OTHERS)
    place = query.to(tl.int64)[:, None] * query_stride + other.to(tl.int64)[None, :] * other_stride
    inside = (query < queries)[:, None] & (other < others)[None, :]
    block = tl.load(scores + place, mask=inside, other=float("-inf"))
    count_block(block, query, other, queries, offset, edges, counts, total, pairs, found, room, 1, MANY)


@jitted
@no_type_check
def multiply_and_count(
    left, right, left_stride, right_stride, width, left_out, rows, columns,
    offset, edges, counts, total, pairs, found, room,
    other_offset, other_edges, other_counts, other_total, other_pairs, other_found, other_room,
    BOTH: tl.constexpr, MANY: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Multiply one block of a tile, and count it for its rows and with `BOTH` for its columns.

    `right` is transposed, and filled up with zeros to whole blocks.
    """
    row = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    column = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    step = tl.arange(0, DEPTH)
    here = left + row.to(tl.int64)[:, None] * left_stride + step[None, :]
    there = right + column[None, :] + step.to(tl.int64)[:, None] * right_stride
    scores = tl.zeros((SIDE, SIDE), tl.float32)
    for start in range(0, width, DEPTH):
        inside = (row < rows)[:, None] & (step < width - start)[None, :]
        first = tl.load(here + start, mask=inside, other=0.0)
        scores = tl.dot(first, tl.load(there), scores, input_precision="ieee")
        there += DEPTH * right_stride
    begin = tl.load(left_out + row, mask=row < rows, other=0)
    end = tl.load(left_out + rows + row, mask=row < rows, other=columns)
    hidden = (column[None, :] >= begin[:, None]) & (column[None, :] < end[:, None])
    scores = tl.where(hidden | (column >= columns)[None, :], float("-inf"), scores)
    count_block(scores, row, column, rows, offset, edges, counts, total, pairs, found, room, 1, MANY)
    if BOTH:
        count_block(
            scores, column, row, columns,
            other_offset, other_edges, other_counts, other_total, other_pairs, other_found, other_room, 0, MANY,
        )  # fmt: skip


class Ledger:
    """What the kernels read and write for the queries of one side, on the device."""

    def __init__(self, edges: Edges, room: int | None, device: torch.device) -> None:
        self.last, self.room = edges.offset[1:], room
        self.sizes = np.diff(edges.offset)
        self.many = bool((self.sizes > DIRECT.value).any())
        self.offset = torch.from_numpy(edges.offset).to(device, torch.int32)
        self.edges = torch.from_numpy(np.stack([edges.low, edges.high])).to(device)
        self.counts = torch.zeros(self.edges.shape, dtype=torch.int32, device=device)
        self.listed = max(room or 0, 0)  # pairs at most
        self.pairs = torch.empty(1 + 2 * self.listed, dtype=torch.int32, device=device)
        self.pairs[0] = 0
        self.found = torch.zeros(1, dtype=torch.int64, device=device)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As the kernels take them."""
        return self.offset, self.edges, self.counts, self.edges.shape[1], self.pairs, self.found, self.listed

    def read(self) -> Counted | None:
        """Return what was counted; None where there are more near pairs than room."""
        found = int(self.found)
        if self.room is not None and found > self.room:
            return None
        above, near = self.counts.cpu().numpy()
        if self.many:
            many = np.repeat(self.sizes > DIRECT.value, self.sizes)
            last = np.repeat(self.last, self.sizes)[many]
            for counts in (above, near):
                sums = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
                counts[many] = sums[last] - sums[:-1][many]
            near[many] -= above[many]  # so far all that reach
        listed = self.pairs[1:].view(2, -1)[:, : min(found, self.listed)].cpu().numpy().astype(np.int64)
        return Counted(above, near, listed[0], listed[1])


class TritonKernel:
    """`FusedKernel` in triton, on the device of the tensors that it is given."""

    def count(self, scores: Tensor, edges: Edges, *, transposed: bool, room: int | None) -> Counted | None:
        """As the protocol says."""
        tile = scores.T if transposed else scores
        side, (queries, others) = Ledger(edges, room, scores.device), tile.shape
        grid = triton.cdiv(queries, QUERIES), triton.cdiv(others, OTHERS)
        with torch.cuda.device(scores.get_device()):
            count_scores[grid](
                tile, *tile.stride(), others, queries, *side.arguments,
                MANY=side.many, QUERIES=QUERIES, OTHERS=OTHERS, **OPTIONS,
            )  # fmt: skip
        return side.read()

    def multiply_and_count(
        self, left: Tensor, right: Tensor, left_out: np.ndarray, edges: Sequence[Edges], *, room: int
    ) -> list[Counted | None]:
        """As the protocol says."""
        sides = [Ledger(one, room, left.device) for one in edges]
        many = any(side.many for side in sides)
        (rows, width), columns, size = left.shape, len(right), SIDES[many]
        grid = triton.cdiv(rows, size), triton.cdiv(columns, size)
        # Read along its columns, without a check, and without two threads at the same bank of shared memory.
        other = right.new_zeros(triton.cdiv(width, DEPTH) * DEPTH, grid[1] * size)
        other[:width, :columns] = right.T
        hidden = torch.from_numpy(left_out).to(left.device, torch.int32)
        with torch.cuda.device(left.get_device()):
            multiply_and_count[grid](
                left, other, left.stride(0), other.stride(0), width, hidden, rows, columns,
                *sides[0].arguments, *sides[-1].arguments,
                BOTH=len(sides) > 1, MANY=many, SIDE=size, DEPTH=DEPTH, num_warps=WARPS[many], **OPTIONS,
            )  # fmt: skip
        return [side.read() for side in sides]
