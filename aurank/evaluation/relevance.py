"""Graded relevance: how much each positive is worth, for nDCG."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from aurank.errors import UserError
from aurank.evaluation.engine.inputs import Integers, refuse_masked
from aurank.evaluation.engine.ranks import Ranks


def check_relevance(positives: Integers | None, relevance: Integers) -> Float64[np.ndarray, " pair"]:
    """Return the grade of each pair in `positives`; UserError unless there is one number above 0 for each, once."""
    refuse_masked(relevance, "relevance")
    if positives is None:
        raise UserError("relevance holds the grade of each pair in positives: give positives too")
    pairs, grade = _array(positives), _array(relevance)
    if pairs.ndim == 0 or grade.shape != (len(pairs),) or grade.dtype.kind not in "iuf":
        raise UserError(f"relevance has shape {grade.shape}, {grade.dtype}: give a number for each pair in positives")
    wrong = np.flatnonzero(~((grade > 0) & np.isfinite(grade)))
    if len(wrong):
        raise UserError(
            f"relevance of pair {wrong[0]} is {grade[wrong[0]]}: grades are above 0; leave out what is not relevant"
        )
    if len(np.unique(pairs, axis=0)) < len(pairs):
        raise UserError("positives names a pair twice, so that its relevance is not clear: give each pair once")
    return grade.astype(np.float64)


def with_relevance(ranks: Ranks, positives: Integers, grade: Float64[np.ndarray, " pair"]) -> Ranks:
    """Return the ranks of these pairs with their grades; of positives that tie, the one worth least comes first."""
    pairs = _array(positives).astype(np.int64)
    keys = pairs[:, 0] * ranks.num_gallery + pairs[:, 1]
    order = np.argsort(keys)
    query = np.repeat(np.arange(len(ranks.query)), ranks.num_positives)
    found = order[np.searchsorted(keys[order], ranks.query[query] * ranks.num_gallery + ranks.positive)]
    worst_first = np.lexsort((grade[found], ranks.at_least, query))
    return replace(ranks, positive=ranks.positive[worst_first], relevance=grade[found][worst_first])


def _array(values: Integers) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
