"""k-reciprocal re-ranking on sparse lists: never a matrix of all rows by all rows."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float64, Int64

from aurank.evaluation.engine.nearest import NearestRows
from aurank.evaluation.postprocessing._lists import farthest_scores, nearest_lists, pair_scores
from aurank.evaluation.postprocessing._step import ListStep, Rows, Sides

BLOCK = 512  # rows whose neighbours' neighbours are compared at a time


@dataclass(frozen=True, kw_only=True)
class KReciprocal(ListStep):
    """Order the first `depth` of each list by how much the neighbourhoods of query and row overlap.

    Two rows are k-reciprocal where each is among the other's k1 nearest. The new distance is (1 - weight) times the
    Jaccard distance of these neighbourhoods, averaged over the k2 nearest, plus weight times the squared Euclidean one,
    divided by the query's greatest. With a `depth` of the whole gallery that is the published code, number for number;
    here what stands behind `depth` stays where it was.

    Transductive: a score depends on other gallery rows, and, as in the published code, on the other queries, which are
    in the graph too. (A query that is a gallery row, number for number, is one node of it.)

    A row stands first in its own neighbourhood, among duplicates too.

    Args:
        weight: λ of the paper.

    Source:
        Zhong, Zheng, Cao and Li, Re-ranking Person Re-identification with k-reciprocal Encoding (CVPR 2017),
        https://arxiv.org/abs/1701.08398; code: https://github.com/zhunzhong07/person-re-ranking

    Example:
        >>> str(KReciprocal(k1=10, k2=3))
        'k_reciprocal:k1=10,k2=3'
    """

    name: ClassVar[str] = "k_reciprocal"
    is_transductive: ClassVar[bool] = True

    k1: int = 20
    k2: int = 6
    weight: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.k1 >= 1, "k1", "1 or more")
        self.require(self.k2 >= 1, "k2", "1 or more")
        self.require(0 <= self.weight <= 1, "weight", "from 0 to 1")

    def scores(
        self, lists: NearestRows, sides: Sides, uncoded: Sides, *, distance: str, device: str
    ) -> Float64[np.ndarray, "query k"]:
        """Return minus the new distances."""
        nodes, query_node, gallery_node = _nodes(sides)
        encoding, greatest = encode(nodes, self.k1, self.k2, device=device)
        exists = lists.row >= 0
        jaccard = jaccard_distances(encoding, query_node[lists.query], gallery_node[lists.row], exists)
        euclidean = (2 - 2 * lists.score) / greatest[query_node[lists.query]][:, None]
        return np.asarray(-((1 - self.weight) * jaccard + self.weight * euclidean))


def _nodes(sides: Sides) -> tuple[Rows, Int64[np.ndarray, " query"], Int64[np.ndarray, " gallery"]]:
    gallery, own = sides.searched, sides.own_kept
    gallery_node = np.full(len(sides.target), -1)
    gallery_node[sides.kept] = np.arange(len(gallery))
    is_same = own >= 0
    if sides.queries is not gallery:
        is_same[is_same] = (sides.queries[is_same] == gallery[own[is_same]]).all(axis=1)
    query_node = np.where(is_same, own, len(gallery) + np.cumsum(~is_same) - 1)
    nodes = gallery if is_same.all() else np.concatenate([gallery, sides.queries[~is_same]])
    return nodes, query_node, gallery_node


def encode(nodes: Rows, k1: int, k2: int, *, device: str = "cpu") -> tuple[Any, Float64[np.ndarray, " node"]]:
    """Return each node's neighbourhood as a sparse row of weights that add up to 1, and its greatest squared distance.

    Equation 7 to 10 of the paper.
    """
    from scipy import sparse  # takes a tenth of a second, and few evaluations need it

    own = np.arange(len(nodes))
    lists = nearest_lists(nodes, nodes, min(k1, len(nodes) - 1), leave_out=own, device=device)
    greatest = 2 - 2 * farthest_scores(nodes, device=device)
    greatest[greatest <= 0] = 1  # all rows are alike
    rank = np.concatenate([own[:, None], lists.row], axis=1)
    node, member = _reciprocal_pairs(rank, k1)
    squared = 2 - 2 * pair_scores(nodes, nodes, node, member)
    squared[node == member] = 0
    weight = np.exp(-squared / greatest[node])
    weight /= np.bincount(node, weight)[node]
    encoding = sparse.csr_matrix((weight, (node, member)), shape=(len(nodes), len(nodes)))
    if k2 > 1:
        near = rank[:, :k2]
        start = np.arange(0, near.size + 1, near.shape[1])
        mean = np.full(near.size, 1 / near.shape[1])
        encoding = sparse.csr_matrix((mean, near.ravel(), start), shape=encoding.shape) @ encoding
        encoding.sort_indices()
    return encoding, greatest


def _reciprocal_pairs(rank: Int64[np.ndarray, "node k"], k1: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of a node and a member of its expanded k-reciprocal neighbourhood, in increasing order."""
    narrow = rank[:, : round(k1 / 2) + 1]
    mutual, narrow_mutual = _mutual(rank), _mutual(narrow)
    pairs = []
    for start in range(0, len(rank), BLOCK):
        here = slice(start, min(start + BLOCK, len(rank)))
        own, is_own = rank[here], mutual[here]
        theirs = narrow[own]
        is_theirs = narrow_mutual[own] & is_own[:, :, None]
        # A neighbour's closer neighbourhood joins if more than two thirds of it are here already (equation 5).
        shared = np.zeros(theirs.shape, bool)
        for place in range(own.shape[1]):
            shared |= (theirs == own[:, place, None, None]) & is_own[:, place, None, None]
        joins = (shared & is_theirs).sum(axis=2) > 2 / 3 * is_theirs.sum(axis=2)
        for is_member, member in ((is_own, own), (is_theirs & joins[:, :, None], theirs)):
            node = np.nonzero(is_member)[0] + start
            pairs.append(node * len(rank) + member[is_member])
    node, member = np.divmod(np.unique(np.concatenate(pairs)), len(rank))
    return node, member


def _mutual(rank: Int64[np.ndarray, "node k"]) -> Bool[np.ndarray, "node k"]:
    found = np.empty(rank.shape, bool)
    for start in range(0, len(rank), BLOCK):
        here = slice(start, min(start + BLOCK, len(rank)))
        node = np.arange(here.start, here.stop)[:, None, None]
        found[here] = (rank[rank[here]] == node).any(axis=2)
    return found


def jaccard_distances(
    encoding: Any,
    query: Int64[np.ndarray, " query"],
    row: Int64[np.ndarray, "query k"],
    exists: Bool[np.ndarray, "query k"],
) -> Float64[np.ndarray, "query k"]:
    """Return 1 - Σ min / Σ max of the encodings of each query and the rows of its list; NaN where there is no row."""
    found = np.full(row.shape, np.nan)
    dense = np.zeros(encoding.shape[1])
    start, column, weight = encoding.indptr.astype(np.int64), encoding.indices, encoding.data
    for place, node in enumerate(query.tolist()):
        here = slice(start[node], start[node + 1])
        dense[column[here]] = weight[here]
        listed = row[place][exists[place]]
        count = start[listed + 1] - start[listed]
        first = np.cumsum(count) - count
        entry = np.arange(count.sum()) + np.repeat(start[listed] - first, count)
        shared = np.add.reduceat(np.minimum(dense[column[entry]], weight[entry]), first)
        found[place][exists[place]] = 1 - shared / (2 - shared)
        dense[column[here]] = 0
    return found
