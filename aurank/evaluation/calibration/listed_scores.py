"""Pairs that also have a query each: of a report's lists, or of all that embeddings make."""

from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from aurank.evaluation.calibration.thresholds import PairScores
from aurank.evaluation.report import Report


@runtime_checkable
class CountedScores(PairScores, Protocol):
    """Pairs that are also counted for each query."""

    unit: str
    labels: Shaped[np.ndarray, " query"]
    positives_each: Int64[np.ndarray, " query"]
    negatives_each: Int64[np.ndarray, " query"]

    def positives_by_query(self, edge: float) -> Int64[np.ndarray, " query"]:
        """Return for each query how many of its positives score at least as high as an edge."""
        ...

    def negatives_by_query(self, edge: float) -> Int64[np.ndarray, " query"]:
        """Return for each query how many of its negatives score at least as high as an edge."""
        ...


class ListedScores:
    """The pairs that a report's lists of neighbours hold, and where these are cut."""

    def __init__(self, report: Report) -> None:
        lists = report.neighbours
        assert lists is not None
        listed, own = lists.row >= 0, lists.is_positive
        self.query, _ = np.nonzero(listed)
        self.score, self.is_positive = lists.score[listed], own[listed]
        self.positives: Float64[np.ndarray, " positive"] = np.sort(self.score[self.is_positive])
        self.negatives = np.sort(self.score[~self.is_positive])
        columns = report.per_query
        self.unit = "class" if "label" in columns else "query"
        self.labels = columns.get("label", columns["query"])
        self.positives_each, self.negatives_each = (columns[f"num_{kind}"] for kind in ("positives", "negatives"))
        self.num_positives, self.num_negatives = int(self.positives_each.sum()), int(self.negatives_each.sum())
        self.length = lists.row.shape[1]
        # Of a list that leaves out candidates the last score; those that it leaves out score at most as much.
        is_cut = listed.sum(axis=1) < self.positives_each + self.negatives_each
        self.last = np.where(is_cut, np.min(lists.score, axis=1, initial=np.inf, where=listed), -np.inf)

    @cached_property
    def cut(self) -> float:
        """The score above which no list leaves out anything; minus infinity where lists are whole."""
        return float(self.last.max(initial=-np.inf))

    def bracket(
        self, scores: Float64[np.ndarray, " score"]
    ) -> tuple[Int64[np.ndarray, " score"], Int64[np.ndarray, " score"]]:
        """Return how many listed negatives score so high, twice."""
        return self.negatives_at_least(scores), self.negatives_at_least(scores)

    def negatives_at_least(self, edges: Float64[np.ndarray, " edge"]) -> Int64[np.ndarray, " edge"]:
        """Return how many listed negatives score at least as high as each edge."""
        return np.asarray(len(self.negatives) - np.searchsorted(self.negatives, edges))

    def positives_by_query(self, edge: float) -> Int64[np.ndarray, " query"]:
        """Return for each query how many of its listed positives score at least as high as an edge."""
        return self._by_query(self.is_positive & (self.score >= edge))

    def negatives_by_query(self, edge: float) -> Int64[np.ndarray, " query"]:
        """Return for each query how many of its listed negatives score at least as high as an edge."""
        return self._by_query(~self.is_positive & (self.score >= edge))

    def _by_query(self, counted: np.ndarray) -> Int64[np.ndarray, " query"]:
        return np.bincount(self.query[counted], minlength=len(self.labels))
