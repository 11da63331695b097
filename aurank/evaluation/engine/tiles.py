"""How a count is cut into tiles, rounds and panels, so that memory stays below a bound whatever the gallery."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from aurank.errors import UserError
from aurank.evaluation.engine.positives import Matching

SIDES = {"cpu": 768, "cuda": 8192}  # of a tile: on the CPU it is counted while in cache
SMALLEST = 16
PANELS = {"cpu": 2**26, "cuda": 2**40}  # bytes of features at once: more would save the CPU next to nothing
# A whole round is done before the next begins, so rounds are long; but after each the team meets and progress shows.
TILES = 128  # of a round, for each worker
SCORE_BYTES = {
    "numba": 11,
    "triton": 11,
    "torch": 48,
}  # for each score of a tile: float64, near pairs, torch's searches
THRESHOLD_BYTES = 40  # edges and counts, for each threshold of a tile
THRESHOLDS = 2**14  # of a tile, always allowed: fewer would make slivers of tiles where classes are large


@dataclass(frozen=True)
class Round:
    """Tiles (lines, gallery positions) between two panels, whose features are in memory together."""

    left: slice
    right: slice
    tiles: list[tuple[slice, slice]]


class Plan:
    """Tiles of at most `side` by `side` scores for `workers` threads, within `size` bytes.

    Half of the memory goes to the workers, half to the features of two panels, which are one and the same where a set
    is its own gallery and its features are `shared` by both sides. Line blocks are cut shorter where they
    have many thresholds. Raises UserError where not even the smallest tiles fit, with the least that would do.
    """

    def __init__(
        self, matching: Matching, *, width: int, shared: bool, size: int, workers: int, backend: str, device: str
    ) -> None:
        self.matching = matching
        least = 2 * max(_worker_bytes(SMALLEST, width, backend), 2 * SMALLEST * 4 * width)
        if size < least:
            raise UserError(f"max_memory is {size} bytes: embeddings of this width need at least {least}")
        self.workers = workers
        self.side = _side(size // 2 // workers, width, backend, SIDES[device])
        while self.side < 128 and self.workers > 1:
            self.workers //= 2
            self.side = _side(size // 2 // self.workers, width, backend, SIDES[device])
        most = max(THRESHOLDS, size // 8 // self.workers // THRESHOLD_BYTES)
        self.blocks = _blocks(matching.offset, self.side, most)
        self.others = self.blocks if matching.symmetric else _cuts(len(matching.gallery), self.side)
        rows = min(size // 2, PANELS[device]) // (4 * width)
        fits = len(matching.gallery) + (0 if matching.symmetric and shared else len(matching.queries)) <= rows
        self.panel = max(len(matching.gallery), len(matching.queries)) if fits else rows // 2

    @property
    def num_tiles(self) -> int:
        """Tiles of all rounds."""
        count = len(self.blocks)
        return count * (count + 1) // 2 if self.matching.symmetric else count * len(self.others)

    def rounds(self) -> Iterator[Round]:
        """All rounds; those with equal panels follow each other. In symmetric matchings, upper triangles only."""
        lefts = list(_groups(self.blocks, self.panel))
        rights = lefts if self.matching.symmetric else list(_groups(self.others, self.panel))
        for number, left in enumerate(lefts):
            for other, right in enumerate(rights):
                if self.matching.symmetric and other < number:
                    continue
                pairs = ((rows, columns) for rows in left for columns in right)
                tiles = [pair for pair in pairs if not self.matching.symmetric or pair[0].start <= pair[1].start]
                ends = slice(left[0].start, left[-1].stop), slice(right[0].start, right[-1].stop)
                for start in range(0, len(tiles), TILES * self.workers):
                    yield Round(*ends, tiles[start : start + TILES * self.workers])


def _worker_bytes(side: int, width: int, backend: str) -> int:
    """Scores and near pairs of a tile, and the float64 rows and features of its two sides."""
    return side * side * SCORE_BYTES[backend] + 4 * side * width * 8


def _side(size: int, width: int, backend: str, most: int) -> int:
    side = SMALLEST
    while side < most and _worker_bytes(side + SMALLEST, width, backend) <= size:
        side += SMALLEST
    return side


def _cuts(rows: int, side: int) -> list[slice]:
    return [slice(start, min(start + side, rows)) for start in range(0, rows, side)]


def _blocks(offset: Int64[np.ndarray, " line_plus_one"], side: int, most: int) -> list[slice]:
    """Consecutive lines, at most `side` of them, with at most `most` thresholds unless a single line has more."""
    blocks, start, lines = [], 0, len(offset) - 1
    while start < lines:
        stop = int(np.searchsorted(offset, offset[start] + most, side="right")) - 1
        stop = min(max(stop, start + 1), start + side, lines)
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
