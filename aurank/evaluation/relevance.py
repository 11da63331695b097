"""Graded relevance: how much each positive is worth, for nDCG."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64
from torch import Tensor

from aurank.errors import UserError
from aurank.evaluation.engine.inputs import Integers, refuse_masked
from aurank.evaluation.engine.ranks import Ranks


@dataclass(frozen=True, eq=False)
class Grades:
    """What each pair of a query row and a gallery row is worth, above 0."""

    pairs: Int64[np.ndarray, "pair 2"]
    grade: Float64[np.ndarray, " pair"]

    @classmethod
    def of(cls, positives: Integers | None, relevance: Integers) -> "Grades":
        """The grades of `positives`, checked; UserError where they are not one number above 0 for each, once."""
        refuse_masked(relevance, "relevance")
        if positives is None:
            raise UserError("relevance holds the grade of each pair in positives: give positives too")
        pairs, grade = (
            values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
            for values in (positives, relevance)
        )
        if pairs.ndim == 0 or grade.shape != (len(pairs),) or grade.dtype.kind not in "iuf":
            raise UserError(
                f"relevance has shape {grade.shape}, {grade.dtype}: give a number for each pair in positives"
            )
        wrong = np.flatnonzero(~((grade > 0) & np.isfinite(grade)))
        if len(wrong):
            raise UserError(
                f"relevance of pair {wrong[0]} is {grade[wrong[0]]}: grades are above 0; leave out what is not relevant"
            )
        if len(np.unique(pairs, axis=0)) < len(pairs):
            raise UserError("positives names a pair twice, so that its relevance is not clear: give each pair once")
        return cls(pairs.astype(np.int64), grade.astype(np.float64))

    def of_ranks(self, ranks: Ranks) -> Ranks:
        """The ranks of these pairs with their grades; of those that tie, the one worth least comes first."""
        keys = self.pairs[:, 0] * ranks.num_gallery + self.pairs[:, 1]
        order = np.argsort(keys)
        line = np.repeat(np.arange(len(ranks.query)), ranks.num_positives)
        place = np.searchsorted(keys[order], ranks.query[line] * ranks.num_gallery + ranks.positive)
        grade = self.grade[order[place]]
        worst_first = np.lexsort((grade, ranks.at_least, line))
        return replace(ranks, positive=ranks.positive[worst_first], relevance=grade[worst_first])
