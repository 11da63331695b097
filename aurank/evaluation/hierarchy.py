"""Metrics of super-categories: what is of a query's super-category is relevant too, but less than its own class.

Ranks are counted once more, with super-categories for labels: each relevant row among all that are not. Queries go in
parts, so that the many positives of a super-category never lie in memory together.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from aurank.errors import UserError
from aurank.evaluation.aggregate import segment_sums
from aurank.evaluation.engine.grades import with_grades
from aurank.evaluation.engine.inputs import Integers, byte_count, integer_array, pair_array
from aurank.evaluation.engine.positives import POSITIVE_BYTES, places_of
from aurank.evaluation.engine.problem import RetrievalProblem
from aurank.evaluation.engine.ranks import Ranks, rank_positives
from aurank.evaluation.metrics import SUPER, hierarchical_names, ndcg, query_values

CLASS_GAIN, SUPER_GAIN = 3.0, 1.0  # of h_ndcg: 2^level − 1
SUPER_WORTH = 0.5  # that all of the super-category together have in h_ap, where those of the class have 1


@dataclass(frozen=True, eq=False)
class SuperCategories:
    """The super-category of each row of both sides, −1 for none; without a gallery's, the queries are the gallery.

    A row without one shares its own with its class alone. All rows of a class have one super-category.

    Example:
        >>> rows = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.6], [0.0, 1.0]])
        >>> problem = RetrievalProblem(rows, labels=np.array([0, 0, 1, 2]))
        >>> SuperCategories([5, 5, 5, 6]).values(problem, np.array([0, 1]), ["h_ap"])
        {'h_ap': array([1., 1.])}
    """

    super_labels: Integers
    gallery_super_labels: Integers | None = None

    def values(
        self,
        problem: RetrievalProblem,
        queries: Int64[np.ndarray, " query"],
        names: Iterable[str],
        *,
        ties: str = "threshold",
        max_memory: int | str = "1GiB",
        **options: Any,
    ) -> dict[str, Float64[np.ndarray, " query"]]:
        """Return the values of hierarchical metrics by name for some queries, each of which has a positive.

        Args:
            names: of `hierarchical_names`.
            ties: of super:mauprc; h_ap takes equal scores by "threshold".
            max_memory: for the ranking, and again for the positives that are counted at a time.
            options: of `rank_positives`.
        """
        sides = self._sides(problem)
        found: dict[str, list[np.ndarray]] = {name: [] for name in hierarchical_names(names)}
        if not found:
            return {}
        for rows in _parts(queries, *sides[1], room=byte_count(max_memory) // POSITIVE_BYTES):
            ranks = rank_positives(_part(problem, rows, *sides[1]), max_memory=max_memory, distributed=False, **options)
            is_class = np.repeat(sides[0][0][rows[ranks.query]], ranks.num_positives) == sides[0][1][ranks.positive]
            for name, values in found.items():
                values.append(_query_values(name, ranks, is_class, ties))
        return {name: np.concatenate(values) if values else np.zeros(0) for name, values in found.items()}

    def _sides(self, problem: RetrievalProblem) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Return the classes of queries and gallery, and their super-categories, all as numbers from 0."""
        if problem.labels is None or problem.positives is not None:
            raise UserError("super_labels group classes: give labels, and no list of positives")
        own = problem.gallery is None
        if own != (self.gallery_super_labels is None):
            raise UserError(
                "super_labels and gallery_super_labels are of both sides: give both where there is a gallery"
            )
        others = (problem.labels, self.super_labels) if own else (problem.gallery_labels, self.gallery_super_labels)
        query, gallery = len(problem.embeddings), len(problem.target)
        columns = []
        for name, first, second in zip(
            ("label", "super_label"), (problem.labels, self.super_labels), others, strict=True
        ):
            assert second is not None
            left = integer_array(first, name=name, rows=query, side="query")
            right = integer_array(second, name=name, rows=gallery, side="gallery")
            columns.append(np.concatenate([left, right]))
        labels = np.unique(columns[0], return_inverse=True)[1]
        codes = np.where(columns[1] < 0, columns[1].max() + 1 + labels, columns[1])
        of_class = np.empty(labels.max() + 1, np.int64)
        of_class[labels] = codes
        if len(other := np.flatnonzero(of_class[labels] != codes)):
            row = int(other[0])
            which = f"query {row}" if own or row < query else f"gallery row {row - query}"
            raise UserError(f"super_labels of {which} and of others of its label differ: a class lies within one")
        return (labels[:query], labels[query:]), (codes[:query], codes[query:])


def _parts(
    queries: Int64[np.ndarray, " query"], codes: np.ndarray, gallery_codes: np.ndarray, *, room: int
) -> Iterator[Int64[np.ndarray, " query"]]:
    """Yield the queries in parts whose positives are about as many as there is room for."""
    names, sizes = np.unique(gallery_codes, return_counts=True)
    counts = sizes[np.searchsorted(names, codes[queries])]  # a query with a positive shares its super-category
    part = (np.cumsum(counts) - counts) // max(1, room)
    yield from np.split(queries, np.flatnonzero(np.diff(part)) + 1) if len(queries) else ()


def _part(
    problem: RetrievalProblem, rows: Int64[np.ndarray, " query"], codes: np.ndarray, gallery_codes: np.ndarray
) -> RetrievalProblem:
    """Return the problem of some queries against the whole gallery, with super-categories for labels."""
    size, place = len(problem.target), places_of(rows, len(problem.embeddings))
    ignored = pair_array(() if problem.ignore is None else problem.ignore, "ignore", len(place), size)
    ignored = np.stack([place[ignored[:, 0]], ignored[:, 1]], axis=1)
    own = problem.own_rows()
    itself = np.full(len(rows), -1) if own is None else own[rows]
    left_out = np.concatenate([ignored, np.stack([np.arange(len(rows)), itself], axis=1)])
    groups = problem.groups if problem.gallery is None else problem.gallery_groups
    return RetrievalProblem(
        problem.embeddings[rows],
        codes[rows],
        problem.target,
        gallery_codes,
        groups=None if problem.groups is None else _rows_of(problem.groups, rows),
        gallery_groups=groups,
        ignore=left_out[(left_out >= 0).all(axis=1)],
        junk=problem.junk,
    )


def _rows_of(values: Integers, rows: Int64[np.ndarray, " query"]) -> Int64[np.ndarray, " query"]:
    return np.asarray(integer_array(values, name="group", rows=len(values), side="query")[rows])


def _query_values(
    name: str, ranks: Ranks, is_class: Bool[np.ndarray, " positive"], ties: str
) -> Float64[np.ndarray, " query"]:
    if name == "h_ap":
        return hierarchical_average_precision(ranks, is_class)
    if name == "h_ndcg":
        return ndcg(with_grades(ranks, np.where(is_class, CLASS_GAIN, SUPER_GAIN)))
    return query_values(ranks, name.removeprefix(SUPER), ties=ties)


def hierarchical_average_precision(
    ranks: Ranks, is_class: Bool[np.ndarray, " positive"]
) -> Float64[np.ndarray, " query"]:
    """Return H-AP = Σ_k (Σ_{j: s_j ≥ s_k} min(rel_j, rel_k)) / rank_k / Σ_k rel_k over each query's positives.

    rel is 1 / n for the n positives of the query's class, and ½ / m for the m others. Equal scores all have the rank of
    the last of them. Where every positive is of the class, this is average precision.

    Args:
        is_class: which positives are of the query's class; the others are of its super-category.

    Source: Ramzi et al., ECCV 2022, https://arxiv.org/abs/2207.04873, with α = 1.
    """
    start, number = np.repeat(ranks.offset[:-1], ranks.num_positives), ranks.num_positives
    before = np.concatenate([[0], np.cumsum(is_class)])
    of_class = before[start + ranks.at_least] - before[start]  # that score as high, the last of those that tie included
    others = ranks.at_least - of_class
    total = np.diff(before[ranks.offset])
    worth, less = (
        np.repeat(value, number) for value in (1 / np.maximum(total, 1), SUPER_WORTH / np.maximum(number - total, 1))
    )
    least = np.minimum(worth, less)
    reached = np.where(is_class, of_class * worth + others * least, of_class * least + others * less)
    shares = reached / (ranks.at_least + ranks.higher + ranks.tied)
    possible = (total > 0) + SUPER_WORTH * (number > total)
    return np.asarray(segment_sums(shares, ranks.offset.tolist()) / possible)
