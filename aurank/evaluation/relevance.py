"""What is relevant, and how much: by sets of labels, by grades of pairs, and by super-categories.

For super-categories ranks are counted once more, with these as labels.
"""

import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from aurank.arrays import as_plain
from aurank.errors import UserError
from aurank.evaluation.engine.problem import require_room
from aurank.evaluation.engine.ranks import Change, RankBlocks, Ranks, query_columns
from aurank.evaluation.inputs import COMPARED, Integers, RetrievalProblem, as_array, integer_array
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


Rule: TypeAlias = str | int | float | Callable[[Any, Any], Any]  # how labels of two rows make a positive


class LabelSets(NamedTuple):
    """The labels of rows that may have several: a sparse matrix [row, label] of ones, and the labels' names."""

    has: Any
    names: Shaped[np.ndarray, " label"]

    def texts(self) -> list[str]:
        names = self.names[self.has.indices].astype(np.str_).tolist()
        return ["|".join(names[start:stop]) for start, stop in itertools.pairwise(self.has.indptr.tolist())]

    def tags(self, rows: Int64[np.ndarray, " row"]) -> dict[str, Int64[np.ndarray, " member"]]:
        by_label = self.has[rows].tocsc()
        members = np.split(by_label.indices.astype(np.int64), by_label.indptr[1:-1])
        return {str(name): those for name, those in zip(self.names.tolist(), members, strict=True) if len(those)}


def label_sets(*sides: Any) -> list[LabelSets]:
    """Return the labels of each side as sets; nothing where each row has one label, or none is given."""
    from scipy.sparse import csr_array

    kinds = (list, tuple, set, frozenset)
    listed = [isinstance(side, list | tuple) and any(isinstance(row, kinds) for row in side) for side in sides]
    flags = [getattr(side, "ndim", 1) == 2 and "bool" in str(getattr(side, "dtype", "")) for side in sides]
    if not any(listed + flags):
        return []
    widths = {side.shape[1] for side in sides} if all(flags) else set()
    if not all(listed) and len(widths) != 1:
        raise UserError("sets of labels must be alike on both sides: lists, or truth values [row, class] of one width")
    rows = [labels for side in sides for labels in (map(np.flatnonzero, as_array(side)) if widths else side)]
    for row, labels in enumerate(rows):
        is_set = isinstance(labels, (*kinds, np.ndarray)) and not {bool, float} & {*map(type, labels)}
        if not is_set or not 0 < len(labels) == len({*labels}):
            name = f"query {row}" if row < len(sides[0]) else f"gallery row {row - len(sides[0])}"
            expected = "integers or text, one or more and each once, or flags as a matrix of truth values"
            raise UserError(f"{name} has labels {labels!r}"[:200] + f": give {expected}, or leave it out")
    names, column = np.unique(np.array([label for labels in rows for label in labels]), return_inverse=True)
    if widths:
        names, column = np.arange(*widths), names[column]
    start = np.cumsum([0, *map(len, rows)])
    has = csr_array((np.ones(len(column), np.int32), column, start), shape=(len(rows), len(names)))
    has.sort_indices()
    return [LabelSets(part, names) for part in (has[: len(sides[0])], has[len(sides[0]) :])][: len(sides)]


def matched(
    labels: Any, gallery_labels: Any, positives: Any, relevance: Integers | None = None
) -> tuple[list[LabelSets], Integers | None, Float64[np.ndarray, " pair"] | None]:
    """Return the labels of both sides as sets, if they are; the positive pairs, if labels do not say; and grades."""
    if isinstance(positives, str | Real) and positives not in ("any", "equal", "jaccard"):
        with suppress(ValueError):  # a terminal gives a number as text
            positives = float(positives)
        if not isinstance(positives, float) or not 0 < positives <= 1:
            raise UserError(f"positives must be any, equal, jaccard or a Jaccard index in (0, 1]; got {positives!r}")
    sides = [side for side in (labels, gallery_labels) if side is not None]
    sets, is_rule = label_sets(*sides), isinstance(positives, str | Real) or callable(positives)
    if not is_rule and (not sets or positives is not None):
        return sets, positives, None if relevance is None else check_grades(positives, relevance)
    if labels is None or relevance is not None:
        raise UserError("positives compares labels: give labels, and no relevance, which grades pairs of rows")
    if callable(positives):
        compared = [side.has.toarray() > 0 for side in sets] or [as_plain(side, "labels") for side in sides]
        return sets, *_pairs(positives, compared[0], compared[-1])
    return sets, *(_pairs(positives or "jaccard", sets[0].has, sets[-1].has) if sets else (None, None))


def _pairs(
    rule: Rule, query: Any, gallery: Any
) -> tuple[Int64[np.ndarray, "pair 2"], Float64[np.ndarray, " pair"] | None]:
    count, total, is_graded, blocks = gallery.shape[0], 0, rule == "jaccard", list[tuple[np.ndarray, ...]]()
    for start in range(0, query.shape[0], step := max(1, COMPARED // count)):
        part = query[start : start + step]
        if callable(rule):
            table = as_array(rule(part, gallery), "positives")
            fits = table.shape == (part.shape[0], count) and table.dtype.kind in "biuf"
            if not (fits and ((table >= 0) & (table <= 1)).all()):
                fault = f"for {part.shape[0]} queries and {count} gallery rows, positives returned {table.dtype}"
                expected = "return a truth value, or a number from 0 to 1, for each pair"
                raise UserError(f"{fault} {table.shape}, or a number out of range: {expected}")
            row, column = np.nonzero(table)
            grade, is_graded = table[row, column].astype(np.float64), table.dtype.kind != "b"
        else:
            common = (part @ gallery.T).tocoo()
            row, column = common.row.astype(np.int64), common.col.astype(np.int64)
            grade = common.data / (np.diff(part.indptr)[row] + np.diff(gallery.indptr)[column] - common.data)
            least = {"any": 0.0, "jaccard": 0.0, "equal": 1.0}[rule] if isinstance(rule, str) else rule
            row, column, grade = (values[grade >= least] for values in (row, column, grade))
        total += len(row)
        require_room(total)
        blocks.append((row + start, column, grade))
    row, column, grade = map(np.concatenate, zip(*blocks, strict=True))
    return np.stack([row, column], axis=1), grade if is_graded else None


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
    keys, grade = keys[order], grade[order]

    def change(ranks: Ranks) -> Ranks:
        query = np.repeat(ranks.query, ranks.num_positives)
        index = np.searchsorted(keys, query * ranks.num_gallery + ranks.positive)
        return with_grades(ranks, grade[index])

    return change


def with_grades(ranks: Ranks, grades: Float64[np.ndarray, " positive"]) -> Ranks:
    query = np.repeat(np.arange(len(ranks.query)), ranks.num_positives)
    worst_first = np.lexsort((grades, ranks.at_least, query))
    return replace(ranks, positive=ranks.positive[worst_first], relevance=grades[worst_first])
