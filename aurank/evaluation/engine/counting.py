"""How many negatives score above, and how many tie with, each positive: tiles of scores, counted in parallel.

The exact score of a query with each of its positives is a *threshold*. A tile of products decides every score that is
farther from each threshold than the product's error bound. A score that is *near* is taken again, exactly, and there is
above the threshold, below it, or **a tie** (`TileCounter._decide_near`). Where too many are near (a collapsed model),
the tile goes to the next tier: float64 products, then exact scores throughout, where it begins if products of the rows
are exact (`ExactScores.product_type`). Hence a count never depends on how it was found. Positives, and pairs that are
left out, are set to minus infinity, which nothing counts.
"""

import math
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64, Integer
from torch import Tensor

from aurank.distributed import ProcessGroup
from aurank.evaluation.engine.codes import (
    BOTH,
    HIGH,
    ByteCodes,
    Coder,
    code_edges,
    code_kinds,
    empty_codes,
    multiply_codes,
    scores_in,
)
from aurank.evaluation.engine.exact import ExactScores
from aurank.evaluation.engine.inputs import ProgressCallback, Vectors
from aurank.evaluation.engine.kernels import Counted, Edges, make_kernel
from aurank.evaluation.engine.positives import SortedProblem
from aurank.evaluation.engine.tiles import Round, Tiling, consecutive

Tier: TypeAlias = str | torch.dtype | None  # products of codes, products of features of a type, or exact scores
FLOATS = (torch.float32, torch.float64)
# Where more than this part of a tile's pairs are near a threshold, the next tier is cheaper than single scores.
NEAR: dict[Tier, float] = {HIGH: 1 / 48, BOTH: 1 / 32, torch.float32: 1 / 32, torch.float64: 1 / 8}
AGAIN = 16  # every so many tiles a thread begins with the fastest product again


class ThresholdCounts(NamedTuple):
    """What is known of each threshold of some queries."""

    positives: Integer[np.ndarray, " positive"]  # places in the sorted gallery
    higher: Integer[np.ndarray, " positive"]
    tied: Integer[np.ndarray, " positive"]
    at_least: Int64[np.ndarray, " positive"]  # positives of its query that score as high, itself included


class Counts:
    """The thresholds of a range of sorted queries, and the negatives counted so far for each: 20 bytes a positive.

    The thresholds of the range's query i are `scores[offset[i] : offset[i + 1]]`, increasing, and `positives` the
    places of their positives in the sorted gallery; of equal scores the one that comes first there comes last.
    """

    def __init__(
        self, problem: SortedProblem, exact: ExactScores, group: ProcessGroup, queries: slice, *, most: int
    ) -> None:
        """Take the exact scores of at most so many positives at a time, unless a single query has more."""
        self.problem, self.exact, self.queries = problem, exact, queries
        self.offset = problem.offset[queries.start : queries.stop + 1] - problem.offset[queries.start]
        count, kind = int(self.offset[-1]), np.min_scalar_type(-len(problem.gallery_index) - 1)
        kind = np.promote_types(kind, np.int32)  # what torch can add up
        self.scores: Float64[np.ndarray, " positive"] = np.empty(count)
        self.positives, self.higher, self.tied = np.empty(count, kind), np.zeros(count, kind), np.zeros(count, kind)
        self.rechecked = np.zeros(1, np.int64)
        self._lock = threading.Lock()
        for some in consecutive(problem.offset, queries, most=most):
            sorted_query, place = problem.positives(some)
            own = group.shard_range(len(place))
            scores = group.concatenate(exact.pairs(sorted_query[own], place[own]))
            order, here = np.lexsort((-place, scores, sorted_query)), self._entries(some)
            self.scores[here], self.positives[here] = scores[order], place[order]

    def of(self, queries: slice) -> ThresholdCounts:
        """Return what was counted for some queries, and how many positives score at least as high."""
        here, first = self._entries(queries), self.queries.start
        offset = self.offset[queries.start - first : queries.stop - first + 1]
        offset, scores = offset - offset[0], self.scores[here]
        query = np.repeat(np.arange(len(offset) - 1), np.diff(offset))
        new = (np.diff(query, prepend=-1) != 0) | (np.diff(scores, prepend=np.nan) != 0)
        start = np.maximum.accumulate(np.where(new, np.arange(len(query)), 0))
        return ThresholdCounts(self.positives[here], self.higher[here], self.tied[here], offset[query + 1] - start)

    def _entries(self, queries: slice) -> slice:
        first = self.queries.start
        return slice(int(self.offset[queries.start - first]), int(self.offset[queries.stop - first]))

    def error(self, dtype: torch.dtype) -> float:
        """Return how far a product of this type may be from the score."""
        return self.exact.queries.distance.error(self.exact.queries.dim, dtype)

    def lines(self, queries: slice, dtype: torch.dtype | None) -> Edges:
        """Return the thresholds of these queries with edges, between which a product decides nothing; None: exact."""
        offset, low = self.view(queries)
        high = low
        if dtype is not None:
            kind = torch.empty(0, dtype=dtype).numpy().dtype
            middle, error = low / self.exact.queries.distance.factor, self.error(dtype)
            low, high = (middle - error).astype(kind), (middle + error).astype(kind)
        return Edges(offset, low, high)

    def view(self, queries: slice) -> tuple[Int64[np.ndarray, " query_plus_one"], Float64[np.ndarray, " threshold"]]:
        """Return the offsets, from 0, and the scores of the thresholds of these queries."""
        first = self.queries.start
        offset = self.offset[queries.start - first : queries.stop - first + 1]
        return offset - offset[0], self.scores[self._entries(queries)]

    def thresholds(
        self, queries: slice, at: Int64[np.ndarray, " pair"]
    ) -> tuple[Int64[np.ndarray, " pair"], Float64[np.ndarray, " pair"]]:
        """Return the sorted query and the score of some of the thresholds of these queries."""
        entry = self._entries(queries).start + at
        return self.queries.start + np.searchsorted(self.offset, entry, side="right") - 1, self.scores[entry]

    def add(self, queries: slice, above: np.ndarray, tied: np.ndarray, rechecked: int) -> None:
        """Add what a tile has counted for these queries."""
        here = self._entries(queries)
        with self._lock:
            self.higher[here] += above
            self.tied[here] += tied
            self.rechecked[0] += rechecked


def count_negatives(
    counts: Counts, tiling: Tiling, group: ProcessGroup, devices: list[torch.device], progress: ProgressCallback | None
) -> None:
    """Fill the counts: this process's share of the tiles of every round, then the sums over all processes."""
    workers: queue.SimpleQueue[TileCounter] = queue.SimpleQueue()
    kinds = code_kinds(counts.exact) if tiling.backend == "numba" else ()
    for slot in range(tiling.workers):
        workers.put(TileCounter(counts, tiling, devices[slot % len(devices)], kinds))
    panels = Panels(counts, tiling, devices, kinds)

    def run(queries: slice, gallery: slice) -> None:
        worker = workers.get()
        try:
            if worker.device.type == "cuda":  # a new thread has no CUDA context, and device 0 for "cuda"
                torch.cuda.set_device(worker.memory.device)
            worker.count(panels.tile(queries, gallery, worker.device))
        finally:
            workers.put(worker)

    done, threads = 0, torch.get_num_threads()  # each thread has its own number, so the pool's threads set theirs
    with ThreadPoolExecutor(tiling.workers, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        try:
            for part in tiling.rounds():
                panels.load(part)
                jobs = [pool.submit(run, *tile) for tile in group.shard(part.tiles)]
                for job in jobs:
                    job.result()
                group.barrier()
                done += len(part.tiles)
                if progress is not None:
                    progress(done, tiling.num_tiles)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    for sums in (counts.higher, counts.tied, counts.rechecked):
        group.all_reduce(sums)


@dataclass(frozen=True, eq=False)
class Tile:
    """Some sorted queries against some of the sorted gallery, the float32 features of both and, if used, codes."""

    queries: slice
    gallery: slice
    left: Tensor
    right: Tensor
    codes: tuple[ByteCodes, ByteCodes] | None = None

    @property
    def size(self) -> int:
        """How many pairs it has."""
        return len(self.left) * len(self.right)

    def sides(self, transposed: bool) -> tuple[slice, slice]:
        """Return whose thresholds are counted, and against whom; transposed, the gallery's, which are queries too."""
        return (self.gallery, self.queries) if transposed else (self.queries, self.gallery)


class TileCounter:
    """One thread's device, kernel and memory, and which tier decided its last tile."""

    def __init__(self, counts: Counts, tiling: Tiling, device: torch.device, kinds: tuple[str, ...]) -> None:
        self.counts, self.problem, self.exact, self.symmetric = counts, counts.problem, counts.exact, tiling.symmetric
        self.device, self.kernel = device, make_kernel(tiling.backend)
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)
        self.kinds, self.first, self.done, self.compiled = kinds, 0, 0, tiling.backend == "numba"
        self.begun: Tile | None = None  # the tile whose scores by the high codes are in memory

    def count(self, tile: Tile) -> None:
        """Add to the counts what a tile says, by products or, where these decide too little, by exact scores.

        It begins with the tier that decided the tile before, but now and then with the fastest.
        """
        transposed = [False, True] if self.symmetric and tile.queries != tile.gallery else [False]
        tiers: list[Tier] = []
        if self.exact.product_type is None:
            tiers = [*self.kinds, *(kind for kind in FLOATS if math.isfinite(self.counts.error(kind)))]
        first = 0 if self.done % AGAIN == 0 else self.first
        self.done += 1
        for number, tier in enumerate([*tiers, None][first:], first):
            transposed = self._count_tier(tile, transposed, tier)
            if not transposed:
                self.first = min(number, len(self.kinds))
                return

    def _count_tier(self, tile: Tile, transposed: list[bool], tier: Tier) -> list[bool]:
        """Count the sides of a tile by scores of this tier; return the sides of which too many are near a threshold."""
        lines = [self._lines(tile, side, tier) for side in transposed]
        room = None if tier is None else int(tile.size * NEAR[tier])
        scores = self._scores(tile, tier)
        exclude(self.problem, tile, scores)
        undecided = []
        for side, edges in zip(transposed, lines, strict=True):
            counted = self.kernel.count(scores, edges, transposed=side, room=room)
            if counted is None:
                undecided.append(side)
            elif tier is None:  # of exact scores the near ones tie
                again = 0 if self.exact.product_type is not None else tile.size
                self.counts.add(tile.sides(side)[0], counted.above, counted.near, again)
            else:
                if tier != torch.float64 and self.compiled and len(counted.other):
                    counted = self._settle(tile, side, edges, counted)
                self._decide_near(*tile.sides(side), counted)
        return undecided

    def _lines(self, tile: Tile, transposed: bool, tier: Tier) -> Edges:
        """Return the thresholds of one side with the edges that scores of this tier have."""
        own = tile.sides(transposed)[0]
        if not isinstance(tier, str) or tile.codes is None:
            return self.counts.lines(own, tier if isinstance(tier, torch.dtype) else None)
        one, other = tile.codes[::-1] if transposed else tile.codes
        error = one.error(other, tier, slack=4 * self.counts.error(torch.float64))
        offset, thresholds = self.counts.view(own)
        return code_edges(thresholds, offset, error, self.exact.queries.distance.factor)

    def _scores(self, tile: Tile, tier: Tier) -> Tensor:
        """Products of codes or features, or exact scores without a tier, in memory that every tile reuses."""
        shape, kind = (len(tile.left), len(tile.right)), torch.float64 if tier is None else tier
        if isinstance(kind, str) and tile.codes is not None:
            memory = self._memory(2 * 4 * tile.size)
            if kind == HIGH or self.begun is not tile:
                multiply_codes(*tile.codes, HIGH, memory)
            self.begun = tile
            return multiply_codes(*tile.codes, BOTH, memory) if kind == BOTH else scores_in(memory, shape)
        assert isinstance(kind, torch.dtype)
        self.begun = None
        scores = self._memory(tile.size * kind.itemsize).view(kind).view(shape)
        if tier is None:
            self.exact.tile(tile.queries, tile.gallery, scores)
            return scores
        left, right = tile.left, tile.right
        if kind != torch.float32:
            left = self.exact.queries.features(tile.queries, kind, gallery=False).to(self.device)
            right = self.exact.gallery.features(tile.gallery, kind, gallery=True).to(self.device)
        return torch.mm(left, right.T, out=scores)

    def _memory(self, size: int) -> Tensor:
        """Return so many bytes; fresh pages for every tile would cost more than the product."""
        if len(self.memory) < size:
            self.memory = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self.memory[:size]

    def _settle(self, tile: Tile, transposed: bool, edges: Edges, counted: Counted) -> Counted:
        """Decide near pairs by single products of features in float64; return those that stay near."""
        from aurank.evaluation.engine.kernels import pairs

        own, others = (tile.right, tile.left) if transposed else (tile.left, tile.right)
        distance = self.exact.queries.distance
        thresholds, near = self.counts.view(tile.sides(transposed)[0])[1], (counted.threshold, counted.other)
        bounds = distance.factor, distance.feature_error(self.exact.queries.dim)
        kept = pairs.settle(own.numpy(), others.numpy(), edges.offset, thresholds, *bounds, counted.above, *near)
        return Counted(counted.above, counted.near, *(side[:kept] for side in near))

    def _decide_near(self, own: slice, others: slice, counted: Counted) -> None:
        """Add what was counted, each near pair by its exact score: above its threshold, a tie with it, or below."""
        at, tied = counted.threshold, np.zeros_like(counted.near)
        if len(at):
            query, threshold = self.counts.thresholds(own, at)
            score = self.exact.pairs(query, others.start + counted.other)
            np.add.at(counted.above, at[score > threshold], 1)
            np.add.at(tied, at[score == threshold], 1)
        self.counts.add(own, counted.above, tied, len(at))


def exclude(problem: SortedProblem, tile: Tile, scores: Tensor) -> None:
    """Set to minus infinity the scores of positives and of whatever else a query does not compete with."""
    first, last = problem.class_start[tile.queries], problem.class_stop[tile.queries]
    begin, end = tile.gallery.start, tile.gallery.stop
    # Queries are in the order of their classes, so a tile far from them is seen from its corners.
    if first[0] < end and last[-1] > begin:
        view = scores if scores.is_cuda else scores.numpy()  # a view that costs less to write to
        edges = np.flatnonzero(np.diff(first)) + 1
        for top, bottom in zip([0, *edges.tolist()], [*edges.tolist(), len(first)], strict=True):
            view[top:bottom, max(int(first[top]) - begin, 0) : max(int(last[top]) - begin, 0)] = -math.inf
    offset = problem.extra_offset[tile.queries.start : tile.queries.stop + 1]
    if offset[0] < offset[-1]:
        place = problem.extra[offset[0] : offset[-1]]
        query = np.repeat(np.arange(len(first)), np.diff(offset))
        inside = (place >= begin) & (place < end)
        where = [torch.from_numpy(index[inside]).to(scores.device) for index in (query, place - begin)]
        scores[where[0], where[1]] = -math.inf


class Panels:
    """float32 features, and codes, of a round's two sides, kept while the rounds that follow need them."""

    def __init__(self, counts: Counts, tiling: Tiling, devices: list[torch.device], kinds: tuple[str, ...]) -> None:
        self.symmetric, self.sides = tiling.symmetric, (counts.exact.queries, counts.exact.gallery)
        self.devices, self.round = set(devices), Round(slice(0, 0), slice(0, 0), [])
        self.features: list[dict[torch.device, Tensor]] = [{}, {}]
        self.coder = Coder(counts.exact) if kinds else None
        self.codes: list[ByteCodes] = []
        # By side; new ones for every panel would leave holes in the heap.
        self.buffers: dict[bool, Tensor] = {}
        self.code_buffers: dict[bool, ByteCodes] = {}

    def load(self, part: Round) -> None:
        """Make the features and codes of this round's sides that are not there already."""
        before, self.round = self.round, part
        if (before.left, before.right) == (part.left, part.right):
            return
        self.features[1] = {}  # let go of the old before the new is made
        if before.left != part.left:
            self.features[0] = {}
            self.features[0] = self._make(self.sides[0], part.left, gallery=False)
        alike = self.symmetric and part.left == part.right
        shared = alike and not self.sides[0].distance.squared
        self.features[1] = self.features[0] if shared else self._make(self.sides[1], part.right, gallery=True)
        if self.coder is not None:
            if before.left != part.left or not self.codes:
                self.codes = [self._encode(self.coder, part.left, gallery=False)]
            self.codes[1:] = [self.codes[0] if alike else self._encode(self.coder, part.right, gallery=True)]

    def tile(self, queries: slice, gallery: slice, device: torch.device) -> Tile:
        """Return a tile of the round that is loaded."""
        left = slice(queries.start - self.round.left.start, queries.stop - self.round.left.start)
        right = slice(gallery.start - self.round.right.start, gallery.stop - self.round.right.start)
        codes = (self.codes[0].part(left), self.codes[1].part(right)) if self.codes else None
        return Tile(queries, gallery, self.features[0][device][left], self.features[1][device][right], codes)

    def _make(self, side: Vectors, rows: slice, *, gallery: bool) -> dict[torch.device, Tensor]:
        count, width = rows.stop - rows.start, side.distance.width(side.dim)
        kept = self.buffers.get(gallery)
        if kept is None or len(kept) < count:
            kept = self.buffers[gallery] = torch.empty((count, width), dtype=torch.float32, device=side.device)
        features = side.features(rows, torch.float32, gallery=gallery, out=kept[:count])
        return {device: features.to(device) for device in self.devices}

    def _encode(self, coder: Coder, rows: slice, *, gallery: bool) -> ByteCodes:
        side, count = self.sides[gallery], rows.stop - rows.start
        kept = self.code_buffers.get(gallery)
        if kept is None or len(kept.planes) < count:
            kept = self.code_buffers[gallery] = empty_codes(count, side.dim)
        return coder.codes(side, rows, kept, gallery=gallery)
