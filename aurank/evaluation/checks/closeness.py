"""Rows that lie too close to each other, and rows that lie close to too many."""

import numpy as np
from jaxtyping import Float, Float32, Int64

from aurank.evaluation.engine.nearest import NearestRows
from aurank.evaluation.failures import Hubs, hubs
from aurank.evaluation.index.neighbours import neighbours

LISTS = 6.0  # times more lists than usual make a row a hub
LENGTH = 10  # of a list
MOST_HUBS = 1000


def near_rows(
    embeddings: Float[np.ndarray, "row dim"], *, k: int = LENGTH
) -> tuple[Int64[np.ndarray, "row k"], Float32[np.ndarray, "row k"]]:
    """Return the k nearest other rows of each row and their cosines, by faiss; fewer rows than k make it narrower.

    Example:
        >>> row, cosine = near_rows(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]]), k=1)
        >>> row.tolist()
        [[2], [2], [0]]
    """
    found = neighbours(embeddings, k, device="cpu")
    return found.row, found.similarity


def close_rows(
    row: Int64[np.ndarray, "row k"], cosine: Float32[np.ndarray, "row k"], *, at_least: float
) -> Int64[np.ndarray, "pair 2"]:
    """Return the pairs of rows whose cosine is high, each once, the lower row first.

    Example:
        >>> close_rows(*near_rows(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]]), k=1), at_least=0.9).tolist()
        [[0, 2]]
    """
    own, place = np.nonzero(cosine >= at_least)
    return np.unique(np.sort(np.stack([own, row[own, place]], axis=1), axis=1), axis=0).reshape(-1, 2)


def crowded(row: Int64[np.ndarray, "row k"]) -> Hubs:
    """Return the rows that are in the lists of far more rows than usual.

    Example:
        >>> crowded(np.zeros((30, 1), np.int64)).row.tolist()
        [0]
    """
    count = len(row)
    nothing = np.zeros(row.shape)
    lists = NearestRows(np.arange(count), row, nothing, nothing.astype(np.bool_))
    return hubs(lists, count, most=MOST_HUBS, above=LISTS)
