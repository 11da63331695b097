"""Means whose last digit does not depend on the order of what is averaged: sums by `math.fsum` are rounded once."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Shaped

MACRO = "macro:"  # the prefix of a metric that is averaged over classes instead of queries


def mean(values: Iterable[float] | Float64[np.ndarray, " query"]) -> float:
    """Return the arithmetic mean of one value or more, its sum rounded once."""
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return math.fsum(listed) / len(listed)


def segment_sums(values: Float64[np.ndarray, " value"], edges: list[int]) -> Float64[np.ndarray, " segment"]:
    """Return the sum of each `values[edges[i]:edges[i + 1]]`, rounded once."""
    listed = values.tolist()
    return np.array([math.fsum(listed[start:end]) for start, end in itertools.pairwise(edges)], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Classes:
    """The queries of each label, for sums and means within a class; classes are in the order of their labels."""

    label: Shaped[np.ndarray, " class"]  # integers or text
    count: Int64[np.ndarray, " class"]  # queries of the class
    order: Int64[np.ndarray, " query"]  # queries, class by class

    @classmethod
    def of(cls, labels: Shaped[np.ndarray, " query"]) -> "Classes":
        """Return the classes of queries with these labels."""
        label, count = np.unique(labels, return_counts=True)
        return cls(label, count.astype(np.int64), np.argsort(labels, kind="stable"))

    def sums(self, values: Float64[np.ndarray, " query"]) -> Float64[np.ndarray, " class"]:
        """Return the sum over each class's queries."""
        return segment_sums(values[self.order], [0, *np.cumsum(self.count).tolist()])

    def means(self, values: Float64[np.ndarray, " query"]) -> Float64[np.ndarray, " class"]:
        """Return the mean over each class's queries."""
        return np.asarray(self.sums(values) / self.count)


def average(metric: str, values: Float64[np.ndarray, " query"], classes: Classes | None = None) -> float:
    """Return the mean over queries; for a metric with the prefix "macro:", the mean over the classes of their means."""
    if metric.startswith(MACRO):
        assert classes is not None
        return mean(classes.means(values))
    return mean(values)
