"""Scores of all pairs under one threshold: positives as a list, negatives counted in bounded memory."""

from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from aurank.evaluation.engine.problem import require_room, sort_by_label
from aurank.evaluation.engine.scores import ExactScores
from aurank.evaluation.engine.tiles import Thresholds, Tiles, count_negatives
from aurank.evaluation.inputs import ProgressCallback, RetrievalProblem, Work
from aurank.evaluation.shards import gather_shards

CELLS = 256  # of the first look at all negatives


class PooledScores:
    """The exact scores of all positive pairs, and counts of negative ones; of queries that have a positive."""

    def __init__(
        self, problem: RetrievalProblem, *, distance: str, progress: ProgressCallback | None = None, **how: Any
    ) -> None:
        self.work = Work.of(problem.embeddings, **how)
        if self.work.group.size > 1:
            problem = gather_shards(self.work.group, problem, shards=how.get("distributed") == "shards")
        ordered = self.ordered = sort_by_label(problem)
        require_room(int(ordered.offset[-1]))
        self.exact = ExactScores(problem, ordered.query_index, ordered.gallery_index, distance=distance)
        self.progress = progress
        counts = ordered.num_positives
        self.positives_each = counts  # of each sorted query
        query, position = ordered.positives(slice(0, len(counts)))
        scores = self.exact.pairs(query, position)
        order = np.argsort(scores, kind="stable")
        self.positives: Float64[np.ndarray, " positive"] = scores[order]  # increasing
        self.positive_query = query[order]  # the sorted query of each
        self.negatives_each = np.where(counts > 0, ordered.num_negatives, 0)
        self.num_positives, self.num_negatives = len(scores), int(self.negatives_each.sum())

    def bracket(
        self, scores: Float64[np.ndarray, " score"]
    ) -> tuple[Int64[np.ndarray, " score"], Int64[np.ndarray, " score"]]:
        """Return the least and the most negatives that may score as high as each score, by the first look."""
        cells, counts = self._cells
        bounds = np.concatenate([[self.num_negatives], counts, [0]])
        return bounds[np.searchsorted(cells, scores) + 1], bounds[np.searchsorted(cells, scores, side="right")]

    def negatives_at_least(self, edges: Float64[np.ndarray, " edge"]) -> Int64[np.ndarray, " edge"]:
        is_answered = self.positives_each > 0
        first = np.zeros(len(is_answered), np.int64)
        return self._count(Thresholds(edges, first, np.where(is_answered, len(edges), 0)))

    def negatives_by_query(self, edge: float) -> Int64[np.ndarray, " sorted_query"]:
        """Return for each sorted query how many of its negatives score at least as high as an edge, exactly."""
        is_answered = self.positives_each > 0
        last, total = np.cumsum(is_answered), np.zeros(len(is_answered), np.int64)
        thresholds = Thresholds(np.full(int(is_answered.sum()), edge), last - is_answered, last)
        total[is_answered] = self._count(thresholds)
        return total

    def _count(self, thresholds: Thresholds) -> Int64[np.ndarray, " threshold"]:
        if len(thresholds.scores):
            tiles = Tiles(self.exact, self.work, symmetric=self.ordered.symmetric)
            count_negatives(thresholds, self.ordered, tiles, self.progress)
        return np.asarray(thresholds.above + thresholds.tied)

    @cached_property
    def _cells(self) -> tuple[Float64[np.ndarray, " cell"], Int64[np.ndarray, " cell"]]:
        distinct = np.unique(self.positives)
        cells = distinct[np.linspace(0, len(distinct) - 1, min(CELLS, len(distinct))).astype(np.int64)]
        return cells, self.negatives_at_least(cells)
