"""The engine: for each query, where each of its positives ranks among all negatives of the gallery.

These ranks are sufficient for every metric of retrieval. Both sides are sorted by label once, so that a class is a
contiguous range of the gallery; tiles of queries and gallery rows are scored in bounded memory, and what they count
adds up; where both sides are the same rows, half of the tiles are enough. The numbers are exact: they follow from
scores whose value depends on the two rows alone (see `scores`).
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64

from aurank.evaluation.engine.counting import Counts, count_negatives
from aurank.evaluation.engine.exact import ExactScores
from aurank.evaluation.engine.inputs import Devices, Embeddings, Integers, ProgressCallback, byte_count, choose_devices
from aurank.evaluation.engine.kernels import check_backend, importable
from aurank.evaluation.engine.positives import SortedProblem, sort_by_label
from aurank.evaluation.engine.problem import RetrievalProblem
from aurank.evaluation.engine.process_group import ProcessGroup, gather_shards, require_equal
from aurank.evaluation.engine.scores import full_precision, one_thread_each
from aurank.evaluation.engine.tiles import Tiling

# For each device, where torch or triton counts: while a GPU computes one tile, the next is made ready.
WORKERS = {"cpu": 1, "cuda": 2}


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
    device: Devices = None,
    max_memory: int | str = "1GiB",
    distributed: bool | str | None = None,
    progress: ProgressCallback | None = None,
) -> Ranks:
    """Return the ranks of every positive of every query in the full gallery.

    Tensors or NumPy arrays of any real type are taken, memory-mapped ones too, which are read in pieces. Who is a
    positive of whom, and what is left out, is as `RetrievalProblem` says, whose fields the first arguments are.

    Under an initialised torch.distributed every rank calls this. A side of which all ranks hold the very same rows is
    taken as it is; else each holds a shard of it, of any length, and they are put together in the order of ranks
    (always so with `distributed="shards"`). Rows in `positives`, `ignore` and `junk` count over all shards. The work is
    divided, and every rank gets the same result. `distributed=False`: this process by itself.

    The result does not depend on `backend`, `max_memory`, `device`, threads, processes or the order of rows.

    Args:
        distance: "cosine", "dot" or "euclidean".
        backend: "auto", "numba", "torch" or "triton": the kernel that counts.
        device: that of CUDA queries by default, else the CPU; several CUDA devices share the work.
        max_memory: bytes, or text such as "512MiB", for the working memory. The embeddings, a few numbers per row, and
            with the result about 110 bytes per positive come on top; where these alone do not fit, it is refused.
        progress: called as progress(done, total) now and then.

    Raises:
        UserError: (a ValueError) for input that cannot be evaluated, with what came and what to do.

    Example:
        >>> ranks = positive_ranks(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1]]), [0, 0, 1])
        >>> ranks.rank.tolist()  # each of the first two finds the other behind the third
        [2, 2]
    """
    sides = (queries, query_labels, gallery, gallery_labels, ids, gallery_ids, groups, gallery_groups)
    problem = RetrievalProblem(*sides, positives, ignore, junk)
    return rank_positives(
        problem,
        distance=distance,
        backend=backend,
        device=device,
        max_memory=max_memory,
        distributed=distributed,
        progress=progress,
    )


def rank_positives(
    problem: RetrievalProblem,
    *,
    distance: str = "cosine",
    backend: str = "auto",
    device: Devices = None,
    max_memory: int | str = "1GiB",
    distributed: bool | str | None = None,
    progress: ProgressCallback | None = None,
) -> Ranks:
    """Return the ranks of a problem; the other arguments are those of `positive_ranks`."""
    devices = choose_devices(device, problem.embeddings)
    backend = check_backend(backend, devices[0])
    size, threads, compiled = byte_count(max_memory), torch.get_num_threads(), backend == "numba"
    group, kind = ProcessGroup(distributed), devices[0].type
    if group.size > 1:
        fields = {name: getattr(problem, name) for name in ("positives", "ignore", "junk")}
        require_equal(group, distance=distance, backend=backend, device=kind, **fields)
        problem = gather_shards(group, problem, shards=distributed == "shards")
        # All processes have to cut the same tiles.
        size, threads = min(group.all_gather(size)), min(group.all_gather(threads))
        devices = devices[: min(group.all_gather(len(devices)))]
    ordered = sort_by_label(problem)
    with full_precision(), one_thread_each(compiled):
        orders, use = (ordered.query_index, ordered.gallery_index), backend != "torch" and importable("numba")
        exact = ExactScores.of(problem, *orders, distance=distance, compiled=use)
        counts = Counts(ordered, exact, group)
        workers = threads if compiled else WORKERS[kind] * len(devices)
        tiling = Tiling(ordered, exact.queries, size=size, workers=workers, backend=backend, device=kind)
        count_negatives(counts, tiling, group, devices, progress)
    return _ranks(ordered, counts)


def _ranks(problem: SortedProblem, counts: Counts) -> Ranks:
    """Return what was counted, queries in the caller's order and each one's positives from the best down."""
    sorted_query = np.flatnonzero(problem.num_positives)
    sorted_query = sorted_query[np.argsort(problem.query_index[sorted_query])]
    number = problem.num_positives[sorted_query]
    offset = np.concatenate([[0], np.cumsum(number)])
    # Entry j of a query is its threshold (number - 1 - j): thresholds increase.
    entry = np.repeat(problem.offset[sorted_query + 1] - 1 + offset[:-1], number) - np.arange(offset[-1])
    query = problem.query_index[sorted_query]
    return Ranks(
        query=query,
        labels=problem.labels[query],
        num_negatives=problem.num_negatives[sorted_query],
        offset=offset,
        positive=problem.gallery_index[counts.positives[entry]],
        higher=counts.higher[entry],
        tied=counts.tied[entry],
        at_least=counts.at_least()[entry],
        num_queries=len(problem.labels),
        num_gallery=problem.num_gallery,
        num_rechecked=int(counts.rechecked[0]),
    )
