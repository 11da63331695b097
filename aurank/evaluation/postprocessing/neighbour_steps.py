"""Steps that look at neighbours: they draw rows towards them, or score the beginnings of lists anew."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge
from jaxtyping import Bool, Float64, Int64

from aurank.evaluation.engine.nearest import BestSearch, NearestRows
from aurank.evaluation.engine.problem import Pairs, positions_of
from aurank.evaluation.engine.ranks import Ranks
from aurank.evaluation.engine.scores import ExactScores
from aurank.evaluation.inputs import RetrievalProblem, Work
from aurank.evaluation.postprocessing.steps import Count, ListStep, Part, Rows, Sides, Step, unit

MEMORY = 2**27  # bytes at a time


def nearest_lists(
    queries: Rows, gallery: Rows, k: int, *, leave_out: Int64[np.ndarray, " query"], device: str = "cpu"
) -> tuple[Int64[np.ndarray, "query k"], Float64[np.ndarray, "query k"]]:
    """Return the k nearest gallery rows of each query and their cosines, best first.

    `leave_out` has the row that each query must not find, or -1.

    Equal rows come in a fixed random order: files often come class by class, and in their order a collapsed model would
    find neighbours of the right class. A shorter list ends in a row of score minus infinity.
    """
    shuffled = np.random.default_rng(0).permutation(len(gallery))
    symmetric = queries is gallery and np.array_equal(leave_out, np.arange(len(gallery)))
    order = shuffled if symmetric else np.arange(len(queries))
    hidden = np.append(positions_of(shuffled, len(gallery)), -1)[leave_out[order]]

    def within(queries_of_tile: slice, rows_of_tile: slice) -> Pairs:
        column = hidden[queries_of_tile] - rows_of_tile.start
        query = np.flatnonzero((column >= 0) & (column < rows_of_tile.stop - rows_of_tile.start))
        return query, column[query]

    search = _search(queries, gallery, order, shuffled, within, symmetric=symmetric, device=device)
    position, score = search.run(k, positions_of(order, len(queries)))
    return shuffled[position], score


def pair_scores(
    queries: Rows,
    gallery: Rows,
    query: Int64[np.ndarray, " pair"],
    row: Int64[np.ndarray, " pair"],
    *,
    distance: str = "cosine",
) -> Float64[np.ndarray, " pair"]:
    problem = RetrievalProblem(queries, gallery=None if gallery is queries else gallery)
    orders = np.arange(len(queries)), np.arange(len(gallery))
    return ExactScores(problem, *orders, distance=distance).pairs(query, row)


def _search(
    queries: Rows,
    gallery: Rows,
    order: Int64[np.ndarray, " query"],
    gallery_order: Int64[np.ndarray, " gallery"],
    hidden: Callable[[slice, slice], Pairs],
    *,
    symmetric: bool,
    device: str,
) -> BestSearch:
    problem = RetrievalProblem(queries, gallery=None if gallery is queries else gallery)
    scores = ExactScores(problem, order, gallery_order, distance="cosine")
    work = Work.of(queries, device=device, max_memory=MEMORY, distributed=False)
    return BestSearch(scores, hidden, tied=lambda _, position: position, symmetric=symmetric, work=work)


ELEMENTS = 2**22  # of the neighbours in memory at a time


class SideStep(Step):
    """A step that draws queries or gallery rows towards their nearest gallery rows."""

    is_transductive: ClassVar[bool] = True

    k: Count = 5
    alpha: Annotated[float, Ge(0)] = 3.0

    @abstractmethod
    def sides(self, sides: Sides, *, device: str) -> Sides:
        """Return both sides after this step."""

    def drawn(self, rows: Rows, gallery: Rows, leave_out: Int64[np.ndarray, " row"], device: str) -> Rows:
        """Return each row plus its nearest gallery rows, weighted, all of length 1."""
        listed, score = nearest_lists(rows, gallery, self.k, leave_out=leave_out, device=device)
        weight = np.where(score > 0, score.clip(0) ** self.alpha, 0)
        sums = np.empty(rows.shape, np.result_type(rows, np.float32))
        step = max(1, ELEMENTS // (self.k * rows.shape[1]))
        for start in range(0, len(rows), step):
            block = slice(start, start + step)
            near = np.einsum("rk,rkd->rd", weight[block], unit(gallery[listed[block]]))
            sums[block] = unit(unit(rows[block]) + near)
        return sums


class QueryExpansion(SideStep):
    """Replace each query q by q + Σ max(cos(q, g), 0)^alpha g over its k nearest gallery rows g, all of length 1.

    αQE; with alpha=0 the plain average over those with a cosine above 0. A query's own item in the gallery is left out
    of the k.

    Source:
        section 3.3 of Radenović, Tolias and Chum (TPAMI 2018), https://arxiv.org/abs/1711.02512
    """

    name: ClassVar[str] = "query_expansion"

    def sides(self, sides: Sides, *, device: str) -> Sides:
        return replace(sides, queries=self.drawn(sides.queries, sides.searched, sides.own_searched, device))


class DatabaseAugmentation(SideStep):
    """Replace each gallery row g by g + Σ max(cos(g, h), 0)^alpha h over its k nearest other gallery rows h.

    All rows are of length 1; junk stays as it is. Where the queries are the gallery, its neighbours are drawn to a
    query too: read such a number as a bound.

    Source:
        Turcot and Lowe (ICCV Workshops 2009); Arandjelović and Zisserman (CVPR 2012), section 4; weights as in αQE
    """

    name: ClassVar[str] = "database_augmentation"

    def sides(self, sides: Sides, *, device: str) -> Sides:
        gallery = sides.gallery.copy()
        gallery[sides.not_junk] = self.drawn(sides.searched, sides.searched, np.arange(len(sides.not_junk)), device)
        return replace(sides, gallery=gallery)


BLOCK = 512  # rows whose neighbours' neighbours are compared at a time


class KReciprocal(ListStep):
    """Order the first `depth` of each list by how much the neighbourhoods of query and row overlap.

    Two rows are k-reciprocal where each is among the other's k1 nearest. The new distance is (1 - weight) times the
    Jaccard distance of these neighbourhoods, averaged over the k2 nearest, plus weight times the squared Euclidean one,
    divided by the query's greatest. With a `depth` of the whole gallery that is the published code, number for number.

    Args:
        weight: λ of the paper.

    Source:
        Zhong et al. (CVPR 2017), https://arxiv.org/abs/1701.08398; https://github.com/zhunzhong07/person-re-ranking
    """

    name: ClassVar[str] = "k_reciprocal"
    is_transductive: ClassVar[bool] = True

    k1: Count = 20
    k2: Count = 6
    weight: Part = 0.3

    def scores(self, lists: NearestRows, sides: Sides, *, distance: str, device: str) -> Float64[np.ndarray, "query k"]:
        gallery, own_row = sides.searched, sides.own_searched
        gallery_node = np.full(len(sides.gallery), -1)
        gallery_node[sides.not_junk] = np.arange(len(gallery))
        is_same = own_row >= 0  # such a query and its gallery row are one node
        if sides.queries is not gallery:
            is_same[is_same] = (sides.queries[is_same] == gallery[own_row[is_same]]).all(axis=1)
        query_node = np.where(is_same, own_row, len(gallery) + np.cumsum(~is_same) - 1)
        nodes = gallery if is_same.all() else np.concatenate([gallery, sides.queries[~is_same]])
        encoding, greatest = encode(nodes, self.k1, self.k2, device=device)
        exists = lists.row >= 0
        jaccard = jaccard_distances(encoding, query_node[lists.query], gallery_node[lists.row], exists)
        euclidean = (2 - 2 * lists.score) / greatest[query_node[lists.query]][:, None]
        return np.asarray(-((1 - self.weight) * jaccard + self.weight * euclidean))


def encode(nodes: Rows, k1: int, k2: int, *, device: str = "cpu") -> tuple[Any, Float64[np.ndarray, " node"]]:
    """Return each node's neighbourhood (equations 7 to 10) as a sparse row, and its greatest squared distance."""
    from scipy import sparse  # takes a tenth of a second, and few evaluations need it

    every = np.arange(len(nodes))
    listed, _ = nearest_lists(nodes, nodes, min(k1, len(nodes) - 1), leave_out=every, device=device)
    # The farthest row is the nearest to a row's opposite.
    none = every[:0], every[:0]
    search = _search(-nodes, nodes, every, every, lambda *_: none, symmetric=False, device=device)
    greatest = 2 + 2 * search.run(1, every)[1][:, 0]
    greatest[greatest <= 0] = 1  # all rows are equal
    rank = np.concatenate([every[:, None], listed], axis=1)
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
        block = slice(start, min(start + BLOCK, len(rank)))
        near, is_mutual = rank[block], mutual[block]
        further = narrow[near]
        is_further = narrow_mutual[near] & is_mutual[:, :, None]
        # A neighbour's closer neighbourhood joins if the node's own has more than two thirds of it (equation 5).
        shared = np.zeros(further.shape, bool)
        for column in range(near.shape[1]):
            shared |= (further == near[:, column, None, None]) & is_mutual[:, column, None, None]
        joins = (shared & is_further).sum(axis=2) > 2 / 3 * is_further.sum(axis=2)
        for is_member, member in ((is_mutual, near), (is_further & joins[:, :, None], further)):
            node = np.nonzero(is_member)[0] + start
            pairs.append(node * len(rank) + member[is_member])
    node, member = np.divmod(np.unique(np.concatenate(pairs)), len(rank))
    return node, member


def _mutual(rank: Int64[np.ndarray, "node k"]) -> Bool[np.ndarray, "node k"]:
    is_mutual = np.empty(rank.shape, bool)
    for start in range(0, len(rank), BLOCK):
        block = slice(start, min(start + BLOCK, len(rank)))
        node = np.arange(block.start, block.stop)[:, None, None]
        is_mutual[block] = (rank[rank[block]] == node).any(axis=2)
    return is_mutual


def jaccard_distances(
    encoding: Any,
    query: Int64[np.ndarray, " query"],
    row: Int64[np.ndarray, "query k"],
    exists: Bool[np.ndarray, "query k"],
) -> Float64[np.ndarray, "query k"]:
    """Return 1 - Σ min / Σ max of the encodings of each query and the rows of its list; NaN after the list's end."""
    distance = np.full(row.shape, np.nan)
    dense = np.zeros(encoding.shape[1])
    start, column, weight = encoding.indptr.astype(np.int64), encoding.indices, encoding.data
    for line, node in enumerate(query.tolist()):
        entries = slice(start[node], start[node + 1])
        dense[column[entries]] = weight[entries]
        listed = row[line][exists[line]]
        count = start[listed + 1] - start[listed]
        first = np.cumsum(count) - count
        entry = np.arange(count.sum()) + np.repeat(start[listed] - first, count)
        shared = np.add.reduceat(np.minimum(dense[column[entry]], weight[entry]), first)
        distance[line][exists[line]] = 1 - shared / (2 - shared)
        dense[column[entries]] = 0
    return distance


COMPARED = 2**24  # scores at a time


class Rescore(ListStep):
    """Order the first `depth` of each list by the rows before truncation and codes."""

    name: ClassVar[str] = "rescore"

    def scores(self, lists: NearestRows, sides: Sides, *, distance: str, device: str) -> Float64[np.ndarray, "query k"]:
        exists = lists.row >= 0
        score = np.full(lists.row.shape, np.nan)
        query = np.broadcast_to(lists.query[:, None], lists.row.shape)[exists]
        score[exists] = pair_scores(sides.queries, sides.gallery, query, lists.row[exists], distance=distance)
        return score


def reordered_ranks(ranks: Ranks, lists: NearestRows, score: Float64[np.ndarray, "query k"]) -> Ranks:
    """Return the ranks after the rows listed were ordered by new scores; later rows keep their order."""
    if len(ranks.query) < len(lists.query):
        rows = np.searchsorted(lists.query, ranks.query)
        lists = NearestRows(lists.query[rows], lists.row[rows], lists.score[rows], lists.is_positive[rows])
        score = score[rows]
    is_positive, exists = lists.is_positive, lists.row >= 0
    is_negative = exists & ~is_positive
    line, column = np.nonzero(is_positive)
    new_score = score[line, column]
    # The positives listed come first of each query's, in its new order; equal ones in the order of the gallery.
    order = np.lexsort((lists.row[line, column], -new_score, line))
    line, column, new_score = line[order], column[order], new_score[order]
    listed = is_positive.sum(axis=1)
    position = np.arange(len(line)) + np.repeat(ranks.offset[:-1] - (np.cumsum(listed) - listed), listed)
    negatives = np.repeat(is_negative.sum(axis=1), ranks.num_positives)
    higher = np.maximum(ranks.higher, negatives)  # of later positives: they no longer tie with a listed row
    tied = ranks.higher + ranks.tied - higher
    positive, at_least = ranks.positive.copy(), ranks.at_least.copy()
    positive[position] = lists.row[line, column]
    step = max(1, COMPARED // score.shape[1])
    for start in range(0, len(line), step):
        block = slice(start, start + step)
        lines, threshold, changed = line[block], new_score[block][:, None], position[block]
        above, equal = score[lines] > threshold, score[lines] == threshold
        higher[changed] = (above & is_negative[lines]).sum(axis=1)
        tied[changed] = (equal & is_negative[lines]).sum(axis=1)
        at_least[changed] = ((above | equal) & is_positive[lines]).sum(axis=1)
    if (best := ranks.best_score) is not None and len(new_score):
        first = np.minimum(np.cumsum(listed) - listed, len(new_score) - 1)
        best = np.where(listed > 0, new_score[first], best)
    return replace(ranks, positive=positive, higher=higher, tied=tied, at_least=at_least, best_score=best)
