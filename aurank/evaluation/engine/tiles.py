"""How a count is cut into tiles, rounds and panels, so that memory stays below a bound whatever the gallery."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from aurank.evaluation.engine.codes import CODE_BYTES
from aurank.evaluation.engine.inputs import Vectors
from aurank.evaluation.engine.positives import SortedProblem

SIDES = {"cpu": 768, "cuda": 8192}  # of a tile: on the CPU it is counted while in cache
SMALLEST = 16
PANELS = {"cpu": 7 * 2**24, "cuda": 2**40}  # bytes of features and codes: more would save the CPU next to nothing
# A whole round is done before the next begins, so rounds are long; but after each processes meet and progress shows.
TILES = 128  # of a round, for each worker
SCORE_BYTES = {"numba": 11, "torch": 48}  # a score of a tile: float64, near pairs, torch's searches
THRESHOLD_BYTES = 40  # edges and counts, for each threshold of a tile
DENSE, NARROWEST = 8, 32  # scores to a threshold in tiles of one side, and the fewest queries that are cut for it
THRESHOLDS = 2**14  # of a tile, always allowed: fewer would make slivers of tiles where classes are large


@dataclass(frozen=True)
class Round:
    """Tiles (range of sorted queries, range of the sorted gallery) between two panels, held in memory together."""

    left: slice
    right: slice
    tiles: list[tuple[slice, slice]]


class Tiling:
    """Cut a range of queries into tiles of about `side` by `side` scores for `workers` threads, within `size` bytes.

    Half of the memory goes to the workers, half to the features of two panels, which are one and the same where a set
    is its own gallery and its features serve both sides. Blocks of queries are cut shorter where they have many
    thresholds, and the tiles of others are then wider. A tile serves both of its sides where the range is the whole set
    and its own gallery, unless blocks come out so short that wide tiles are faster.
    """

    def __init__(
        self,
        problem: SortedProblem,
        rows: Vectors,
        queries: slice,
        *,
        size: int,
        workers: int,
        backend: str,
        device: str,
    ) -> None:
        self.queries, width, shared = queries, rows.distance.width(rows.dim), not rows.distance.squared
        self.workers, self.backend = workers, backend
        self.side = _side(size // 2 // workers, width, backend, SIDES[device])
        while self.side < 128 and self.workers > 1:
            self.workers //= 2
            self.side = _side(size // 2 // self.workers, width, backend, SIDES[device])
        count, gallery = queries.stop - queries.start, len(problem.gallery_index)
        most = max(THRESHOLDS, size // 8 // self.workers // THRESHOLD_BYTES)
        self.blocks = consecutive(problem.offset, queries, most=most, side=self.side)
        self.symmetric = problem.symmetric and count == gallery and 2 * count >= self.side * len(self.blocks)
        if not self.symmetric:  # wider tiles look less often at the same thresholds
            mean = int(problem.offset[queries.stop] - problem.offset[queries.start]) // max(1, count)
            most = min(most, max(self.side**2 // DENSE, NARROWEST * mean))
            self.blocks = consecutive(problem.offset, queries, most=most, side=self.side)
        room = min(size // 2, PANELS[device]) // _row_bytes(rows, backend)
        fits = gallery + (0 if self.symmetric and shared else count) <= room
        self.panel = max(gallery, count) if fits else room // 2
        wide = max(self.side, min(self._widest(size // 2 // self.workers, width), self.panel))
        starts = range(0, gallery, wide)
        self.others = self.blocks if self.symmetric else [slice(at, min(at + wide, gallery)) for at in starts]

    def _widest(self, size: int, width: int) -> int:
        """Return how many others the longest block may meet in one tile, in so many bytes and no more scores."""
        most = max((block.stop - block.start for block in self.blocks), default=1)
        fit = (size - 16 * most * width) // (most * SCORE_BYTES[self.backend] + 16 * width)
        return min(self.side**2 // most, fit)

    @property
    def num_tiles(self) -> int:
        """Tiles of all rounds."""
        count = len(self.blocks)
        return count * (count + 1) // 2 if self.symmetric else count * len(self.others)

    def rounds(self) -> Iterator[Round]:
        """Yield all rounds; those with equal panels follow each other. Of symmetric problems the upper triangle."""
        lefts = list(_groups(self.blocks, self.panel))
        rights = lefts if self.symmetric else list(_groups(self.others, self.panel))
        for number, left in enumerate(lefts):
            for right in rights[number if self.symmetric else 0 :]:
                pairs = ((queries, gallery) for queries in left for gallery in right)
                tiles = [pair for pair in pairs if not self.symmetric or pair[0].start <= pair[1].start]
                ends = slice(left[0].start, left[-1].stop), slice(right[0].start, right[-1].stop)
                for start in range(0, len(tiles), TILES * self.workers):
                    yield Round(*ends, tiles[start : start + TILES * self.workers])


def tile_memory(rows: Vectors, *, workers: int, backend: str, device: str) -> tuple[int, int]:
    """Return the least bytes that tiles can do with, and the most that they have a use for."""
    width = rows.distance.width(rows.dim)
    least = 2 * max(_worker_bytes(SMALLEST, width, backend), 2 * SMALLEST * _row_bytes(rows, backend))
    return least, 2 * max(workers * _worker_bytes(SIDES[device], width, backend), PANELS[device])


def _row_bytes(rows: Vectors, backend: str) -> int:
    """Features of a row, and its codes where there may be some; not asked whether, so that all processes cut alike."""
    return 4 * rows.distance.width(rows.dim) + (CODE_BYTES[0] * rows.dim + CODE_BYTES[1]) * (backend == "numba")


def _worker_bytes(side: int, width: int, backend: str) -> int:
    """Scores and near pairs of a tile, and the float64 rows and features of its two sides."""
    return side * side * SCORE_BYTES[backend] + 4 * side * width * 8


def _side(size: int, width: int, backend: str, most: int) -> int:
    sides = range(2 * SMALLEST, most + 1, SMALLEST)
    return max((side for side in sides if _worker_bytes(side, width, backend) <= size), default=SMALLEST)


def consecutive(
    offset: Int64[np.ndarray, " sorted_query_plus_one"], queries: slice, *, most: int, side: int | None = None
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
