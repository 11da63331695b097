"""The kernel in plain torch: for any device, and where nothing else can be had."""

import math

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from aurank.evaluation.engine.kernels import Counted, Lines

PADDED = 2**20  # numbers in a block of thresholds that is padded to a rectangle


class PlainKernel:
    """`Kernel` by sorted search and histograms: in each line, how many scores pass how many of its edges."""

    def count(self, scores: Tensor, lines: Lines, *, transposed: bool, room: int | None) -> Counted | None:
        """As the protocol says."""
        tile = scores.T.contiguous() if transposed else scores
        above, near = (np.empty(len(lines.low), np.int32) for _ in range(2))
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        left = math.inf if room is None else room
        for rows in _pieces(lines.offset):
            passed, reached, place = _search(tile[rows], lines, rows)
            here = slice(lines.offset[rows.start], lines.offset[rows.stop])
            width = int(np.diff(lines.offset[rows.start : rows.stop + 1]).max())
            over = _at_least(passed, width)[place]
            above[here] = over
            near[here] = _at_least(reached, width)[place] - over
            if room is not None:
                left -= int(near[here].sum(dtype=np.int64))
                if left < 0:
                    return None
                pairs.append(_near_pairs(passed, reached, lines.offset[rows]))
        threshold, other = (
            (np.concatenate(side) for side in zip(*pairs, strict=True)) if pairs else (np.empty(0, np.int64),) * 2
        )
        return Counted(above, near, threshold, other)


def _pieces(offset: Int64[np.ndarray, " line_plus_one"]) -> list[slice]:
    """Consecutive lines that have a threshold, few enough that padding them stays small."""
    counts, pieces, start = np.diff(offset), [], 0
    while start < len(counts):
        if not counts[start]:
            start += 1
            continue
        most = np.maximum.accumulate(counts[start:])
        stop = start + max(1, int(np.searchsorted(most * np.arange(1, len(most) + 1), PADDED, side="right")))
        pieces.append(slice(start, stop))
        start = stop
    return pieces


def _search(tile: Tensor, lines: Lines, rows: slice) -> tuple[Tensor, Tensor, tuple[np.ndarray, np.ndarray]]:
    """For each score of these lines, how many upper edges are below it and how many lower edges it reaches.

    And where, in a rectangle of line by place, each threshold stands.
    """
    offset = lines.offset[rows.start : rows.stop + 1]
    counts = np.diff(offset)
    line = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(offset[0], offset[-1]) - np.repeat(offset[:-1], counts)
    sides = []
    for edges, right in ((lines.high, False), (lines.low, True)):
        padded = np.full((len(counts), counts.max()), math.inf, edges.dtype)
        padded[line, place] = edges[offset[0] : offset[-1]]
        sides.append(torch.searchsorted(torch.from_numpy(padded).to(tile.device), tile, right=right, out_int32=True))
    return sides[0], sides[1], (line, place)


def _at_least(found: Tensor, width: int) -> np.ndarray:
    """[line, place]: scores of the line that pass more than `place` edges."""
    bins = width + 1
    start = torch.arange(0, found.shape[0] * bins, bins, device=found.device)
    histogram = torch.bincount((found + start[:, None]).view(-1), minlength=found.shape[0] * bins).view(-1, bins)
    return np.asarray(histogram.flip(1).cumsum(1).flip(1)[:, 1:].cpu().numpy())


def _near_pairs(passed: Tensor, reached: Tensor, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    line, other = torch.nonzero(reached > passed, as_tuple=True)
    first, last = (side[line, other].cpu().numpy().astype(np.int64) for side in (passed, reached))
    times = last - first
    step = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    start = offset[line.cpu().numpy()] + first
    return np.repeat(start, times) + step, np.repeat(other.cpu().numpy(), times)
