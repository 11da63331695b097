"""Graded relevance: of pairs that a caller grades, and of super-categories, whose rows are relevant but less so.

For super-categories ranks are counted once more, with these as labels.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from aurank.errors import UserError
from aurank.evaluation.engine.ranks import Change, RankBlocks, Ranks, query_columns
from aurank.evaluation.inputs import Integers, RetrievalProblem, as_array, integer_array
from aurank.evaluation.metrics import SUPER, hierarchical_names, ndcg, query_values, segment_sums

CLASS_GAIN, SUPER_GAIN = 3.0, 1.0  # of h_ndcg: 2^level − 1
SUPER_WORTH = 0.5  # of all rows of the super-category together in h_ap; those of the class have 1


def hierarchical_values(
    problem: RetrievalProblem,
    above: tuple[Integers, Integers | None],
    queries: Int64[np.ndarray, " query"],
    names: Iterable[str],
    *,
    ties: str = "threshold",
    max_memory: int | str = "1GiB",
    **options: Any,
) -> dict[str, Float64[np.ndarray, " query"]]:
    """Return the values of hierarchical metrics by name for some queries, each of which has a positive.

    `above`: the super-category of each row of both sides, −1 for none; None where the queries are the gallery.
    """
    hierarchical = hierarchical_names(names)
    if not hierarchical:
        return {}
    has_classes = problem.labels is not None and problem.positives is None
    if not has_classes or (problem.gallery is None) != (above[1] is None):
        remedy = "give labels, no positives, and with a gallery gallery_super_labels"
        raise UserError(f"super_labels group classes: {remedy}")
    count, is_own_gallery = len(problem.embeddings), problem.gallery is None
    columns = []
    for name, left, right in (("label", problem.labels, problem.gallery_labels), ("super_label", *above)):
        query = gallery = integer_array(left, name=name, rows=count, side="query")
        if right is not None:
            gallery = integer_array(right, name=name, rows=len(problem.target), side="gallery")
        columns.append(np.concatenate([query, gallery]))
    labels = np.unique(columns[0], return_inverse=True)[1]
    codes = np.where(columns[1] < 0, columns[1].max() + 1 + labels, columns[1])
    of_class = np.empty(labels.max() + 1, np.int64)
    of_class[labels] = codes
    if len(different := np.flatnonzero(of_class[labels] != codes)):
        row = int(different[0])
        name = f"query {row}" if is_own_gallery or row < count else f"gallery row {row - count}"
        raise UserError(
            f"super_labels of {name} and of another row of its label differ: a class has one super-category"
        )
    raised = replace(problem, labels=codes[:count], gallery_labels=None if is_own_gallery else codes[count:])
    ranks = RankBlocks(raised, max_memory=max_memory, distributed=False, **options)

    def compute(block: Ranks) -> dict[str, np.ndarray]:
        is_class = np.repeat(labels[block.query], block.num_positives) == labels[count + block.positive]
        graded = with_grades(block, np.where(is_class, CLASS_GAIN, SUPER_GAIN))
        by_level = {"h_ap": lambda: hierarchical_average_precision(block, is_class), "h_ndcg": lambda: ndcg(graded)}
        return {
            name: by_level[name]() if name in by_level else query_values(block, name.removeprefix(SUPER), ties=ties)
            for name in hierarchical
        }

    values, chosen = query_columns(ranks, compute), np.searchsorted(ranks.query, queries)
    return {name: values[name][chosen] if len(queries) else np.zeros(0) for name in hierarchical}


def hierarchical_average_precision(
    ranks: Ranks, is_class: Bool[np.ndarray, " positive"]
) -> Float64[np.ndarray, " query"]:
    """Return H-AP = Σ_k (Σ_{j: s_j ≥ s_k} min(rel_j, rel_k)) / rank_k / Σ_k rel_k over each query's positives.

    Source: Ramzi et al., ECCV 2022, https://arxiv.org/abs/2207.04873, with α = 1.
    """
    start, number = np.repeat(ranks.offset[:-1], ranks.num_positives), ranks.num_positives
    before = np.concatenate([[0], np.cumsum(is_class)])
    of_class = before[start + ranks.at_least] - before[start]  # with this score or a higher one
    of_super = ranks.at_least - of_class
    total = np.diff(before[ranks.offset])
    worth, less = (
        np.repeat(value, number) for value in (1 / np.maximum(total, 1), SUPER_WORTH / np.maximum(number - total, 1))
    )
    least = np.minimum(worth, less)
    reached = np.where(is_class, of_class * worth + of_super * least, of_class * least + of_super * less)
    shares = reached / (ranks.at_least + ranks.higher + ranks.tied)
    possible = (total > 0) + SUPER_WORTH * (number > total)
    return np.asarray(segment_sums(shares, ranks.offset) / possible)


def check_grades(positives: Integers | None, relevance: Integers) -> Float64[np.ndarray, " pair"]:
    """Return the grade of each pair in `positives`; UserError unless there is one number above 0 for each, once."""
    pairs, grade = as_array(() if positives is None else positives), as_array(relevance, "relevance")
    is_number = grade.dtype.kind in "iuf" and bool(((grade > 0) & np.isfinite(grade)).all())
    if positives is None or grade.shape != pairs.shape[:1] or not is_number:
        fault = f"relevance has shape {grade.shape}, {grade.dtype}"
        raise UserError(f"{fault}: give a number above 0 for each pair in positives")
    if len(np.unique(pairs, axis=0)) < len(pairs):
        raise UserError("positives names a pair twice, so that its relevance is not clear: give each pair once")
    return grade.astype(np.float64)


def graded(positives: Integers, grade: Float64[np.ndarray, " pair"], num_gallery: int) -> Change:
    """Return a function that gives `Ranks` the grades of the listed pairs."""
    pairs = as_array(positives).astype(np.int64)
    keys = pairs[:, 0] * num_gallery + pairs[:, 1]
    order = np.argsort(keys)

    def change(ranks: Ranks) -> Ranks:
        query = np.repeat(ranks.query, ranks.num_positives)
        index = np.searchsorted(keys[order], query * ranks.num_gallery + ranks.positive)
        return with_grades(ranks, grade[order][index])

    return change


def with_grades(ranks: Ranks, grades: Float64[np.ndarray, " positive"]) -> Ranks:
    query = np.repeat(np.arange(len(ranks.query)), ranks.num_positives)
    worst_first = np.lexsort((grades, ranks.at_least, query))
    return replace(ranks, positive=ranks.positive[worst_first], relevance=grades[worst_first])
