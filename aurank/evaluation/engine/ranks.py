"""The engine: for each query, where each of its positives stands among all negatives of the gallery.

These ranks are sufficient for every metric of retrieval. Both sides are sorted by label once, so that a class is a
contiguous range of the gallery; tiles of queries and gallery rows are scored in bounded memory, and what they count
adds up; where both sides are the same rows, half of the tiles are enough. The numbers are exact: they follow from
scores whose value depends on the two rows alone (see `scores`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64

from aurank.evaluation.engine.counting import Progress, Task, count_all, find_thresholds
from aurank.evaluation.engine.exact import ExactScores
from aurank.evaluation.engine.inputs import Embeddings, Integers, Vectors, byte_count, choose_devices, row_lengths
from aurank.evaluation.engine.kernels import check_backend, importable
from aurank.evaluation.engine.positives import match_sides
from aurank.evaluation.engine.process_group import agree, bring_together, make_team
from aurank.evaluation.engine.scores import full_precision, make_distance, one_thread_each
from aurank.evaluation.engine.tiles import Plan

# For each device, where torch or triton counts: while a GPU computes one tile, the next is made ready.
WORKERS = {"cpu": 1, "cuda": 2}


@dataclass(frozen=True, eq=False)
class Ranks:
    """For each query with a positive, in the caller's order, each of its positives from the best score down.

    Query i owns the entries `offset[i]` to `offset[i + 1]` of the arrays over positives. Equal positives stand in
    gallery order.
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


def positive_ranks(
    queries: Embeddings,
    query_labels: Integers | None = None,
    gallery: Embeddings | None = None,
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
    device: torch.device | str | Sequence[torch.device | str] | None = None,
    max_memory: int | str = "1GiB",
    distributed: bool | str | None = None,
    progress: Progress | None = None,
) -> Ranks:
    """Ranks of every positive of every query in the full gallery.

    `queries` [query, dim] and `gallery` [gallery, dim] are tensors or NumPy arrays of any real type, memory-mapped ones
    too, which are read in pieces. Without a gallery the queries are the gallery, and each query's own row is left out
    by its index. With one, `ids` and `gallery_ids` name the items of both sides, and a gallery row with the query's own
    id is left out.

    Equal labels make a positive; labels are integers, one per row. Or `positives` lists every pair (query row, gallery
    row), as for captions of images, and labels are not needed. Left out, as neither positive nor negative, are:
    gallery rows of the query's own label *and* group, if `groups` (cameras; -1 for none) are given; the pairs in
    `ignore`; and for all queries the gallery rows in `junk` (rows, or one truth value for each).

    `distance`: "cosine", "dot" or "euclidean". `backend`: "auto", "numba", "torch" or "triton", by which kernel counts.
    `device` defaults to that of CUDA queries, else to the CPU; several CUDA devices share the work. `max_memory`
    (bytes, or text such as "512MiB") bounds the working memory; the embeddings themselves, a few numbers per row, and
    with the result about 110 bytes per positive come on top: where these alone do not fit, it is refused at the start.
    `progress(done, total)` is called now and then; nothing is shown without.

    Under an initialised torch.distributed every rank calls this. A side of which all ranks hold the very same rows is
    taken as it is; else each holds a shard of it, of any length, and they are put together in the order of ranks
    (always so with `distributed="shards"`). Rows in `positives`, `ignore` and `junk` count over all shards. The work is
    divided, and every rank gets the same result. `distributed=False`: this process by itself.

    The result does not depend on `backend`, `max_memory`, `device`, threads, processes or the order of rows. Raises
    UserError (a ValueError) for input that cannot be evaluated, with what came and what to do.
    """
    devices = choose_devices(device, queries)
    backend = check_backend(backend, devices[0])
    size = byte_count(max_memory)
    team = make_team(distributed)
    threads, compiled = torch.get_num_threads(), backend == "numba"
    if team.size > 1:
        kind = devices[0].type
        agree(team, distance=distance, backend=backend, device=kind, positives=positives, ignore=ignore, junk=junk)
        sides = ((queries, query_labels, ids, groups), (gallery, gallery_labels, gallery_ids, gallery_groups))
        (queries, query_labels, ids, groups), (gallery, gallery_labels, gallery_ids, gallery_groups) = bring_together(
            team, sides, shards=distributed == "shards"
        )
        # All members have to cut the same tiles.
        size, threads = min(team.exchange(size)), min(team.exchange(threads))
        devices = devices[: min(team.exchange(len(devices)))]
    matching = match_sides(
        queries,
        query_labels,
        gallery,
        gallery_labels,
        ids=ids,
        gallery_ids=gallery_ids,
        groups=groups,
        gallery_groups=gallery_groups,
        positives=positives,
        ignore=ignore,
        junk=junk,
    )
    with full_precision(), one_thread_each(compiled):
        lengths = target_lengths = row_lengths(queries, side="query", distance=distance, compiled=compiled)
        target = queries
        if gallery is not None:
            target = gallery
            target_lengths = row_lengths(gallery, side="gallery", distance=distance, compiled=compiled)
        measure = make_distance(distance, float(lengths.max()), float(target_lengths.max()))
        left = Vectors(queries, lengths, order=matching.queries, distance=measure)
        right = Vectors(target, target_lengths, order=matching.gallery, distance=measure)
        exact = ExactScores(left, right, compiled=backend != "torch" and importable("numba"))
        task = Task(
            matching=matching,
            queries=left,
            gallery=right,
            exact=exact,
            thresholds=find_thresholds(matching, exact, team),
            plan=Plan(
                matching,
                width=measure.width(left.dim),
                shared=measure.shared,
                size=size,
                workers=threads if compiled else WORKERS[devices[0].type] * len(devices),
                backend=backend,
                device=devices[0].type,
            ),
            backend=backend,
        )
        count_all(task, team, devices, progress)
    return _ranks(task, num_queries=int(queries.shape[0]))


def _ranks(task: Task, *, num_queries: int) -> Ranks:
    """What was counted, queries in the caller's order and each one's positives from the best down."""
    matching, thresholds = task.matching, task.thresholds
    lines = np.flatnonzero(matching.num_positives)
    lines = lines[np.argsort(matching.queries[lines])]
    counts = matching.num_positives[lines]
    offset = np.concatenate([[0], np.cumsum(counts)])
    # Entry j of a query is its threshold number (count - 1 - j): thresholds increase.
    entry = np.repeat(matching.offset[lines + 1] - 1 + offset[:-1], counts) - np.arange(offset[-1])
    return Ranks(
        query=matching.queries[lines],
        labels=matching.labels[matching.queries[lines]],
        num_negatives=matching.num_negatives[lines],
        offset=offset,
        positive=matching.gallery[thresholds.columns[entry]],
        higher=task.higher[entry],
        tied=task.tied[entry],
        at_least=thresholds.at_least[entry],
        num_queries=num_queries,
        num_gallery=matching.num_gallery,
        num_rechecked=int(task.rechecked[0]),
    )
