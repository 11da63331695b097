"""Labels that the embeddings of all other rows speak against."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64, Shaped

MARGIN = 0.3  # by which another class must be predicted above the own; chosen with RIDGE, see docs/doctor.md
LEAST_RIGHT = 0.5  # part of the rows that are predicted right, below which the embeddings cannot judge labels
RIDGE = 0.1  # times the mean eigenvalue of rows.T @ rows
_BLOCK, _ROWS = 2**24, 8192  # predictions, and rows in float64, in memory at a time


@dataclass(frozen=True, eq=False)
class DoubtfulLabels:
    """Rows whose label is doubtful, the most doubtful first, and the class that they look like.

    Example:
        >>> doubtful_labels(np.eye(4), np.zeros(4)).row.tolist()
        []
    """

    row: Int64[np.ndarray, " doubtful"]
    label: Shaped[np.ndarray, " doubtful"]  # that the row looks like
    margin: Float64[np.ndarray, " doubtful"]  # above its own label


def doubtful_labels(
    embeddings: Float[np.ndarray, "row dim"], labels: Shaped[np.ndarray, " row"], *, margin: float = MARGIN
) -> DoubtfulLabels:
    """Return the rows that a linear classifier fitted on all other rows puts into another class, by a clear margin.

    The classifier is a ridge regression onto the classes, of which the prediction of each row left out has a closed
    form: one inverse serves all rows. Rows are brought to length 1 and centred. Rows that are the only one of
    their class are never doubtful: nothing else says what their class looks like. Where fewer than half of all rows are
    predicted right, none is doubtful: the embeddings do not know the classes.

    Args:
        embeddings: without faulty rows.
        labels: of the rows.
        margin: between the predictions of the other and the own class, which are about 1 and 0.

    Source: held-out predictions as in confident learning (Northcutt, Jiang, Chuang, JAIR 2021,
        https://arxiv.org/abs/1911.00068). Theirs are probabilities with a threshold for each class, here it is one
        margin of a regression.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(60, 8)) + 4 * np.eye(8)[np.arange(60) % 3]
        >>> labels = np.arange(60) % 3
        >>> labels[7] = 2
        >>> found = doubtful_labels(rows, labels)
        >>> found.row.tolist(), found.label.tolist()
        ([7], [1])
    """
    classes, own = np.unique(labels, return_inverse=True)
    count = np.bincount(own, minlength=len(classes))
    nothing = DoubtfulLabels(np.zeros(0, np.int64), labels[:0], np.zeros(0))
    if len(classes) < 2:
        return nothing
    rows = _centred(embeddings)
    inverse = _inverse(rows)
    sums = np.add.reduceat(rows[np.argsort(own, kind="stable")], np.cumsum(count) - count, axis=0, dtype=np.float64)
    weights = np.asarray(inverse @ sums.T, np.float32)
    other, ahead = np.zeros(len(rows), np.int64), np.zeros(len(rows))
    step = max(1, _BLOCK // len(classes))
    for start in range(0, len(rows), step):
        part = slice(start, min(start + step, len(rows)))
        exact = rows[part].astype(np.float64)
        leverage = np.einsum("ij,ij->i", exact @ inverse, exact)  # what a row itself added to its own class
        predicted, each = rows[part] @ weights, np.arange(len(exact))
        mine = predicted[each, own[part]] - leverage
        predicted[each, own[part]] = -np.inf
        other[part] = predicted.argmax(axis=1)
        ahead[part] = (predicted[each, other[part]] - mine) / (1 - leverage).clip(1e-9)
    if (ahead < 0).mean() < LEAST_RIGHT:
        return nothing
    doubtful = np.flatnonzero((ahead > margin) & (count[own] > 1))
    doubtful = doubtful[np.argsort(-ahead[doubtful], kind="stable")]
    return DoubtfulLabels(doubtful, classes[other[doubtful]], ahead[doubtful])


def _centred(embeddings: Float[np.ndarray, "row dim"]) -> Float32[np.ndarray, "row dim"]:
    """Return rows of length 1, of which the mean was taken off."""
    rows = np.asarray(embeddings, np.result_type(embeddings, np.float32))
    size = np.frexp(np.abs(rows).max(axis=1, keepdims=True))[1]  # powers of two: the same digits, and squares fit
    rows = np.asarray(np.ldexp(rows, -size), np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows -= rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
    return rows


def _inverse(rows: Float32[np.ndarray, "row dim"]) -> Float64[np.ndarray, "dim dim"]:
    """Return the inverse of rows.T @ rows and the ridge."""
    gram = np.zeros((rows.shape[1], rows.shape[1]))
    for start in range(0, len(rows), _ROWS):
        exact = rows[start : start + _ROWS].astype(np.float64)
        gram += exact.T @ exact
    np.fill_diagonal(gram, gram.diagonal() + RIDGE * float(gram.trace()) / len(gram) + 1e-12)
    return np.linalg.inv(gram)
