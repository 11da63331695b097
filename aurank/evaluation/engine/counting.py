"""How many negatives score above, and how many tie with, each threshold: tiles of scores, counted in parallel.

Thresholds are of each query, such as the exact scores of its positives, or of all pairs together. A tile of products
decides every score that is farther from each threshold than the product's error bound. A score that is *near* is taken
again, exactly, and there is above the threshold, below it, or **a tie**. Where too many are near (a collapsed model),
the tile goes to the next tier: products of codes, float32, float64, then exact scores throughout, where it begins if
products of the rows are exact (`ExactScores.product_type`). Hence a count never depends on how it was found. Positives,
and pairs that are left out, are set to minus infinity, which nothing counts.
"""

import math
import threading
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64, Integer
from torch import Tensor

from aurank.evaluation.engine.codes import BOTH, HIGH, code_edges, multiply_codes, scores_in
from aurank.evaluation.engine.inputs import ProgressCallback
from aurank.evaluation.engine.kernels import Edges, make_kernel
from aurank.evaluation.engine.positives import SortedProblem
from aurank.evaluation.engine.tiles import Tile, Tiles

Tier: TypeAlias = str | torch.dtype | None  # products of codes, products of features of a type, or exact scores
# Where more than this part of a tile's pairs are near a threshold, the next tier is cheaper than single scores.
NEAR: dict[Tier, float] = {HIGH: 1 / 48, BOTH: 1 / 32, torch.float32: 1 / 32, torch.float64: 1 / 8}
AGAIN = 16  # every so many tiles a thread begins with the fastest product again


class Thresholds:
    """Increasing thresholds, and what is counted for each: scores above it, and scores equal to it.

    Those of query i, counted from the first of `queries`, are `scores[offset[i] : offset[i + 1]]`. With `queries` None
    they are of all pairs together.
    """

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
        """Return where the thresholds of some queries are."""
        if self.queries is None:
            return slice(0, len(self.scores))
        first = self.queries.start
        return slice(int(self.offset[queries.start - first]), int(self.offset[queries.stop - first]))

    def within(self, queries: slice) -> Int64[np.ndarray, " query_plus_one"]:
        """Return the offsets of the thresholds of some queries, from 0."""
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
    """Count all negatives, over all processes."""
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
        self.tiers: list[Tier] = [None]
        if self.exact.product_type is None:
            floats = [kind for kind in (torch.float32, torch.float64) if math.isfinite(self._error(kind))]
            self.tiers = [*tiles.kinds, *floats, None]
        self.fast = len(tiles.kinds)
        self.begun: Tile | None = None  # the tile whose scores by the high codes are in memory
        self.first = self.done = 0

    def count(self, tile: Tile) -> None:
        """Add to the counts what a tile says, by products or, where these decide too little, by exact scores.

        It begins with the tier that decided the tile before, but now and then with the fastest.
        """
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
            views = [view for view in views if not self._decides(tile, view, tier, scores)]
            if not views:
                self.first = min(number, self.fast)
                return

    def _decides(self, tile: Tile, view: View, tier: Tier, scores: Tensor) -> bool:
        """Count the scores of a tier for some thresholds; False, and nothing, where too many are near one."""
        room = None if tier is None else int(scores.numel() * NEAR[tier])
        edges = self._edges(tile, view, tier)
        shown = scores.view(1, -1) if self.thresholds.queries is None else scores
        counted = self.kernel.count(shown, edges, transposed=view.transposed, room=room)
        if counted is None:
            return False
        above, tied = counted.above, counted.near  # of exact scores the near ones tie
        rechecked = 0 if self.exact.product_type is not None else scores.numel()
        if tier is not None:
            tied, rechecked = np.zeros_like(above), 0
            if len(counted.other):
                rechecked = self._decide_near(tile, view, tier, edges, above, tied, counted.threshold, counted.other)
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
            row, column = np.repeat(np.arange(len(edges.offset) - 1), np.diff(edges.offset))[at], other
            if view.transposed:
                row, column = column, row
        if tier != torch.float64 and self.compiled:
            from aurank.evaluation.engine.kernels import pairs

            left, right = (side.numpy() for side in tile.features(self.device))
            bounds = self.distance.factor, self.distance.feature_error(self.dim)
            unsure = pairs.decide(left, right, row, column, threshold, *bounds, at, above)
            row, column, threshold, at = row[unsure], column[unsure], threshold[unsure], at[unsure]
        score = self.exact.pairs(tile.queries.start + row, tile.gallery.start + column)
        np.add.at(above, at[score > threshold], 1)
        np.add.at(tied, at[score == threshold], 1)
        return len(at)

    def _edges(self, tile: Tile, view: View, tier: Tier) -> Edges:
        """Return the thresholds with edges, between which scores of this tier decide nothing."""
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
        """Return so many bytes; fresh pages for every tile would cost more than the product."""
        if len(self.memory) < size:
            self.memory = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self.memory[:size]


def exclude(problem: SortedProblem, tile: Tile, scores: Tensor, *, lone: bool) -> None:
    """Set to minus infinity the scores of positives and of whatever else a query does not compete with.

    With `lone` also all scores of queries that have no positive.
    """
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
