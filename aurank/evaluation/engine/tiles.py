"""Tiles of scores in bounded memory, and how many negatives score above, or tie with, each threshold.

Ranks, counts over all pairs and lists of neighbours are read from one generator of tiles, which come in rounds between
two panels of rows whose features and codes are held in memory together.
"""

import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict, Unpack

import numpy as np
import torch
from jaxtyping import Float64, Int64, Integer, Shaped
from torch import Tensor

from aurank.distributed import ProcessGroup
from aurank.errors import UserError
from aurank.evaluation.engine.codes import (
    BOTH,
    HIGH,
    ByteCodes,
    Coder,
    Edges,
    code_edges,
    code_kinds,
    multiply_codes,
    scores_in,
)
from aurank.evaluation.engine.problem import (
    Devices,
    Embeddings,
    ProgressCallback,
    SortedProblem,
    byte_count,
    choose_devices,
    importable,
    require_one_of,
)
from aurank.evaluation.engine.scores import ExactScores, full_precision, one_thread_each

SIDES = {"cpu": 768, "cuda": 8192}  # of a tile: on the CPU it is counted while in cache
SMALLEST = 16
PANELS = {"cpu": 7 * 2**24, "cuda": 2**40}  # bytes of features and codes: more would save the CPU next to nothing
GPU_WORKERS = 2  # while a GPU computes one tile, the next is made ready
TILES = 128  # of a round, for each worker; after a round processes meet and progress shows
SCORE_BYTES = {"numba": 11, "torch": 48}  # a score of a tile: float64, near pairs, torch's searches
THRESHOLD_BYTES = 40  # edges and counts, for each threshold of a tile
DENSE, NARROWEST = 8, 32  # scores to a threshold in tiles of one side, and the fewest queries that are cut for it
THRESHOLDS = 2**14  # of a tile, always allowed: fewer would make slivers of tiles where classes are large
BACKENDS = ("auto", "numba", "torch")


class How(TypedDict, total=False):
    """How tiles are computed, as `positive_ranks` describes it."""

    backend: str
    device: Devices
    max_memory: int | str
    distributed: bool | str | None


def check_backend(backend: str, device: torch.device) -> str:
    """Return the kernel to use: numba or torch on the CPU, torch on CUDA; UserError where it cannot be had."""
    require_one_of(BACKENDS, backend=backend)
    compiles = device.type == "cpu" and importable("numba")
    if backend == "numba" and not compiles:
        raise UserError(f"backend 'numba' needs the package numba and does not run on {device}: use backend=\"auto\"")
    return "numba" if backend != "torch" and compiles else "torch"


@dataclass(frozen=True, eq=False)
class Work:
    """Who computes tiles, by what, and in how much memory: the same in all processes, so that they cut alike."""

    backend: str
    devices: list[torch.device]
    workers: int
    size: int
    group: ProcessGroup

    @classmethod
    def of(cls, embeddings: Embeddings, **how: Unpack[How]) -> "Work":
        """Check what was asked for, and agree on it with the other processes."""
        devices = choose_devices(how.get("device"), embeddings)
        backend, group = check_backend(how.get("backend", "auto"), devices[0]), ProcessGroup(how.get("distributed"))
        given = byte_count(how.get("max_memory", "1GiB")), torch.get_num_threads(), len(devices)
        size, threads, count = map(min, zip(*group.all_gather(given), strict=True))
        on_gpu = GPU_WORKERS * count if devices[0].type == "cuda" else 1
        return cls(backend, devices[:count], threads if backend == "numba" else on_gpu, size, group)

    @property
    def compiled(self) -> bool:
        return self.backend == "numba"

    @property
    def kind(self) -> str:
        return self.devices[0].type

    def bounds(self, exact: ExactScores) -> tuple[int, int]:
        rows = exact.queries
        width = rows.distance.width(rows.dim)
        least = 2 * max(self.tile_bytes(SMALLEST, width), 2 * SMALLEST * self.row_bytes(exact))
        return least, 2 * max(self.workers * self.tile_bytes(SIDES[self.kind], width), PANELS[self.kind])

    def row_bytes(self, exact: ExactScores) -> int:
        rows = exact.queries
        return 4 * rows.distance.width(rows.dim) + (3 * rows.dim + 48) * self.compiled

    def tile_bytes(self, side: int, width: int) -> int:
        return side * side * SCORE_BYTES[self.backend] + 4 * side * width * 8


@dataclass(frozen=True, eq=False)
class Panel:
    """Consecutive places of one side with their float32 features on each device and, if used, their codes."""

    rows: slice
    features: dict[torch.device, Tensor]
    codes: ByteCodes | None

    def within(self, rows: slice) -> slice:
        return slice(rows.start - self.rows.start, rows.stop - self.rows.start)


@dataclass(frozen=True, eq=False)
class Tile:
    """Some sorted queries against some of the sorted gallery."""

    queries: slice
    gallery: slice
    panels: tuple[Panel, Panel]

    @property
    def shape(self) -> tuple[int, int]:
        return self.queries.stop - self.queries.start, self.gallery.stop - self.gallery.start

    def features(self, device: torch.device) -> tuple[Tensor, Tensor]:
        left, right = self.panels
        return left.features[device][left.within(self.queries)], right.features[device][right.within(self.gallery)]

    def codes(self) -> tuple[ByteCodes, ByteCodes]:
        left, right = self.panels
        assert left.codes is not None
        assert right.codes is not None
        return left.codes.part(left.within(self.queries)), right.codes.part(right.within(self.gallery))


class Tiles:
    """Tiles of a range of queries against the whole gallery, of about `side` by `side` scores, within `size` bytes.

    Half of the memory goes to the workers, half to the features of two panels. Where `offset` says that queries have
    many thresholds, their blocks are cut shorter, and tiles are wider. If `symmetric`, a tile serves both of its sides,
    unless blocks come out so short that wide tiles are faster.
    """

    def __init__(
        self,
        exact: ExactScores,
        work: Work,
        *,
        symmetric: bool,
        size: int | None = None,
        queries: slice | None = None,
        offset: Int64[np.ndarray, " query_plus_one"] | None = None,
        coded: bool = False,
    ) -> None:
        self.exact, self.work = exact, work
        rows, gallery = exact.queries, len(exact.gallery.order)
        self.queries = slice(0, len(rows.order)) if queries is None else queries
        count, size = self.queries.stop - self.queries.start, size or work.size
        offset = np.zeros(self.queries.stop + 1, np.int64) if offset is None else offset
        width, self.workers = rows.distance.width(rows.dim), work.workers
        sides = range(2 * SMALLEST, SIDES[work.kind] + 1, SMALLEST)

        def longest_side() -> int:
            fitting = (side for side in sides if work.tile_bytes(side, width) <= size // 2 // self.workers)
            return max(fitting, default=SMALLEST)

        side = longest_side()
        while side < 128 and self.workers > 1:
            self.workers //= 2
            side = longest_side()
        most = max(THRESHOLDS, size // 8 // self.workers // THRESHOLD_BYTES)
        self.blocks = consecutive(offset, self.queries, most=most, side=side)
        self.symmetric = symmetric and count == gallery and 2 * count >= side * len(self.blocks)
        if not self.symmetric:  # wider tiles look less often at the same thresholds
            mean = int(offset[self.queries.stop] - offset[self.queries.start]) // max(1, count)
            most = min(most, max(side**2 // DENSE, NARROWEST * mean))
            self.blocks = consecutive(offset, self.queries, most=most, side=side)
        room = min(size // 2, PANELS[work.kind]) // work.row_bytes(exact)
        self.shared = self.symmetric and not rows.distance.squared
        fits = gallery + (0 if self.shared else count) <= room
        self.panel = max(gallery, count) if fits else room // 2
        longest = max((block.stop - block.start for block in self.blocks), default=1)
        fit = (size // 2 // self.workers - 16 * longest * width) // (longest * SCORE_BYTES[work.backend] + 16 * width)
        wide = max(side, min(side**2 // longest, fit, self.panel))
        starts = range(0, gallery, wide)
        self.others = self.blocks if self.symmetric else [slice(at, min(at + wide, gallery)) for at in starts]
        self.kinds = code_kinds(exact) if coded and work.compiled else ()
        self.coder = Coder(exact) if self.kinds else None
        nothing = Panel(slice(0, 0), {}, None)
        self._left, self._right = nothing, nothing
        self._buffers: dict[bool, Tensor] = {}  # by side; new ones for every panel would leave holes in the heap
        self._code_buffers: dict[bool, ByteCodes] = {}

    @property
    def num_tiles(self) -> int:
        count = len(self.blocks)
        return count * (count + 1) // 2 if self.symmetric else count * len(self.others)

    def rounds(self) -> Iterator[list[Tile]]:
        """Yield rounds of tiles, each to be done with before the next; of symmetric problems the upper triangle."""
        lefts = list(_groups(self.blocks, self.panel))
        rights = lefts if self.symmetric else list(_groups(self.others, self.panel))
        for number, left in enumerate(lefts):
            for right in rights[number if self.symmetric else 0 :]:
                panels = self._load(slice(left[0].start, left[-1].stop), slice(right[0].start, right[-1].stop))
                pairs = ((queries, gallery) for queries in left for gallery in right)
                tiles = [Tile(*pair, panels) for pair in pairs if not self.symmetric or pair[0].start <= pair[1].start]
                for start in range(0, len(tiles), TILES * self.workers):
                    yield tiles[start : start + TILES * self.workers]

    def run(
        self, make: Callable[[torch.device], Callable[[Tile], Any]], progress: ProgressCallback | None = None
    ) -> None:
        """Hand this process's share of all tiles to workers, each made for its device; processes meet every round."""
        idle: queue.SimpleQueue[tuple[torch.device, Callable[[Tile], Any]]] = queue.SimpleQueue()

        def work(tile: Tile) -> None:
            device, worker = idle.get()
            try:
                if device.type == "cuda":  # a new thread has no CUDA context, and device 0 for "cuda"
                    torch.cuda.set_device(device)
                worker(tile)
            finally:
                idle.put((device, worker))

        with full_precision(), one_thread_each(self.work.compiled):
            for slot in range(self.workers):
                device = self.work.devices[slot % len(self.work.devices)]
                idle.put((device, make(device)))
            done, threads = 0, torch.get_num_threads()  # each thread has its own number
            with ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
                try:
                    for tiles in self.rounds():
                        for job in [pool.submit(work, tile) for tile in self.work.group.shard(tiles)]:
                            job.result()
                        self.work.group.barrier()
                        done += len(tiles)
                        if progress is not None:
                            progress(done, self.num_tiles)
                finally:
                    pool.shutdown(wait=True, cancel_futures=True)

    def _load(self, left: slice, right: slice) -> tuple[Panel, Panel]:
        if self._left.rows != left:
            self._left = self._panel(left, gallery=False)
        if self.shared and left == right:
            self._right = self._left
        elif self._right.rows != right:
            self._right = self._panel(right, gallery=True)
        return self._left, self._right

    def _panel(self, rows: slice, *, gallery: bool) -> Panel:
        side, count = self.exact.gallery if gallery else self.exact.queries, rows.stop - rows.start
        kept = self._buffers.get(gallery)
        if kept is None or len(kept) < count:
            shape = count, side.distance.width(side.dim)
            kept = self._buffers[gallery] = torch.empty(shape, dtype=torch.float32, device=side.device)
        features: Shaped[Tensor, "row width"] = side.features(rows, torch.float32, gallery=gallery, out=kept[:count])
        codes = None
        if self.coder is not None:
            room = self._code_buffers.get(gallery)
            if room is None or len(room.planes) < count:
                room = self._code_buffers[gallery] = ByteCodes.empty(count, side.dim)
            codes = self.coder.codes(side, rows, room, gallery=gallery)
        return Panel(rows, {device: features.to(device) for device in self.work.devices}, codes)


def consecutive(
    offset: Int64[np.ndarray, " query_plus_one"], queries: slice, *, most: int, side: int | None = None
) -> list[slice]:
    """Cut a range of queries into blocks of at most so many thresholds, unless one query has more, and queries."""
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


Tier: TypeAlias = str | torch.dtype | None  # products of codes, products of features of a type, or exact scores
# Where more than this part of a tile's pairs are near a threshold, the next tier is cheaper than single scores.
NEAR: dict[Tier, float] = {HIGH: 1 / 48, BOTH: 1 / 32, torch.float32: 1 / 32, torch.float64: 1 / 8}
NEAR_COMPILED = NEAR | {torch.float32: 1 / 8}  # whose single products are faster
AGAIN = 16  # every so many tiles a thread begins with the fastest product again


class Thresholds:
    """Increasing thresholds, and what is counted for each: scores above it, and scores equal to it."""

    def __init__(
        self,
        scores: Float64[np.ndarray, " threshold"],
        queries: slice | None = None,
        offset: Int64[np.ndarray, " query_plus_one"] | None = None,
        kind: np.dtype[np.signedinteger] | type = np.int64,
    ) -> None:
        self.scores, self.queries = scores, queries
        self.offset = np.array([0, len(scores)]) if offset is None else offset
        self.above: Integer[np.ndarray, " threshold"] = np.zeros(len(scores), kind)
        self.tied: Integer[np.ndarray, " threshold"] = np.zeros(len(scores), kind)
        self.rechecked = np.zeros(1, np.int64)
        self._lock = threading.Lock()

    def entries(self, queries: slice) -> slice:
        if self.queries is None:
            return slice(0, len(self.scores))
        first = self.queries.start
        return slice(int(self.offset[queries.start - first]), int(self.offset[queries.stop - first]))

    def within(self, queries: slice) -> Int64[np.ndarray, " query_plus_one"]:
        if self.queries is None:
            return self.offset
        offset = self.offset[queries.start - self.queries.start : queries.stop - self.queries.start + 1]
        return np.asarray(offset - offset[0])

    def add(self, queries: slice, above: np.ndarray, tied: np.ndarray, rechecked: int) -> None:
        """Add what a tile has counted for these queries."""
        here = self.entries(queries)
        with self._lock:
            self.above[here] += above
            self.tied[here] += tied
            self.rechecked[0] += rechecked


def count_negatives(
    thresholds: Thresholds, problem: SortedProblem, tiles: Tiles, progress: ProgressCallback | None = None
) -> None:
    tiles.run(lambda device: TileCounter(thresholds, problem, tiles, device).count, progress)
    for sums in (thresholds.above, thresholds.tied, thresholds.rechecked):
        tiles.work.group.all_reduce(sums)


@dataclass(frozen=True)
class View:
    """Whose thresholds are counted in a tile: those of its rows, of its columns, or of all its pairs."""

    own: slice
    transposed: bool = False
    times: int = 1  # that the tile stands for


class TileCounter:
    """One thread's device, kernel and memory, and which tier decided its last tile."""

    def __init__(self, thresholds: Thresholds, problem: SortedProblem, tiles: Tiles, device: torch.device) -> None:
        self.thresholds, self.problem, self.exact = thresholds, problem, tiles.exact
        self.symmetric, self.compiled = tiles.symmetric, tiles.work.compiled
        self.distance, self.dim = self.exact.queries.distance, self.exact.queries.dim
        self.device, self.kernel = device, make_kernel(tiles.work.backend)
        self.memory = torch.empty(0, dtype=torch.uint8, device=device)
        self.near = NEAR_COMPILED if self.compiled else NEAR
        self.tiers: list[Tier] = [None]
        if self.exact.product_type is None:
            floats = [kind for kind in (torch.float32, torch.float64) if math.isfinite(self._error(kind))]
            self.tiers = [*tiles.kinds, *floats, None]
        self.fast = len(tiles.kinds)
        self.begun: Tile | None = None  # the tile whose scores by the high codes are in memory
        self.first = self.done = 0

    def count(self, tile: Tile) -> None:
        """Add to the counts what a tile says, by products or, where these decide too little, by exact scores."""
        twice = self.symmetric and tile.queries != tile.gallery
        if self.thresholds.queries is None:
            views = [View(tile.queries, times=1 + twice)]
        else:
            views = [View(tile.queries), *([View(tile.gallery, transposed=True)] if twice else [])]
        first = 0 if self.done % AGAIN == 0 else self.first
        self.done += 1
        for number, tier in enumerate(self.tiers[first:], first):
            scores = self._scores(tile, tier)
            exclude(self.problem, tile, scores, lone=self.thresholds.queries is None)
            if self._decides(tile, views, tier, scores):
                self.first = min(number, self.fast)
                return

    def _decides(self, tile: Tile, views: list[View], tier: Tier, scores: Tensor) -> bool:
        room = None if tier is None else int(scores.numel() * self.near[tier])
        edges = [self._edges(tile, view, tier) for view in views]
        shown = scores.view(1, -1) if self.thresholds.queries is None else scores
        counted = self.kernel.count(shown, edges, room=room)
        if counted is None:
            return False
        for view, around, (above, tied, at, other) in zip(views, edges, counted, strict=True):
            rechecked = 0 if self.exact.product_type is not None else scores.numel()
            if tier is not None:  # of exact scores the near ones tie
                tied[:] = rechecked = 0
                if len(other):
                    rechecked = self._decide_near(tile, view, tier, around, above, tied, at, other)
            self.thresholds.add(view.own, view.times * above, view.times * tied, rechecked)
        return True

    def _decide_near(
        self,
        tile: Tile,
        view: View,
        tier: Tier,
        edges: Edges,
        above: Integer[np.ndarray, " threshold"],
        tied: Integer[np.ndarray, " threshold"],
        at: Int64[np.ndarray, " pair"],
        other: Int64[np.ndarray, " pair"],
    ) -> int:
        """Decide each near pair by its exact score, where products of features in float64 do not; return how many."""
        threshold = self.thresholds.scores[self.thresholds.entries(view.own)][at]
        if self.thresholds.queries is None:
            row, column = np.divmod(other, tile.shape[1])
        else:
            row, column = np.searchsorted(edges.offset, at, side="right") - 1, other
            if view.transposed:
                row, column = column, row
        if tier != torch.float64 and self.compiled:
            from aurank.evaluation.engine import compiled

            left, right = (side.numpy() for side in tile.features(self.device))
            rough = self._error(torch.float32) if isinstance(tier, str) else math.inf
            bounds = self.distance.factor, rough, self.distance.feature_error(self.dim)
            unsure = compiled.decide(left, right, row, column, threshold, *bounds, at, above)
            row, column, threshold, at = row[unsure], column[unsure], threshold[unsure], at[unsure]
        score = self.exact.pairs(tile.queries.start + row, tile.gallery.start + column)
        np.add.at(above, at[score > threshold], 1)
        np.add.at(tied, at[score == threshold], 1)
        return len(at)

    def _edges(self, tile: Tile, view: View, tier: Tier) -> Edges:
        offset, low = self.thresholds.within(view.own), self.thresholds.scores[self.thresholds.entries(view.own)]
        high = low
        if isinstance(tier, str):
            own, others = tile.codes()[::-1] if view.transposed else tile.codes()
            error = own.error(others, tier, slack=4 * self._error(torch.float64))
            return code_edges(low, offset, error, self.distance.factor)
        if isinstance(tier, torch.dtype):
            kind = torch.empty(0, dtype=tier).numpy().dtype
            middle, room = low / self.distance.factor, self._error(tier)
            low, high = (middle - room).astype(kind), (middle + room).astype(kind)
        return Edges(offset, low, high)

    def _error(self, dtype: torch.dtype) -> float:
        return self.distance.error(self.dim, dtype)

    def _scores(self, tile: Tile, tier: Tier) -> Tensor:
        """Products of codes or features, or exact scores without a tier, in memory that every tile reuses."""
        size = tile.shape[0] * tile.shape[1]
        if isinstance(tier, str):
            memory = self._memory(8 * size)
            if tier == HIGH or self.begun is not tile:
                multiply_codes(*tile.codes(), HIGH, memory)
            self.begun = tile
            return multiply_codes(*tile.codes(), BOTH, memory) if tier == BOTH else scores_in(memory, tile.shape)
        self.begun = None
        kind = tier if isinstance(tier, torch.dtype) else torch.float64
        scores = self._memory(size * kind.itemsize).view(kind).view(tile.shape)
        if tier is None:
            self.exact.tile(tile.queries, tile.gallery, scores)
            return scores
        left, right = tile.features(self.device)
        if kind == torch.float64:
            left = self.exact.queries.features(tile.queries, kind, gallery=False).to(self.device)
            right = self.exact.gallery.features(tile.gallery, kind, gallery=True).to(self.device)
        return torch.mm(left, right.T, out=scores)

    def _memory(self, size: int) -> Tensor:
        if len(self.memory) < size:
            self.memory = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self.memory[:size]


def exclude(problem: SortedProblem, tile: Tile, scores: Tensor, *, lone: bool) -> None:
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
    if lone and not (counts := problem.num_positives[tile.queries]).all():
        scores[torch.from_numpy(counts == 0).to(scores.device)] = -math.inf


Counts: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Scores above and near each threshold, and the near pairs as (threshold, other)."""


def make_kernel(backend: str) -> Any:
    """Return a kernel for one thread, whose `count(scores, edges, room)` gives `Counts` for all edges of a tile.

    The first edges are of its rows, those behind, if any, of its columns. Counts are good until the next call; None
    where more than `room` pairs are near one side's. Without `room` none is listed.
    """
    if backend != "numba":
        return PlainKernel()
    from aurank.evaluation.engine.compiled import CompiledKernel  # numba takes most of a second

    return CompiledKernel()


PADDED = 2**20  # numbers in a block of thresholds that is padded to a rectangle


class PlainKernel:
    """A kernel of plain torch, by sorted search and histograms: how many scores pass how many edges of a query."""

    def count(self, scores: Tensor, edges: Sequence[Edges], *, room: int | None) -> list[Counts] | None:
        sides = [self._of_rows(*side, room) for side in zip((scores, scores.T), edges, strict=False)]
        counted = [side for side in sides if side is not None]
        return counted if len(counted) == len(edges) else None

    def _of_rows(self, scores: Tensor, edges: Edges, room: int | None) -> Counts | None:
        tile = scores.contiguous()
        counts = np.diff(edges.offset)
        above, near = (np.empty(len(edges.low), np.int32) for _ in range(2))
        pairs, left, stop = [(np.empty(0, np.int64),) * 2], math.inf if room is None else room, 0
        while stop < len(counts):
            # Queries with a threshold, few enough that padding them stays small.
            start = stop
            if not counts[start]:
                stop += 1
                continue
            most = np.maximum.accumulate(counts[start:])
            stop = start + max(1, int(np.searchsorted(most * np.arange(1, len(most) + 1), PADDED, side="right")))
            width, here = int(counts[start:stop].max()), slice(edges.offset[start], edges.offset[stop])
            query = np.repeat(np.arange(stop - start), counts[start:stop])
            place = query, np.arange(here.start, here.stop) - edges.offset[start:stop][query]
            # For each score, how many upper edges are below it and how many lower edges it reaches.
            passed, reached = (
                _search(tile[start:stop], side[here], place, right=right)
                for side, right in ((edges.high, False), (edges.low, True))
            )
            over = _at_least(passed, width)[place]
            above[here], near[here] = over, _at_least(reached, width)[place] - over
            if room is not None:
                left -= int(near[here].sum(dtype=np.int64))
                if left < 0:
                    return None
                pairs.append(_near_pairs(passed, reached, edges.offset[start:stop]))
        threshold, other = (np.concatenate(side) for side in zip(*pairs, strict=True))
        return above, near, threshold, other


def _search(tile: Tensor, edges: np.ndarray, place: tuple[np.ndarray, np.ndarray], *, right: bool) -> Tensor:
    padded = np.full((len(tile), place[1].max() + 1), math.inf, edges.dtype)
    padded[place] = edges
    return torch.searchsorted(torch.from_numpy(padded).to(tile.device), tile, right=right, out_int32=True)


def _at_least(found: Tensor, width: int) -> np.ndarray:
    """Return [query, place]: how many scores of the query pass more than `place` edges."""
    bins = width + 1
    start = torch.arange(0, found.shape[0] * bins, bins, device=found.device)
    histogram = torch.bincount((found + start[:, None]).view(-1), minlength=found.shape[0] * bins).view(-1, bins)
    return np.asarray(histogram.flip(1).cumsum(1).flip(1)[:, 1:].cpu().numpy())


def _near_pairs(passed: Tensor, reached: Tensor, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    query, other = torch.nonzero(reached > passed, as_tuple=True)
    first, last = (side[query, other].cpu().numpy().astype(np.int64) for side in (passed, reached))
    times = last - first
    step = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    start = offset[query.cpu().numpy()] + first
    return np.repeat(start, times) + step, np.repeat(other.cpu().numpy(), times)
