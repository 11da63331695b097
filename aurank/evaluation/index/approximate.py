"""Metrics of an approximate index by its own lists; a positive that is not listed counts as never retrieved."""

import math
import time
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from aurank.errors import UserError
from aurank.evaluation import metrics
from aurank.evaluation.engine.problem import SortedProblem, among, positions_of, sort_by_label
from aurank.evaluation.engine.ranks import Ranks
from aurank.evaluation.index.neighbours import Index, Neighbours, faiss_library
from aurank.evaluation.inputs import ProgressCallback, RetrievalProblem
from aurank.evaluation.metrics import mean

NEIGHBOUR_QUERIES = 1000  # queries whose neighbours are compared with the exact ones


def describe_index(content: dict[str, Any]) -> str:
    width = max(len(name) for name in (*content["metrics"], "metric"))
    lines = [f"{'metric':<{width}}   index   exact"]
    for name, value in content["metrics"].items():
        lines.append(f"{name:<{width}}  {value:.4f}  {content['exact'][name]:.4f}")
    recalls = ", ".join(f"{value:.4f} of {k}" for k, value in content["neighbour_recall"].items())
    speed = ", ".join(f"{name.replace('_', ' ')} {value:,.1f}" for name, value in content["measured"].items())
    lines.append(f"true nearest rows found, mean of {content['neighbour_queries']:,} queries: {recalls}")
    lists = f"lists of {content['depth']:,}; measured once: {speed}"
    lines.append(f"index {content['index']} on {content['place']}, {lists}")
    return "\n".join(lines)


def index_report(
    problem: RetrievalProblem,
    exact: dict[str, float],
    *,
    index: str | Index,
    recall_at: tuple[int, ...],
    ties: str = "threshold",
    distance: str = "cosine",
    device: torch.device | str | None = None,
    progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Return the metrics of an index, or of one built by a factory string, by its own lists.

    Beside "metrics" are the "exact" ones, and "neighbour_recall": the part of the k true nearest rows (by faiss's Flat)
    that it finds among its k, by k, a mean over "neighbour_queries" random queries. "measured" is of this one run.
    """
    gallery = problem.target
    depth = min(max(recall_at), len(gallery))
    before, measured = time.perf_counter(), {}
    if isinstance(index, str):
        index = Index.build(gallery, index, distance=distance, device=device)
        measured["build_seconds"] = time.perf_counter() - before
    rows, width = gallery.shape
    if (len(index), index.dim, index.distance) != (rows, width, distance):
        raise UserError(
            f"the index holds {len(index)} rows of width {index.dim} for the distance {index.distance}, and the "
            f"gallery is {rows} rows of width {width} under {distance}: build the index from this gallery"
        )
    ordered, times = sort_by_label(problem), list[float]()
    values: dict[str, list[float]] = {"mauprc": [], **{f"recall@{k}": [] for k in recall_at}}
    for queries, near in index.search_batches(problem.embeddings, depth, leave_out=problem.own_rows(), seconds=times):
        ranks, part = _listed_ranks(ordered, queries, near)
        values["mauprc"] += (metrics.average_precision(ranks, ties=ties) * part).tolist()
        for k in recall_at:
            values[f"recall@{k}"] += metrics.recall_at(ranks, k).tolist()
        if progress is not None:
            progress(queries.stop, len(problem.embeddings))
    total, seconds = int((ordered.num_positives > 0).sum()), sum(times)
    means = {name: math.fsum(column) / total for name, column in values.items()}
    measured |= {"search_seconds": seconds, "queries_per_second": len(problem.embeddings) / max(seconds, 1e-9)}
    if not index.gpus:
        measured["threads"] = float(faiss_library().omp_get_max_threads())
    neighbour_recall, num_queries = _neighbour_recall(problem, index, recall_at)
    content = {"index": index.factory, "place": index.place, "depth": depth, "metrics": means, "exact": exact}
    neighbours = {"neighbour_recall": neighbour_recall, "neighbour_queries": num_queries}
    return {**content, **neighbours, "measured": measured}


def _listed_ranks(
    problem: SortedProblem, queries: slice, near: Neighbours
) -> tuple[Ranks, Float64[np.ndarray, " query"]]:
    """Return the ranks of the positives that these queries' lists hold, and their part of all positives."""
    query, size = positions_of(problem.query_index, len(problem.labels))[queries], len(problem.gallery_index)
    used = np.flatnonzero(query >= 0)
    query, row, similarity = query[used], near.row[used], near.similarity[used]
    position = positions_of(problem.gallery_index, problem.num_gallery + 1)[row]  # -1: junk, padding
    owner = np.repeat(np.arange(len(problem.query_index)), np.diff(problem.extra_offset))
    is_extra = among(query[:, None] * size + position, np.sort(owner * size + problem.extra))
    positive = (position >= 0) & problem.is_positive(query[:, None], position)
    is_class = (position >= problem.class_start[query, None]) & (position < problem.class_stop[query, None])
    negative = (position >= 0) & ~is_class & ~is_extra & ~positive
    negatives, positives = (np.pad(np.cumsum(part, axis=1), ((0, 0), (1, 0))) for part in (negative, positive))
    # Where the run of equal scores that an entry is in starts and ends.
    width = similarity.shape[1]
    column = np.arange(width)
    change = similarity[:, 1:] != similarity[:, :-1]
    start, end = np.zeros(similarity.shape, np.int64), np.full(similarity.shape, width)
    start[:, 1:] = np.maximum.accumulate(np.where(change, column[1:], 0), axis=1)
    end[:, :-1] = np.minimum.accumulate(np.where(change, column[1:], width)[:, ::-1], axis=1)[:, ::-1]
    line, column = np.nonzero(positive)
    # Equal positives stand in gallery order, as in exact ranks.
    order = np.lexsort((row[line, column], start[line, column], line))
    line, column = line[order], column[order]
    first, last = start[line, column], end[line, column]
    listed = positives[:, -1]
    query, listed = query[listed > 0], listed[listed > 0]
    ranks = Ranks(
        query=problem.query_index[query],
        labels=problem.labels[problem.query_index[query]],
        num_negatives=problem.num_negatives[query],
        offset=np.concatenate([[0], np.cumsum(listed)]).astype(np.int64),
        positive=row[line, column],
        higher=negatives[line, first],
        tied=negatives[line, last] - negatives[line, first],
        at_least=positives[line, last],
        num_queries=len(problem.labels),
        num_gallery=problem.num_gallery,
    )
    return ranks, listed / problem.num_positives[query]


def _neighbour_recall(
    problem: RetrievalProblem, index: Index, recall_at: tuple[int, ...]
) -> tuple[dict[str, float], int]:
    chosen = np.sort(np.random.default_rng(0).permutation(len(problem.embeddings))[:NEIGHBOUR_QUERIES])
    queries, own_rows = problem.embeddings[chosen], problem.own_rows()
    leave_out = None if own_rows is None else own_rows[chosen]
    flat = Index.build(problem.target, "Flat", distance=index.distance, device=None if index.gpus else "cpu")
    deepest, size = min(max(recall_at), len(index)), len(index)
    true, near = (each.search(queries, deepest, leave_out=leave_out) for each in (flat, index))
    # A pair of query and row is one number; padding is no pair.
    first = np.arange(len(chosen))[:, None] * size
    listed, nearest = (np.where(part.row < size, first + part.row, pad) for part, pad in ((near, -1), (true, -2)))
    recall = {}
    for k in recall_at:
        possible = np.minimum(true.count, k)
        hits = np.isin(listed[:, :k], nearest[:, :k]).sum(axis=1)
        has_any = possible > 0
        recall[str(k)] = mean(hits[has_any] / possible[has_any]) if has_any.any() else 1.0
    return recall, len(chosen)
