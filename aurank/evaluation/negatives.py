"""Hard negatives: the nearest rows of other classes, and which of them may be false."""

from typing import Any

import numpy as np
from jaxtyping import Int64

from aurank.arrays import Rows
from aurank.evaluation.engine.nearest import BestSearch
from aurank.evaluation.engine.problem import Pairs
from aurank.evaluation.engine.scores import ExactScores
from aurank.evaluation.inputs import ProgressCallback, RetrievalProblem, Work, require_at_least

NEIGHBOURS = 10  # at most, that decide whether a negative is suspect
_SCORES = 2**22  # in memory at a time


def mine_negatives(
    embeddings: Rows,
    labels: Int64[np.ndarray, " row"],
    k: int = 10,
    *,
    suspect: float = 0.3,
    distance: str = "cosine",
    progress: ProgressCallback | None = None,
    **how: Any,
) -> dict[str, np.ndarray]:
    """Return the k nearest rows of other classes for each row with a positive, by exact scores, ties by row.

    A negative is suspect where no positive is nearer to the query, and, of its own nearest negatives, further rows of
    the query's class are as near to it as any positive of its own: the part `suspect` of the query's positives or more,
    of which 10 count at most.

    Args:
        how: `device` and `max_memory` of ``aurank.evaluate``.

    Returns:
        Columns of the pairs: query, negative, rank, score, positive_score (the best), worst_positive_score, margin (the
        best positive's score less the negative's), is_suspect.
    """
    require_at_least(1, k=k)
    order = np.argsort(labels, kind="stable")
    label = np.unique(labels, return_inverse=True)[1][order]
    sizes = np.bincount(label)
    stops = np.cumsum(sizes)
    starts = stops - sizes

    def same_class(queries: slice, rows: slice) -> Pairs:
        first, last = (np.clip(edge[label[queries]], rows.start, rows.stop) - rows.start for edge in (starts, stops))
        query = np.repeat(np.arange(len(first)), last - first)
        return query, np.arange(len(query)) - np.repeat(np.cumsum(last - first) - last, last - first)

    exact = ExactScores(RetrievalProblem(embeddings, labels=labels), order, order, distance=distance)
    work = Work.of(embeddings, distributed=False, **how)
    search = BestSearch(exact, same_class, lambda query, position: order[position], True, work)
    position, score = search.run(max(k, NEIGHBOURS + 1), np.arange(len(order)), progress)
    best, worst = np.full(len(order), -np.inf), np.full(len(order), np.inf)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        step = max(1, _SCORES // (stop - start))
        for rows in (np.arange(first, min(first + step, stop)) for first in range(start, stop, step)):
            positives = np.arange(start, stop)
            pairs = np.repeat(rows, len(positives)), np.tile(positives, len(rows))
            is_self, scores = rows[:, None] == positives, exact.pairs(*pairs).reshape(len(rows), len(positives))
            best[rows] = np.where(is_self, -np.inf, scores).max(axis=1)
            worst[rows] = np.where(is_self, np.inf, scores).min(axis=1)
    query, at = np.nonzero((position[:, :k] >= 0) & (sizes[label] > 1)[:, None])
    by_row = np.argsort(order[query], kind="stable")
    query, at = query[by_row], at[by_row]
    negative, scores = position[query, at], score[query, at]
    is_suspect, near = scores >= best[query], (position >= 0) & (score >= best[:, None])
    chosen = np.flatnonzero(is_suspect)
    for block in np.array_split(chosen, 1 + chosen.size * NEIGHBOURS // _SCORES):
        mined_by, listed = query[block, None], position[negative[block], : NEIGHBOURS + 1]
        alike = near[negative[block], : NEIGHBOURS + 1] & (listed != mined_by) & (label[listed] == label[mined_by])
        is_suspect[block] = alike.sum(axis=1) >= suspect * np.minimum(sizes[label[query[block]]] - 1, NEIGHBOURS)
    columns = {"query": order[query], "negative": order[negative], "rank": at + 1, "score": scores}
    columns |= {"positive_score": best[query], "worst_positive_score": worst[query]}
    return {**columns, "margin": best[query] - scores, "is_suspect": is_suspect}
