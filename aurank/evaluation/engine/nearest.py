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

from aurank.evaluation.engine.codes import HIGH, UNIT, multiply_codes, scores_in
from aurank.evaluation.engine.problem import (
    Pairs,
    ProgressCallback,
    RetrievalProblem,
    require_at_least,
    sort_by_label,
)
from aurank.evaluation.engine.scores import ExactScores, full_precision
from aurank.evaluation.engine.tiles import AGAIN, NEAR, SIDES, Tile, Tiles, View, Work

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
        # What is no candidate has a score / factor of at most the last candidate's product and an error.
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
        tiles = Tiles(self.exact, self.work, symmetric=self.symmetric, coded=True)
        lists = Lists(tiles, wanted)
        tiles.run(lambda device: TileSearch(lists, tiles, self.hidden, device).search, progress)
        lists.place[lists.value == -torch.inf] = -1
        return lists.value.cpu().numpy(), lists.place.cpu().numpy()

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


class Lists:
    """The greatest float32 products of all queries, decreasing, and their places, which threads share."""

    def __init__(self, tiles: Tiles, wanted: int) -> None:
        self.value = torch.full((len(tiles.exact.queries.order), wanted), -torch.inf, device=tiles.work.devices[0])
        self.place = torch.full(self.value.shape, -1, dtype=torch.int64, device=self.value.device)
        self.locks = {block.start: threading.Lock() for block in tiles.blocks}

    def bars(self, view: View, error: float) -> Float32[np.ndarray, " query"]:
        """Return what a score with this error exceeds where the score / factor exceeds the end of a list."""
        ends = self.value[view.own, -1].numpy()
        return np.asarray(ends - (error + 4 * UNIT * np.abs(ends)).astype(np.float32) if error else ends.copy())

    def keep(self, view: View, scores: Tensor, start: int, pairs: Int64[np.ndarray, "2 pair"]) -> None:
        """Put the products of pairs of a tile into the lists, by numba."""
        from aurank.evaluation.engine.compiled import keep_greatest

        value, place = self.value[view.own].numpy(), self.place[view.own].numpy()
        with self.locks[view.own.start]:
            keep_greatest(scores.numpy(), pairs, value, place, start, view.transposed)

    def keep_all(self, view: View, product: Tensor, start: int) -> None:
        """Put all products of a tile into the lists, by torch."""
        value, place = self.value[view.own], self.place[view.own]
        scores = product.T if view.transposed else product
        best = scores.topk(min(value.shape[1], scores.shape[1]), dim=1)
        values, places = best.values.to(value.device), (best.indices + start).to(value.device)
        with self.locks[view.own.start]:
            kept, order = torch.cat([value, values], dim=1).topk(value.shape[1], dim=1)
            place.copy_(torch.cat([place, places], dim=1).gather(1, order))
            value.copy_(kept)


class TileSearch:
    """One thread of a search for the greatest products, and its memory."""

    def __init__(
        self, lists: Lists, tiles: Tiles, hidden: Callable[[slice, slice], Pairs], device: torch.device
    ) -> None:
        self.lists, self.tiles, self.hidden = lists, tiles, hidden
        parts = tiles.blocks, tiles.others
        rows, columns = (max((part.stop - part.start for part in side), default=0) for side in parts)
        self.memory = torch.empty(8 * rows * columns, dtype=torch.uint8, device=device)
        self.pairs = np.empty((2, columns + int(NEAR[HIGH] * rows * columns)), np.int64)
        self.decided, self.done = True, 0  # whether codes have decided the last tile

    def search(self, tile: Tile) -> None:
        """Put what is great enough of a tile into the lists of its rows and, of a symmetric search, its columns."""
        views = [View(tile.queries)]
        if self.tiles.symmetric and tile.queries != tile.gallery:
            views.append(View(tile.gallery, transposed=True))
        if self.tiles.work.compiled:
            self._compiled(tile, views)
            return
        product = self._scores(tile, coded=False)
        for view, other in zip(views, (tile.gallery, tile.queries), strict=False):
            self.lists.keep_all(view, product, other.start)

    def _compiled(self, tile: Tile, views: list[View]) -> None:
        """Search by codes, and by float32 products once too many of them may be as great as the ends of lists."""
        from aurank.evaluation.engine.compiled import multiply_pairs, reaching

        coded, error, first = bool(self.tiles.kinds) and (self.decided or self.done % AGAIN == 0), 0.0, 0
        self.done += 1
        if coded:
            distance, (own, others) = self.tiles.exact.queries.distance, tile.codes()
            slack = 4 * distance.error(self.tiles.exact.queries.dim, torch.float64)
            error = float(own.error(others, HIGH, slack).max())
        scores = self._scores(tile, coded=coded)
        self.decided = coded
        while first < len(scores):
            bars = [self.lists.bars(view, error) for view in views]
            bars += [np.full(tile.shape[1], np.inf, np.float32)] * (2 - len(bars))
            found, after = reaching(scores.numpy(), *bars, first, self.pairs)
            if coded and after < len(scores):
                coded = self.decided = False
                error, scores = 0.0, self._scores(tile, coded=False)
                continue
            first, pairs = after, self.pairs[:, :found]
            if coded:
                multiply_pairs(scores.numpy(), *(side.numpy() for side in tile.features(scores.device)), pairs)
            for view, other in zip(views, (tile.gallery, tile.queries), strict=False):
                self.lists.keep(view, scores, other.start, pairs)

    def _scores(self, tile: Tile, *, coded: bool) -> Float32[Tensor, "row column"]:
        memory = self.memory[: 8 * math.prod(tile.shape)]
        if coded:
            scores = multiply_codes(*tile.codes(), HIGH, memory)
        else:
            left, right = tile.features(memory.device)
            scores = torch.mm(left, right.T, out=scores_in(memory, tile.shape))
        row, column = (torch.from_numpy(index).to(memory.device) for index in self.hidden(tile.queries, tile.gallery))
        scores[row, column] = -torch.inf
        return scores
