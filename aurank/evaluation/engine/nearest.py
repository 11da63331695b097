"""The top of each query's list: candidates by float32 products, put in the order of exact scores that ranks count.

Where a row beyond the candidates may reach the end of a list, by the error bound, float64 products look again.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from aurank.evaluation.engine.problem import (
    Pairs,
    ProgressCallback,
    RetrievalProblem,
    importable,
    require_at_least,
    sort_by_label,
)
from aurank.evaluation.engine.scores import ExactScores, full_precision
from aurank.evaluation.engine.tiles import SIDES, Tile, Tiles, Work

SPARE = 8  # candidates beyond k, so that rounding at the end of a list seldom asks for a second look
Places = Int64[np.ndarray, "query k"]


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
    exact = ExactScores.of(problem, ordered.query_index, gallery_index, distance=distance)

    def hidden(here: slice, there: slice) -> Pairs:
        query, place = ordered.hidden(here, there)
        return query - here.start, place - there.start

    def tied(query: Int64[np.ndarray, "*#shape"], place: Int64[np.ndarray, "*shape"]) -> Int64[np.ndarray, "*shape"]:
        return np.asarray(ordered.is_positive(query, place) * rows + gallery_index[place])

    chosen = np.flatnonzero(ordered.num_positives)
    chosen = chosen[np.argsort(ordered.query_index[chosen])]  # in the caller's order
    place, score = BestSearch(exact, hidden, tied, ordered.symmetric, work).run(k, chosen, progress)
    exists = place >= 0
    return NearestRows(
        query=ordered.query_index[chosen],
        row=np.where(exists, gallery_index[place], -1),
        score=np.where(exists, score, np.nan),
        is_positive=exists & ordered.is_positive(chosen[:, None], place),
    )


@dataclass(frozen=True, eq=False)
class BestSearch:
    """A search for the best places of the gallery."""

    exact: ExactScores
    hidden: Callable[[slice, slice], Pairs]
    tied: Callable[[Int64[np.ndarray, "*#shape"], Int64[np.ndarray, "*shape"]], Int64[np.ndarray, "*shape"]]
    symmetric: bool
    work: Work

    @full_precision()
    def run(
        self, k: int, chosen: Int64[np.ndarray, " query"], progress: ProgressCallback | None = None
    ) -> tuple[Places, Float64[np.ndarray, "query k"]]:
        """Return places and exact scores, best first, for some queries; -1 and minus infinity behind a shorter list."""
        k, wanted = min(k, self.size), min(k + SPARE, self.size)
        value, place = (found[chosen] for found in self._candidates(wanted, progress))
        lists = place, score = self._ordered(chosen, place, k)
        if wanted == self.size:
            return lists
        # What is no candidate has a product of at most the last candidate's.
        distance = self.exact.queries.distance
        last = value[:, -1].astype(np.float64)
        highest_missed = distance.factor * (last + distance.error(self.exact.queries.dim, torch.float32))
        unsure = np.flatnonzero(np.isfinite(last) & ~(highest_missed < score[:, -1]))
        step = max(1, self.work.size // (24 * self.size))
        for start in range(0, len(unsure), step):
            some = unsure[start : start + step]
            place[some], score[some] = self._second_look(chosen[some], k)
        return lists

    @property
    def size(self) -> int:
        return len(self.exact.gallery.order)

    def _candidates(
        self, wanted: int, progress: ProgressCallback | None
    ) -> tuple[Float32[np.ndarray, "query wanted"], Int64[np.ndarray, "query wanted"]]:
        """Return the greatest float32 products of all queries and their places; -inf and -1 where there are fewer."""
        tiles = Tiles(self.exact, self.work, symmetric=self.symmetric)
        value = torch.full((len(self.exact.queries.order), wanted), -torch.inf, device=self.work.devices[0])
        place = torch.full(value.shape, -1, dtype=torch.int64, device=value.device)
        sides = ((part.stop - part.start for part in parts) for parts in (tiles.blocks, tiles.others))
        largest = math.prod(max(side, default=0) for side in sides)
        locks = {block.start: threading.Lock() for block in tiles.blocks}

        def searcher(device: torch.device) -> Callable[[Tile], None]:
            memory = torch.empty(largest, device=device)

            def search(tile: Tile) -> None:
                here, there = tile.queries, tile.gallery
                left, right = tile.features(device)
                product = torch.mm(left, right.T, out=memory[: math.prod(tile.shape)].view(tile.shape))
                row, column = (torch.from_numpy(index).to(device) for index in self.hidden(here, there))
                product[row, column] = -torch.inf
                with locks[here.start]:
                    _keep(value[here], place[here], product, there.start, transposed=False)
                if tiles.symmetric and here != there:
                    with locks[there.start]:
                        _keep(value[there], place[there], product, here.start, transposed=True)

            return search

        tiles.run(searcher, progress)
        place[value == -torch.inf] = -1
        return value.cpu().numpy(), place.cpu().numpy()

    def _ordered(
        self, query: Int64[np.ndarray, " query"], place: Int64[np.ndarray, "query wanted"], k: int
    ) -> tuple[Places, Float64[np.ndarray, "query k"]]:
        exists = place >= 0
        score = np.full(place.shape, -np.inf)
        score[exists] = self.exact.pairs(np.broadcast_to(query[:, None], place.shape)[exists], place[exists])
        order = np.lexsort((self.tied(query[:, None], place), -score), axis=1)[:, :k]
        return np.take_along_axis(place, order, 1), np.take_along_axis(score, order, 1)

    def _second_look(self, query: Int64[np.ndarray, " query"], k: int) -> tuple[Places, Float64[np.ndarray, "query k"]]:
        """Return the lists of queries whose end float32 cannot tell, such as among duplicates, by float64 products."""
        queries, gallery = self.exact.queries, self.exact.gallery
        product = torch.empty(len(query), self.size, dtype=torch.float64)
        rows = [queries.features(slice(one, one + 1), torch.float64, gallery=False).cpu() for one in query.tolist()]
        left = torch.cat(rows)
        for start in range(0, self.size, SIDES["cuda"]):
            there = slice(start, min(start + SIDES["cuda"], self.size))
            right = gallery.features(there, torch.float64, gallery=True).cpu()
            torch.mm(left, right.T, out=product[:, there])
        for index, one in enumerate(query.tolist()):
            product[index, self.hidden(slice(one, one + 1), slice(0, self.size))[1]] = -torch.inf
        lowest = product.topk(k, dim=1).values[:, -1:] - 2 * queries.distance.error(queries.dim, torch.float64)
        near = (product >= lowest) & (product > -torch.inf)
        place, score = np.full((len(query), k), -1), np.full((len(query), k), -np.inf)
        for index, one in enumerate(query.tolist()):
            found = near[index].nonzero()[:, 0].numpy()
            same, entry = np.unique(self._first_equal[found], return_inverse=True)
            exact = self.exact.pairs(np.full(len(same), one), same)[entry]
            order = np.lexsort((self.tied(np.array([one]), found), -exact))[:k]
            place[index, : len(order)], score[index, : len(order)] = found[order], exact[order]
        return place, score

    @cached_property
    def _first_equal(self) -> Int64[np.ndarray, " gallery"]:
        first: dict[bytes, int] = {}
        places = []
        for start in range(0, self.size, SIDES["cuda"]):
            rows = self.exact.gallery.raw(slice(start, min(start + SIDES["cuda"], self.size))).cpu().numpy()
            places += [first.setdefault(blake2b(row.tobytes()).digest(), start + i) for i, row in enumerate(rows)]
        return np.array(places)


def _keep(value: Tensor, place: Tensor, product: Tensor, start: int, *, transposed: bool) -> None:
    if not product.is_cuda and importable("numba"):
        from aurank.evaluation.engine.compiled import keep_greatest

        keep_greatest(product.numpy(), value.numpy(), place.numpy(), start, transposed)
        return
    best = (product.T if transposed else product).topk(
        min(value.shape[1], product.shape[0 if transposed else 1]), dim=1
    )
    kept, order = torch.cat([value, best.values], dim=1).topk(value.shape[1], dim=1)
    place.copy_(torch.cat([place, best.indices + start], dim=1).gather(1, order))
    value.copy_(kept)
