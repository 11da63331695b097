"""The top of each query's list: candidates by float32 products, put in the order of exact scores that ranks count.

Where a row beyond the candidates may reach the end of a list, by the error bound, float64 products look again.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from aurank.evaluation.engine.problem import Pairs, sort_by_label
from aurank.evaluation.engine.scores import ExactScores, full_precision
from aurank.evaluation.engine.tiles import Tile, Tiles
from aurank.evaluation.inputs import ProgressCallback, RetrievalProblem, Work, require_at_least

SPARE = 8  # candidates beyond k, so that rounding at the end of a list seldom asks for a second look
Positions = Int64[np.ndarray, "query k"]


@dataclass(frozen=True, eq=False)
class NearestRows:
    """The k nearest gallery rows of some queries, best first."""

    query: Int64[np.ndarray, " query"]  # row of the query
    row: Int64[np.ndarray, "query k"]
    score: Float64[np.ndarray, "query k"]  # exact; larger is closer
    is_positive: Bool[np.ndarray, "query k"]

    def first(self, k: int) -> "NearestRows":
        return NearestRows(self.query, self.row[:, :k], self.score[:, :k], self.is_positive[:, :k])


def nearest_rows(
    problem: RetrievalProblem,
    k: int,
    *,
    distance: str = "cosine",
    device: torch.device | str = "cpu",
    max_memory: int | str = "1GiB",
    progress: ProgressCallback | None = None,
) -> NearestRows:
    """Return the k nearest gallery rows of each query with a positive, by exact scores."""
    require_at_least(1, k=k)
    ordered = sort_by_label(problem)
    work = Work.of(problem.embeddings, device=device, max_memory=max_memory, distributed=False)
    gallery_index, rows = ordered.gallery_index, ordered.num_gallery
    exact = ExactScores(problem, ordered.query_index, gallery_index, distance=distance)

    def tied(query: Int64[np.ndarray, "*#shape"], position: Int64[np.ndarray, "*shape"]) -> Int64[np.ndarray, "*shape"]:
        return np.asarray(ordered.is_positive(query, position) * rows + gallery_index[position])

    chosen = np.flatnonzero(ordered.num_positives)
    chosen = chosen[np.argsort(ordered.query_index[chosen])]  # in the caller's order
    search = BestSearch(exact, ordered.hidden, tied, ordered.symmetric, work)
    position, score = search.run(k, chosen, progress)
    exists = position >= 0
    return NearestRows(
        query=ordered.query_index[chosen],
        row=np.where(exists, gallery_index[position], -1),
        score=np.where(exists, score, np.nan),
        is_positive=exists & ordered.is_positive(chosen[:, None], position),
    )


@dataclass(frozen=True, eq=False)
class BestSearch:
    """A search for the best positions: `hidden` lists left-out pairs of two ranges, `tied` orders equal scores."""

    exact: ExactScores
    hidden: Callable[[slice, slice], Pairs]
    tied: Callable[[Int64[np.ndarray, "*#shape"], Int64[np.ndarray, "*shape"]], Int64[np.ndarray, "*shape"]]
    symmetric: bool
    work: Work

    @full_precision()
    def run(
        self, k: int, chosen: Int64[np.ndarray, " query"], progress: ProgressCallback | None = None
    ) -> tuple[Positions, Float64[np.ndarray, "query k"]]:
        """Return positions and exact scores, best first, for some queries; -1 and -inf behind a shorter list."""
        size = len(self.exact.gallery.order)
        k, length = min(k, size), min(k + SPARE, size)
        value, candidates = (values[chosen] for values in self._candidates(length, progress))
        exists, score = candidates >= 0, np.full(candidates.shape, -np.inf)
        query = np.broadcast_to(chosen[:, None], candidates.shape)
        score[exists] = self.exact.pairs(query[exists], candidates[exists])
        order = np.lexsort((self.tied(query, candidates), -score), axis=1)[:, :k]
        position, score = np.take_along_axis(candidates, order, 1), np.take_along_axis(score, order, 1)
        if length == size:
            return position, score
        # What is no candidate has a score / factor of at most the last candidate's product and an error.
        last = value[:, -1].astype(np.float64)
        highest_missed = self.exact.factor * (last + self.exact.error(torch.float32))
        unsure = np.flatnonzero(np.isfinite(last) & ~(highest_missed < score[:, -1]))
        step = max(1, self.work.size // (24 * size))
        for start in range(0, len(unsure), step):
            part = unsure[start : start + step]
            position[part], score[part] = self._second_look(chosen[part], k)
        return position, score

    def _candidates(
        self, length: int, progress: ProgressCallback | None
    ) -> tuple[Float32[np.ndarray, "query length"], Int64[np.ndarray, "query length"]]:
        """Return the greatest float32 products of all queries and their positions; -inf and -1 where there are none."""
        tiles = Tiles(self.exact, self.work, symmetric=self.symmetric)
        shape = len(self.exact.queries.order), length
        values = torch.full(shape, -torch.inf, device=self.work.devices[0])
        positions = torch.full(shape, -1, dtype=torch.int64, device=values.device)
        locks = {block.start: threading.Lock() for block in tiles.blocks}
        loops = self.work.loops()

        def keep(queries: slice, scores: Tensor, start: int) -> None:
            value, position = values[queries], positions[queries]
            with locks[queries.start]:
                if loops is not None:
                    loops.keep_greatest(scores.numpy(), value.numpy(), position.numpy(), start)
                    return
                best = scores.topk(min(length, scores.shape[1]), dim=1)
                greatest, order = torch.cat([value, best.values.to(value.device)], dim=1).topk(length, dim=1)
                position.copy_(torch.cat([position, best.indices.to(value.device) + start], dim=1).gather(1, order))
                value.copy_(greatest)

        def make(device: torch.device) -> Callable[[Tile], None]:
            def search(tile: Tile) -> None:
                left, right = tile.features(device)
                scores = torch.mm(left, right.T)
                row, column = (torch.from_numpy(index).to(device) for index in self.hidden(tile.queries, tile.gallery))
                scores[row, column] = -torch.inf
                keep(tile.queries, scores, tile.gallery.start)
                if tiles.symmetric and tile.queries != tile.gallery:
                    keep(tile.gallery, scores.T.contiguous(), tile.queries.start)

            return search

        tiles.run(make, progress)
        positions[values == -torch.inf] = -1
        return values.cpu().numpy(), positions.cpu().numpy()

    def _second_look(
        self, query: Int64[np.ndarray, " query"], k: int
    ) -> tuple[Positions, Float64[np.ndarray, "query k"]]:
        """Return the lists of queries whose end float32 cannot tell, such as among duplicates, by float64 products."""
        size, kind = len(self.exact.gallery.order), torch.float64
        product = torch.empty(len(query), size, dtype=kind)
        rows = [self.exact.features(slice(row, row + 1), kind, gallery=False).cpu() for row in query.tolist()]
        for start in range(0, size, 2**13):
            part = slice(start, min(start + 2**13, size))
            right = self.exact.features(part, kind, gallery=True).cpu()
            torch.mm(torch.cat(rows), right.T, out=product[:, part])
        position, score = np.full((len(query), k), -1), np.full((len(query), k), -np.inf)
        for index, row in enumerate(query.tolist()):
            line = product[index].numpy()
            line[self.hidden(slice(row, row + 1), slice(0, size))[1]] = -np.inf
            lowest = np.partition(line, size - k)[size - k] - 2 * self.exact.error(kind)
            near = np.flatnonzero((line >= lowest) & (line > -np.inf))
            exact = self.exact.pairs(np.full(len(near), row), near)
            order = np.lexsort((self.tied(np.array([row]), near), -exact))[:k]
            position[index, : len(order)], score[index, : len(order)] = near[order], exact[order]
        return position, score
