"""The one way to the best of a gallery: candidates by float32 products, put in order by exact scores.

A list is certain where no row beyond the candidates can reach its end, by the error bound of the products. The few
lists of which that is not known are taken again by float64 products.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from aurank.evaluation.engine.exact import ExactScores
from aurank.evaluation.engine.inputs import ProgressCallback
from aurank.evaluation.engine.kernels import importable
from aurank.evaluation.engine.scores import full_precision
from aurank.evaluation.engine.tiles import SIDES

SPARE = 8  # candidates beyond k, so that rounding at the end of a list seldom asks for a second look
SMALLEST = 16  # side of a tile
Places = Int64[np.ndarray, "query k"]


@dataclass(frozen=True, eq=False)
class BestPlaces:
    """Places of the gallery with their exact scores, best first; -1 and minus infinity behind a shorter list."""

    place: Places
    score: Float64[np.ndarray, "query k"]


@runtime_checkable
class Hidden(Protocol):
    """What queries must not find."""

    def within(self, here: slice, there: slice) -> tuple[Int64[np.ndarray, " hidden"], Int64[np.ndarray, " hidden"]]:
        """Return the pairs of a range of queries and a range of the gallery, counted from the starts of both."""
        ...


@dataclass(frozen=True, eq=False)
class HiddenPlaces:
    """The places that each query must not find, increasing: query i's are `place[offset[i] : offset[i + 1]]`."""

    offset: Int64[np.ndarray, " query_plus_one"]
    place: Int64[np.ndarray, " hidden"]

    @classmethod
    def of(cls, query: Int64[np.ndarray, " pair"], place: Int64[np.ndarray, " pair"], queries: int) -> "HiddenPlaces":
        """Return the places of pairs that increase."""
        return cls(np.concatenate([[0], np.cumsum(np.bincount(query, minlength=queries))]), place)

    def within(self, here: slice, there: slice) -> tuple[Int64[np.ndarray, " hidden"], Int64[np.ndarray, " hidden"]]:
        """As the protocol says."""
        offset = self.offset[here.start : here.stop + 1]
        place = self.place[offset[0] : offset[-1]] - there.start
        inside = (place >= 0) & (place < there.stop - there.start)
        return np.repeat(np.arange(len(offset) - 1), np.diff(offset))[inside], place[inside]


@dataclass(frozen=True, eq=False)
class BestSearch:
    """A search for the best places of the gallery.

    Args:
        exact: scores of both sides.
        hidden: what each query must not find.
        tied: called with queries and places, gives numbers by which equal scores are ordered, lowest first.
        symmetric: query i scores with place j as query j with place i, and what is hidden is so both ways.
        device: where float32 products are taken.
    """

    exact: ExactScores
    hidden: Hidden
    tied: Callable[[Int64[np.ndarray, "*#shape"], Int64[np.ndarray, "*shape"]], Int64[np.ndarray, "*shape"]]
    symmetric: bool
    device: torch.device

    @full_precision()
    def run(
        self,
        k: int,
        chosen: Int64[np.ndarray, " query"],
        *,
        memory: int,
        progress: ProgressCallback | None = None,
    ) -> BestPlaces:
        """Return the lists of some queries, at most as long as the gallery."""
        k, wanted = min(k, self.size), min(k + SPARE, self.size)
        value, place = (found[chosen] for found in self._candidates(wanted, memory, progress))
        lists = self._ordered(chosen, place, k)
        if wanted == self.size:
            return lists
        # What is no candidate has a product of at most the last candidate's.
        distance = self.exact.queries.distance
        last = value[:, -1].astype(np.float64)
        highest_missed = distance.factor * (last + distance.error(self.exact.queries.dim, torch.float32))
        unsure = np.flatnonzero(np.isfinite(last) & ~(highest_missed < lists.score[:, -1]))
        step = max(1, memory // (24 * self.size))
        for start in range(0, len(unsure), step):
            some = unsure[start : start + step]
            lists.place[some], lists.score[some] = self._second_look(chosen[some], k)
        return lists

    @property
    def size(self) -> int:
        """Rows of the gallery."""
        return len(self.exact.gallery.order)

    def _candidates(
        self, wanted: int, memory: int, progress: ProgressCallback | None
    ) -> tuple[Float32[np.ndarray, "query wanted"], Int64[np.ndarray, "query wanted"]]:
        """Return the greatest float32 products of all queries, and where they are; -inf and -1 where there are fewer.

        Of a symmetric search a tile serves its rows and its columns.
        """
        queries, gallery, left = self.exact.queries, self.exact.gallery, torch.empty(0)
        value = torch.full((len(queries.order), wanted), -torch.inf, device=self.device)
        place = torch.full(value.shape, -1, dtype=torch.int64, device=self.device)
        blocks, others = (self._blocks(size, memory) for size in (len(value), self.size))
        tiles = [
            (here, there) for here in blocks for there in others if not self.symmetric or here.start <= there.start
        ]
        before = None
        for done, (here, there) in enumerate(tiles, 1):
            if here != before:
                before, left = here, queries.features(here, torch.float32, gallery=False).to(self.device)
            product = left @ gallery.features(there, torch.float32, gallery=True).to(self.device).T
            row, column = (torch.from_numpy(index).to(self.device) for index in self.hidden.within(here, there))
            product[row, column] = -torch.inf
            _keep(value[here], place[here], product, there.start, transposed=False)
            if self.symmetric and here != there:
                _keep(value[there], place[there], product, here.start, transposed=True)
            if progress is not None and there == others[-1]:
                progress(done, len(tiles))
        place[value == -torch.inf] = -1
        return value.cpu().numpy(), place.cpu().numpy()

    def _blocks(self, size: int, memory: int) -> list[slice]:
        """Return ranges so short that a tile with its two sides fits into memory."""
        side, width = SIDES[self.device.type], self.exact.queries.distance.width(self.exact.queries.dim)
        while side > SMALLEST and 4 * (2 * side * side + 2 * side * width) > memory:
            side //= 2
        return [slice(start, min(start + side, size)) for start in range(0, size, side)]

    def _ordered(self, query: Int64[np.ndarray, " query"], place: Places, k: int) -> BestPlaces:
        """Return the k best candidates of each query by their exact scores."""
        exists = place >= 0
        score = np.full(place.shape, -np.inf)
        score[exists] = self.exact.pairs(np.broadcast_to(query[:, None], place.shape)[exists], place[exists])
        order = np.lexsort((self.tied(query[:, None], place), -score), axis=1)[:, :k]
        return BestPlaces(np.take_along_axis(place, order, 1), np.take_along_axis(score, order, 1))

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
            product[index, self.hidden.within(slice(one, one + 1), slice(0, self.size))[1]] = -torch.inf
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
        """For each place of the gallery the first one that holds the same numbers."""
        first: dict[bytes, int] = {}
        places = []
        for start in range(0, self.size, SIDES["cuda"]):
            rows = self.exact.gallery.raw(slice(start, min(start + SIDES["cuda"], self.size))).cpu().numpy()
            places += [first.setdefault(blake2b(row.tobytes()).digest(), start + i) for i, row in enumerate(rows)]
        return np.array(places)


def _keep(value: Tensor, place: Tensor, product: Tensor, start: int, *, transposed: bool) -> None:
    """Put into lists of products and their places what is greater in a tile whose other side begins at `start`.

    The lists are those of the rows, or, transposed, of the columns.
    """
    if not product.is_cuda and importable("numba"):
        from aurank.evaluation.engine.kernels.lists import keep_greatest

        keep_greatest(product.numpy(), value.numpy(), place.numpy(), start, transposed)
        return
    best = (product.T if transposed else product).topk(
        min(value.shape[1], product.shape[0 if transposed else 1]), dim=1
    )
    kept, order = torch.cat([value, best.values], dim=1).topk(value.shape[1], dim=1)
    place.copy_(torch.cat([place, best.indices + start], dim=1).gather(1, order))
    value.copy_(kept)
