"""Nearest rows of a fixed gallery after post-processing: by faiss, or exactly among chosen rows."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from aurank.errors import UserError
from aurank.evaluation.engine.nearest import NearestRows
from aurank.evaluation.index.neighbours import SearchIndex, check_rows, scaled_rows
from aurank.evaluation.inputs import as_matrix, require_same_width
from aurank.evaluation.postprocessing.neighbour_steps import DatabaseAugmentation, Rescore, SideStep
from aurank.evaluation.postprocessing.postprocessing import PostProcessing
from aurank.evaluation.postprocessing.steps import Sides

SPARE = 8  # rows after the first k, before all are ordered by float64 scores
TOGETHER = 64  # queries whose rows are fetched at once
TILE = 2**21  # scores taken at a time
Places = Int64[np.ndarray, "query _"]
Scores = Float64[np.ndarray, "query _"]


def processed_gallery(processing: PostProcessing, embeddings: np.ndarray) -> np.ndarray:
    """Return the gallery rows that queries are compared with: after the steps that change rows, and augmented.

    Raises:
        UserError: the steps are not fitted, or expand queries by a gallery that is augmented only afterwards.

    Example:
        >>> processed_gallery(PostProcessing.parse("binary"), np.array([[3.0, -1.0]])).tolist()
        [[1.0, -1.0]]
    """
    side_steps = [step for step in processing.steps if isinstance(step, SideStep)]
    augments = [isinstance(step, DatabaseAugmentation) for step in side_steps]
    if augments != sorted(augments, reverse=True):
        raise UserError(
            f"post-processing {str(processing)!r}: in an index the gallery is augmented before a query comes; name "
            "database_augmentation before query_expansion"
        )
    rows = processing.rows(embeddings, side="gallery")
    sides = Sides(rows, rows, np.full(len(rows), -1), np.arange(len(rows)))
    for step in side_steps:
        if isinstance(step, DatabaseAugmentation):
            sides = step.sides(sides, device="cpu")
    return np.asarray(sides.gallery)


@dataclass(frozen=True, eq=False)
class GallerySearch:
    """The search for the nearest rows of a gallery, as `PostProcessing.apply` would find them.

    Args:
        index: over `vectors`.
        embeddings: of the gallery, by the ids of the index, before post-processing: an array, or what fetches them.
        vectors: the result of `processed_gallery`; without post-processing the embeddings.
        processing: of the queries.

    Example:
        >>> from aurank.evaluation import Index
        >>> gallery = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> search = GallerySearch(Index.build(gallery, device="cpu"), gallery, gallery)
        >>> row, score = search.nearest(np.array([[0.0, 2.0]]), 2)
        >>> row.tolist(), score.round(6).tolist()
        ([[2, 1]], [[1.0, 0.8]])
    """

    index: SearchIndex
    embeddings: Any
    vectors: Any
    processing: PostProcessing | None = None

    def nearest(
        self,
        queries: np.ndarray,
        k: int,
        *,
        leave_out: Int64[np.ndarray, " query"] | None = None,
        among: Int64[np.ndarray, " row"] | None = None,
        exact: bool = False,
    ) -> tuple[Places, Scores]:
        """Return rows and float64 scores of the k nearest, `among` some or all; -1 and NaN where there are fewer."""
        as_matrix(queries, side="query")
        require_same_width("query", queries.shape[1], "gallery", self.embeddings.shape[1])
        check_rows(queries, side="query", distance=self.index.distance)
        processing = self.processing or PostProcessing((), self.index.distance)
        leave_out = np.full(len(queries), -1) if leave_out is None else leave_out
        rows, last = processing.rows(queries), processing.list_step
        every = self.index.ids if exact or processing.steps else np.empty(0, np.int64)
        for step in processing.steps:
            if isinstance(step, SideStep) and not isinstance(step, DatabaseAugmentation):
                rows = step.sides(Sides(rows, np.asarray(self.vectors), leave_out, every), device="cpu").queries
        depth = k if last is None else max(k, last.depth)
        if among is None and not exact:
            near = self.index.search(rows, depth + SPARE, leave_out=leave_out)
            row = np.where(np.arange(near.row.shape[1]) < near.count[:, None], near.row, -1)
        else:
            among = every if among is None else among
            row = by_products(rows, self.vectors, depth + SPARE, leave_out, among, distance=self.index.distance)
        score = self._scores(rows, row)
        order = np.lexsort((row, -score), axis=1)[:, :depth]  # NaN comes last
        row, score = np.take_along_axis(row, order, 1), np.take_along_axis(score, order, 1)
        if last is not None:
            sides = Sides(rows, np.asarray(self.vectors), leave_out, every)
            if isinstance(last, Rescore):
                sides = Sides(processing.rows(queries, uncoded=True), self._uncoded_gallery, leave_out, every)
            lists = NearestRows(np.arange(len(row)), row, score, np.zeros(row.shape, bool))
            lists = last.reordered(lists, sides, distance=self.index.distance, device="cpu")
            row, score = lists.row, lists.score
        return row[:, :k], score[:, :k]

    def _scores(self, queries: np.ndarray, row: Places) -> Scores:
        left = scaled_rows(queries, self.index.distance)
        score = np.full(row.shape, np.nan)
        for query, listed in enumerate(row):
            if query % TOGETHER == 0:  # a cluster is asked once for the vectors of several queries
                fetched = np.unique(row[query : query + TOGETHER])
                fetched = fetched[fetched >= 0]
                vectors = scaled_rows(self.vectors[fetched], self.index.distance)
            exists = listed >= 0
            right = vectors[np.searchsorted(fetched, listed[exists])]
            if self.index.distance == "euclidean":
                score[query, exists] = -((right - left[query]) ** 2).sum(axis=1)
            else:
                score[query, exists] = (right * left[query]).sum(axis=1)
        return score

    @cached_property
    def _uncoded_gallery(self) -> np.ndarray:
        assert self.processing is not None
        return self.processing.rows(np.asarray(self.embeddings), side="gallery", uncoded=True)


def by_products(
    queries: np.ndarray, vectors: Any, depth: int, leave_out: np.ndarray, among: np.ndarray, *, distance: str
) -> Places:
    """Return the nearest of some rows to each query, but its own, by all products; -1 after the end of a list.

    Example:
        >>> rows = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> by_products(rows[:1], rows, 1, np.array([0]), np.arange(3), distance="cosine").tolist()
        [[1]]
    """
    depth, left = min(depth, len(among)), scaled_rows(queries, distance)
    best, row = np.full((len(queries), 0), 0.0), np.full((len(queries), 0), -1)
    step = max(1, TILE // (len(queries) + queries.shape[1]))
    for start in range(0, len(among), step):
        block = among[start : start + step]
        right = scaled_rows(vectors[block], distance)
        score = left @ right.T
        if distance == "euclidean":
            score = 2 * score - (right * right).sum(axis=1)  # the query's own length moves no row
        score[leave_out[:, None] == block] = -np.inf
        best, row = np.hstack([best, score]), np.hstack([row, np.tile(block, (len(row), 1))])
        top = np.argsort(-best, axis=1, kind="stable")[:, :depth]
        best, row = np.take_along_axis(best, top, 1), np.take_along_axis(row, top, 1)
    return np.where(np.isfinite(best), row, -1)
