"""Lists whose beginnings are ordered anew: by the rows before codes, and the ranks that follow."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float64

from aurank.evaluation.engine.nearest import NearestRows
from aurank.evaluation.engine.ranks import Ranks
from aurank.evaluation.postprocessing._lists import pair_scores
from aurank.evaluation.postprocessing._step import ListStep, Sides

ELEMENTS = 2**24  # scores compared at a time


@dataclass(frozen=True, kw_only=True)
class Rescore(ListStep):
    """Order the first `depth` of each list by the rows as they were before truncation and codes.

    Not transductive. An index that does so keeps the rows besides, to read `depth` of them for a query.

    Example:
        >>> str(Rescore(depth=50))
        'rescore:depth=50'
    """

    name: ClassVar[str] = "rescore"

    def scores(
        self, lists: NearestRows, sides: Sides, uncoded: Sides, *, distance: str, device: str
    ) -> Float64[np.ndarray, "query k"]:
        """Return the exact scores of the rows before the codes."""
        exists = lists.row >= 0
        found = np.full(lists.row.shape, np.nan)
        query = np.broadcast_to(lists.query[:, None], lists.row.shape)[exists]
        found[exists] = pair_scores(uncoded.queries, uncoded.target, query, lists.row[exists], distance=distance)
        return found


def reordered_ranks(ranks: Ranks, lists: NearestRows, score: Float64[np.ndarray, "query k"]) -> Ranks:
    """Return the ranks of the positives after the rows listed were ordered by new scores, larger being closer.

    What stands behind a list stays there, in its old order. Equal new scores tie; a list's last row and the next one,
    behind it, do not. The result counts every gallery row, so that every metric of it is exact.

    Args:
        ranks: before, of all queries or some.
        lists: the beginnings of all lists, as `nearest_rows` gives them for the same problem.
        score: of the rows listed; NaN where there is none.

    Example:
        >>> from aurank.evaluation.engine.nearest import nearest_rows
        >>> from aurank.evaluation.engine.problem import RetrievalProblem
        >>> from aurank.evaluation.engine.ranks import positive_ranks
        >>> problem = RetrievalProblem(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1]]), labels=[0, 0, 1])
        >>> ranks, lists = positive_ranks(problem), nearest_rows(problem, 2)
        >>> ranks.rank.tolist(), reordered_ranks(ranks, lists, -lists.score).rank.tolist()
        ([2, 2], [1, 1])
    """
    if len(ranks.query) < len(lists.query):
        rows = np.searchsorted(lists.query, ranks.query)
        lists = NearestRows(lists.query[rows], lists.row[rows], lists.score[rows], lists.is_positive[rows])
        score = score[rows]
    is_positive, exists = lists.is_positive, lists.row >= 0
    is_negative = exists & ~is_positive
    line, column = np.nonzero(is_positive)
    own = score[line, column]
    # The positives listed come first of each query's, in its new order; equal ones in the order of the gallery.
    order = np.lexsort((lists.row[line, column], -own, line))
    line, column, own = line[order], column[order], own[order]
    listed = is_positive.sum(axis=1)
    place = np.arange(len(line)) + np.repeat(ranks.offset[:-1] - (np.cumsum(listed) - listed), listed)
    negatives = np.repeat(is_negative.sum(axis=1), ranks.num_positives)
    higher = np.maximum(ranks.higher, negatives)  # of those behind: what tied with a row listed is behind it now
    tied = ranks.higher + ranks.tied - higher
    positive, at_least = ranks.positive.copy(), ranks.at_least.copy()
    positive[place] = lists.row[line, column]
    step = max(1, ELEMENTS // score.shape[1])
    for start in range(0, len(line), step):
        here = slice(start, start + step)
        there, threshold = line[here], own[here][:, None]
        above, equal = score[there] > threshold, score[there] == threshold
        higher[place[here]] = (above & is_negative[there]).sum(axis=1)
        tied[place[here]] = (equal & is_negative[there]).sum(axis=1)
        at_least[place[here]] = ((above | equal) & is_positive[there]).sum(axis=1)
    return replace(ranks, positive=positive, higher=higher, tied=tied, at_least=at_least)
