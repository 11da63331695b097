"""Evaluation by faiss: what an approximate index retrieves, beside the exact numbers, and ranks read from exact lists.

A list of neighbours shows a positive only if it is long enough, and scores carry the rounding of float32. So an
approximate index is measured for what it is, and `faiss_ranks` asks the exact engine wherever a list ends too early.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from aurank.errors import UserError
from aurank.evaluation import metrics
from aurank.evaluation.aggregate import mean
from aurank.evaluation.engine.counting import Progress
from aurank.evaluation.engine.ranks import Ranks
from aurank.evaluation.index.faiss_bridge import faiss_library
from aurank.evaluation.index.neighbour_lists import Lists, Sides, merge, read_lists, select, take
from aurank.evaluation.index.neighbours import GPU_LONGEST_LIST, Index

NEIGHBOUR_QUERIES = 1000  # queries whose neighbours are compared with the exact ones


@dataclass(frozen=True)
class Approximation:
    """What an approximate index retrieves, with the exact numbers beside it.

    `metrics`: "mauprc" and "recall@{k}" from its lists of `depth` neighbours, in which a positive that is not listed
    counts as never retrieved; `exact`: the same over the full gallery. `neighbour_recall`: the part of the k true
    nearest rows (by faiss's Flat index) that the index finds among its k, as a mean over `neighbour_queries` random
    queries; of rows that score the same, only those that Flat lists count. `measured`: seconds and queries per second
    of this one run, which equality of two results leaves out.
    """

    index: str
    place: str
    depth: int
    metrics: dict[str, float]
    exact: dict[str, float]
    neighbour_recall: dict[int, float]
    neighbour_queries: int
    measured: dict[str, float] = field(compare=False)

    def __str__(self) -> str:
        """A table for people: metric, index and exact side by side, then what was measured."""
        width = max(len(name) for name in (*self.metrics, "metric"))
        lines = [f"{'metric':<{width}}   index   exact"]
        lines += [f"{name:<{width}}  {value:.4f}  {self.exact[name]:.4f}" for name, value in self.metrics.items()]
        found = ", ".join(f"{value:.4f} of {k}" for k, value in self.neighbour_recall.items())
        speed = ", ".join(f"{name.replace('_', ' ')} {value:,.1f}" for name, value in self.measured.items())
        lines.append(f"true nearest rows found, mean of {self.neighbour_queries:,} queries: {found}")
        lines.append(f"index {self.index} on {self.place}, lists of {self.depth:,}; measured once: {speed}")
        return "\n".join(lines)


def approximate_report(
    sides: Sides,
    ranks: Ranks,
    *,
    index: str | Index,
    depth: int | None = None,
    recall_at: tuple[int, ...] = (1, 10, 100, 1000),
    ties: str = "threshold",
    distance: str = "cosine",
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Approximation:
    """Approximation by an index over the gallery: a factory string to build it, or an Index that holds the gallery.

    `ranks` are the exact ones of the same sides. Lists are as long as the largest of `recall_at`, or `depth` if that is
    given. `seed` chooses the training sample and the queries whose neighbours are compared. Raises UserError for an
    index that does not fit, and for a depth that a GPU cannot list.
    """
    if not len(ranks.query):
        raise UserError("no query has a positive in the gallery: an index has nothing to be measured by")
    gallery = sides.target
    depth = min(max(recall_at) if depth is None else depth, len(gallery))
    if depth < min(max(recall_at), len(gallery)):
        raise UserError(f"depth {depth} is too short for recall@{max(recall_at)}: give at least {max(recall_at)}")
    before = time.perf_counter()
    if isinstance(index, str):
        index = Index.build(gallery, index, distance=distance, device=device, seed=seed)
        measured = {"build_seconds": time.perf_counter() - before}
    else:
        _check_index(index, sides, distance)
        measured = {}
    seconds: list[float] = []
    lists = read_lists(sides, index, depth, seconds=seconds, progress=progress)
    measured |= {"search_seconds": sum(seconds), "queries_per_second": len(sides.embeddings) / max(sum(seconds), 1e-9)}
    if not index.gpus:
        measured["threads"] = float(faiss_library().omp_get_max_threads())
    exact = {
        "mauprc": mean(metrics.average_precision(ranks, ties=ties)),
        **{f"recall@{k}": mean(metrics.recall_at(ranks, k)) for k in recall_at},
    }
    recall, queries = neighbour_recall(sides, index, recall_at, seed=seed)
    return Approximation(
        index=index.factory,
        place=index.place,
        depth=depth,
        metrics=list_metrics(lists, recall_at, ties=ties),
        exact=exact,
        neighbour_recall=recall,
        neighbour_queries=queries,
        measured=measured,
    )


def list_metrics(lists: Lists, recall_at: tuple[int, ...], *, ties: str) -> dict[str, float]:
    """mauprc and recall@k over all queries with a positive, where what no list shows was never retrieved."""
    ranks, total = lists.ranks, lists.num_queries
    zeros = np.zeros(total - len(ranks.query))
    found = metrics.average_precision(ranks, ties=ties) * (ranks.num_positives / lists.num_positives)
    recalls = {f"recall@{k}": np.concatenate([metrics.recall_at(ranks, k), zeros]) for k in recall_at}
    return {"mauprc": mean(np.concatenate([found, zeros])), **{name: mean(part) for name, part in recalls.items()}}


def neighbour_recall(sides: Sides, index: Index, cuts: tuple[int, ...], *, seed: int) -> tuple[dict[int, float], int]:
    """For each k the mean part of the k true nearest rows that are among the index's k, and over how many queries."""
    total = len(sides.embeddings)
    rows = np.sort(np.random.default_rng(seed).permutation(total)[:NEIGHBOUR_QUERIES])
    queries, own = take(sides.embeddings, rows), sides.own_rows()
    leave_out = None if own is None else own[rows]
    flat = Index.build(sides.target, "Flat", distance=index.distance, device=None if index.gpus else "cpu")
    deepest = min(max(cuts), len(index))
    true = flat.search(queries, deepest, leave_out=leave_out)
    found = index.search(queries, deepest, leave_out=leave_out)
    keys = [np.arange(len(rows))[:, None] * (len(index) + 1) + part.row for part in (found, true)]
    result = {}
    for k in cuts:
        possible = np.minimum(true.found, min(k, len(index)))
        # What pads a list names no row, in either list.
        listed = [part[:, :k][lists.row[:, :k] < len(index)] for part, lists in zip(keys, (found, true), strict=True)]
        hits = listed[0][np.isin(listed[0], listed[1])] // (len(index) + 1)
        counts = np.bincount(hits, minlength=len(rows))
        some = possible > 0
        result[k] = mean(counts[some] / possible[some]) if some.any() else 1.0
    return result, len(rows)


def faiss_ranks(
    sides: Sides,
    *,
    depth: int = GPU_LONGEST_LIST - 1,  # and the query's own row
    distance: str = "cosine",
    device: torch.device | str | None = None,
    max_memory: int | str = "1GiB",
    progress: Progress | None = None,
) -> tuple[Ranks, list[str]]:
    """Ranks of every positive, read from lists of faiss's Flat index, and notes that say how far to trust them.

    A query whose list of `depth` neighbours does not show all its positives, or ends in a tie with the last of them, is
    ranked by the exact engine. The other ranks rest on float32 scores: rows closer than their rounding may be in
    another order than the exact one, or tie where they should not.
    """
    index = Index.build(sides.target, "Flat", distance=distance, device=device)
    lists = read_lists(sides, index, min(depth, len(index)), progress=progress)
    done = select(lists.ranks, lists.complete)
    short = np.setdiff1d(lists.queries, done.query)
    notes = [
        f"backend faiss: {len(done.query):,} of {lists.num_queries:,} queries were ranked by lists of up to "
        f"{min(depth, len(index)):,} neighbours from a Flat index on {index.place}; its scores are float32, so rows "
        "closer than that rounding may stand in another order than in exact evaluation"
    ]
    if not len(short):
        return done, notes
    notes.append(f"backend faiss: the lists were too short for {len(short):,} queries, which the exact engine ranked")
    exact = sides.ranks(short, distance=distance, device=device, max_memory=max_memory, distributed=False)
    return merge(done, exact), notes


def _check_index(index: Index, sides: Sides, distance: str) -> None:
    expected: tuple[Any, ...] = (len(sides.target), int(sides.target.shape[1]), distance)
    given = (len(index), index.dim, index.distance)
    if given != expected:
        raise UserError(
            f"the index holds {given[0]} rows of width {given[1]} for the distance {given[2]}, and the gallery is "
            f"{expected[0]} rows of width {expected[1]} under {expected[2]}: build the index from this gallery"
        )
