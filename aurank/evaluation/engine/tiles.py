"""Tiles of scores in bounded memory, and how many negatives score above, or tie with, each threshold.

Tiles come in rounds between two panels of rows whose features are held in memory together.
"""

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64, Integer
from torch import Tensor

from aurank.evaluation.engine.problem import SortedProblem
from aurank.evaluation.engine.scores import ExactScores, full_precision
from aurank.evaluation.inputs import ProgressCallback, Work

SIDES = {"cpu": 768, "cuda": 8192}  # of a tile: on the CPU it is counted while in cache
SMALLEST = 16
PANELS = {"cpu": 7 * 2**24, "cuda": 2**40}  # bytes of features: more would save the CPU next to nothing
TILES = 128  # of a round, for each worker; after a round processes meet and progress shows
SCORE_BYTES = {"numba": 28, "torch": 48}  # a score of a tile: float64, a transposed copy, near ones, torch's searches
EXACT = 2**16  # near scores that are taken exactly at a time
THRESHOLD_BYTES = 40  # edges and counts, for each threshold of a tile
THRESHOLDS = 2**14  # of a tile, always allowed: fewer would make slivers of tiles where classes are large
NEAR = 1 / 8  # of a tile's scores near a threshold, beyond which float64 products are cheaper than single scores


@dataclass(eq=False)
class Panel:
    rows: slice  # consecutive positions of one side
    features: dict[torch.device, Tensor]  # in float32, on each device
    codes: Any = None  # of the accelerator

    def within(self, rows: slice) -> slice:
        return slice(rows.start - self.rows.start, rows.stop - self.rows.start)


@dataclass(frozen=True, eq=False)
class Tile:
    queries: slice  # sorted
    gallery: slice
    left: Panel
    right: Panel

    def features(self, device: torch.device) -> tuple[Tensor, Tensor]:
        left, right = self.left.features[device], self.right.features[device]
        return left[self.left.within(self.queries)], right[self.right.within(self.gallery)]


class Tiles:
    """Tiles of queries against the whole gallery; `offset` cumulates the thresholds of queries."""

    def __init__(
        self,
        exact: ExactScores,
        work: Work,
        *,
        symmetric: bool,
        size: int | None = None,
        queries: slice | None = None,
        offset: Int64[np.ndarray, " query_plus_one"] | None = None,
    ) -> None:
        self.exact, self.work = exact, work
        self.queries = slice(0, len(exact.queries.order)) if queries is None else queries
        count, gallery = self.queries.stop - self.queries.start, len(exact.gallery.order)
        offset = np.zeros(self.queries.stop + 1, np.int64) if offset is None else offset
        kind, size, width = work.devices[0].type, size or work.size, 32 * exact.width
        score_bytes = SCORE_BYTES[work.backend]
        self.workers = max(1, min(work.workers, size // 2 // (128 * (128 * score_bytes + width))))
        room = size // 2 // self.workers
        sides = range(SMALLEST, SIDES[kind] + 1, SMALLEST)
        side = max((side for side in sides if side * (side * score_bytes + width) <= room), default=SMALLEST)
        most = max(THRESHOLDS, size // 8 // self.workers // THRESHOLD_BYTES)
        self.blocks = consecutive(offset, self.queries, most=most, side=side)
        # Where many thresholds make blocks short, wide tiles of one side are faster.
        self.symmetric = symmetric and count == gallery and 2 * count >= side * len(self.blocks)
        longest = max((block.stop - block.start for block in self.blocks), default=1)
        row_bytes = 4 * exact.width + (3 * exact.dim + 48) * (work.backend == "numba")
        rows = min(size // 2, PANELS[kind]) // row_bytes
        self.is_shared = self.symmetric and not exact.is_squared
        self.panel = max(gallery, count) if gallery + count * (not self.is_shared) <= rows else max(1, rows // 2)
        fitting = (room - longest * width) // (longest * score_bytes + width)
        step = max(SMALLEST, min(side**2 // longest, fitting))
        starts = range(0, gallery, step)
        self.others = self.blocks if self.symmetric else [slice(at, min(at + step, gallery)) for at in starts]

    @property
    def num_tiles(self) -> int:
        count = len(self.blocks)
        return count * (count + 1) // 2 if self.symmetric else count * len(self.others)

    def rounds(self) -> Iterator[list[Tile]]:
        """Yield rounds of tiles, each to be done with before the next; of symmetric problems the upper triangle."""
        lefts = list(_groups(self.blocks, self.panel))
        rights = lefts if self.symmetric else list(_groups(self.others, self.panel))
        right = Panel(slice(0, 0), {})
        for number, queries in enumerate(lefts):
            left = self._panel(slice(queries[0].start, queries[-1].stop), gallery=False)
            for gallery in rights[number if self.symmetric else 0 :]:
                rows = slice(gallery[0].start, gallery[-1].stop)
                if self.is_shared and rows == left.rows:
                    right = left
                elif rows != right.rows:
                    right = self._panel(rows, gallery=True)
                pairs = ((block, gallery_block) for block in queries for gallery_block in gallery)
                pairs = (pair for pair in pairs if not self.symmetric or pair[0].start <= pair[1].start)
                tiles = [Tile(*pair, left, right) for pair in pairs]
                for start in range(0, len(tiles), TILES * self.workers):
                    yield tiles[start : start + TILES * self.workers]

    def run(
        self, make: Callable[[torch.device], Callable[[Tile], Any]], progress: ProgressCallback | None = None
    ) -> None:
        """Hand this rank's share of all tiles to workers, each made for its device; ranks meet every round."""
        devices = [self.work.devices[number % len(self.work.devices)] for number in range(self.workers)]
        with full_precision(one_thread=self.work.backend == "numba"):
            workers, threads, done = [make(device) for device in devices], torch.get_num_threads(), 0

            def work(worker: Callable[[Tile], Any], device: torch.device, tiles: Iterator[Tile]) -> None:
                if device.type == "cuda":  # a new thread has no CUDA context, and device 0 for "cuda"
                    torch.cuda.set_device(device)
                for tile in tiles:
                    worker(tile)

            with ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
                for tiles in self.rounds():
                    queue = iter(self.work.group.shard(tiles))  # of a list: threads may share it
                    list(pool.map(work, workers, devices, [queue] * self.workers))
                    self.work.group.barrier()
                    done += len(tiles)
                    if progress is not None:
                        progress(done, self.num_tiles)

    def _panel(self, rows: slice, *, gallery: bool) -> Panel:
        features = self.exact.features(rows, torch.float32, gallery=gallery)
        return Panel(rows, {device: features.to(device) for device in self.work.devices})


def consecutive(offset: np.ndarray, queries: slice, *, most: int, side: int | None = None) -> list[slice]:
    """Cut queries into blocks of at most `side` queries and `most` thresholds; one with more is a block alone."""
    blocks, start = [], queries.start
    while start < queries.stop:
        stop = int(np.searchsorted(offset, offset[start] + most, side="right")) - 1
        stop = min(max(stop, start + 1), start + (side or queries.stop), queries.stop)
        blocks.append(slice(start, stop))
        start = stop
    return blocks


def _groups(blocks: list[slice], rows: int) -> Iterator[list[slice]]:
    group: list[slice] = []
    for block in blocks:
        if group and block.stop - group[0].start > rows:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


# -- counting ----------------------------------------------------------------------------------------------------------

OfQueries: TypeAlias = Int64[np.ndarray, " query"]
Near: TypeAlias = Integer[np.ndarray, "3 near"]  # row, column, first threshold not passed for sure


class Thresholds:
    """Increasing thresholds `first[i]` to `last[i]` of each query i from `start` on, and counts of scores for each."""

    def __init__(
        self, scores: Float64[np.ndarray, " _"], first: OfQueries, last: OfQueries, start: int = 0, kind: Any = np.int64
    ) -> None:
        self.scores, self.first, self.last, self.start = scores, first, last, start
        self.above: Integer[np.ndarray, " threshold"] = np.zeros(len(scores), kind)
        self.tied: Integer[np.ndarray, " threshold"] = np.zeros(len(scores), kind)
        self.lock = threading.Lock()

    def of(self, queries: slice) -> tuple[slice, OfQueries, OfQueries]:
        """Return where the thresholds of a range of queries lie, and first and last of each query among them."""
        part = slice(queries.start - self.start, queries.stop - self.start)
        first, last = self.first[part], self.last[part]
        entries = slice(int(first.min()), int(last.max())) if len(first) else slice(0, 0)
        return entries, first - entries.start, last - entries.start


def count_negatives(
    thresholds: Thresholds,
    problem: SortedProblem,
    tiles: Tiles,
    progress: ProgressCallback | None = None,
    accelerator: Any = None,
) -> None:
    """Add to the thresholds how many negatives of their queries score above each, and how many tie with it."""
    tiles.run(lambda device: TileCounter(thresholds, problem, tiles, device, accelerator).count, progress)
    for counts in (thresholds.above, thresholds.tied):
        tiles.work.group.all_reduce(counts)


class TileCounter:
    """Counts tiles in one thread, and keeps its memory from tile to tile: fresh pages cost more than the counting."""

    def __init__(
        self, thresholds: Thresholds, problem: SortedProblem, tiles: Tiles, device: torch.device, accelerator: Any
    ) -> None:
        self.thresholds, self.problem, self.exact, self.device = thresholds, problem, tiles.exact, device
        self.symmetric, self.compiled = tiles.symmetric, tiles.work.loops()
        self.accelerate = None if accelerator is None else accelerator.make(self)
        self._memory: dict[Any, Tensor] = {}

    def count(self, tile: Tile) -> None:
        """Count a tile by products, in float64 where float32 leaves too many scores near a threshold."""
        if self.accelerate is not None and self.accelerate(tile):
            return
        shape = tile.queries.stop - tile.queries.start, tile.gallery.stop - tile.gallery.start
        if self.exact.are_whole:
            scores = self.memory("scores", shape, torch.float64)
            self.exact.write_products(tile.queries, tile.gallery, scores)
            self.decide(tile, scores, (0.0, 0.0), most=1.0, is_exact=True)
            return
        for kind, most in ((torch.float32, NEAR), (torch.float64, 1.0)):
            left, right = tile.features(self.device)
            if kind == torch.float64:
                left = self.exact.features(tile.queries, kind, gallery=False).to(self.device)
                right = self.exact.features(tile.gallery, kind, gallery=True).to(self.device)
            scores = torch.mm(left, right.T, out=self.memory("scores", shape, kind))
            if self.decide(tile, scores, (self.exact.error(kind),) * 2, most=most):
                return

    def decide(
        self,
        tile: Tile,
        scores: Tensor,
        errors: tuple[Any, Any],
        *,
        most: float,
        settle: Any = None,
        is_exact: bool = False,
    ) -> bool:
        """Count a tile by scores, those near a threshold exactly; return False if these are too many.

        Args:
            scores: divided by the factor unless `is_exact`; those of pairs that do not count become minus infinity.
            errors: of the scores of all or each of the rows, and of the columns.
            most: part of the scores that may be near.
            settle: decides near scores, adding to `above`; moves those still near to the front, returns how many.
        """
        factor = 1.0 if is_exact else self.exact.factor
        exclude(self.problem, tile, scores)
        left, right = tile.features(self.device)
        sides: list[tuple[slice, slice, Tensor, Tensor]] = [(tile.queries, tile.gallery, left, right)]
        counted: list[tuple[slice, np.ndarray, np.ndarray | None]] = []
        if self.symmetric and tile.queries != tile.gallery:
            sides.append((tile.gallery, tile.queries, right, left))
        for (queries, gallery, left, right), error in zip(sides, errors, strict=False):
            if counted:
                scores = self.memory("transposed", tuple(scores.T.shape), scores.dtype).copy_(scores.T)
            entries, first, last = self.thresholds.of(queries)
            thresholds = self.thresholds.scores[entries]
            above = np.zeros(len(thresholds), self.thresholds.above.dtype)
            room = np.broadcast_to(error, len(first)), 2 * torch.finfo(scores.dtype).eps
            case, limit = (first, last, thresholds, factor, *room, above), int(scores.numel() * most)
            if self.compiled is None:
                near = count_by_search(scores, *case)
                size = near.shape[1] if near.shape[1] <= limit else -1
            else:
                near = self.memory("near", (3, limit + scores.shape[1]), torch.int32).numpy()
                size = self.compiled.count(scores.numpy(), *case, near)
            if size < 0:
                return False
            near = near[:, :size]
            if settle is not None:
                near = near[:, : settle(near, last, thresholds, left, right, above)]
            tied = np.zeros_like(above) if near.shape[1] else None
            for start in range(0, near.shape[1], EXACT):
                part = near[:, start : start + EXACT].astype(np.int64)
                if is_exact:
                    exact = scores[tuple(torch.from_numpy(part[:2]).to(self.device))].cpu().numpy()
                else:
                    exact = self.exact.pairs(queries.start + part[0], gallery.start + part[1])
                settled: tuple[Any, ...] = (part, last, thresholds, exact, above, tied)
                count_near(*settled) if self.compiled is None else self.compiled.count_exact(*settled)
            counted.append((entries, above, tied))
        with self.thresholds.lock:
            for entries, above, tied in counted:
                self.thresholds.above[entries] += above
                if tied is not None:
                    self.thresholds.tied[entries] += tied
        return True

    def memory(self, name: Any, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
        """Return memory by name, in this shape; its content is that of the tile before."""
        size = math.prod(shape) * kind.itemsize
        if name not in self._memory or len(self._memory[name]) < size:
            self._memory[name] = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._memory[name][:size].view(kind).view(shape)


def exclude(problem: SortedProblem, tile: Tile, scores: Tensor) -> None:
    """Set to minus infinity the scores of positives and of whatever else a query does not compete with."""
    first, last = problem.class_start[tile.queries], problem.class_stop[tile.queries]
    begin, end = tile.gallery.start, tile.gallery.stop
    # Queries are in the order of their classes, so a tile far from them is seen from its corners.
    if first[0] < end and last[-1] > begin:
        table = scores if scores.is_cuda else scores.numpy()  # which costs less to write to
        edges = np.flatnonzero(np.diff(first)) + 1
        for top, bottom in zip([0, *edges.tolist()], [*edges.tolist(), len(first)], strict=True):
            table[top:bottom, max(int(first[top]) - begin, 0) : max(int(last[top]) - begin, 0)] = -math.inf
    offset = problem.extra_offset[tile.queries.start : tile.queries.stop + 1]
    if offset[0] < offset[-1]:
        position = problem.extra[offset[0] : offset[-1]]
        query = np.repeat(np.arange(len(first)), np.diff(offset))
        inside = (position >= begin) & (position < end)
        rows, columns = (torch.from_numpy(index[inside]).to(scores.device) for index in (query, position - begin))
        scores[rows, columns] = -math.inf


def count_near(
    near: Near, last: np.ndarray, thresholds: np.ndarray, scores: np.ndarray, above: np.ndarray, tied: np.ndarray
) -> None:
    """Count near scores by their exact values."""
    row, _, threshold = near
    unsettled = np.flatnonzero(threshold < last[row])
    while len(unsettled):
        entry, score = threshold[unsettled], scores[unsettled]
        np.add.at(above, entry[thresholds[entry] < score], 1)
        np.add.at(tied, entry[thresholds[entry] == score], 1)
        threshold[unsettled] += 1
        unsettled = unsettled[(thresholds[entry] <= score) & (entry + 1 < last[row[unsettled]])]


PADDED = 2**20  # thresholds of queries that are looked up together


def count_by_search(
    scores: Tensor, first: Any, last: Any, thresholds: Any, factor: float, errors: Any, rounding: float, above: Any
) -> Near:
    """Count a tile by plain torch, on any device, as `compiled.count` does; return the scores that are near."""
    most = int((last - first).max(initial=0))
    step, near = max(1, PADDED // max(1, most)), [np.empty((3, 0), np.int64)]
    for start in range(0, len(first) if most else 0, step):
        rows = slice(start, start + step)
        entry = first[rows, None] + np.arange(most)
        is_own = entry < last[rows, None]
        middle = thresholds[np.minimum(entry, len(thresholds) - 1)] / factor
        room, tile = errors[rows, None] + rounding * np.abs(middle), scores[rows].contiguous()
        edges = (np.where(is_own, edge, np.inf) for edge in (middle + room, middle - room))
        passed, reached = (
            torch.searchsorted(torch.from_numpy(edge).to(tile.device, tile.dtype), tile, right=right, out_int32=True)
            for edge, right in zip(edges, (False, True), strict=True)
        )
        bins, count = most + 1, len(entry)
        numbers = passed + torch.arange(0, count * bins, bins, device=scores.device)[:, None]
        histogram = torch.bincount(numbers.view(-1), minlength=count * bins).view(count, bins)
        beyond = histogram.flip(1).cumsum(1).flip(1)[:, 1:].cpu().numpy()  # scores that pass each threshold
        np.add.at(above, entry[is_own], beyond[is_own])
        row, column = torch.nonzero(reached > passed, as_tuple=True)
        threshold = passed[row, column].cpu().numpy() + first[rows][row.cpu().numpy()]
        near.append(np.stack([row.cpu().numpy() + start, column.cpu().numpy(), threshold]))
    return np.concatenate(near, axis=1)
