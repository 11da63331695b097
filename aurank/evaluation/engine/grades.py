"""Graded relevance: how much each positive is worth in nDCG."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float64

from aurank.errors import UserError
from aurank.evaluation.engine.inputs import Integers, as_array, refuse_masked
from aurank.evaluation.engine.ranks import Ranks


def check_grades(positives: Integers | None, relevance: Integers) -> Float64[np.ndarray, " pair"]:
    """Return the grade of each pair in `positives`; UserError unless there is one number above 0 for each, once."""
    refuse_masked(relevance, "relevance")
    if positives is None:
        raise UserError("relevance holds the grade of each pair in positives: give positives too")
    pairs, grade = as_array(positives), as_array(relevance)
    if pairs.ndim == 0 or grade.shape != (len(pairs),) or grade.dtype.kind not in "iuf":
        raise UserError(f"relevance has shape {grade.shape}, {grade.dtype}: give a number for each pair in positives")
    if not ((grade > 0) & np.isfinite(grade)).all():
        raise UserError(f"relevance must be above 0, and is {grade.min()}: leave out what is not relevant")
    if len(np.unique(pairs, axis=0)) < len(pairs):
        raise UserError("positives names a pair twice, so that its relevance is not clear: give each pair once")
    return grade.astype(np.float64)


class Grades:
    """The grades of listed pairs, to be given to ranks of some queries or of all."""

    def __init__(self, positives: Integers, grade: Float64[np.ndarray, " pair"], num_gallery: int) -> None:
        pairs = as_array(positives).astype(np.int64)
        keys = pairs[:, 0] * num_gallery + pairs[:, 1]
        order = np.argsort(keys)
        self.keys, self.grade = keys[order], grade[order]

    def given_to(self, ranks: Ranks) -> Ranks:
        """Return the ranks with the grade of each positive."""
        query = np.repeat(ranks.query, ranks.num_positives)
        found = np.searchsorted(self.keys, query * ranks.num_gallery + ranks.positive)
        return with_grades(ranks, self.grade[found])


def with_grades(ranks: Ranks, grades: Float64[np.ndarray, " positive"]) -> Ranks:
    """Return the ranks with the grade of each positive; of positives that tie, the one worth least comes first."""
    query = np.repeat(np.arange(len(ranks.query)), ranks.num_positives)
    worst_first = np.lexsort((grades, ranks.at_least, query))
    return replace(ranks, positive=ranks.positive[worst_first], relevance=grades[worst_first])
