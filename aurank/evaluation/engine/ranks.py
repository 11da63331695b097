"""The engine: for each query, where each of its positives ranks among all negatives of the gallery."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64, Integer

from aurank.arrays import Arrays
from aurank.evaluation.engine.problem import POSITIVE_BYTES, require_room, sort_by_label
from aurank.evaluation.engine.scores import ExactScores, full_precision
from aurank.evaluation.engine.tiles import Thresholds, Tiles, consecutive, count_negatives
from aurank.evaluation.inputs import Devices, Integers, ProgressCallback, RetrievalProblem, Work
from aurank.evaluation.shards import gather_shards

FEWEST = 2**33  # multiplications from which the accelerator may pay; beyond 512 dimensions more, as it is tried
COUNT_BYTES = 20  # of a positive while negatives are counted: its score, position and two counts
TILE_BYTES = 2**28  # that tiles and panels hardly ever exceed
BLOCK = 2**20  # positives of a block that is read at once: more would not be faster


@dataclass(frozen=True, eq=False)
class Ranks:
    """For each query with a positive, in the caller's order, each of its positives from the best score down.

    Query i owns the entries `offset[i]` to `offset[i + 1]` of the arrays over positives. Equal positives are in
    gallery order.

    Example:
        >>> ranks = positive_ranks(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), [0, 0, 1])
        >>> ranks.higher.tolist(), ranks.tied.tolist(), ranks.rank.tolist()
        ([0, 0], [1, 1], [2, 2])
    """

    query: Int64[np.ndarray, " query"]  # row of the query
    labels: Int64[np.ndarray, " query"]  # its label; where only pairs were given, its row
    num_negatives: Int64[np.ndarray, " query"]  # gallery rows that are neither positive nor left out
    offset: Int64[np.ndarray, " query_plus_one"]
    positive: Int64[np.ndarray, " positive"]  # gallery row
    higher: Int64[np.ndarray, " positive"]  # negatives that score strictly higher
    tied: Int64[np.ndarray, " positive"]  # negatives that score exactly the same
    at_least: Int64[np.ndarray, " positive"]  # the query's positives that score at least as high, this one included
    num_queries: int  # rows given, with a positive or without
    num_gallery: int
    relevance: Float64[np.ndarray, " positive"] | None = None  # gain of each positive in nDCG, 1 without
    best_score: Float64[np.ndarray, " query"] | None = None  # exact, of each query's first positive; None of cut lists

    @property
    def num_positives(self) -> Int64[np.ndarray, " query"]:
        return np.asarray(np.diff(self.offset))

    @property
    def num_lone_queries(self) -> int:
        return self.num_queries - len(self.query)

    @property
    def place(self) -> Int64[np.ndarray, " positive"]:
        """1, 2, … for the positives of each query, one after another even where they tie."""
        return np.asarray(np.arange(1, len(self.higher) + 1) - np.repeat(self.offset[:-1], self.num_positives))

    @property
    def rank(self) -> Int64[np.ndarray, " positive"]:
        """Rank of each positive in the whole gallery, from 1; a tied negative counts as ahead."""
        return np.asarray(self.place + self.higher + self.tied)

    def blocks(self) -> Iterator["Ranks"]:
        """Yield all queries as the one block that they are."""
        yield self

    def changed(self, change: "Change") -> "Ranks":
        """Return the ranks behind a change of them."""
        return change(self)


Change: TypeAlias = Callable[[Ranks], Ranks]  # of the positives of each query by itself


class RankBlocks:
    """The ranks of a problem, as of `positive_ranks`, in blocks whose positives fit into `max_memory`."""

    def __init__(
        self,
        problem: RetrievalProblem,
        *,
        distance: str = "cosine",
        progress: ProgressCallback | None = None,
        is_whole: bool = False,
        **how: Any,
    ) -> None:
        self.changes: tuple[Change, ...] = ()
        work = self.work = Work.of(problem.embeddings, **how)
        if work.group.size > 1:
            settings = {"distance": distance, "backend": work.backend, "device": work.devices[0].type}
            problem = gather_shards(work.group, problem, shards=how.get("distributed") == "shards", **settings)
        ordered = self.ordered = sort_by_label(problem)
        self.num_queries, self.num_gallery = len(ordered.labels), ordered.num_gallery
        if is_whole:
            require_room(int(ordered.offset[-1]))
        with full_precision(one_thread=work.backend == "numba"):
            orders = ordered.query_index, ordered.gallery_index
            self.exact = ExactScores(problem, *orders, distance=distance, compiled=work.backend == "numba")
        self.progress, self.is_whole = progress, is_whole
        every, room = slice(0, len(ordered.query_index)), max(work.size // 2, work.size - TILE_BYTES)
        ranges = [every] if is_whole else self._ranges(every, room // COUNT_BYTES)
        size = work.size - (0 if is_whole else min(room, int(ordered.offset[-1]) * COUNT_BYTES))
        self.most = min(BLOCK, size // POSITIVE_BYTES)
        self.tilings = [
            Tiles(self.exact, work, symmetric=ordered.symmetric, size=size, queries=queries, offset=ordered.offset)
            for queries in ranges
        ]
        answered = np.flatnonzero(ordered.num_positives)
        answered = answered[np.argsort(ordered.query_index[answered])]  # in the caller's order
        self.query = ordered.query_index[answered]
        self.labels = ordered.labels[self.query]
        self.num_positives, self.num_negatives = ordered.num_positives[answered], ordered.num_negatives[answered]
        self.num_lone_queries = self.num_queries - len(self.query)

    def blocks(self) -> Iterator[Ranks]:
        """Yield the ranks of some queries at a time, in whatever order; each query with a positive is in one block."""
        done, total = 0, sum(tiles.num_tiles for tiles in self.tilings)
        for tiles in self.tilings:
            with full_precision(one_thread=self.work.backend == "numba"):
                positives, thresholds = self._thresholds(tiles.queries)

            def progress(count: int, _: int, before: int = done) -> None:
                if self.progress is not None:
                    self.progress(before + count, total)

            count_negatives(thresholds, self.ordered, tiles, progress, accelerator_of(tiles))
            done += tiles.num_tiles
            for queries in [tiles.queries] if self.is_whole else self._ranges(tiles.queries, self.most):
                ranks = self._ranks(thresholds, positives, queries)
                yield reduce(lambda ranks, change: change(ranks), self.changes, ranks)
            del thresholds, positives

    def changed(self, change: Change) -> "RankBlocks":
        blocks = copy(self)
        blocks.changes = (*self.changes, change)
        return blocks

    def _ranges(self, queries: slice, most: int) -> list[slice]:
        offset = self.ordered.offset
        return [part for part in consecutive(offset, queries, most=most) if offset[part.start] < offset[part.stop]]

    def _thresholds(self, queries: slice) -> tuple[Integer[np.ndarray, " positive"], Thresholds]:
        """Return positions and exact scores of the positives of a range of queries, scores of each increasing."""
        ordered, group = self.ordered, self.work.group
        offset = ordered.offset[queries.start : queries.stop + 1] - ordered.offset[queries.start]
        kind = np.promote_types(np.min_scalar_type(-len(ordered.gallery_index) - 1), np.int32)  # what torch can add up
        positives, scores = np.empty(offset[-1], kind), np.empty(offset[-1])
        for part in consecutive(ordered.offset, queries, most=self.most):
            query, position = ordered.positives(part)
            shard = slice(len(position) * group.rank // group.size, len(position) * (group.rank + 1) // group.size)
            score = group.concatenate(self.exact.pairs(query[shard], position[shard]))
            edges = offset[part.start - queries.start : part.stop - queries.start + 1]
            order, entries = _increasing(score, edges - edges[0]), slice(int(edges[0]), int(edges[-1]))
            scores[entries], positives[entries] = score[order], position[order]
        return positives, Thresholds(scores, offset[:-1], offset[1:], queries.start, kind)

    def _ranks(self, counts: Thresholds, positions: Integer[np.ndarray, " positive"], queries: slice) -> Ranks:
        """Return the counts of a range, queries in the caller's order and each one's positives from the best down."""
        ordered = self.ordered
        entries, start, _ = counts.of(queries)
        positives = ordered.num_positives[queries]
        owner, scores = np.repeat(np.arange(len(positives)), positives), counts.scores[entries]
        is_new = (np.diff(owner, prepend=-1) != 0) | (np.diff(scores, prepend=np.nan) != 0)
        first_equal = np.maximum.accumulate(np.where(is_new, np.arange(len(owner)), 0))
        at_least = (start + positives)[owner] - first_equal
        sorted_query = np.flatnonzero(positives)
        sorted_query = sorted_query[np.argsort(ordered.query_index[queries][sorted_query])]
        number = positives[sorted_query]
        offset = np.concatenate([[0], np.cumsum(number)])
        # Entry j of a query is its threshold (number - 1 - j): thresholds increase.
        entry = np.repeat(start[sorted_query] + number - 1 + offset[:-1], number) - np.arange(offset[-1])
        query = ordered.query_index[queries][sorted_query]
        return Ranks(
            query=query,
            labels=ordered.labels[query],
            num_negatives=ordered.num_negatives[queries][sorted_query],
            offset=offset,
            positive=ordered.gallery_index[positions[entries][entry]],
            higher=counts.above[entries][entry].astype(np.int64),
            tied=counts.tied[entries][entry].astype(np.int64),
            at_least=at_least[entry],
            num_queries=self.num_queries,
            num_gallery=self.num_gallery,
            best_score=scores[start[sorted_query] + number - 1],
        )


def accelerator_of(tiles: Tiles) -> Any:
    """Return the int8 accelerator of the tiles, None where it would not be faster; counts are the same."""
    exact, dim = tiles.exact, tiles.exact.dim
    products = len(exact.queries.order) * len(exact.gallery.order) * dim
    if tiles.work.backend != "numba" or products < FEWEST * max(1, dim / 512) or exact.are_whole:
        return None
    try:
        from aurank.evaluation.engine.codes import Accelerator
    except ImportError:
        return None
    return Accelerator.of(exact)


def _increasing(
    scores: Float64[np.ndarray, " score"], offset: Int64[np.ndarray, " query_plus_one"]
) -> Int64[np.ndarray, " score"]:
    """Return the order in which the scores of each query increase, of equal ones the last first."""
    order, count = np.empty(len(scores), np.int64), np.diff(offset)
    for number in np.unique(count):  # rows of one length are sorted much faster than all scores together
        entry = offset[:-1][count == number][:, None] + np.arange(number)
        last_first = entry[:, ::-1]
        within = np.argsort(scores[last_first], axis=1, kind="stable")
        order[entry] = np.take_along_axis(last_first, within, axis=1)
    return order


RankSource: TypeAlias = Ranks | RankBlocks


def query_columns(ranks: RankSource, compute: Callable[[Ranks], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return columns over all queries, in the caller's order, from what is computed of each block."""
    parts: dict[str, list[np.ndarray]] = {"query": []}
    for block in ranks.blocks():
        parts["query"].append(block.query)
        for name, values in compute(block).items():
            parts.setdefault(name, []).append(values)
    if not parts["query"]:
        return {}
    order = np.argsort(np.concatenate(parts.pop("query")))
    return {name: np.concatenate(values)[order] for name, values in parts.items()}


def positive_ranks(
    queries: Arrays | RetrievalProblem,
    query_labels: Integers | None = None,
    gallery: Arrays | None = None,
    gallery_labels: Integers | None = None,
    *,
    distance: str = "cosine",
    backend: str = "auto",
    device: Devices = None,
    max_memory: int | str = "1GiB",
    distributed: bool | str | None = None,
    progress: ProgressCallback | None = None,
    **fields: Integers | None,
) -> Ranks:
    """Return the ranks of every positive of every query in the full gallery, or of a `RetrievalProblem`.

    Under an initialised torch.distributed every rank calls this, and gets the same result: a side of which all ranks
    hold the very same rows is taken as it is, else each holds a shard of it. Rows in `positives`, `ignore` and `junk`
    count over all shards. The other settings, devices, processes and the order of rows change no digit.

    Args:
        distance: "cosine", "dot" or "euclidean".
        backend: "auto", "numba" or "torch": the kernel that counts.
        device: that of CUDA queries by default, else the CPU; several CUDA devices share the work.
        max_memory: bytes, or text such as "512MiB", for the working memory. The embeddings, a few numbers per row, and
            with the result about 110 bytes per positive come on top; `RankBlocks` has the ranks in parts.
        distributed: "shards" puts all sides together; False: this process by itself.
        progress: called as progress(done, total) now and then.
        fields: further fields of the `RetrievalProblem`.

    Example:
        >>> ranks = positive_ranks(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1]]), [0, 0, 1])
        >>> ranks.rank.tolist()  # each of the first two finds the other behind the third
        [2, 2]
    """
    problem = queries
    if not isinstance(problem, RetrievalProblem):
        problem = RetrievalProblem(problem, query_labels, gallery, gallery_labels, **fields)
    how = {"backend": backend, "device": device, "max_memory": max_memory, "distributed": distributed}
    return next(RankBlocks(problem, distance=distance, progress=progress, is_whole=True, **how).blocks())
