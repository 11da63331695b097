"""The exact counterpart of pytorch-metric-learning's AccuracyCalculator, for its testers and trainers."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from aurank.arrays import Arrays
from aurank.errors import UserError
from aurank.evaluation import metrics
from aurank.evaluation.engine.ranks import RankBlocks, Ranks, query_columns
from aurank.evaluation.engine.scores import read
from aurank.evaluation.inputs import Embeddings, Integers, RetrievalProblem, as_matrix, device_of, integer_array
from aurank.evaluation.metrics import Classes, mean
from aurank.names import meant, nearest

WHOLE = (
    *("mauprc", "mean_average_precision", "mean_average_precision_at_r"),
    *("mean_reciprocal_rank", "r_precision", "precision_at_1"),
)
DEFAULT = (*WHOLE, "recall_at_1", "recall_at_10", "recall_at_100", "recall_at_1000")
AT_K = re.compile(r"(recall|precision)_at_([1-9][0-9]*)")


class AccuracyCalculator:
    """Compute the ranking metrics of pytorch-metric-learning's calculator of this name, from exact ranks.

    Arguments have PML's meaning; in place of `knn_func` and `label_comparison_fn` there is `distance`: "euclidean",
    "cosine" or "dot". Metrics are PML's but for those of clusters, and "mauprc" (over the whole gallery, whatever `k`),
    "recall_at_{k}" and "precision_at_{k}" for any k.

    What differs: any `k` is fine; a tie never helps; labels are never rounded to float32; memory is bounded.
    `per_query` holds the last call's values of each query that has a positive: "query" (its row), "label",
    "num_positives" and each metric by its name.

    Example:
        >>> rows, labels = torch.tensor([[0.0], [1.0], [5.0], [7.0]]), torch.tensor([0, 0, 1, 1])
        >>> AccuracyCalculator(include=("mauprc", "precision_at_1")).get_accuracy(rows, labels)
        {'mauprc': 1.0, 'precision_at_1': 1.0}
    """

    def __init__(
        self,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        avg_of_avgs: bool = False,
        return_per_class: bool = False,
        k: int | str | None = None,
        *,
        distance: str = "euclidean",
        device: torch.device | str | None = None,
        max_memory: int | str = "1GiB",
    ) -> None:
        if not (k is None or k == "max_bin_count" or (isinstance(k, int) and k > 0)):
            raise UserError(f"k must be an integer greater than 0, or None, or 'max_bin_count'; got {k!r}")
        self.include, self.exclude = _check_metrics(include, "include"), _check_metrics(exclude, "exclude")
        self.avg_of_avgs, self.return_per_class, self.k = avg_of_avgs, return_per_class, k
        self.distance, self.device, self.max_memory = distance, device, max_memory
        self.per_query: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
        self._current = self._chosen((), ())

    def get_curr_metrics(self) -> list[str]:
        """Return the names of the metrics that the last call computed, or that the next one will."""
        return list(self._current)

    def description(self) -> str:
        """Return what PML's record keeper adds to the names of its tables."""
        return "avg_of_avgs" if self.avg_of_avgs else ""

    def get_accuracy(
        self,
        query: Arrays,
        query_labels: Integers,
        reference: Arrays | None = None,
        reference_labels: Integers | None = None,
        ref_includes_query: bool = False,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
    ) -> dict[str, float | list[float]]:
        """Return each metric by its name: a mean over queries, over classes if `avg_of_avgs`, or a list over classes.

        Queries without a positive are left out; if all are, values are NaN. With `ref_includes_query` the first rows of
        the reference are the queries, and each query leaves out its own. Classes are in the order of their labels.
        """
        self._current = names = self._chosen(_check_metrics(include, "include"), _check_metrics(exclude, "exclude"))
        query = as_matrix(query, side="query")
        labels = _whole_labels(query_labels, rows=len(query), side="query")
        problem = RetrievalProblem(query, labels)
        if reference is not None:
            problem = _with_reference(
                problem, as_matrix(reference, side="reference"), reference_labels, ref_includes_query
            )
        ranks = RankBlocks(problem, distance=self.distance, device=self.device, max_memory=self.max_memory)
        self.per_query = {"query": ranks.query, "label": ranks.labels, "num_positives": ranks.num_positives}
        most = int(ranks.num_positives.max(initial=0)) if self.k == "max_bin_count" else self.k or ranks.num_gallery
        depth = min(int(most), ranks.num_gallery)
        columns = query_columns(ranks, lambda block: {name: _query_values(block, name, depth) for name in names})
        self.per_query |= {name: columns.get(name, np.empty(0)) for name in names}
        if not len(ranks.query):
            nothing = [float("nan")] * len(np.unique(labels)) if self.return_per_class else float("nan")
            return dict.fromkeys(names, nothing)
        if not (self.avg_of_avgs or self.return_per_class):
            return {name: mean(self.per_query[name]) for name in names}
        classes = Classes.of(ranks.labels)
        means = {name: classes.means(self.per_query[name]) for name in names}
        return {name: values.tolist() if self.return_per_class else mean(values) for name, values in means.items()}

    def _chosen(self, include: tuple[str, ...], exclude: tuple[str, ...]) -> tuple[str, ...]:
        names = include or self.include or DEFAULT
        return tuple(name for name in names if name not in (*self.exclude, *exclude))


def _query_values(ranks: Ranks, name: str, depth: int) -> Float64[np.ndarray, " query"]:
    if match := AT_K.fullmatch(name):
        return metrics.query_values(ranks, f"{match[1]}@{match[2]}")
    if name == "mauprc" or (name == "mean_average_precision" and depth >= ranks.num_gallery):
        return metrics.average_precision(ranks)
    if name == "mean_reciprocal_rank":
        return metrics.reciprocal_rank_at(ranks, depth)
    first_r = np.minimum(ranks.num_positives, depth)
    if name == "r_precision":
        return metrics.precision_at(ranks, first_r)
    return metrics.map_at(ranks, depth if name == "mean_average_precision" else first_r, denominator="r")


def _with_reference(
    problem: RetrievalProblem, reference: Embeddings, reference_labels: Integers | None, ref_includes_query: bool
) -> RetrievalProblem:
    query, labels, size = problem.embeddings, np.asarray(problem.labels), len(problem.embeddings)
    gallery_labels = _whole_labels(reference_labels, rows=len(reference), side="reference")
    if not ref_includes_query:
        return RetrievalProblem(query, labels, reference, gallery_labels)
    is_first = size <= len(reference) and np.array_equal(labels, gallery_labels[:size])
    for rows in torch.split(torch.arange(size), 4096) if is_first else ():
        left, right = (read(side, rows.to(device_of(side))) for side in (query, reference))
        is_first = is_first and torch.allclose(left, right.to(left.device), equal_nan=True)
    if not is_first:
        raise UserError("ref_includes_query is set, but the first rows of the reference are not the queries")
    if size == len(reference):  # half of the product is enough if both sides are the same
        return problem
    return RetrievalProblem(query, labels, reference, gallery_labels, np.arange(size), np.arange(len(reference)))


def _check_metrics(names: Iterable[str], argument: str) -> tuple[str, ...]:
    """Return the names, each once; UserError for a name that no metric has."""
    listed = tuple(dict.fromkeys(names))
    for name in listed:
        if name not in DEFAULT and not AT_K.fullmatch(name):
            expected = f"{', '.join(WHOLE)}, recall_at_K and precision_at_K"
            hint = meant(nearest(name, DEFAULT, most=3))
            raise UserError(f"{argument} names an unknown metric {name!r}, expected one of {expected}{hint}")
    return listed


def _whole_labels(labels: Integers, *, rows: int, side: str) -> Int64[np.ndarray, " row"]:
    """Return labels as int64; floats, as PML's testers make them, must be whole and exact."""
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else labels
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        limit = 2 / float(np.finfo(values.dtype).eps)
        if not ((np.abs(values) < limit) & (values == np.round(values))).all():
            raise UserError(
                f"the {side} labels are {values.dtype} and hold fractions, or numbers from {limit:.0f} on, which that "
                "type cannot tell apart: give integers"
            )
        labels = values.astype(np.int64)
    return integer_array(labels, name="label", rows=rows, side=side)
