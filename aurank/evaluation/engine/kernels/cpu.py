"""The kernel for the processor: compiled counting over a tile that is still in cache."""

import numpy as np
from torch import Tensor

from aurank.evaluation.engine.kernels import Counted, Lines, compiled

PADDING = 16  # numbers beyond a power of two, so that the lines of a strip do not share a cache set


class CompiledKernel:
    """`Kernel` in compiled loops; keeps its memory from tile to tile, since fresh pages cost more than the counting."""

    def __init__(self) -> None:
        self.above = self.near = np.empty(0, np.int32)
        self.work = np.empty((3, 0), np.int32)
        self.strip = np.empty((0, 0), np.float32)
        self.pairs = np.empty((2, 0), np.int64)

    def count(self, scores: Tensor, lines: Lines, *, transposed: bool, room: int | None) -> Counted | None:
        """As the protocol says."""
        tile, size = scores.numpy(), len(lines.low)
        self._reserve(size, int(np.diff(lines.offset).max(initial=0)), room or 0)
        above, near = self.above[:size], self.near[:size]
        pairs = self.pairs[:0] if room is None else self.pairs[:, :room]
        shared = (tile, lines.offset, lines.low, lines.high, above, near, self.work, pairs)
        if transposed:
            if self.strip.dtype != tile.dtype or self.strip.shape[1] < len(tile) + PADDING:
                self.strip = np.empty((compiled.STRIP, len(tile) + PADDING), tile.dtype)
            found = compiled.count_columns(*shared, self.strip)
        else:
            found = compiled.count_rows(*shared)
        return None if found < 0 else Counted(above, near, self.pairs[0, :found], self.pairs[1, :found])

    def _reserve(self, thresholds: int, most: int, pairs: int) -> None:
        if len(self.above) < thresholds:
            self.above, self.near = np.empty(thresholds, np.int32), np.empty(thresholds, np.int32)
        width = max(compiled.CELLS, most + 1)
        if self.work.shape[1] < width:
            self.work = np.empty((3, width), np.int32)
        if self.pairs.shape[1] < pairs:
            self.pairs = np.empty((2, pairs), np.int64)
