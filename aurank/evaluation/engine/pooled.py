"""Scores of all pairs under one threshold for all queries: positives as a list, negatives counted in bounded memory.

`Ranks` compare scores within a query. Here the pairs of all queries are one pool, so that a single threshold tells
matches from non-matches. Negatives are far too many to keep: each pass over the tiles counts how many score at least as
high as given edges. A product decides every score that is farther from each edge than its error bound; the others are
taken again, exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from aurank.distributed import ProcessGroup
from aurank.evaluation.engine.counting import NEAR, Tile, exclude
from aurank.evaluation.engine.exact import ExactScores
from aurank.evaluation.engine.inputs import ProgressCallback, byte_count
from aurank.evaluation.engine.kernels import importable
from aurank.evaluation.engine.positives import require_room, sort_by_label
from aurank.evaluation.engine.problem import RetrievalProblem
from aurank.evaluation.engine.scores import full_precision
from aurank.evaluation.engine.shards import gather_shards

SIDE, SMALLEST = 4096, 64  # of a tile
SCORE_BYTES = 64  # of a score in a tile: its product, where that lies, and all of a near pair
CELLS = 1024  # of the first look at all negatives


@dataclass(frozen=True, eq=False)
class Zones:
    """What products of one type decide about edges: zones around them, in which a score is taken exactly."""

    bounds: Tensor  # zone i holds the products above bounds[2 * i], up to bounds[2 * i + 1]
    zone: Int64[np.ndarray, " edge"]  # in which each edge lies

    @classmethod
    def around(
        cls, edges: Float64[np.ndarray, " edge"], error: float, dtype: torch.dtype, device: torch.device
    ) -> "Zones":
        """Return the zones that reach so far around increasing edges, which are in units of products."""
        kind = torch.empty(0, dtype=dtype).numpy().dtype.type
        # Outwards, whatever the rounding to this type did; a zone's lower bound is not in it.
        low = np.nextafter(np.nextafter((edges - error).astype(kind), kind(-np.inf)), kind(-np.inf))
        high = np.nextafter((edges + error).astype(kind), kind(np.inf))
        new = np.concatenate([np.ones(min(len(edges), 1), bool), low[1:] > high[:-1]])
        last = np.concatenate([new[1:], np.ones(min(len(edges), 1), bool)])
        bounds = np.stack([low[new], high[last]], axis=1).reshape(-1)
        return cls(torch.from_numpy(bounds).to(device), np.cumsum(new) - 1)


class PooledScores:
    """The exact scores of all positive pairs, and counts of negative ones; of queries that have a positive.

    Args:
        problem: as for `rank_positives`; under several processes each gives its rows, as there.
        distance: "cosine", "dot" or "euclidean".
        device: where products are taken.
        max_memory: bound of the working memory; the embeddings and a few numbers per positive come on top.
        distributed: as for `rank_positives`.
        progress: called as progress(done, total) in every pass over the negatives.

    Example:
        >>> problem = RetrievalProblem(np.array([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), labels=[0, 0, 1])
        >>> scores = PooledScores(problem)
        >>> scores.positives.tolist(), scores.num_negatives
        ([0.8, 0.8], 2)
        >>> scores.negatives_at_least(np.array([0.5, 0.8])).tolist()
        [2, 1]
    """

    def __init__(
        self,
        problem: RetrievalProblem,
        *,
        distance: str = "cosine",
        device: torch.device | str = "cpu",
        max_memory: int | str = "1GiB",
        distributed: bool | str | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        self.group = ProcessGroup(distributed)
        if self.group.size > 1:
            problem = gather_shards(self.group, problem, shards=distributed == "shards")
        ordered = self.ordered = sort_by_label(problem)
        require_room(int(ordered.offset[-1]))
        orders = (ordered.query_index, ordered.gallery_index)
        self.exact = ExactScores.of(problem, *orders, distance=distance, compiled=importable("numba"))
        self.device, self.progress = torch.device(device), progress
        self.distance, self.dim = self.exact.queries.distance, self.exact.queries.dim
        self.side = SIDE
        room = byte_count(max_memory)
        while (
            self.side > SMALLEST and self.side**2 * SCORE_BYTES + self.side * self.distance.width(self.dim) * 40 > room
        ):
            self.side //= 2
        counts = ordered.num_positives
        self.positives_each, self.labels = counts, ordered.labels[ordered.query_index]  # of each sorted query
        self.unit = "query" if problem.labels is None else "class"  # of the labels
        self.positive_query, place = ordered.positives(slice(0, len(counts)))
        scores = self.exact.pairs(self.positive_query, place)
        order = np.argsort(scores, kind="stable")
        self.positives: Float64[np.ndarray, " positive"] = scores[order]  # increasing
        self.positive_query = self.positive_query[order]  # the sorted query of each
        self.negatives_each = np.where(counts > 0, ordered.num_negatives, 0)
        self.num_positives, self.num_negatives = len(scores), int(self.negatives_each.sum())

    def bracket(
        self, scores: Float64[np.ndarray, " score"]
    ) -> tuple[Int64[np.ndarray, " score"], Int64[np.ndarray, " score"]]:
        """Return at least and at most how many negatives score so high, from one look at all of them."""
        bounds, above = self._cells
        middle, error = scores / self.distance.factor, self._error(self._types[0])
        first = np.searchsorted(bounds, middle + error)  # products above this bound belong to higher scores
        last = np.searchsorted(bounds, middle - error) - 1  # products up to this one to lower scores
        return np.append(above, 0)[first], np.where(last < 0, self.num_negatives, above[last])

    @full_precision()
    def negatives_at_least(self, edges: Float64[np.ndarray, " edge"]) -> Int64[np.ndarray, " edge"]:
        """Return how many negatives score at least as high as each of some increasing edges, exactly."""
        total = np.zeros(len(edges), np.int64)
        kinds = self._zones(edges)
        for tile, weight in self._tiles() if len(edges) else ():
            for dtype, zones in kinds.items():
                scores = self._products(tile, dtype)
                found = _count(scores, zones.bounds, self._room(scores))
                if found is not None:
                    break
            assert found is not None
            counts, near = found
            counts[1::2] = 0  # those in a zone count by their exact scores
            score = self.exact.pairs(tile.queries.start + near[0], tile.gallery.start + near[1])
            exact = np.bincount(np.searchsorted(edges, score, side="right"), minlength=len(edges) + 1)
            total += weight * (_from_above(counts)[2 * zones.zone + 2] + _from_above(exact)[1:])
        self.group.all_reduce(total)
        return total

    def positives_by_query(self, edge: float) -> Int64[np.ndarray, " sorted_query"]:
        """Return for each sorted query how many of its positives score at least as high as an edge."""
        reached = self.positive_query[np.searchsorted(self.positives, edge) :]
        return np.bincount(reached, minlength=len(self.negatives_each))

    @full_precision()
    def negatives_by_query(self, edge: float) -> Int64[np.ndarray, " sorted_query"]:
        """Return for each sorted query how many of its negatives score at least as high as an edge, exactly."""
        total = np.zeros(len(self.negatives_each), np.int64)
        kinds = self._zones(np.array([edge]))
        for tile, weight in self._tiles():
            for dtype, zones in kinds.items():
                scores, (low, high) = self._products(tile, dtype), zones.bounds.tolist()
                above, is_near = scores > high, scores > low
                is_near &= ~above
                if int(is_near.sum()) <= self._room(scores):
                    break
            near = is_near.nonzero().cpu().numpy()
            query, place = tile.queries.start + near[:, 0], tile.gallery.start + near[:, 1]
            found = self.exact.pairs(query, place) >= edge
            total[tile.queries] += above.sum(dim=1).cpu().numpy()
            np.add.at(total, query[found], 1)
            if weight == 2:
                total[tile.gallery] += above.sum(dim=0).cpu().numpy()
                np.add.at(total, place[found], 1)
        self.group.all_reduce(total)
        return total

    def _room(self, scores: Tensor) -> int:
        """Return how many near pairs are worth exact scores; the last type of products has to do with any number."""
        return scores.numel() if scores.dtype == self._types[-1] else int(scores.numel() * NEAR[scores.dtype])

    @cached_property
    def _types(self) -> list[torch.dtype]:
        """Types of products whose error has a bound: too wide rows have none in float32."""
        return [dtype for dtype in (torch.float32, torch.float64) if np.isfinite(self._error(dtype))]

    def _error(self, dtype: torch.dtype) -> float:
        return self.distance.error(self.dim, dtype)

    def _zones(self, edges: Float64[np.ndarray, " edge"]) -> dict[torch.dtype, Zones]:
        middle = edges / self.distance.factor
        return {dtype: Zones.around(middle, self._error(dtype), dtype, self.device) for dtype in self._types}

    @cached_property
    @full_precision()
    def _cells(self) -> tuple[Float64[np.ndarray, " bound"], Int64[np.ndarray, " bound"]]:
        """Bounds of cells that hold about equally many positives, and how many negative products are above each."""
        dtype = self._types[0]
        distinct = np.unique(self.positives) / self.distance.factor
        some = distinct[np.linspace(0, len(distinct) - 1, min(CELLS, len(distinct))).astype(np.int64)]
        bounds = torch.unique(torch.from_numpy(some).to(self.device, dtype))
        counts = np.zeros(len(bounds) + 1, np.int64)
        for tile, weight in self._tiles():
            found = _count(self._products(tile, dtype), bounds, None)
            assert found is not None
            counts += weight * found[0]
        self.group.all_reduce(counts)
        return bounds.cpu().numpy().astype(np.float64), _from_above(counts)[1:]

    def _products(self, tile: Tile, dtype: torch.dtype) -> Tensor:
        """Return the products of a tile's negatives, minus infinity for other pairs."""
        left, right = tile.left, tile.right
        if dtype != left.dtype:
            left = self.exact.queries.features(tile.queries, dtype, gallery=False).to(self.device)
            right = self.exact.gallery.features(tile.gallery, dtype, gallery=True).to(self.device)
        scores = left @ right.T
        exclude(self.ordered, tile, scores)
        scores[self._is_lone[tile.queries]] = -torch.inf
        return scores

    @cached_property
    def _is_lone(self) -> Tensor:
        """Which sorted queries have no positive, and so are no queries here, though they may be found."""
        return torch.from_numpy(self.ordered.num_positives == 0).to(self.device)

    def _tiles(self) -> Iterator[tuple[Tile, int]]:
        """Yield this process's tiles, and how often each counts: where a set is its own gallery, half are enough."""
        queries, gallery = len(self.ordered.query_index), len(self.ordered.gallery_index)
        is_half = self.ordered.symmetric and not bool(self._is_lone.any())
        blocks = [
            [slice(start, min(start + self.side, rows)) for start in range(0, rows, self.side)]
            for rows in (queries, gallery)
        ]
        pairs = [(one, other) for one in blocks[0] for other in blocks[1] if not is_half or one.start <= other.start]
        own = self.group.shard(pairs)
        dtype, rows, left = self._types[0], slice(0, 0), torch.empty(0)
        for done, (here, there) in enumerate(own, 1):
            if rows != here:
                rows, left = here, self.exact.queries.features(here, dtype, gallery=False).to(self.device)
            right = self.exact.gallery.features(there, dtype, gallery=True).to(self.device)
            yield Tile(here, there, left, right), 2 if is_half and here.start < there.start else 1
            if self.progress is not None:
                self.progress(done, len(own))


def _count(
    scores: Tensor, bounds: Tensor, room: int | None
) -> tuple[Int64[np.ndarray, " between"], Int64[np.ndarray, "2 near"]] | None:
    """Return how many scores lie up to each increasing bound and beyond the last, and where the odd ones of these are.

    None if these are more than there is room for; without `room` none is listed.
    """
    if not scores.is_cuda and importable("numba"):
        from aurank.evaluation.engine.kernels import lists

        return lists.count_in_order(scores.numpy(), bounds.numpy(), room)
    index = torch.bucketize(scores, bounds, out_int32=True)
    counts = torch.bincount(index.view(-1), minlength=len(bounds) + 1).cpu().numpy()
    if room is None:
        return counts, np.empty((2, 0), np.int64)
    if counts[1::2].sum() > room:
        return None
    return counts, (index & 1).nonzero().T.cpu().numpy()


def _from_above(counts: Int64[np.ndarray, " place"]) -> Int64[np.ndarray, " place"]:
    """Return the sum of each entry and all behind it."""
    return np.flip(np.cumsum(np.flip(counts)))
