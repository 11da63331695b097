"""Rows that lie too close to each other, and rows that lie close to too many."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Float64, Int64

from aurank.arrays import Rows
from aurank.evaluation.engine.nearest import NearestRows
from aurank.evaluation.failures import Hubs, hubs
from aurank.evaluation.index.neighbours import neighbours

LISTS = 6.0  # times more lists than usual make a row a hub
LENGTH = 10  # of a list
MOST_HUBS = 1000
_BLOCK = 2**24  # numbers of rows laid beside each other at a time


def near_rows(
    embeddings: Float[Rows, "row dim"], among: Int64[np.ndarray, " some"] | None = None, *, k: int = LENGTH
) -> NearestRows:
    """Return the k nearest other rows of each row with their cosines, by faiss; fewer rows than k make it narrower.

    Args:
        embeddings: none of the rows used may be faulty.
        among: the rows that are used; default all.

    Example:
        >>> near_rows(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]]), k=1).row.tolist()
        [[2], [2], [0]]
    """
    rows = np.arange(len(embeddings)) if among is None else among
    if len(rows) < 2:
        return NearestRows(rows, *(np.zeros((len(rows), 0), kind) for kind in (np.int64, np.float64, np.bool_)))
    found = neighbours(embeddings if among is None else embeddings[rows], k, device="cpu")
    none = np.zeros(found.row.shape, np.bool_)
    return NearestRows(rows, rows[found.row], found.similarity.astype(np.float64), none)


def with_cosines(lists: NearestRows, embeddings: Float[Rows, "row dim"]) -> NearestRows:
    """Return lists that were ranked in another way with the cosines as scores, −1 where a list has ended.

    Args:
        lists: whose queries and rows are rows of `embeddings`.

    Example:
        >>> lists = NearestRows(np.array([0]), np.array([[1, -1]]), np.zeros((1, 2)), np.zeros((1, 2), bool))
        >>> with_cosines(lists, np.array([[2.0, 0.0], [3.0, 0.0]])).score.tolist()
        [[1.0, -1.0]]
    """
    cosine = np.full(lists.row.shape, -1.0)
    step = max(1, _BLOCK // max(1, lists.row.shape[1] * embeddings.shape[1]))
    for start in range(0, len(lists.query), step):
        part = slice(start, start + step)
        own, there = (_unit(embeddings[rows]) for rows in (lists.query[part], lists.row[part]))
        cosine[part] = np.matmul(there, own[..., None])[..., 0]
    return replace(lists, score=np.where(lists.row >= 0, cosine, -1.0))


def close_rows(near: NearestRows, *, at_least: float) -> Int64[np.ndarray, "pair 2"]:
    """Return the pairs of rows whose score is high, each once, the lower row first.

    Example:
        >>> close_rows(near_rows(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]]), k=1), at_least=0.9).tolist()
        [[0, 2]]
    """
    own, place = np.nonzero(near.score >= at_least)
    pairs = np.stack([near.query[own], near.row[own, place]], axis=1)
    return np.unique(np.sort(pairs, axis=1), axis=0).reshape(-1, 2)


def crowded(near: NearestRows, searched: Int64[np.ndarray, " gallery"]) -> Hubs:
    """Return the rows that are in far more lists than usual.

    Args:
        searched: the rows that lists could hold, ascending.

    Example:
        >>> lists = NearestRows(np.arange(30), np.full((30, 1), 7), np.zeros((30, 1)), np.zeros((30, 1), bool))
        >>> crowded(lists, np.arange(30)).row.tolist()
        [7]
    """
    place = np.where(near.row >= 0, np.searchsorted(searched, near.row), -1)
    found = hubs(replace(near, row=place), len(searched), most=MOST_HUBS, above=LISTS)
    return replace(found, row=np.asarray(searched[found.row]))


def _unit(rows: Float[np.ndarray, "*shape dim"]) -> Float64[np.ndarray, "*shape dim"]:
    rows = np.asarray(rows, np.float64)
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True).clip(np.finfo(float).tiny))
