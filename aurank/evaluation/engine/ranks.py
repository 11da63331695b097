"""The engine: for each query, where each of its positives ranks among all negatives of the gallery."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, TypeAlias, Unpack

import numpy as np
from jaxtyping import Float64, Int64, Integer

from aurank.arrays import Arrays
from aurank.errors import UserError
from aurank.evaluation.engine.problem import (
    POSITIVE_BYTES,
    Devices,
    Integers,
    ProgressCallback,
    RetrievalProblem,
    as_array,
    as_matrix,
    gather_shards,
    refuse_masked,
    require_equal,
    require_room,
    sort_by_label,
)
from aurank.evaluation.engine.scores import ExactScores, full_precision, one_thread_each
from aurank.evaluation.engine.tiles import How, Thresholds, Tiles, Work, consecutive, count_negatives
from aurank.names import accepting

COUNT_BYTES = 20  # of a positive while negatives are counted: its score, place and two counts
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
    num_rechecked: int = 0  # scores so close to a positive's that they were taken again, exactly
    relevance: Float64[np.ndarray, " positive"] | None = None  # gain of each positive in nDCG, 1 without
    best_score: Float64[np.ndarray, " query"] | None = None  # exact, of each query's first positive; None of cut lists

    @property
    def num_positives(self) -> Int64[np.ndarray, " query"]:
        """Positives of each query, at least one."""
        return np.asarray(np.diff(self.offset))

    @property
    def num_lone_queries(self) -> int:
        """Queries left out because the gallery holds no positive for them."""
        return self.num_queries - len(self.query)

    @property
    def place(self) -> Int64[np.ndarray, " positive"]:
        """1, 2, … for the positives of each query, one after another even where they tie."""
        places = np.arange(1, len(self.higher) + 1)
        return np.asarray(places - np.repeat(self.offset[:-1], self.num_positives))

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
    """The ranks of a problem, in blocks of queries of which the positives fit into memory; no block changes a digit.

    The arguments are those of `positive_ranks`; `max_memory` bounds positives too, unless a single query has more.
    `whole`: one block, and UserError where it does not fit.
    """

    def __init__(
        self,
        problem: RetrievalProblem,
        *,
        distance: str = "cosine",
        progress: ProgressCallback | None = None,
        whole: bool = False,
        **how: Unpack[How],
    ) -> None:
        self.changes: tuple[Change, ...] = ()
        work = self.work = Work.of(problem.embeddings, **how)
        fields = {name: getattr(problem, name) for name in ("positives", "ignore", "junk")}
        require_equal(work.group, distance=distance, backend=work.backend, device=work.kind, **fields)
        problem = gather_shards(work.group, problem, shards=how.get("distributed") == "shards")
        ordered = self.ordered = sort_by_label(problem)
        self.num_queries, self.num_gallery = len(ordered.labels), ordered.num_gallery
        if whole:
            require_room(int(ordered.offset[-1]))
        with full_precision(), one_thread_each(work.compiled):
            orders, compiled = (ordered.query_index, ordered.gallery_index), work.backend != "torch"
            self.exact = ExactScores.of(problem, *orders, distance=distance, compiled=compiled)
        self.progress, self.whole = progress, whole
        least, enough = work.bounds(self.exact)
        if work.size < least:
            raise UserError(f"max_memory is {work.size} bytes: embeddings of this width need at least {least}")
        every, room = slice(0, len(ordered.query_index)), max(work.size - enough, (work.size - least) // 2)
        ranges = [every] if whole else self._ranges(every, room // COUNT_BYTES)
        taken = 0 if whole else min(room, int(ordered.offset[-1]) * COUNT_BYTES)
        self.most, size = min(BLOCK, (work.size - taken) // POSITIVE_BYTES), work.size - taken
        shared: dict[str, Any] = {"symmetric": ordered.symmetric, "size": size, "offset": ordered.offset, "coded": True}
        self.tilings = [Tiles(self.exact, work, queries=queries, **shared) for queries in ranges]

    @property
    def query(self) -> Int64[np.ndarray, " query"]:
        return np.sort(self.ordered.query_index[self.ordered.num_positives > 0])

    @property
    def labels(self) -> Int64[np.ndarray, " query"]:
        return np.asarray(self.ordered.labels[self.query])

    @property
    def num_positives(self) -> Int64[np.ndarray, " query"]:
        return self._of_queries(self.ordered.num_positives)

    @property
    def num_negatives(self) -> Int64[np.ndarray, " query"]:
        return self._of_queries(self.ordered.num_negatives)

    @property
    def num_lone_queries(self) -> int:
        return self.num_queries - int((self.ordered.num_positives > 0).sum())

    def blocks(self) -> Iterator[Ranks]:
        """Yield the ranks of some queries at a time, in whatever order; each query with a positive is in one block."""
        done, total = 0, sum(tiles.num_tiles for tiles in self.tilings)
        for tiles in self.tilings:
            with full_precision(), one_thread_each(self.work.compiled):
                positives, counts = self._thresholds(tiles.queries)
            count_negatives(counts, self.ordered, tiles, self.progress and partial(self._report, done, total))
            done += tiles.num_tiles
            for queries in [tiles.queries] if self.whole else self._ranges(tiles.queries, self.most):
                yield reduce(lambda ranks, change: change(ranks), self.changes, self._ranks(counts, positives, queries))
                counts.rechecked[0] = 0  # they are of all blocks together
            del counts, positives

    def changed(self, change: Change) -> "RankBlocks":
        other = copy(self)
        other.changes = (*self.changes, change)
        return other

    def _report(self, before: int, total: int, done: int, _: int) -> None:
        assert self.progress is not None
        self.progress(before + done, total)

    def _ranges(self, queries: slice, most: int) -> list[slice]:
        offset = self.ordered.offset
        return [some for some in consecutive(offset, queries, most=most) if offset[some.start] < offset[some.stop]]

    def _of_queries(self, values: Int64[np.ndarray, " sorted_query"]) -> Int64[np.ndarray, " query"]:
        some = np.flatnonzero(self.ordered.num_positives)
        return np.asarray(values[some[np.argsort(self.ordered.query_index[some])]])

    def _thresholds(self, queries: slice) -> tuple[Integer[np.ndarray, " positive"], Thresholds]:
        ordered, group = self.ordered, self.work.group
        offset = ordered.offset[queries.start : queries.stop + 1] - ordered.offset[queries.start]
        kind = np.min_scalar_type(-len(ordered.gallery_index) - 1)
        kind = np.promote_types(kind, np.int32)  # what torch can add up
        positives = np.empty(offset[-1], kind)
        thresholds = Thresholds(np.empty(offset[-1]), queries, offset, kind)
        for some in consecutive(ordered.offset, queries, most=self.most):
            query, place = ordered.positives(some)
            own = group.shard_range(len(place))
            scores = group.concatenate(self.exact.pairs(query[own], place[own]))
            order, here = _increasing(scores, thresholds.within(some)), thresholds.entries(some)
            thresholds.scores[here], positives[here] = scores[order], place[order]
        return positives, thresholds

    def _ranks(self, counts: Thresholds, places: Integer[np.ndarray, " positive"], queries: slice) -> Ranks:
        """Return what was counted, queries in the caller's order and each one's positives from the best down."""
        ordered, here, start = self.ordered, counts.entries(queries), counts.within(queries)
        positives = ordered.num_positives[queries]
        owner, scores = np.repeat(np.arange(len(positives)), positives), counts.scores[here]
        new = (np.diff(owner, prepend=-1) != 0) | (np.diff(scores, prepend=np.nan) != 0)
        at_least = start[owner + 1] - np.maximum.accumulate(np.where(new, np.arange(len(owner)), 0))
        sorted_query = np.flatnonzero(positives)
        sorted_query = sorted_query[np.argsort(ordered.query_index[queries][sorted_query])]
        number = positives[sorted_query]
        offset = np.concatenate([[0], np.cumsum(number)])
        # Entry j of a query is its threshold (number - 1 - j): thresholds increase.
        entry = np.repeat(np.cumsum(positives)[sorted_query] - 1 + offset[:-1], number) - np.arange(offset[-1])
        query = ordered.query_index[queries][sorted_query]
        return Ranks(
            query=query,
            labels=ordered.labels[query],
            num_negatives=ordered.num_negatives[queries][sorted_query],
            offset=offset,
            positive=ordered.gallery_index[places[here][entry]],
            higher=counts.above[here][entry].astype(np.int64),
            tied=counts.tied[here][entry].astype(np.int64),
            at_least=at_least[entry],
            num_queries=self.num_queries,
            num_gallery=self.num_gallery,
            num_rechecked=int(counts.rechecked[0]),
            best_score=scores[np.cumsum(positives)[sorted_query] - 1],
        )


def _increasing(
    scores: Float64[np.ndarray, " score"], offset: Int64[np.ndarray, " query_plus_one"]
) -> Int64[np.ndarray, " score"]:
    """Return the order in which the scores of each query increase, of equal ones the last first."""
    order, count = np.empty(len(scores), np.int64), np.diff(offset)
    for number in np.unique(count):  # rows of one length are sorted much faster than all scores together
        place = offset[:-1][count == number][:, None] + np.arange(number)
        last_first = place[:, ::-1]
        within = np.argsort(scores[last_first], axis=1, kind="stable")
        order[place] = np.take_along_axis(last_first, within, axis=1)
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


@accepting()
def positive_ranks(
    queries: Arrays | RetrievalProblem,
    query_labels: Integers | None = None,
    gallery: Arrays | None = None,
    gallery_labels: Integers | None = None,
    *,
    ids: Integers | None = None,
    gallery_ids: Integers | None = None,
    groups: Integers | None = None,
    gallery_groups: Integers | None = None,
    positives: Integers | None = None,
    ignore: Integers | None = None,
    junk: Integers | None = None,
    distance: str = "cosine",
    backend: str = "auto",
    device: Devices = None,
    max_memory: int | str = "1GiB",
    distributed: bool | str | None = None,
    progress: ProgressCallback | None = None,
) -> Ranks:
    """Return the ranks of every positive of every query in the full gallery.

    The first arguments are the fields of a `RetrievalProblem`, which may be given in their place: tensors or NumPy
    arrays of any real type; memory-mapped ones are read in pieces. Under an initialised torch.distributed every rank
    calls this, and gets the same result: a side of which all ranks hold the very same rows is taken as it is, else each
    holds a shard of it. Rows in `positives`, `ignore` and `junk` count over all shards.

    The result does not depend on `backend`, `max_memory`, `device`, threads, processes or the order of rows.

    Args:
        distance: "cosine", "dot" or "euclidean".
        backend: "auto", "numba" or "torch": the kernel that counts.
        device: that of CUDA queries by default, else the CPU; several CUDA devices share the work.
        max_memory: bytes, or text such as "512MiB", for the working memory. The embeddings, a few numbers per row, and
            with the result about 110 bytes per positive come on top; `RankBlocks` has the ranks in parts.
        distributed: "shards" puts all sides together; False: this process by itself.
        progress: called as progress(done, total) now and then.

    Raises:
        UserError: (a ValueError) for input that cannot be evaluated.

    Example:
        >>> ranks = positive_ranks(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1]]), [0, 0, 1])
        >>> ranks.rank.tolist()  # each of the first two finds the other behind the third
        [2, 2]
    """
    problem = queries
    if not isinstance(problem, RetrievalProblem):
        answers = None if gallery is None else as_matrix(gallery, side="gallery")
        sides = (as_matrix(problem, side="query"), query_labels, answers, gallery_labels)
        problem = RetrievalProblem(*sides, ids, gallery_ids, groups, gallery_groups, positives, ignore, junk)
    how: How = {"backend": backend, "device": device, "max_memory": max_memory, "distributed": distributed}
    return next(RankBlocks(problem, distance=distance, progress=progress, whole=True, **how).blocks())


def check_grades(positives: Integers | None, relevance: Integers) -> Float64[np.ndarray, " pair"]:
    """Return the grade of each pair in `positives`; UserError unless there is one number above 0 for each, once."""
    refuse_masked(relevance, "relevance")
    pairs, grade = as_array(() if positives is None else positives), as_array(relevance)
    if positives is None or grade.shape != pairs.shape[:1] or grade.dtype.kind not in "iuf":
        raise UserError(f"relevance has shape {grade.shape}, {grade.dtype}: give a number for each pair in positives")
    if not ((grade > 0) & np.isfinite(grade)).all():
        raise UserError(f"relevance must be above 0, and is {grade.min()}: leave out what is not relevant")
    if len(np.unique(pairs, axis=0)) < len(pairs):
        raise UserError("positives names a pair twice, so that its relevance is not clear: give each pair once")
    return grade.astype(np.float64)


def graded(positives: Integers, grade: Float64[np.ndarray, " pair"], num_gallery: int) -> Change:
    """Return the change that gives ranks the grades of listed pairs."""
    pairs = as_array(positives).astype(np.int64)
    keys = pairs[:, 0] * num_gallery + pairs[:, 1]
    order = np.argsort(keys)

    def change(ranks: Ranks) -> Ranks:
        query = np.repeat(ranks.query, ranks.num_positives)
        found = np.searchsorted(keys[order], query * ranks.num_gallery + ranks.positive)
        return with_grades(ranks, grade[order][found])

    return change


def with_grades(ranks: Ranks, grades: Float64[np.ndarray, " positive"]) -> Ranks:
    query = np.repeat(np.arange(len(ranks.query)), ranks.num_positives)
    worst_first = np.lexsort((grades, ranks.at_least, query))
    return replace(ranks, positive=ranks.positive[worst_first], relevance=grades[worst_first])
