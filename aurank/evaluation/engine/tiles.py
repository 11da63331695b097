"""The one generator of tiles: some sorted queries against some of the gallery, whatever the gallery in bounded memory.

Ranks, counts over all pairs and lists of neighbours are read from these tiles. Tiles come in rounds, between two panels
of rows whose features, and codes, are held in memory together.
"""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor
from typing_extensions import Unpack

from aurank.distributed import ProcessGroup
from aurank.evaluation.engine.codes import ByteCodes, Coder, code_kinds
from aurank.evaluation.engine.inputs import Devices, Embeddings, ProgressCallback, byte_count, choose_devices
from aurank.evaluation.engine.kernels import check_backend
from aurank.evaluation.engine.scores import ExactScores, full_precision, one_thread_each

SIDES = {"cpu": 768, "cuda": 8192}  # of a tile: on the CPU it is counted while in cache
SMALLEST = 16
PANELS = {"cpu": 7 * 2**24, "cuda": 2**40}  # bytes of features and codes: more would save the CPU next to nothing
GPU_WORKERS = 2  # while a GPU computes one tile, the next is made ready
# A whole round is done before the next begins, so rounds are long; but after each processes meet and progress shows.
TILES = 128  # of a round, for each worker
SCORE_BYTES = {"numba": 11, "torch": 48}  # a score of a tile: float64, near pairs, torch's searches
THRESHOLD_BYTES = 40  # edges and counts, for each threshold of a tile
DENSE, NARROWEST = 8, 32  # scores to a threshold in tiles of one side, and the fewest queries that are cut for it
THRESHOLDS = 2**14  # of a tile, always allowed: fewer would make slivers of tiles where classes are large


class How(TypedDict, total=False):
    """How tiles are computed, as `positive_ranks` describes it."""

    backend: str
    device: Devices
    max_memory: int | str
    distributed: bool | str | None


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
        """Whether compiled loops count."""
        return self.backend == "numba"

    @property
    def kind(self) -> str:
        """The kind of device."""
        return self.devices[0].type

    def bounds(self, exact: ExactScores) -> tuple[int, int]:
        """Return the least bytes that tiles of these rows can do with, and the most that they have a use for."""
        rows = exact.queries
        width = rows.distance.width(rows.dim)
        least = 2 * max(self.tile_bytes(SMALLEST, width), 2 * SMALLEST * self.row_bytes(exact))
        return least, 2 * max(self.workers * self.tile_bytes(SIDES[self.kind], width), PANELS[self.kind])

    def row_bytes(self, exact: ExactScores) -> int:
        """Features of a row, and its codes where there may be some; not asked whether, so that all cut alike."""
        rows = exact.queries
        return 4 * rows.distance.width(rows.dim) + (3 * rows.dim + 48) * self.compiled

    def tile_bytes(self, side: int, width: int) -> int:
        """Scores and near pairs of a tile, and the float64 rows and features of its two sides."""
        return side * side * SCORE_BYTES[self.backend] + 4 * side * width * 8


@dataclass(frozen=True, eq=False)
class Panel:
    """Consecutive places of one side with their float32 features on each device and, if used, their codes."""

    rows: slice
    features: dict[torch.device, Tensor]
    codes: ByteCodes | None

    def within(self, rows: slice) -> slice:
        """Return where in the panel some of its places are."""
        return slice(rows.start - self.rows.start, rows.stop - self.rows.start)


@dataclass(frozen=True, eq=False)
class Tile:
    """Some sorted queries against some of the sorted gallery."""

    queries: slice
    gallery: slice
    panels: tuple[Panel, Panel]

    @property
    def shape(self) -> tuple[int, int]:
        """Queries, and gallery rows."""
        return self.queries.stop - self.queries.start, self.gallery.stop - self.gallery.start

    def features(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the float32 features of both sides."""
        left, right = self.panels
        return left.features[device][left.within(self.queries)], right.features[device][right.within(self.gallery)]

    def codes(self) -> tuple[ByteCodes, ByteCodes]:
        """Return the codes of both sides."""
        left, right = self.panels
        assert left.codes is not None
        assert right.codes is not None
        return left.codes.part(left.within(self.queries)), right.codes.part(right.within(self.gallery))


class Tiles:
    """Tiles of a range of queries against the whole gallery, of about `side` by `side` scores, within `size` bytes.

    Half of the memory goes to the workers, half to the features of two panels, which are one and the same where a set
    is its own gallery and its features serve both sides. Where `offset` says that queries have many thresholds, their
    blocks are cut shorter, and tiles are then wider. If `symmetric`, a tile serves both of its sides, unless
    blocks come out so short that wide tiles are faster.
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
        side = self._side(size, width)
        while side < 128 and self.workers > 1:
            self.workers //= 2
            side = self._side(size, width)
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

    def _side(self, size: int, width: int) -> int:
        sides = range(2 * SMALLEST, SIDES[self.work.kind] + 1, SMALLEST)
        fitting = (side for side in sides if self.work.tile_bytes(side, width) <= size // 2 // self.workers)
        return max(fitting, default=SMALLEST)

    @property
    def num_tiles(self) -> int:
        """Tiles of all rounds."""
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
        """Return both panels, made unless they are there already."""
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
    """Consecutive blocks, together at most `rows` long unless a single one is longer."""
    group: list[slice] = []
    for block in blocks:
        if group and block.stop - group[0].start > rows:
            yield group
            group = []
        group.append(block)
    if group:
        yield group
