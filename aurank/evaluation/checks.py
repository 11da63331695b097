"""Faults of embeddings, labels and lists of neighbours, found by pure functions of arrays."""

from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64, Shaped

from aurank.arrays import Rows
from aurank.evaluation.engine.nearest import NearestRows
from aurank.evaluation.index.neighbours import neighbours
from aurank.evaluation.postprocessing.steps import unit


def confusions(
    nearest: NearestRows,
    classes: Shaped[np.ndarray, " query"],
    gallery_classes: Shaped[np.ndarray, " gallery"],
    *,
    most: int = 20,
) -> tuple[
    Shaped[np.ndarray, " query_class"],
    Shaped[np.ndarray, " gallery_class"],
    Float64[np.ndarray, "query_class gallery_class"],
]:
    """Return the classes that lose most to one other, those that take most, and the part of the losers' entries."""
    exists = nearest.row >= 0
    wrong = exists & ~nearest.is_positive
    names, query = np.unique(classes, return_inverse=True)
    gallery_names, gallery = np.unique(gallery_classes, return_inverse=True)
    pair = np.broadcast_to(query[:, None], wrong.shape)[wrong] * len(gallery_names) + gallery[nearest.row[wrong]]
    pairs, number = np.unique(pair, return_counts=True)
    losing, taking = np.divmod(pairs, len(gallery_names))
    worst = np.argsort(-number, kind="stable")
    # Each class once, in the order of its worst confusion.
    firsts = (np.sort(np.unique(side[worst], return_index=True)[1])[:most] for side in (losing, taking))
    rows, columns = (side[worst][first] for side, first in zip((losing, taking), firsts, strict=True))
    # Classes times classes may not fit into memory: only the shown part is filled in.
    row, column = np.full(len(names), -1), np.full(len(gallery_names), -1)
    row[rows], column[columns] = np.arange(len(rows)), np.arange(len(columns))
    shown = (row[losing] >= 0) & (column[taking] >= 0)
    count = np.zeros((len(rows), len(columns)), np.int64)
    count[row[losing[shown]], column[taking[shown]]] = number[shown]
    listed = np.bincount(query, weights=exists.sum(axis=1), minlength=len(names)).astype(np.int64)
    return names[rows], gallery_names[columns], count / np.maximum(1, listed[rows])[:, None]


def hubs(nearest: NearestRows, num_gallery: int, *, most: int = 12, above: float = 4.0) -> dict[str, Any]:
    """Return the gallery rows that are in more than `above` times as many lists as expected, at most `most`.

    Columns, the most frequent first: "row", "lists" that hold it, "right": those of which it is a positive. Numbers:
    "expected" lists of a row, their "skewness" over all rows, 0 if all have as many, and how many are in none, "never".

    Source: Radovanović et al., JMLR 2010, https://www.jmlr.org/papers/v11/radovanovic10a.html
    """
    exists = nearest.row >= 0
    count = np.bincount(nearest.row[exists], minlength=num_gallery)
    right = np.bincount(nearest.row[nearest.is_positive], minlength=num_gallery)
    expected, deviation = float(count.mean()), float(count.std())
    skewness = 0.0 if deviation == 0 else float((((count - expected) / deviation) ** 3).mean())
    rows = np.argsort(-count, kind="stable")[:most]
    rows = rows[count[rows] > above * expected]
    columns = {"row": rows, "lists": count[rows], "right": right[rows]}
    return {**columns, "expected": expected, "skewness": skewness, "never": int((count == 0).sum())}


LISTS = 6.0  # times more lists than usual make a row a hub
LENGTH = 10  # of a list
MOST_HUBS = 1000
_BLOCK = 2**24  # predictions at a time
_IN_CACHE = 2**18  # numbers of rows at a time, in float64


def near_rows(
    embeddings: Float[Rows, "row dim"], among: Int64[np.ndarray, " some"] | None = None, *, k: int = LENGTH
) -> NearestRows:
    """Return the k nearest other rows of each row with their cosines, by faiss; fewer rows than k make it narrower."""
    rows = np.arange(len(embeddings)) if among is None else among
    if len(rows) < 2:
        return NearestRows(rows, *(np.zeros((len(rows), 0), kind) for kind in (np.int64, np.float64, np.bool_)))
    near = neighbours(embeddings if among is None else embeddings[rows], k, device="cpu")
    none = np.zeros(near.row.shape, np.bool_)
    return NearestRows(rows, rows[near.row], near.similarity.astype(np.float64), none)


def with_cosines(lists: NearestRows, embeddings: Float[Rows, "row dim"]) -> NearestRows:
    """Return the same lists with cosines as scores, −1 after the end of a list."""
    cosine = np.full(lists.row.shape, -1.0)
    step = max(1, _IN_CACHE // max(1, lists.row.shape[1] * embeddings.shape[1]))
    for start in range(0, len(lists.query), step):
        part = slice(start, start + step)
        query, listed = (unit(embeddings[rows]) for rows in (lists.query[part], lists.row[part]))
        cosine[part] = np.matmul(listed, query[..., None])[..., 0]
    return replace(lists, score=np.where(lists.row >= 0, cosine, -1.0))


def close_rows(near: NearestRows, *, at_least: float) -> Int64[np.ndarray, "pair 2"]:
    query, rank = np.nonzero(near.score >= at_least)
    pairs = np.stack([near.query[query], near.row[query, rank]], axis=1)
    return np.unique(np.sort(pairs, axis=1), axis=0).reshape(-1, 2)


def crowded(near: NearestRows, searched: Int64[np.ndarray, " gallery"]) -> dict[str, Any]:
    position = np.where(near.row >= 0, np.searchsorted(searched, near.row), -1)
    counts = hubs(replace(near, row=position), len(searched), most=MOST_HUBS, above=LISTS)
    return {**counts, "row": searched[counts["row"]]}


MARGIN = 0.3  # least prediction of another class above that of the label; chosen with RIDGE, see docs/doctor.md
LEAST_RIGHT = 0.5  # part of the rows that must be predicted right before the embeddings may judge labels
RIDGE = 0.1  # times the mean eigenvalue of rows.T @ rows
_ROWS = 2048  # in float64 in memory at a time


def doubtful_labels(
    embeddings: Float[np.ndarray, "row dim"], labels: Shaped[np.ndarray, " row"], *, margin: float = MARGIN
) -> tuple[Int64[np.ndarray, " doubtful"], Shaped[np.ndarray, " doubtful"], Float64[np.ndarray, " doubtful"]]:
    """Return the rows that a linear classifier fitted on all other rows puts into another class, by a clear margin.

    Returns:
        The rows, the most doubtful first; the classes predicted instead; and by how much these are ahead of the label.

    Source: held-out predictions as in confident learning (Northcutt et al., JAIR 2021), by one margin of a regression.
    """
    classes, label = np.unique(labels, return_inverse=True)
    count = np.bincount(label, minlength=len(classes))
    nothing = np.zeros(0, np.int64), labels[:0], np.zeros(0)
    if len(classes) < 2:
        return nothing
    # Divided by powers of two, which keeps the digits, so that squares neither overflow nor vanish.
    rows = np.asarray(embeddings, np.result_type(embeddings, np.float32))
    rows = np.asarray(np.ldexp(rows, -np.frexp(np.abs(rows).max(axis=1, keepdims=True))[1]), np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows -= rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
    inverse, sums = _fitted(rows, label, len(classes))
    weights = np.asarray(inverse @ sums.T, np.float32)
    rival, ahead = np.zeros(len(rows), np.int64), np.zeros(len(rows))
    step = max(1, _BLOCK // len(classes))
    for start in range(0, len(rows), step):
        part = slice(start, min(start + step, len(rows)))
        exact = rows[part].astype(np.float64)
        leverage = np.einsum("ij,ij->i", exact @ inverse, exact)  # the row's own part in its prediction
        predicted, each = rows[part] @ weights, np.arange(len(exact))
        held_out = predicted[each, label[part]] - leverage
        predicted[each, label[part]] = -np.inf
        rival[part] = predicted.argmax(axis=1)
        ahead[part] = (predicted[each, rival[part]] - held_out) / (1 - leverage).clip(1e-9)
    if (ahead < 0).mean() < LEAST_RIGHT:
        return nothing
    doubtful = np.flatnonzero((ahead > margin) & (count[label] > 1))
    doubtful = doubtful[np.argsort(-ahead[doubtful], kind="stable")]
    return doubtful, classes[rival[doubtful]], ahead[doubtful]


def _fitted(
    rows: Float32[np.ndarray, "row dim"], label: Int64[np.ndarray, " row"], classes: int
) -> tuple[Float64[np.ndarray, "dim dim"], Float64[np.ndarray, "class dim"]]:
    """Return the inverse of a ridge regression, and the sum of the rows of each class."""
    gram, sums = np.zeros((rows.shape[1], rows.shape[1])), np.zeros((classes, rows.shape[1]))
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        exact = rows[part].astype(np.float64)
        gram += exact.T @ exact
        np.add.at(sums, label[part], exact)
    np.fill_diagonal(gram, gram.diagonal() + RIDGE * float(gram.trace()) / len(gram) + 1e-12)
    return np.linalg.inv(gram), sums


UNIT = 1e-3  # the largest difference from 1 of a normalised row's length
FAR = 10.0  # times the median length, or a part of it: an odd length if rows are not normalised
SILENT = 1e-4  # part of the median variance; a dimension with less says nothing
LEAST_RANK, MOST_ALIKE = 5.0, 0.9  # effective rank and mean cosine beyond which embeddings have collapsed
_SAMPLE = 20_000  # rows that the spread is measured on


def faulty_rows(embeddings: Float[Rows, "row dim"]) -> dict[str, Int64[np.ndarray, " faulty"]]:
    """Return the rows with NaN or infinity, those of zeros, and those not as long as the others, by kind of finding."""
    lengths = np.empty(len(embeddings))
    step = max(1, _IN_CACHE // max(1, embeddings.shape[1]))
    for start in range(0, len(embeddings), step):
        block = np.asarray(embeddings[start : start + step], np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths[start : start + len(block)] = np.linalg.norm(block, axis=1)
    finite = np.isfinite(lengths)
    has_length = finite & (lengths > 0)
    usual = float(np.median(lengths[has_length])) if has_length.any() else float("nan")
    is_unit = abs(usual - 1) <= UNIT
    odd = np.abs(lengths - 1) > UNIT if is_unit else (lengths > FAR * usual) | (lengths * FAR < usual)
    faults = {"not_finite": ~finite, "zero": finite & ~has_length, "length": has_length & odd}
    return {kind: np.flatnonzero(rows) for kind, rows in faults.items()}


def spread(embeddings: Float[Rows, "row dim"]) -> tuple[float, float, Int64[np.ndarray, " silent"]]:
    """Return how much of their space embeddings use, measured on at most 20,000 rows, brought to length 1.

    Returns:
        The effective rank, the mean cosine of two different rows, and the dimensions that hardly vary.

    Source: effective rank as in Roy, Vetterli, EUSIPCO 2007: the exponential of the entropy of the spectrum, here of
        the covariance.
    """
    chosen = np.arange(len(embeddings))
    if len(chosen) > _SAMPLE:
        chosen = np.sort(np.random.default_rng(0).choice(len(chosen), _SAMPLE, replace=False))
    rows = np.asarray(embeddings[chosen], np.float64)
    variance = rows.var(axis=0)  # before lengths are taken off: a dimension of one value would vary with them
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    count, dim = rows.shape
    mean = rows.mean(axis=0)
    cosine = (count * float(mean @ mean) - 1) / (count - 1) if count > 1 else 1.0
    rows -= mean
    gram = rows.T @ rows if dim <= count else rows @ rows.T  # of one spectrum
    values = np.linalg.eigvalsh(gram).clip(0)
    total = float(values.sum())
    part = values[values > 1e-12 * total] / total if total > 0 else np.ones(1)
    usual = float(np.median(variance[variance > 0])) if (variance > 0).any() else 1.0
    return float(np.exp(-(part * np.log(part)).sum())), cosine, np.flatnonzero(variance < SILENT * usual)


def has_collapsed(rank: float, cosine: float, dim: int) -> bool:
    return cosine > MOST_ALIKE or rank < min(LEAST_RANK, dim / 4)
