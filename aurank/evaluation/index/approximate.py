"""What an approximate index retrieves by its own lists, in which a positive that is not listed was never retrieved."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from aurank.errors import UserError
from aurank.evaluation import metrics
from aurank.evaluation.engine.problem import (
    ProgressCallback,
    RetrievalProblem,
    SortedProblem,
    among,
    places_of,
    sort_by_label,
)
from aurank.evaluation.engine.ranks import Ranks
from aurank.evaluation.index.neighbours import Index, Neighbours, faiss_library, take
from aurank.evaluation.metrics import mean

NEIGHBOUR_QUERIES = 1000  # queries whose neighbours are compared with the exact ones


@dataclass(frozen=True)
class Approximation:
    """What an approximate index retrieves, with the exact numbers beside it.

    `metrics`: "mauprc" and "recall@{k}" from its lists of `depth` neighbours; `exact`: the same over the full gallery.
    `neighbour_recall`: the part of the k true nearest rows (by faiss's Flat index) that the index finds among its k, as
    a mean over `neighbour_queries` random queries. `measured`: seconds and queries per second of this one run.

    Example:
        >>> found = Approximation("Flat", "CPU", 1, {"recall@1": 0.5}, {"recall@1": 1.0}, {1: 0.5}, 2, {"seconds": 0.1})
        >>> print(found)
        metric     index   exact
        recall@1  0.5000  1.0000
        true nearest rows found, mean of 2 queries: 0.5000 of 1
        index Flat on CPU, lists of 1; measured once: seconds 0.1
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
        width = max(len(name) for name in (*self.metrics, "metric"))
        lines = [f"{'metric':<{width}}   index   exact"]
        lines += [f"{name:<{width}}  {value:.4f}  {self.exact[name]:.4f}" for name, value in self.metrics.items()]
        found = ", ".join(f"{value:.4f} of {k}" for k, value in self.neighbour_recall.items())
        speed = ", ".join(f"{name.replace('_', ' ')} {value:,.1f}" for name, value in self.measured.items())
        lines.append(f"true nearest rows found, mean of {self.neighbour_queries:,} queries: {found}")
        lines.append(f"index {self.index} on {self.place}, lists of {self.depth:,}; measured once: {speed}")
        return "\n".join(lines)


def approximate_report(
    problem: RetrievalProblem,
    ranks: Ranks,
    *,
    index: str | Index,
    depth: int | None = None,
    recall_at: tuple[int, ...] = (1, 10, 100, 1000),
    ties: str = "threshold",
    distance: str = "cosine",
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Approximation:
    """Return what an index over the gallery retrieves, beside the exact numbers.

    Args:
        problem: queries, gallery and who is positive for whom.
        ranks: the exact ranks of the same problem.
        index: a factory string to build it, or an Index that holds the gallery.
        depth: length of the lists; by default the largest of `recall_at`.
        seed: chooses the training sample and the queries whose neighbours are compared.

    Raises:
        UserError: an index that does not fit, a depth below a recall's k or beyond what a GPU can list.

    Example:
        >>> rows, labels = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), np.array([0, 0, 1, 1])
        >>> from aurank.evaluation import RetrievalProblem, positive_ranks
        >>> found = approximate_report(
        ...     RetrievalProblem(rows, labels), positive_ranks(rows, labels), index="Flat", recall_at=(1,), device="cpu"
        ... )
        >>> found.metrics
        {'mauprc': 1.0, 'recall@1': 1.0}
    """
    if not len(ranks.query):
        raise UserError("no query has a positive in the gallery: an index has nothing to be measured by")
    exact = {"mauprc": mean(metrics.average_precision(ranks, ties=ties))}
    exact |= {f"recall@{k}": mean(metrics.recall_at(ranks, k)) for k in recall_at}
    how: dict[str, Any] = {"index": index, "depth": depth, "recall_at": recall_at, "ties": ties, "distance": distance}
    return index_report(problem, exact, **how, device=device, seed=seed, progress=progress)


def index_report(
    problem: RetrievalProblem,
    exact: dict[str, float],
    *,
    index: str | Index,
    depth: int | None = None,
    recall_at: tuple[int, ...],
    ties: str,
    distance: str,
    device: torch.device | str | None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Approximation:
    """Return what an index retrieves beside exact metrics; the rest is as for `approximate_report`."""
    gallery = problem.target
    depth = min(max(recall_at) if depth is None else depth, len(gallery))
    if depth < min(max(recall_at), len(gallery)):
        raise UserError(f"depth {depth} is too short for recall@{max(recall_at)}: give at least {max(recall_at)}")
    before, measured = time.perf_counter(), {}
    if isinstance(index, str):
        index = Index.build(gallery, index, distance=distance, device=device, seed=seed)
        measured["build_seconds"] = time.perf_counter() - before
    given, shape = (len(index), index.dim, index.distance), tuple(gallery.shape)
    if given != (*shape, distance):
        held = f"the index holds {given[0]} rows of width {given[1]} for the distance {given[2]}"
        asked = f"the gallery is {shape[0]} rows of width {shape[1]} under {distance}"
        raise UserError(f"{held}, and {asked}: build the index from this gallery")
    ordered, times = sort_by_label(problem), list[float]()
    reader = _ListReader(ordered)
    values: dict[str, list[float]] = {"mauprc": [], **{f"recall@{k}": [] for k in recall_at}}
    for rows, near in index.search_batches(problem.embeddings, depth, leave_out=problem.own_rows(), seconds=times):
        ranks, share = reader.ranks(rows, near)
        values["mauprc"] += (metrics.average_precision(ranks, ties=ties) * share).tolist()
        for k in recall_at:
            values[f"recall@{k}"] += metrics.recall_at(ranks, k).tolist()
        if progress is not None:
            progress(rows.stop, len(problem.embeddings))
    total, seconds = int((ordered.num_positives > 0).sum()), sum(times)
    found = {name: math.fsum(column) / total for name, column in values.items()}
    measured |= {"search_seconds": seconds, "queries_per_second": len(problem.embeddings) / max(seconds, 1e-9)}
    if not index.gpus:
        measured["threads"] = float(faiss_library().omp_get_max_threads())
    recall, queries = _neighbour_recall(problem, index, recall_at, seed=seed)
    return Approximation(index.factory, index.place, depth, found, exact, recall, queries, measured)


class _ListReader:
    """Reads ranks of positives from lists of neighbours, which may show only some of them."""

    def __init__(self, problem: SortedProblem) -> None:
        self.problem = problem
        self.width = len(problem.gallery_index)
        self.sorted_gallery = places_of(problem.gallery_index, problem.num_gallery + 1)  # -1: junk, padding
        self.sorted_query = places_of(problem.query_index, len(problem.labels))
        queries = np.arange(len(problem.query_index))
        self.extra = np.sort(np.repeat(queries, np.diff(problem.extra_offset)) * self.width + problem.extra)

    def ranks(self, rows: slice, found: Neighbours) -> tuple[Ranks, Float64[np.ndarray, " query"]]:
        """Return the ranks of the positives that these queries' lists show, and which part of all positives that is."""
        problem, query = self.problem, self.sorted_query[rows]
        use = np.flatnonzero(query >= 0)
        query, row, similarity = query[use], found.row[use], found.similarity[use]
        place = self.sorted_gallery[row]
        keys = query[:, None] * self.width + place
        positive = (place >= 0) & problem.is_positive(query[:, None], place)
        hidden = (place >= problem.class_start[query, None]) & (place < problem.class_stop[query, None])
        negative = (place >= 0) & ~hidden & ~among(keys, self.extra) & ~positive
        start, end = _runs(similarity)
        negatives, positives = (np.pad(np.cumsum(part, axis=1), ((0, 0), (1, 0))) for part in (negative, positive))
        line, column = np.nonzero(positive)
        # Equal positives stand in gallery order, as in exact ranks.
        order = np.lexsort((row[line, column], start[line, column], line))
        line, column = line[order], column[order]
        first, last = start[line, column], end[line, column]
        shown = positives[:, -1]
        query, shown = query[shown > 0], shown[shown > 0]
        ranks = Ranks(
            query=problem.query_index[query],
            labels=problem.labels[problem.query_index[query]],
            num_negatives=problem.num_negatives[query],
            offset=np.concatenate([[0], np.cumsum(shown)]).astype(np.int64),
            positive=row[line, column],
            higher=negatives[line, first],
            tied=negatives[line, last] - negatives[line, first],
            at_least=positives[line, last],
            num_queries=len(problem.labels),
            num_gallery=problem.num_gallery,
        )
        return ranks, shown / problem.num_positives[query]


def _runs(similarity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    width = similarity.shape[1]
    column = np.arange(width)
    change = similarity[:, 1:] != similarity[:, :-1]
    start, end = np.zeros(similarity.shape, np.int64), np.full(similarity.shape, width)
    start[:, 1:] = np.maximum.accumulate(np.where(change, column[1:], 0), axis=1)
    end[:, :-1] = np.minimum.accumulate(np.where(change, column[1:], width)[:, ::-1], axis=1)[:, ::-1]
    return start, end


def _neighbour_recall(
    problem: RetrievalProblem, index: Index, recall_at: tuple[int, ...], *, seed: int
) -> tuple[dict[int, float], int]:
    chosen = np.sort(np.random.default_rng(seed).permutation(len(problem.embeddings))[:NEIGHBOUR_QUERIES])
    queries, own = take(problem.embeddings, chosen), problem.own_rows()
    leave_out = None if own is None else own[chosen]
    flat = Index.build(problem.target, "Flat", distance=index.distance, device=None if index.gpus else "cpu")
    deepest, size = min(max(recall_at), len(index)), len(index)
    true = flat.search(queries, deepest, leave_out=leave_out)
    found = index.search(queries, deepest, leave_out=leave_out)
    # pairs of query and row as one number; what pads the lists is of no pair
    first = np.arange(len(chosen))[:, None] * size
    listed, nearest = (np.where(part.row < size, first + part.row, pad) for part, pad in ((found, -1), (true, -2)))
    result = {}
    for k in recall_at:
        possible = np.minimum(true.found, k)
        hits = np.isin(listed[:, :k], nearest[:, :k]).sum(axis=1)
        some = possible > 0
        result[k] = mean(hits[some] / possible[some]) if some.any() else 1.0
    return result, len(chosen)
