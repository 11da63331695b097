"""Steps that draw a row towards its neighbours in the gallery."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Int64

from aurank.evaluation.postprocessing._lists import nearest_lists
from aurank.evaluation.postprocessing._step import Rows, Sides, SideStep

ELEMENTS = 2**22  # numbers of neighbours read at a time


@dataclass(frozen=True, kw_only=True)
class _Expansion(SideStep):
    k: int = 5
    alpha: float = 3.0

    def __post_init__(self) -> None:
        self.require(self.k >= 1, "k", "1 or more")
        self.require(self.alpha >= 0, "alpha", "0 or more")

    def drawn(self, rows: Rows, gallery: Rows, own: Int64[np.ndarray, " row"], device: str) -> Rows:
        """Return each row plus its nearest gallery rows, weighted, all of length 1."""
        lists = nearest_lists(rows, gallery, self.k, leave_out=own, device=device)
        weight = np.where(lists.score > 0, lists.score.clip(0) ** self.alpha, 0)
        found = np.empty(rows.shape, np.result_type(rows, np.float32))
        step = max(1, ELEMENTS // (self.k * rows.shape[1]))
        for start in range(0, len(rows), step):
            here = slice(start, start + step)
            near = np.einsum("rk,rkd->rd", weight[here], _unit(gallery[lists.row[here]]))
            found[here] = _unit(_unit(rows[here]) + near)
        return found


@dataclass(frozen=True, kw_only=True)
class QueryExpansion(_Expansion):
    """Replace each query q by q + Σ max(cos(q, g), 0)^alpha g over its k nearest gallery rows g, all of length 1.

    αQE; with alpha=0 the plain average over those with a cosine above 0. A query's own item in the gallery is left out
    of the k. Transductive: the score of a query and a gallery row depends on other gallery rows. In a search that is so
    too, since the gallery is there before the query comes; but no other query is looked at, unless the queries are the
    gallery.

    Source:
        section 3.3 of Radenović, Tolias and Chum, Fine-tuning CNN Image Retrieval with No Human Annotation (TPAMI
        2018), https://arxiv.org/abs/1711.02512

    Example:
        >>> from aurank.evaluation import RetrievalProblem
        >>> from aurank.evaluation.postprocessing import PostProcessing
        >>> problem = RetrievalProblem(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), labels=[0, 1, 1])
        >>> processed = PostProcessing.parse("query_expansion:k=1,alpha=0").apply(problem).problem
        >>> processed.embeddings[1].round(3).tolist()
        [0.316, 0.949]
    """

    name: ClassVar[str] = "query_expansion"
    is_transductive: ClassVar[bool] = True

    def sides(self, sides: Sides, *, device: str) -> Sides:
        """Return the expanded queries, and the gallery as it was."""
        queries = self.drawn(sides.queries, sides.searched, sides.own_kept, device)
        return replace(sides, queries=queries, gallery=sides.target)


@dataclass(frozen=True, kw_only=True)
class DatabaseAugmentation(_Expansion):
    """Replace each gallery row g by g + Σ max(cos(g, h), 0)^alpha h over its k nearest other gallery rows h.

    All rows are of length 1; junk stays as it is. Transductive: a score depends on other gallery rows. Where the
    queries are the gallery, a query is among the rows that its own neighbours are drawn to, which no search of a new
    photo could do: read such a number as a bound.

    Source:
        Turcot and Lowe, Better matching with fewer features (ICCV Workshops 2009); Arandjelović and Zisserman, Three
        things everyone should know to improve object retrieval (CVPR 2012), section 4; weights as in αQE

    Example:
        >>> str(DatabaseAugmentation(k=10, alpha=1.0))
        'database_augmentation:k=10,alpha=1'
    """

    name: ClassVar[str] = "database_augmentation"
    is_transductive: ClassVar[bool] = True

    def sides(self, sides: Sides, *, device: str) -> Sides:
        """Return the queries as they were, and the augmented gallery."""
        gallery = sides.target.copy()
        gallery[sides.kept] = self.drawn(sides.searched, sides.searched, np.arange(len(sides.kept)), device)
        return Sides(sides.queries, gallery, sides.own, sides.kept)


def _unit(rows: Rows) -> Rows:
    values = np.asarray(rows, np.float64)
    return np.asarray(values / np.sqrt((values * values).sum(axis=-1, keepdims=True)))
