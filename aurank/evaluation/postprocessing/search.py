"""Nearest rows of a gallery that stays: by faiss, or exactly among some of its rows, behind post-processing."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int64

from aurank.arrays import Rows
from aurank.errors import UserError
from aurank.evaluation.engine.nearest import NearestRows
from aurank.evaluation.engine.problem import check_matrix
from aurank.evaluation.index.neighbours import Index, check_rows
from aurank.evaluation.postprocessing.neighbour_steps import DatabaseAugmentation, Rescore
from aurank.evaluation.postprocessing.postprocessing import PostProcessing
from aurank.evaluation.postprocessing.steps import ListStep, Sides, SideStep

SPARE = 8  # rows beyond k, which are then ordered by float64 scores
TILE = 2**21  # scores taken at a time
Places = Int64[np.ndarray, "query _"]
Scores = Float64[np.ndarray, "query _"]


def processed_gallery(processing: PostProcessing, embeddings: np.ndarray) -> np.ndarray:
    """Return the gallery as queries are compared with it: behind the steps that change rows, and augmented.

    Raises:
        UserError: the steps are not fitted, or expand queries by a gallery that is augmented only afterwards.

    Example:
        >>> processed_gallery(PostProcessing.parse("binary"), np.array([[3.0, -1.0]])).tolist()
        [[1.0, -1.0]]
    """
    processing.require_fitted()
    side_steps = [step for step in processing.steps if isinstance(step, SideStep)]
    augments = [isinstance(step, DatabaseAugmentation) for step in side_steps]
    if augments != sorted(augments, reverse=True):
        raise UserError(
            f"post-processing {str(processing)!r}: in an index the gallery is augmented before a query comes; name "
            "database_augmentation before query_expansion"
        )
    rows = processing.rows(embeddings, side="gallery")
    nobody = np.full(len(rows), -1)
    sides = Sides(rows, rows, nobody, np.arange(len(rows)))
    for step in side_steps:
        if isinstance(step, DatabaseAugmentation):
            sides = step.sides(sides, device="cpu")
    return np.asarray(sides.target)


@dataclass(frozen=True, eq=False)
class GallerySearch:
    """Finds the nearest rows of a gallery, as `PostProcessing.apply` would among all of them.

    Args:
        index: over `vectors`.
        embeddings: of the gallery, as the model gives them.
        vectors: what `processed_gallery` made of them; without post-processing the embeddings.
        processing: what queries are put behind.

    Example:
        >>> gallery = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> search = GallerySearch(Index.build(gallery, device="cpu"), gallery, gallery)
        >>> row, score = search.nearest(np.array([[0.0, 2.0]]), 2)
        >>> row.tolist(), score.round(6).tolist()
        ([[2, 1]], [[1.0, 0.8]])
    """

    index: Index
    embeddings: Rows
    vectors: Rows
    processing: PostProcessing | None = None

    def nearest(
        self,
        queries: np.ndarray,
        k: int,
        *,
        own: Int64[np.ndarray, " query"] | None = None,
        among: Int64[np.ndarray, " row"] | None = None,
        exact: bool = False,
    ) -> tuple[Places, Scores]:
        """Return the k nearest rows of each query and their scores in float64; -1 and NaN where there are fewer.

        Args:
            queries: embeddings, as the model gives them.
            own: a row that each query must not find, -1 for none.
            among: the rows to search, by default all.
            exact: search all of them although the index is approximate.
        """
        check_matrix(queries, side="query")
        if queries.shape[1] != self.embeddings.shape[1]:
            raise UserError(
                f"the queries have {queries.shape[1]} columns and the gallery has {self.embeddings.shape[1]}: "
                "both must come from the same model"
            )
        check_rows(queries, side="query", distance=self.index.distance)
        own = np.full(len(queries), -1) if own is None else own
        sides = self._sides(queries, own)
        last = None if self.processing is None else self.processing.steps[-1]
        depth = max(k, last.depth) if isinstance(last, ListStep) else k
        if among is None and not exact:
            near = self.index.search(sides.queries, depth + SPARE, leave_out=own)
            row = np.where(near.row < len(self.index), near.row, -1)
        else:
            chosen = np.arange(len(self.vectors)) if among is None else among
            row = self._by_products(sides.queries, depth + SPARE, own, chosen)
        row, score = _ordered(row, self._scores(sides.queries, row), depth)
        if isinstance(last, ListStep):
            row, score = self._again(last, row, score, sides, queries)
        return row[:, :k], score[:, :k]

    def _sides(self, queries: np.ndarray, own: Int64[np.ndarray, " query"]) -> Sides:
        rows = queries if self.processing is None else self.processing.rows(queries)
        gallery = None if self.processing is None else np.asarray(self.vectors)
        sides = Sides(rows, gallery, own, np.arange(len(self.vectors)))
        for step in () if self.processing is None else self.processing.steps:
            if isinstance(step, SideStep) and not isinstance(step, DatabaseAugmentation):  # done once for all queries
                sides = step.sides(sides, device="cpu")
        return sides

    def _by_products(
        self, queries: np.ndarray, depth: int, own: Int64[np.ndarray, " query"], among: Int64[np.ndarray, " row"]
    ) -> Places:
        depth, left = min(depth, len(among)), self._scaled(queries)
        best, row = np.full((len(queries), 0), 0.0), np.full((len(queries), 0), -1)
        step = max(1, TILE // (len(queries) + queries.shape[1]))
        for start in range(0, len(among), step):
            some = among[start : start + step]
            right = self._scaled(self.vectors[some])
            score = left @ right.T
            if self.index.distance == "euclidean":
                score = 2 * score - (right * right).sum(axis=1)  # the query's own length moves no row
            score[own[:, None] == some] = -np.inf
            best, row = np.hstack([best, score]), np.hstack([row, np.tile(some, (len(row), 1))])
            top = np.argsort(-best, axis=1, kind="stable")[:, :depth]
            best, row = np.take_along_axis(best, top, 1), np.take_along_axis(row, top, 1)
        return np.where(np.isfinite(best), row, -1)

    def _scores(self, queries: np.ndarray, row: Places) -> Scores:
        left = self._scaled(queries)
        score = np.full(row.shape, np.nan)
        for place, listed in enumerate(row):
            exists = listed >= 0
            right = self._scaled(self.vectors[listed[exists]])
            if self.index.distance == "euclidean":
                score[place, exists] = -((right - left[place]) ** 2).sum(axis=1)
            else:
                score[place, exists] = (right * left[place]).sum(axis=1)
        return score

    def _scaled(self, rows: np.ndarray) -> Float64[np.ndarray, "row dim"]:
        values = np.asarray(rows, np.float64)
        if self.index.distance != "cosine" or not len(values):
            return values
        values = values / np.abs(values).max(axis=1, keepdims=True)
        return np.asarray(values / np.sqrt((values * values).sum(axis=1, keepdims=True)))

    def _again(
        self, step: ListStep, row: Places, score: Scores, sides: Sides, queries: np.ndarray
    ) -> tuple[Places, Scores]:
        """Return the lists, the first `depth` of each in the order of the step."""
        assert self.processing is not None
        depth, uncoded = step.depth, sides
        if isinstance(step, Rescore) and self.processing.has_codes:
            coarse = self.processing.rows(queries, uncoded=True)
            uncoded = Sides(coarse, self._uncoded_gallery, sides.own, sides.kept)
        lists = NearestRows(np.arange(len(row)), row[:, :depth], score[:, :depth], np.zeros(row[:, :depth].shape, bool))
        new = step.scores(lists, sides, uncoded, distance=self.index.distance, device="cpu")
        first, again = _ordered(lists.row, new, depth)
        return np.hstack([first, row[:, depth:]]), np.hstack([again, score[:, depth:]])

    @cached_property
    def _uncoded_gallery(self) -> np.ndarray:
        assert self.processing is not None
        return self.processing.rows(np.asarray(self.embeddings), side="gallery", uncoded=True)


def _ordered(row: Places, score: Scores, k: int) -> tuple[Places, Scores]:
    order = np.lexsort((row, -np.where(row >= 0, score, -np.inf)), axis=1)[:, :k]
    return np.take_along_axis(row, order, 1), np.take_along_axis(score, order, 1)
