"""The exact counterpart of pytorch-metric-learning's AccuracyCalculator, for its testers and trainers."""

import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from aurank.arrays import Arrays
from aurank.errors import UserError
from aurank.evaluation import metrics
from aurank.evaluation.engine.problem import Embeddings, Integers, RetrievalProblem, as_matrix, device_of, integer_array
from aurank.evaluation.engine.ranks import RankBlocks, Ranks, query_columns
from aurank.evaluation.engine.scores import read
from aurank.evaluation.index.neighbours import faiss_library
from aurank.evaluation.metrics import Classes, mean
from aurank.names import meant, nearest

MEAN_AP = ("mauprc", "mean_average_precision", "mean_average_precision_at_r")
WHOLE = (*MEAN_AP, "mean_reciprocal_rank", "r_precision", "precision_at_1")
DEFAULT = (*WHOLE, "recall_at_1", "recall_at_10", "recall_at_100", "recall_at_1000")
CLUSTERING = ("AMI", "NMI")
Labels: TypeAlias = Int64[np.ndarray, " query"]
AT_K = re.compile(r"(recall|precision)_at_([1-9][0-9]*)")


class AccuracyCalculator:
    """Compute the metrics of pytorch-metric-learning's calculator of this name, from exact ranks.

    Arguments mean what they mean there. Metrics are PML's, and "mauprc" (over the whole gallery, whatever `k`),
    "recall_at_{k}" and "precision_at_{k}" for any k. "NMI" and "AMI" cluster, by PML's code, if `include` names them.

    What differs: any `k` is fine; a tie never helps; labels are never rounded to float32; memory is bounded. `knn_func`
    says no more than which distance to rank by. `per_query` holds the last call's values of each query that has a
    positive: "query" (its row), "label", "num_positives" and each metric by its name.

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
        label_comparison_fn: Callable[..., Any] | None = None,
        device: torch.device | str | None = None,
        knn_func: Any = None,
        kmeans_func: Callable[..., Any] | None = None,
        *,
        max_memory: int | str = "1GiB",
    ) -> None:
        if avg_of_avgs and return_per_class:
            raise UserError("avg_of_avgs and return_per_class are mutually exclusive: set one of them")
        if not (k is None or k == "max_bin_count" or (isinstance(k, int) and not isinstance(k, bool) and k > 0)):
            raise UserError(f"k must be an integer greater than 0, or None, or 'max_bin_count'; got {k!r}")
        if label_comparison_fn not in (None, torch.eq):
            raise UserError("label_comparison_fn is given, and this calculator ranks by equal labels: leave it out")
        if own := [name for name, _ in inspect.getmembers(type(self)) if name.startswith("calculate_")]:
            remedy = "write it as a function of aurank.evaluation.positive_ranks"
            raise UserError(f"{type(self).__name__}.{own[0]} would never be called: {remedy}")
        self.include = check_metrics(include, "include")
        self.exclude = check_metrics(exclude, "exclude")
        self.avg_of_avgs, self.return_per_class, self.k = avg_of_avgs, return_per_class, k
        self.device, self.kmeans_func, self.max_memory = device, kmeans_func, max_memory
        self.distance = distance_of(knn_func)
        self.per_query: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
        self._current = self._chosen()

    def get_curr_metrics(self) -> list[str]:
        """Return the names of the metrics that the last call computed, or that the next one will."""
        return list(self._current)

    def requires_clustering(self) -> list[str]:
        """Return the metrics that cluster."""
        return list(CLUSTERING)

    def requires_knn(self) -> list[str]:
        """Return the metrics that rank."""
        return list(DEFAULT)

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
        self._current = self._chosen(check_metrics(include, "include"), check_metrics(exclude, "exclude"))
        query = as_matrix(query, side="query")
        reference = None if reference is None else as_matrix(reference, side="reference")
        labels = whole_labels(query_labels, rows=len(query), side="query")
        ranking = [name for name in self._current if name not in CLUSTERING]
        if not ranking:
            return {**self._cluster(query, labels)}
        problem = _problem(query, labels, reference, reference_labels, ref_includes_query)
        ranks = RankBlocks(problem, distance=self.distance, device=self.device, max_memory=self.max_memory)
        self.per_query = {"query": ranks.query, "label": ranks.labels, "num_positives": ranks.num_positives}
        depth = self._depth(ranks)
        found = query_columns(ranks, lambda block: {name: self._values(block, name, depth) for name in ranking})
        self.per_query |= {name: found.get(name, np.empty(0)) for name in ranking}
        means = {name: self._mean(self.per_query[name], ranks.labels, labels) for name in ranking}
        return means | self._cluster(query, labels)

    def _depth(self, ranks: RankBlocks) -> int:
        most = int(ranks.num_positives.max(initial=0)) if self.k == "max_bin_count" else self.k or ranks.num_gallery
        return min(int(most), ranks.num_gallery)

    def _values(self, ranks: Ranks, name: str, depth: int) -> Float64[np.ndarray, " query"]:
        if match := AT_K.fullmatch(name):
            return metrics.query_values(ranks, f"{match[1]}@{match[2]}")
        if name == "mauprc" or (name == "mean_average_precision" and depth >= ranks.num_gallery):
            return metrics.average_precision(ranks)
        if name == "mean_reciprocal_rank":
            return metrics.reciprocal_rank_at(ranks, depth)
        if name == "r_precision":
            return metrics.precision_at(ranks, np.minimum(ranks.num_positives, depth))
        cut = depth if name == "mean_average_precision" else np.minimum(ranks.num_positives, depth)
        return metrics.map_at(ranks, cut, denominator="r")

    def _mean(self, values: np.ndarray, labels: np.ndarray, every: np.ndarray) -> float | list[float]:
        if not len(values):
            return [float("nan")] * len(np.unique(every)) if self.return_per_class else float("nan")
        if not (self.avg_of_avgs or self.return_per_class):
            return mean(values)
        means = Classes.of(labels).means(values)
        return means.tolist() if self.return_per_class else mean(means)

    def _cluster(self, query: Embeddings, labels: Labels) -> dict[str, float]:
        names = [name for name in self._current if name in CLUSTERING]
        if not names:
            return {}
        from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator as Original

        device = torch.device(self.device or device_of(query))
        original = Original(include=tuple(names), device=device, kmeans_func=self.kmeans_func)
        # Numbered from 0: PML turns labels into float32, which would merge large ones.
        numbered = np.unique(labels, return_inverse=True)[1]
        return dict(original.get_accuracy(query, torch.from_numpy(numbered)))

    def _chosen(self, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> tuple[str, ...]:
        wanted = include or self.include or DEFAULT
        return tuple(name for name in wanted if name not in (*self.exclude, *exclude))


def _problem(
    query: Embeddings, labels: Labels, reference: Embeddings | None, reference_labels: Integers | None, is_first: bool
) -> RetrievalProblem:
    """Return the problem of PML's arguments; UserError where the queries are not first in the reference as they say."""
    if reference is None:
        return RetrievalProblem(query, labels)
    if reference_labels is None:
        raise UserError("reference came without reference_labels: give one label per reference row")
    others = whole_labels(reference_labels, rows=len(reference), side="reference")
    if not is_first:
        return RetrievalProblem(query, labels, reference, others)
    size = len(query)
    if not (size <= len(reference) and np.array_equal(labels, others[:size]) and _same(query, reference[:size])):
        raise UserError("ref_includes_query is set, but the first rows of the reference are not the queries")
    if size == len(reference):  # half of the product is enough where both sides are one
        return RetrievalProblem(query, labels)
    return RetrievalProblem(query, labels, reference, others, np.arange(size), np.arange(len(reference)))


def check_metrics(names: Iterable[str], argument: str) -> tuple[str, ...]:
    """Return the names, each once; UserError for text in place of a list, or a name that no metric has."""
    if isinstance(names, str):
        raise UserError(f'{argument} must be a list or tuple of names, got {names!r}: write ("{names}",)')
    listed, known = tuple(dict.fromkeys(names)), (*DEFAULT, *CLUSTERING)
    for name in listed:
        if name not in known and not AT_K.fullmatch(name):
            names = f"{', '.join((*WHOLE, *CLUSTERING))}, recall_at_K and precision_at_K"
            hint = meant(nearest(name, known, most=3))
            raise UserError(f"{argument} names an unknown metric {name!r}, expected one of {names}{hint}")
    return listed


def whole_labels(labels: Integers, *, rows: int, side: str) -> Int64[np.ndarray, " row"]:
    """Return labels as int64; floats, as PML's testers make them, are taken while they are whole and exact."""
    if isinstance(labels, Tensor) and labels.is_floating_point():
        limit, values = 2 / torch.finfo(labels.dtype).eps, labels.detach().to("cpu", torch.float64).numpy()
    elif isinstance(labels, np.ndarray) and labels.dtype.kind == "f":
        limit, values = 2 / float(np.finfo(labels.dtype).eps), labels.astype(np.float64)
    else:
        return integer_array(labels, name="label", rows=rows, side=side)
    if not bool((np.abs(values) < limit).all() and (values == np.round(values)).all()):
        what = f"hold fractions, or numbers of {limit:.0f} and more, which that type may have merged"
        raise UserError(f"the {side} labels are {labels.dtype} and {what}: give integers")
    return integer_array(values.astype(np.int64), name="label", rows=rows, side=side)


def distance_of(knn_func: Any) -> str:
    """Return the distance by which one of PML's neighbour searches ranks; UserError for any other."""
    if knn_func is None:
        return "euclidean"
    from pytorch_metric_learning.distances import CosineSimilarity, DotProductSimilarity, LpDistance
    from pytorch_metric_learning.utils.inference import CustomKNN, FaissKNN

    found = None
    if isinstance(knn_func, FaissKNN):
        faiss = faiss_library()
        found = {faiss.IndexFlatL2: "euclidean", faiss.IndexFlatIP: "dot"}.get(knn_func.index_init_fn)
    if isinstance(knn_func, CustomKNN):
        distance = getattr(knn_func.distance, "distance", knn_func.distance)  # within a BatchedDistance
        kinds = {CosineSimilarity: "cosine", DotProductSimilarity: "dot", LpDistance: "euclidean"}
        # any power of a distance keeps the order, of a similarity, which may be negative, not
        keeps_order = distance.power > 0 if type(distance) is LpDistance else distance.power == 1
        if type(distance) in kinds and distance.p == 2 and keeps_order:
            found = "cosine" if distance.normalize_embeddings else kinds[type(distance)]
    if found is None:
        known = "FaissKNN with IndexFlatL2 or IndexFlatIP, or CustomKNN with LpDistance(p=2), a cosine or a dot product"
        raise UserError(f"knn_func is {knn_func!r}: leave it out, or give {known}")
    return found


def _same(left: Embeddings, right: Embeddings) -> bool:
    if tuple(left.shape) != tuple(right.shape):
        return False
    for rows in torch.split(torch.arange(len(left)), 4096):
        first, second = (read(side, rows.to(device_of(side))) for side in (left, right))
        if not torch.allclose(first, second.to(first.device), equal_nan=True):
            return False
    return True
