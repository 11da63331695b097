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
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64, Integer
from torch import Tensor

from aurank.evaluation.engine.exact import ExactScores
from aurank.evaluation.engine.inputs import ProgressCallback, Vectors
from aurank.evaluation.engine.kernels import Counted, Edges, FusedKernel, make_kernel
from aurank.evaluation.engine.positives import SortedProblem
from aurank.evaluation.engine.process_group import ProcessGroup
from aurank.evaluation.engine.tiles import Round, Tiling, consecutive

# Where more than this part of a tile's pairs are near a threshold, the next tier is cheaper than single scores.
NEAR = {torch.float32: 1 / 32, torch.float64: 1 / 8}


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
        first = self.queries.start
        offset = self.offset[queries.start - first : queries.stop - first + 1]
        low = high = self.scores[self._entries(queries)]
        if dtype is not None:
            kind = torch.empty(0, dtype=dtype).numpy().dtype
            middle, error = low / self.exact.queries.distance.factor, self.error(dtype)
            low, high = (middle - error).astype(kind), (middle + error).astype(kind)
        return Edges(offset - offset[0], low, high)

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
    for slot in range(tiling.workers):
        workers.put(TileCounter(counts, tiling, devices[slot % len(devices)]))
    panels = Panels(counts, tiling, devices)

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
    """Some sorted queries against some of the sorted gallery, and the float32 features of both."""

    queries: slice
    gallery: slice
    left: Tensor
    right: Tensor

    def sides(self, transposed: bool) -> tuple[slice, slice]:
        """Return whose thresholds are counted, and against whom; transposed, the gallery's, which are queries too."""
        return (self.gallery, self.queries) if transposed else (self.queries, self.gallery)


class TileCounter:
    """One thread's device, kernel and memory."""

    def __init__(self, counts: Counts, tiling: Tiling, device: torch.device) -> None:
        self.counts, self.problem, self.exact, self.symmetric = counts, counts.problem, counts.exact, tiling.symmetric
        self.device, self.kernel = device, make_kernel(tiling.backend)
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)

    def count(self, tile: Tile) -> None:
        """Add to the counts what a tile says, by products or, where these decide too little, by exact scores."""
        transposed = [False, True] if self.symmetric and tile.queries != tile.gallery else [False]
        tiers = (torch.float32, torch.float64) if self.exact.product_type is None else ()
        for dtype in (*tiers, None):
            if dtype is None or math.isfinite(self.counts.error(dtype)):
                transposed = self._count_tier(tile, transposed, dtype)
            if not transposed:
                return

    def _count_tier(self, tile: Tile, transposed: list[bool], dtype: torch.dtype | None) -> list[bool]:
        """Count the sides of a tile by scores of this type; return the sides of which too many are near a threshold."""
        lines = [self.counts.lines(tile.sides(side)[0], dtype) for side in transposed]
        room = None if dtype is None else int(len(tile.left) * len(tile.right) * NEAR[dtype])
        extra = self.problem.extra_offset[[tile.queries.start, tile.queries.stop]]
        if dtype == torch.float32 and isinstance(self.kernel, FusedKernel) and extra[0] == extra[1]:
            own = np.stack([self.problem.class_start[tile.queries], self.problem.class_stop[tile.queries]])
            excluded = np.clip(own - tile.gallery.start, 0, len(tile.right))
            found = iter(self.kernel.multiply_and_count(tile.left, tile.right, excluded, lines, room=room or 0))
        else:
            scores = self._scores(tile, dtype)
            exclude(self.problem, tile, scores)
            sides = zip(transposed, lines, strict=True)
            found = (self.kernel.count(scores, each, transposed=side, room=room) for side, each in sides)
        undecided = []
        for side, counted in zip(transposed, found, strict=True):
            if counted is None:
                undecided.append(side)
            elif dtype is None:  # of exact scores the near ones tie
                again = 0 if self.exact.product_type is not None else len(tile.left) * len(tile.right)
                self.counts.add(tile.sides(side)[0], counted.above, counted.near, again)
            else:
                self._decide_near(*tile.sides(side), counted)
        return undecided

    def _scores(self, tile: Tile, dtype: torch.dtype | None) -> Tensor:
        """Products of features, or exact scores without a type, in memory that every tile reuses."""
        shape, kind = (len(tile.left), len(tile.right)), dtype or torch.float64
        size = shape[0] * shape[1] * kind.itemsize
        if len(self.memory) < size:  # fresh pages for every tile would cost more than the product
            self.memory = torch.empty(size, dtype=torch.uint8, device=self.device)
        scores = self.memory[:size].view(kind).view(shape)
        if dtype is None:
            self.exact.tile(tile.queries, tile.gallery, scores)
            return scores
        left, right = tile.left, tile.right
        if dtype != torch.float32:
            left = self.exact.queries.features(tile.queries, dtype, gallery=False).to(self.device)
            right = self.exact.gallery.features(tile.gallery, dtype, gallery=True).to(self.device)
        return torch.mm(left, right.T, out=scores)

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
    """float32 features of a round's two sides on every device, kept while the rounds that follow need them."""

    def __init__(self, counts: Counts, tiling: Tiling, devices: list[torch.device]) -> None:
        self.symmetric, self.sides = tiling.symmetric, (counts.exact.queries, counts.exact.gallery)
        self.devices, self.round = set(devices), Round(slice(0, 0), slice(0, 0), [])
        self.features: list[dict[torch.device, Tensor]] = [{}, {}]
        self.buffers: dict[bool, Tensor] = {}  # by side; new ones for every panel would leave holes in the heap

    def load(self, part: Round) -> None:
        """Make the features of this round's sides that are not there already."""
        before, self.round = self.round, part
        if (before.left, before.right) == (part.left, part.right):
            return
        self.features[1] = {}  # let go of the old before the new is made
        if before.left != part.left:
            self.features[0] = {}
            self.features[0] = self._make(self.sides[0], part.left, gallery=False)
        shared = self.symmetric and part.left == part.right and not self.sides[0].distance.squared
        self.features[1] = self.features[0] if shared else self._make(self.sides[1], part.right, gallery=True)

    def tile(self, queries: slice, gallery: slice, device: torch.device) -> Tile:
        """Return a tile of the round that is loaded."""
        first, second = self.round.left.start, self.round.right.start
        left = self.features[0][device][queries.start - first : queries.stop - first]
        right = self.features[1][device][gallery.start - second : gallery.stop - second]
        return Tile(queries, gallery, left, right)

    def _make(self, side: Vectors, rows: slice, *, gallery: bool) -> dict[torch.device, Tensor]:
        count, width = rows.stop - rows.start, side.distance.width(side.dim)
        kept = self.buffers.get(gallery)
        if kept is None or len(kept) < count:
            kept = self.buffers[gallery] = torch.empty((count, width), dtype=torch.float32, device=side.device)
        features = side.features(rows, torch.float32, gallery=gallery, out=kept[:count])
        return {device: features.to(device) for device in self.devices}
