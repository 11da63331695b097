"""Which images to label: those that cover all others, or those between two classes of labelled ones."""

import numpy as np
from jaxtyping import Float64, Int64

from aurank.arrays import Rows
from aurank.evaluation.engine.nearest import nearest_rows
from aurank.evaluation.index.neighbours import BLOCK, blocks, check_rows, row_blocks, scaled_rows
from aurank.evaluation.inputs import RetrievalProblem


def distance_to_nearest(embeddings: Rows, centres: Rows, device: str = "cpu") -> Float64[np.ndarray, " row"]:
    """Return the exact cosine distance of each row to its nearest centre."""
    label = np.zeros(max(len(embeddings), len(centres)), np.int64)
    sides = {"gallery": centres, "gallery_labels": label[: len(centres)]}
    problem = RetrievalProblem(embeddings, labels=label[: len(embeddings)], **sides)
    return np.asarray(1 - nearest_rows(problem, 1, device=device).score[:, 0])


def farthest_first(
    embeddings: Rows, k: int, covered: Float64[np.ndarray, " row"] | None = None
) -> tuple[Int64[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    """Return k rows, each the farthest in cosine distance from all before it, and these distances.

    The largest angle of a row to its nearest chosen one is then at most twice the least that k rows can have.
    `covered`: the distances of rows to what is labelled already; without it row 0 is the first, infinitely far.

    Source: Gonzalez, 1985; k-Center-Greedy of Sener & Savarese, ICLR 2018, https://arxiv.org/abs/1708.00489

    Example:
        >>> rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.0]])
        >>> farthest_first(rows, 3)[0].tolist()
        [0, 3, 2]
    """
    check_rows(embeddings, side="query", distance="cosine")
    nearest = np.full(len(embeddings), np.inf) if covered is None else covered.copy()
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


def class_margins(
    embeddings: Rows, gallery: Rows, labels: Int64[np.ndarray, " gallery"]
) -> tuple[Float64[np.ndarray, " row"], Int64[np.ndarray, "row 2"]]:
    """Return the cosine of each row's nearest class less that of the second, and both labels.

    A class is as near as its nearest gallery row; there are two or more.
    """
    order = np.argsort(labels, kind="stable")
    names, starts = np.unique(labels[order], return_index=True)
    classed = scaled_rows(gallery[order], "cosine")
    margin, nearest = np.empty(len(embeddings)), np.empty((len(embeddings), 2), np.int64)
    for rows in blocks(len(embeddings), max(1, BLOCK // len(classed))):
        cosine = np.maximum.reduceat(scaled_rows(embeddings[rows], "cosine") @ classed.T, starts, axis=1)
        two = np.argsort(-cosine, axis=1, kind="stable")[:, :2]
        first, second = np.take_along_axis(cosine, two, axis=1).T
        margin[rows], nearest[rows] = first - second, names[two]
    return margin, nearest
