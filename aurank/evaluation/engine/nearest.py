"""The top of each query's list: the nearest gallery rows, in the order that the ranks count."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from aurank.errors import UserError
from aurank.evaluation.engine.exact import ExactScores
from aurank.evaluation.engine.inputs import ProgressCallback, byte_count
from aurank.evaluation.engine.kernels import importable
from aurank.evaluation.engine.positives import SortedProblem, among, places_of, sort_by_label
from aurank.evaluation.engine.problem import RetrievalProblem
from aurank.evaluation.engine.scores import full_precision

SPARE = 8  # candidates beyond k, so that rounding at the end of a list seldom asks for a second look
QUERIES, GALLERY = 2048, 8192  # of a tile where memory allows


@dataclass(frozen=True, eq=False)
class NearestRows:
    """The k nearest gallery rows of some queries, best first.

    What a query may not find (itself, junk, ignored pairs) is not there. Among equal scores negatives come first, then
    the order of the gallery: a positive stands at its `Ranks.rank`. A shorter list ends in row -1, score NaN.
    """

    query: Int64[np.ndarray, " query"]  # row of the query
    row: Int64[np.ndarray, "query k"]
    score: Float64[np.ndarray, "query k"]  # exact; larger is closer
    is_positive: Bool[np.ndarray, "query k"]


def nearest_rows(
    problem: RetrievalProblem,
    k: int,
    *,
    queries: Int64[np.ndarray, " query"] | None = None,
    distance: str = "cosine",
    device: torch.device | str = "cpu",
    max_memory: int | str = "1GiB",
    progress: ProgressCallback | None = None,
) -> NearestRows:
    """Return the k nearest gallery rows of each query, by the exact scores that the ranks are counted from.

    Args:
        problem: as for `rank_positives`.
        k: length of a list; a gallery that offers less makes it shorter.
        queries: rows of the queries wanted; default: all with a positive, in the caller's order.
        distance: "cosine", "dot" or "euclidean".
        device: where products are taken.
        max_memory: bound of the working memory; the lists, and what `positive_ranks` names, come on top.
        progress: called as progress(done, total) now and then.

    Raises:
        UserError: k below 1, a query that has no positive, and whatever `positive_ranks` refuses.

    Example:
        >>> problem = RetrievalProblem(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1]]), labels=[0, 0, 1])
        >>> nearest = nearest_rows(problem, 2)
        >>> nearest.row.tolist(), nearest.is_positive.tolist()
        ([[2, 1], [2, 0]], [[False, True], [False, True]])
    """
    if k < 1:
        raise UserError(f"k must be 1 or more, got {k}")
    ordered = sort_by_label(problem)
    place = places_of(ordered.query_index, len(ordered.labels))
    if queries is None:
        queries = np.sort(ordered.query_index[ordered.num_positives > 0])
    chosen = place[queries]
    if (lone := chosen < 0).any() or (lone := ordered.num_positives[chosen] == 0).any():
        raise UserError(f"query {queries[lone][0]} has no positive, so it is not ranked: choose among the others")
    with full_precision():
        search = _Search(problem, ordered, chosen, distance=distance, device=torch.device(device))
        found = search.run(k, byte_count(max_memory), progress)
    exists = found.place >= 0
    return NearestRows(
        query=np.asarray(queries, np.int64),
        row=np.where(exists, ordered.gallery_index[found.place], -1),
        score=np.where(exists, found.score, np.nan),
        is_positive=exists & search.is_positive(chosen[:, None], found.place),
    )


@dataclass(frozen=True, eq=False)
class _Lists:
    """Places in the sorted gallery with their scores, best first."""

    place: Int64[np.ndarray, "query k"]
    score: Float64[np.ndarray, "query k"]


class _Search:
    """One search of the queries at the places `chosen` among the sorted queries."""

    def __init__(
        self,
        problem: RetrievalProblem,
        ordered: SortedProblem,
        chosen: Int64[np.ndarray, " query"],
        *,
        distance: str,
        device: torch.device,
    ) -> None:
        orders = (ordered.query_index[chosen], ordered.gallery_index)
        self.exact = ExactScores.of(problem, *orders, distance=distance, compiled=importable("numba"))
        self.queries, self.gallery, self.distance = self.exact.queries, self.exact.gallery, self.exact.queries.distance
        self.ordered, self.chosen, self.device = ordered, chosen, device
        self.size = len(ordered.gallery_index)

    def run(self, k: int, memory: int, progress: ProgressCallback | None) -> _Lists:
        """Return the lists of all chosen queries."""
        wanted = min(k + SPARE, self.size)
        value, place = self._candidates(wanted, memory, progress)
        k = min(k, self.size)
        lists = self._ordered(np.arange(len(self.chosen)), place, k)
        # Rows that are no candidates have a product of at most the last candidate's.
        error = self.distance.error(self.queries.dim, torch.float32)
        highest_missed = self.distance.factor * (value[:, -1].astype(np.float64) + error)
        unsure = np.isfinite(value[:, -1]) & ~(highest_missed < lists.score[:, -1])
        if wanted < self.size and unsure.any():
            step = max(1, memory // (24 * self.size))
            for some in np.split(np.flatnonzero(unsure), range(step, int(unsure.sum()), step)):
                again = self._second_look(some, k)
                lists.place[some], lists.score[some] = again.place, again.score
        return lists

    def is_positive(
        self, query: Int64[np.ndarray, "*#shape"], place: Int64[np.ndarray, "*shape"]
    ) -> Bool[np.ndarray, "*shape"]:
        """Return which places of the sorted gallery are positives of a sorted query."""
        return among(query * self.size + place, self._positives)

    @cached_property
    def _positives(self) -> Int64[np.ndarray, " positive"]:
        """All pairs of a sorted query and its positive as increasing numbers."""
        query = np.repeat(np.arange(len(self.ordered.query_index)), self.ordered.num_positives)
        return np.asarray(query * self.size + self.ordered.positives)

    def _candidates(
        self, wanted: int, memory: int, progress: ProgressCallback | None
    ) -> tuple[Float32[np.ndarray, "query wanted"], Int64[np.ndarray, "query wanted"]]:
        """Return the greatest float32 products of each query, and where they are; -inf and -1 where there are fewer."""
        rows, columns = len(self.chosen), self.size
        high, wide = self._tile(memory)
        value = torch.full((rows, wanted), -torch.inf, device=self.device)
        place = torch.full((rows, wanted), -1, dtype=torch.int64, device=self.device)
        for start in range(0, columns, wide):
            there = slice(start, min(start + wide, columns))
            features = self.gallery.features(there, torch.float32, gallery=True).to(self.device)
            for first in range(0, rows, high):
                here = slice(first, min(first + high, rows))
                product = self.queries.features(here, torch.float32, gallery=False).to(self.device) @ features.T
                for query, hidden in self._hidden(here, there):
                    product[query, hidden] = -torch.inf
                best = product.topk(min(wanted, product.shape[1]), dim=1)
                both = torch.cat([value[here], best.values], dim=1)
                value[here], order = both.topk(wanted, dim=1)
                place[here] = torch.cat([place[here], best.indices + start], dim=1).gather(1, order)
            if progress is not None:
                progress(there.stop, columns)
        place[value == -torch.inf] = -1
        return value.cpu().numpy(), place.cpu().numpy()

    def _tile(self, memory: int) -> tuple[int, int]:
        """Return how many queries and gallery rows fit into a tile."""
        high, wide, width = QUERIES, GALLERY, self.distance.width(self.queries.dim)
        while high * wide > 1 and 4 * (2 * high * wide + (high + wide) * width) > memory:
            high, wide = max(1, high // 2), max(1, wide // 2)
        return high, wide

    def _hidden(self, here: slice, there: slice) -> Iterator[tuple[Int64[Tensor, " pair"], Int64[Tensor, " pair"]]]:
        """Yield the pairs within a tile that are neither positive nor negative."""
        ordered, queries = self.ordered, self.chosen[here]
        start, stop = (
            np.clip(side[queries], there.start, there.stop) for side in (ordered.class_start, ordered.class_stop)
        )
        counts = stop - start
        query = np.repeat(np.arange(len(queries)), counts)
        place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - start, counts)
        extra = np.diff(ordered.extra_offset)[queries]
        extra_query = np.repeat(np.arange(len(queries)), extra)
        entry = np.arange(extra.sum()) - np.repeat(np.cumsum(extra) - extra - ordered.extra_offset[queries], extra)
        inside = (ordered.extra[entry] >= there.start) & (ordered.extra[entry] < there.stop)
        for pair_query, pair_place in ((query, place), (extra_query[inside], ordered.extra[entry][inside])):
            hidden = ~self.is_positive(queries[pair_query], pair_place)
            if hidden.any():
                at = pair_place[hidden] - there.start
                yield torch.from_numpy(pair_query[hidden]).to(self.device), torch.from_numpy(at).to(self.device)

    def _ordered(
        self, query: Int64[np.ndarray, " query"], place: Int64[np.ndarray, "query candidate"], k: int
    ) -> _Lists:
        """Return the k best candidates of each query by their exact scores; -1 and -inf behind a shorter list."""
        exists = place >= 0
        score = np.full(place.shape, -np.inf)
        score[exists] = self.exact.pairs(np.broadcast_to(query[:, None], place.shape)[exists], place[exists])
        positive = self.is_positive(self.chosen[query][:, None], place)
        order = np.lexsort((self.ordered.gallery_index[place], positive, -score), axis=1)[:, :k]
        return _Lists(np.take_along_axis(place, order, 1), np.take_along_axis(score, order, 1))

    def _second_look(self, query: Int64[np.ndarray, " query"], k: int) -> _Lists:
        """Return the lists of queries whose end float32 cannot tell, such as among duplicates, by float64 products."""
        product = torch.empty(len(query), self.size, dtype=torch.float64)
        rows = [
            self.queries.features(slice(one, one + 1), torch.float64, gallery=False).cpu() for one in query.tolist()
        ]
        for start in range(0, self.size, GALLERY):
            there = slice(start, min(start + GALLERY, self.size))
            torch.mm(
                torch.cat(rows),
                self.gallery.features(there, torch.float64, gallery=True).cpu().T,
                out=product[:, there],
            )
            for index, one in enumerate(query.tolist()):
                for _, hidden in self._hidden(slice(one, one + 1), there):
                    product[index, start + hidden.cpu()] = -torch.inf
        lowest = product.topk(k, dim=1).values[:, -1:] - 2 * self.distance.error(self.queries.dim, torch.float64)
        near = (product >= lowest) & (product > -torch.inf)
        lists = _Lists(np.full((len(query), k), -1), np.full((len(query), k), -np.inf))
        for index, one in enumerate(query.tolist()):
            place = near[index].nonzero()[:, 0].numpy()
            same, entry = np.unique(self._first_equal[place], return_inverse=True)
            score = self.exact.pairs(np.full(len(same), one), same)[entry]
            positive = self.is_positive(self.chosen[one : one + 1], place)
            order = np.lexsort((self.ordered.gallery_index[place], positive, -score))[:k]
            lists.place[index, : len(order)], lists.score[index, : len(order)] = place[order], score[order]
        return lists

    @cached_property
    def _first_equal(self) -> Int64[np.ndarray, " gallery"]:
        """For each place of the sorted gallery the first one that holds the same numbers."""
        first: dict[bytes, int] = {}
        places = []
        for start in range(0, self.size, GALLERY):
            rows = self.gallery.raw(slice(start, min(start + GALLERY, self.size))).cpu().numpy()
            places += [first.setdefault(blake2b(row.tobytes()).digest(), start + i) for i, row in enumerate(rows)]
        return np.array(places)
