"""Tiles of scores with edges around thresholds, and what comparing every pair counts."""

import numpy as np

from aurank.evaluation.engine import compiled
from aurank.evaluation.engine.codes import Edges


def tile(counts: list[int], *, others: int = 70, spread: float = 0.3, width: float = 1e-2, seed: int = 0):  # type: ignore[no-untyped-def]
    """Return scores [query, other], some at the edges and some left out, and edges around so many thresholds each."""
    chance = np.random.default_rng(seed)
    offset = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    scores = spread * chance.normal(size=(len(counts), others))
    low, high = np.empty(offset[-1]), np.empty(offset[-1])
    for query in range(len(counts)):
        here = slice(offset[query], offset[query + 1])
        middle = np.sort(spread * chance.normal(size=counts[query]))
        middle[1::3] = middle[:-1:3]  # equal thresholds
        low[here], high[here] = middle - width, middle + width
        some = min(counts[query], others // 4)
        scores[query, :some] = low[here][:some]
        scores[query, some : 2 * some] = high[here][:some]
    scores[chance.random(scores.shape) < 0.1] = -np.inf
    return scores, Edges(offset, low, high)


def expected(scores: np.ndarray, edges: Edges):  # type: ignore[no-untyped-def]
    """Return what comparing every score with every edge counts: above, near, and the near pairs."""
    query = np.repeat(np.arange(len(edges.offset) - 1), np.diff(edges.offset))
    above = scores[query] > edges.high[:, None]
    near = (scores[query] >= edges.low[:, None]) & ~above
    return above.sum(1), near.sum(1), {(int(at), int(other)) for at, other in zip(*np.nonzero(near), strict=True)}


COUNTS = {
    "few": [1, 4, 0, 2, 0, 0, 3, 4, 1, 2] * 4,
    "none": [0, 0, 0],
    "around the limit": [
        compiled.MOST_DIRECT - 1,
        compiled.MOST_DIRECT,
        compiled.MOST_DIRECT + 1,
        0,
        compiled.MOST_DIRECT + 2,
    ],
    "many": [180, 25, 0, 500],
    "one query": [40],
}
