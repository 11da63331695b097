"""Nearest rows that heed no label, and scores of single pairs: what a system that is searched could know."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64

from aurank.evaluation.engine.exact import ExactScores
from aurank.evaluation.engine.inputs import Vectors, row_lengths
from aurank.evaluation.engine.kernels import importable
from aurank.evaluation.engine.scores import full_precision, make_distance
from aurank.evaluation.postprocessing._step import Rows

SPARE = 8  # candidates by float32 beyond k, which are then ordered by exact scores
QUERIES, GALLERY = 1024, 8192  # of a tile of products: with what is chosen from it about 100 MB


@dataclass(frozen=True, eq=False)
class Lists:
    """The k nearest rows of each query by cosine, best first, equal ones in an order of their own."""

    row: Int64[np.ndarray, "query k"]
    score: Float64[np.ndarray, "query k"]
    lowest: Float64[np.ndarray, " query"]  # the score of the farthest row


def nearest_lists(
    queries: Rows, gallery: Rows, k: int, *, leave_out: Int64[np.ndarray, " query"], device: str = "cpu"
) -> Lists:
    """Return the k nearest gallery rows of each query; never a matrix of all scores.

    Equal rows come in a random order, always the same: files often come class by class, and in their order a collapsed
    model would find neighbours of the right class.

    Args:
        leave_out: a gallery row that each query must not find, -1 for none. Behind a list that is shorter for it the
            score is minus infinity.
        device: where products are taken.
    """
    k = min(k, len(gallery))
    shuffled = np.random.default_rng(0).permutation(len(gallery))
    place_of = np.append(np.argsort(shuffled), -1)
    left, right, exact = _sides(queries, gallery, "cosine", shuffled)
    wanted, hidden = min(k + SPARE, len(gallery)), place_of[leave_out]
    with full_precision():
        place, farthest = _candidates(left, right, wanted, hidden, torch.device(device))
    query = np.arange(len(queries))
    score = exact.pairs(np.repeat(query, wanted), place.ravel()).reshape(place.shape)
    score[(place < 0) | (place == hidden[:, None])] = -np.inf
    order = np.lexsort((place, -score), axis=1)[:, :k]
    place, score = (np.take_along_axis(part, order, axis=1) for part in (place, score))
    return Lists(shuffled[place], score, exact.pairs(query, farthest))


def pair_scores(
    queries: Rows,
    gallery: Rows,
    query: Int64[np.ndarray, " pair"],
    row: Int64[np.ndarray, " pair"],
    *,
    distance: str = "cosine",
) -> Float64[np.ndarray, " pair"]:
    """Return the exact score of each pair of a query and a gallery row."""
    return _sides(queries, gallery, distance, np.arange(len(gallery)))[2].pairs(query, row)


def _sides(
    queries: Rows, gallery: Rows, distance: str, order: Int64[np.ndarray, " gallery"]
) -> tuple[Vectors, Vectors, ExactScores]:
    compiled = importable("numba")
    lengths = others = row_lengths(queries, side="query", distance=distance, compiled=compiled)
    if gallery is not queries:
        others = row_lengths(gallery, side="gallery", distance=distance, compiled=compiled)
    measure = make_distance(distance, float(lengths.max()), float(others.max()))
    left, right = (
        Vectors(rows, length, order=places, distance=measure)
        for rows, length, places in ((queries, lengths, np.arange(len(queries))), (gallery, others, order))
    )
    return left, right, ExactScores(left, right, compiled=compiled)


def _candidates(
    left: Vectors, right: Vectors, wanted: int, hidden: Int64[np.ndarray, " query"], device: torch.device
) -> tuple[Int64[np.ndarray, "query wanted"], Int64[np.ndarray, " query"]]:
    """Return the places of the greatest float32 products of each query, and of the smallest one."""
    queries, size = len(left.order), len(right.order)
    value = torch.full((queries, wanted), -torch.inf, device=device)
    place = torch.full((queries, wanted), -1, dtype=torch.int64, device=device)
    smallest = torch.full((queries,), torch.inf, device=device)
    farthest = torch.zeros(queries, dtype=torch.int64, device=device)
    for start in range(0, size, GALLERY):
        there = slice(start, min(start + GALLERY, size))
        columns = right.features(there, torch.float32, gallery=True).to(device).T
        for first in range(0, queries, QUERIES):
            here = slice(first, min(first + QUERIES, queries))
            product = left.features(here, torch.float32, gallery=False).to(device) @ columns
            least = product.min(dim=1)
            farthest[here] = torch.where(least.values < smallest[here], least.indices + start, farthest[here])
            smallest[here] = torch.minimum(smallest[here], least.values)
            inside = np.flatnonzero((hidden[here] >= there.start) & (hidden[here] < there.stop))
            product[inside, hidden[here][inside] - start] = -torch.inf
            best = product.topk(min(wanted, product.shape[1]), dim=1)
            value[here], order = torch.cat([value[here], best.values], dim=1).topk(wanted, dim=1)
            place[here] = torch.cat([place[here], best.indices + start], dim=1).gather(1, order)
    return place.cpu().numpy(), farthest.cpu().numpy()
