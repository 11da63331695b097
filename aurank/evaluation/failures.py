"""Where retrieval goes wrong: which classes take whose places, and which gallery rows are in too many lists."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Shaped

from aurank.evaluation.engine.nearest import NearestRows


@dataclass(frozen=True, eq=False)
class Confusions:
    """How often the places of one class's lists are taken by another class.

    `count[i, j]` is the number of places in the lists of the queries of `query_class[i]` that negatives of
    `gallery_class[j]` take; `places[i]` is the number of all places in these lists.
    """

    query_class: Shaped[np.ndarray, " query_class"]
    gallery_class: Shaped[np.ndarray, " gallery_class"]
    count: Int64[np.ndarray, "query_class gallery_class"]
    places: Int64[np.ndarray, " query_class"]


def confusions(
    nearest: NearestRows,
    classes: Shaped[np.ndarray, " query"],
    gallery_classes: Shaped[np.ndarray, " gallery"],
    *,
    most: int = 20,
) -> Confusions:
    """Return the classes that lose most places to one other class, and the classes that take most from one.

    Args:
        nearest: lists of the queries.
        classes: of the same queries: labels or names.
        gallery_classes: of all gallery rows.
        most: classes on each side at most.

    Example:
        >>> from aurank.evaluation.engine.problem import RetrievalProblem
        >>> from aurank.evaluation.engine.nearest import nearest_rows
        >>> labels = np.array([0, 0, 1])
        >>> lists = nearest_rows(RetrievalProblem(np.array([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1]]), labels), 1)
        >>> found = confusions(lists, labels[lists.query], labels)
        >>> found.query_class.tolist(), found.gallery_class.tolist(), found.count.tolist()
        ([0], [1], [[2]])
    """
    exists = nearest.row >= 0
    wrong = exists & ~nearest.is_positive
    names, query = np.unique(classes, return_inverse=True)
    others, gallery = np.unique(gallery_classes, return_inverse=True)
    pair = np.broadcast_to(query[:, None], wrong.shape)[wrong] * len(others) + gallery[nearest.row[wrong]]
    pairs, number = np.unique(pair, return_counts=True)
    losing, taking = np.divmod(pairs, len(others))
    worst = np.argsort(-number, kind="stable")
    # Each class once, in the order of its worst confusion.
    firsts = (np.sort(np.unique(side[worst], return_index=True)[1])[:most] for side in (losing, taking))
    rows, columns = (side[worst][first] for side, first in zip((losing, taking), firsts, strict=True))
    # Classes times classes may not fit into memory: only what is shown is filled in.
    row, column = np.full(len(names), -1), np.full(len(others), -1)
    row[rows], column[columns] = np.arange(len(rows)), np.arange(len(columns))
    shown = (row[losing] >= 0) & (column[taking] >= 0)
    count = np.zeros((len(rows), len(columns)), np.int64)
    count[row[losing[shown]], column[taking[shown]]] = number[shown]
    places = np.bincount(query, weights=exists.sum(axis=1), minlength=len(names)).astype(np.int64)
    return Confusions(names[rows], others[columns], count, places[rows])


@dataclass(frozen=True, eq=False)
class Hubs:
    """Gallery rows in the lists of many queries, the most frequent first.

    Source: Radovanović, Nanopoulos, Ivanović, "Hubs in Space", JMLR 2010
        (https://www.jmlr.org/papers/v11/radovanovic10a.html): k-occurrences and their skewness.
    """

    row: Int64[np.ndarray, " hub"]
    lists: Int64[np.ndarray, " hub"]  # that hold the row
    right: Int64[np.ndarray, " hub"]  # of these, lists of which it is a positive
    expected: float  # lists that a row would be in if all were in equally many
    skewness: float  # of the number of lists over all gallery rows; 0 where all are in equally many
    never: int  # gallery rows in no list at all


def hubs(nearest: NearestRows, num_gallery: int, *, most: int = 12, above: float = 4.0) -> Hubs:
    """Return the gallery rows that are in more than `above` times as many lists as expected, at most `most`.

    Example:
        >>> lists = NearestRows(
        ...     np.arange(3), np.array([[3], [3], [3]]), np.ones((3, 1)), np.array([[True], [False], [False]])
        ... )
        >>> found = hubs(lists, num_gallery=12)
        >>> found.row.tolist(), found.lists.tolist(), found.right.tolist(), found.expected, found.never
        ([3], [3], [1], 0.25, 11)
    """
    exists = nearest.row >= 0
    count = np.bincount(nearest.row[exists], minlength=num_gallery)
    right = np.bincount(nearest.row[nearest.is_positive], minlength=num_gallery)
    expected = float(count.mean())
    spread = float(count.std())
    skewness = 0.0 if spread == 0 else float((((count - expected) / spread) ** 3).mean())
    rows = np.argsort(-count, kind="stable")[:most]
    rows = rows[count[rows] > above * expected]
    return Hubs(rows, count[rows], right[rows], expected, skewness, int((count == 0).sum()))
