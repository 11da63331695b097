"""An overview of embeddings: rows that stand for all others, rows between two classes, a map of all."""

from importlib import import_module

import numpy as np
from jaxtyping import Float64, Int64

from aurank.arrays import Rows
from aurank.evaluation.index.neighbours import BLOCK, blocks, row_blocks, scaled_rows
from aurank.evaluation.inputs import importable
from aurank.evaluation.postprocessing.steps import unit


def class_cosines(
    embeddings: Rows, gallery: Rows, labels: Int64[np.ndarray, " gallery"], k: int
) -> tuple[Float64[np.ndarray, "row k"], Int64[np.ndarray, "row k"]]:
    """Return the cosines of each row's k nearest classes, by their nearest gallery row, and the labels of these."""
    order = np.argsort(labels, kind="stable")
    names, starts = np.unique(labels[order], return_index=True)
    classed = scaled_rows(gallery[order], "cosine")
    cosine, nearest = np.empty((len(embeddings), k)), np.empty((len(embeddings), k), np.int64)
    for rows in blocks(len(embeddings), max(1, BLOCK // max(classed.shape))):
        by_class = np.maximum.reduceat(scaled_rows(embeddings[rows], "cosine") @ classed.T, starts, axis=1)
        first = np.argsort(-by_class, axis=1, kind="stable")[:, :k]
        cosine[rows], nearest[rows] = np.take_along_axis(by_class, first, axis=1), names[first]
    return cosine, nearest


def farthest_first(
    embeddings: Rows, k: int, covered: Float64[np.ndarray, " row"] | float = np.inf
) -> tuple[Int64[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    """Return k rows, each the farthest in cosine distance from all before it, and these distances.

    The largest angle of a row to its nearest chosen one is then at most twice the least that k rows can have.
    `covered`: the distances of rows to what is labelled already; without it row 0 is the first, infinitely far.

    Source: Gonzalez, 1985; k-Center-Greedy of Sener & Savarese, ICLR 2018, https://arxiv.org/abs/1708.00489
    """
    nearest = np.zeros(len(embeddings)) + covered
    chosen, distance = np.zeros(k, np.int64), np.zeros(k)
    lengths = [np.linalg.norm(np.asarray(embeddings[rows], np.float64), axis=1) for rows in row_blocks(embeddings)]
    for step in range(k):
        row = chosen[step] = nearest.argmax()
        distance[step] = nearest[row]
        centre = scaled_rows(embeddings[row : row + 1], "cosine")[0]
        for rows, length in zip(row_blocks(embeddings), lengths, strict=True):
            cosine = np.asarray(embeddings[rows], np.float64) @ centre / length
            np.minimum(nearest[rows], 1 - cosine, out=nearest[rows])
        nearest[chosen[: step + 1]] = -np.inf
    return chosen, distance


def plane(embeddings: Rows) -> tuple[Float64[np.ndarray, "row 2"], str]:
    """Return coordinates of rows of length 1, and what made them: UMAP if umap-learn is installed, else PCA."""
    rows = unit(embeddings)
    if len(rows) > 15 and importable("umap"):  # which looks at 15 neighbours
        return import_module("umap").UMAP(metric="cosine", random_state=0, n_jobs=1).fit_transform(rows), "UMAP"
    rows = np.pad(rows - rows.mean(axis=0), [(0, 0), (0, rows.shape[1] < 2)])  # a map has two coordinates
    return rows @ np.linalg.eigh(rows.T @ rows)[1][:, :-3:-1], "PCA"
