"""The kernel in plain torch: for any device, and where nothing else can be had."""

import math

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from aurank.evaluation.engine.kernels import Counted, Edges

PADDED = 2**20  # numbers in a block of thresholds that is padded to a rectangle


class PlainKernel:
    """A kernel by sorted search and histograms: for each query, how many scores pass how many of its edges."""

    def count(self, scores: Tensor, edges: Edges, *, transposed: bool, room: int | None) -> Counted | None:
        """As `make_kernel` says."""
        tile = scores.T.contiguous() if transposed else scores
        above, near = (np.empty(len(edges.low), np.int32) for _ in range(2))
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        left = math.inf if room is None else room
        for queries in _pieces(edges.offset):
            passed, reached, place = _search(tile[queries], edges, queries)
            here = slice(edges.offset[queries.start], edges.offset[queries.stop])
            width = int(np.diff(edges.offset[queries.start : queries.stop + 1]).max())
            over = _at_least(passed, width)[place]
            above[here] = over
            near[here] = _at_least(reached, width)[place] - over
            if room is not None:
                left -= int(near[here].sum(dtype=np.int64))
                if left < 0:
                    return None
                pairs.append(_near_pairs(passed, reached, edges.offset[queries]))
        threshold, other = (
            (np.concatenate(side) for side in zip(*pairs, strict=True)) if pairs else (np.empty(0, np.int64),) * 2
        )
        return Counted(above, near, threshold, other)


def _pieces(offset: Int64[np.ndarray, " query_plus_one"]) -> list[slice]:
    """Return slices of queries that have a threshold, few enough that padding them stays small."""
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


def _search(tile: Tensor, edges: Edges, queries: slice) -> tuple[Tensor, Tensor, tuple[np.ndarray, np.ndarray]]:
    """Return for each score of these queries how many upper edges are below it and how many lower edges it reaches.

    And where, in a rectangle of query by place, each threshold stands.
    """
    offset = edges.offset[queries.start : queries.stop + 1]
    counts = np.diff(offset)
    query = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(offset[0], offset[-1]) - np.repeat(offset[:-1], counts)
    sides = []
    for side, right in ((edges.high, False), (edges.low, True)):
        padded = np.full((len(counts), counts.max()), math.inf, side.dtype)
        padded[query, place] = side[offset[0] : offset[-1]]
        sides.append(torch.searchsorted(torch.from_numpy(padded).to(tile.device), tile, right=right, out_int32=True))
    return sides[0], sides[1], (query, place)


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
