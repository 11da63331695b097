"""Nearest rows that heed no label, and scores of single pairs: what a system that is searched could know."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from aurank.evaluation.engine.nearest import BestSearch
from aurank.evaluation.engine.positives import Pairs, places_of
from aurank.evaluation.engine.problem import RetrievalProblem
from aurank.evaluation.engine.scores import ExactScores
from aurank.evaluation.engine.tiles import Work
from aurank.evaluation.postprocessing._step import Rows

MEMORY = 2**27  # bytes at a time


@dataclass(frozen=True, eq=False)
class Lists:
    """The k nearest rows of each query by cosine, best first, equal ones in an order of their own."""

    row: Int64[np.ndarray, "query k"]
    score: Float64[np.ndarray, "query k"]


def nearest_lists(
    queries: Rows, gallery: Rows, k: int, *, leave_out: Int64[np.ndarray, " query"], device: str = "cpu"
) -> Lists:
    """Return the k nearest gallery rows of each query; never a matrix of all scores.

    Equal rows come in a random order, always the same: files often come class by class, and in their order a collapsed
    model would find neighbours of the right class.

    Args:
        leave_out: a gallery row that each query must not find, -1 for none. A list that is shorter for it ends in a row
            of score minus infinity.
        device: where products are taken.
    """
    shuffled = np.random.default_rng(0).permutation(len(gallery))
    symmetric = queries is gallery and np.array_equal(leave_out, np.arange(len(gallery)))
    order = shuffled if symmetric else np.arange(len(queries))
    hidden = np.append(places_of(shuffled, len(gallery)), -1)[leave_out[order]]

    def within(here: slice, there: slice) -> Pairs:
        place = hidden[here] - there.start
        query = np.flatnonzero((place >= 0) & (place < there.stop - there.start))
        return query, place[query]

    scores = _scores(queries, gallery, order, shuffled, "cosine")
    work = Work.of(queries, device=device, max_memory=MEMORY, distributed=False)
    search = BestSearch(scores, within, tied=lambda _, place: place, symmetric=symmetric, work=work)
    place, score = search.run(k, places_of(order, len(queries)))
    return Lists(shuffled[place], score)


def farthest_scores(rows: Rows, *, device: str = "cpu") -> Float64[np.ndarray, " row"]:
    """Return the cosine of each row and the row that is farthest from it: of its opposite the nearest."""
    order = np.arange(len(rows))
    work = Work.of(rows, device=device, max_memory=MEMORY, distributed=False)
    scores = _scores(-rows, rows, order, order, "cosine")
    search = BestSearch(scores, lambda *_: (order[:0], order[:0]), lambda _, place: place, symmetric=True, work=work)
    return -search.run(1, order)[1][:, 0]


def pair_scores(
    queries: Rows,
    gallery: Rows,
    query: Int64[np.ndarray, " pair"],
    row: Int64[np.ndarray, " pair"],
    *,
    distance: str = "cosine",
) -> Float64[np.ndarray, " pair"]:
    """Return the exact score of each pair of a query and a gallery row."""
    return _scores(queries, gallery, np.arange(len(queries)), np.arange(len(gallery)), distance).pairs(query, row)


def _scores(
    queries: Rows,
    gallery: Rows,
    order: Int64[np.ndarray, " query"],
    gallery_order: Int64[np.ndarray, " gallery"],
    distance: str,
) -> ExactScores:
    problem = RetrievalProblem(queries, gallery=None if gallery is queries else gallery)
    return ExactScores.of(problem, order, gallery_order, distance=distance)
