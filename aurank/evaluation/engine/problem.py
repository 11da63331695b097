"""The question that an evaluation answers: which rows search which, and what counts as found."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from aurank.errors import UserError
from aurank.evaluation.engine.inputs import Embeddings, Integers, check_matrix, integer_array, row_array, unique_ids


@dataclass(frozen=True, eq=False)
class RetrievalProblem:
    """Hold both sides of a search and all that says which gallery rows are positives of which query.

    This is where positives come from in evaluation. A gallery row is a *positive* of a query if both have one label or,
    where `positives` are given, if the pair is listed there. Left out, as neither positive nor negative, are

    - the query itself: its own row without a gallery, else the gallery row with the query's id;
    - what would be a positive but has the query's own group, if groups are given;
    - the pairs in `ignore`, and for all queries the gallery rows in `junk`.

    Every other gallery row is a *negative*. The problem is made once, where a caller's arguments come in, and handed on
    whole; its fields are checked against each other when both sides are sorted (`positives.sort_by_label`).

    Example:
        >>> problem = RetrievalProblem(np.eye(3), labels=[0, 0, 1], junk=[2])
        >>> problem.target is problem.embeddings
        True
    """

    embeddings: Embeddings  # [query, dim]; they are the gallery as well where none is given
    labels: Integers | None = None  # an integer for each query; not needed with `positives`
    gallery: Embeddings | None = None  # [gallery, dim]
    gallery_labels: Integers | None = None
    ids: Integers | None = None  # integers that name the items, so that a query does not find itself in the gallery
    gallery_ids: Integers | None = None
    groups: Integers | None = None  # an integer for each row, such as its camera; -1 for none
    gallery_groups: Integers | None = None
    positives: Integers | None = None  # index pairs (query row, gallery row)
    ignore: Integers | None = None  # index pairs
    junk: Integers | None = None  # gallery rows, or a truth value for each

    @property
    def target(self) -> Embeddings:
        """The embeddings that are searched: the gallery's, or the queries' own."""
        return self.embeddings if self.gallery is None else self.gallery

    def own_rows(self) -> Int64[np.ndarray, " query"] | None:
        """Return the gallery row that is each query's own item, -1 for none; None if no query has one."""
        if self.gallery is None:
            return np.arange(len(self.embeddings))
        if self.ids is None or self.gallery_ids is None:
            return None
        ids = unique_ids(self.ids, rows=len(self.embeddings), side="query")
        others = unique_ids(self.gallery_ids, rows=len(self.gallery), side="gallery")
        order = np.argsort(others, kind="stable")
        place = np.minimum(np.searchsorted(others[order], ids), len(others) - 1)
        return np.where(others[order][place] == ids, order[place], -1)


class Side(NamedTuple):
    """One side's labels and groups, checked."""

    labels: Int64[np.ndarray, " row"]
    groups: Int64[np.ndarray, " row"] | None


def check_sides(problem: RetrievalProblem) -> tuple[Side, Side]:
    """Return the queries' and the gallery's labels and groups; UserError where the fields do not fit each other.

    Without labels each row is a class of its own.
    """

    def side(labels: Integers | None, groups: Integers | None, rows: int, name: str) -> Side:
        given = np.arange(rows) if labels is None else integer_array(labels, name="label", rows=rows, side=name)
        return Side(given, None if groups is None else integer_array(groups, name="group", rows=rows, side=name))

    queries, gallery = problem.embeddings, problem.gallery
    check_matrix(queries, side="query")
    if problem.labels is None and problem.positives is None:
        raise UserError("labels are missing: give one label per query row, or the positives as a list of pairs")
    query = side(problem.labels, problem.groups, len(queries), "query")
    fields = ("labels", "ids", "groups")
    if gallery is None:
        for name in fields:
            if getattr(problem, f"gallery_{name}") is not None:
                raise UserError(f"gallery_{name} came without a gallery: give the gallery's embeddings too")
        return query, query
    check_matrix(gallery, side="gallery")
    if gallery.shape[1] != queries.shape[1]:
        widths = f"width {queries.shape[1]} and the gallery's {gallery.shape[1]}"
        raise UserError(f"the query embeddings have {widths}: embed both with the same model")
    if problem.gallery_labels is None and problem.positives is None:
        raise UserError("a gallery came without gallery_labels: give one label per gallery row")
    for name in fields[1:]:
        if (getattr(problem, name) is None) != (getattr(problem, f"gallery_{name}") is None):
            raise UserError(f"{name} and gallery_{name} belong together: give both or neither")
    return query, side(problem.gallery_labels, problem.gallery_groups, len(gallery), "gallery")


def rows_without_junk(junk: Integers | None, rows: int) -> Int64[np.ndarray, " kept"]:
    """Return the gallery rows that are not junk; UserError where all are."""
    kept = np.setdiff1d(np.arange(rows), row_array(() if junk is None else junk, "junk", rows))
    if not len(kept):
        raise UserError(f"all {rows} gallery rows are junk: nothing is left to retrieve")
    return kept
