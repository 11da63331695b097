"""The top of each query's list: the nearest gallery rows, in the order that the ranks count."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from aurank.errors import UserError
from aurank.evaluation.engine.best_places import BestSearch
from aurank.evaluation.engine.exact import ExactScores
from aurank.evaluation.engine.inputs import ProgressCallback, byte_count
from aurank.evaluation.engine.kernels import importable
from aurank.evaluation.engine.positives import SortedProblem, sort_by_label
from aurank.evaluation.engine.problem import RetrievalProblem


@dataclass(frozen=True, eq=False)
class NearestRows:
    """The k nearest gallery rows of some queries, best first.

    What a query may not find (itself, junk, ignored pairs) is not there. Among equal scores negatives come first, then
    the order of the gallery: a positive stands at its `Ranks.rank`. A shorter list ends in row -1, score NaN.
    """

    query: Int64[np.ndarray, " query"]  # row of the query
    row: Int64[np.ndarray, "query k"]
    score: Float64[np.ndarray, "query k"]  # exact; larger is closer
    is_positive: Bool[np.ndarray, "query k"]


def nearest_rows(
    problem: RetrievalProblem,
    k: int,
    *,
    distance: str = "cosine",
    device: torch.device | str = "cpu",
    max_memory: int | str = "1GiB",
    progress: ProgressCallback | None = None,
) -> NearestRows:
    """Return the k nearest gallery rows of each query with a positive, by the exact scores that ranks are counted from.

    Args:
        problem: as for `rank_positives`.
        k: length of a list; a gallery that offers less makes it shorter.
        distance: "cosine", "dot" or "euclidean".
        device: where products are taken.
        max_memory: bound of the working memory; the lists and a few numbers per row come on top.
        progress: called as progress(done, total) now and then.

    Raises:
        UserError: k below 1, and whatever `positive_ranks` refuses.

    Example:
        >>> problem = RetrievalProblem(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1]]), labels=[0, 0, 1])
        >>> nearest = nearest_rows(problem, 2)
        >>> nearest.row.tolist(), nearest.is_positive.tolist()
        ([[2, 1], [2, 0]], [[False, True], [False, True]])
    """
    if k < 1:
        raise UserError(f"k must be 1 or more, got {k}")
    ordered = sort_by_label(problem)
    gallery_index = ordered.gallery_index
    exact = ExactScores.of(problem, ordered.query_index, gallery_index, distance=distance, compiled=importable("numba"))

    def tied(query: Int64[np.ndarray, "*#shape"], place: Int64[np.ndarray, "*shape"]) -> Int64[np.ndarray, "*shape"]:
        return np.asarray(ordered.is_positive(query, place) * problem_rows + gallery_index[place])

    problem_rows = ordered.num_gallery
    search = BestSearch(exact, _Hidden(ordered), tied, ordered.symmetric, torch.device(device))
    chosen = np.flatnonzero(ordered.num_positives)
    chosen = chosen[np.argsort(ordered.query_index[chosen])]  # in the caller's order
    found = search.run(k, chosen, memory=byte_count(max_memory), progress=progress)
    exists = found.place >= 0
    return NearestRows(
        query=ordered.query_index[chosen],
        row=np.where(exists, gallery_index[found.place], -1),
        score=np.where(exists, found.score, np.nan),
        is_positive=exists & ordered.is_positive(chosen[:, None], found.place),
    )


@dataclass(frozen=True, eq=False)
class _Hidden:
    """The places that are neither positive nor negative of a sorted query."""

    problem: SortedProblem

    def within(self, here: slice, there: slice) -> tuple[Int64[np.ndarray, " hidden"], Int64[np.ndarray, " hidden"]]:
        """Return the pairs of a range of queries and a range of the gallery, counted from the starts of both."""
        query, place = self.problem.hidden(here, there)
        return query - here.start, place - there.start
