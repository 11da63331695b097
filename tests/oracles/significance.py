"""Slow, obvious statistics of numbers [seed, class]: loops, and SciPy's tests."""

import math
from collections.abc import Sequence

import numpy as np

Numbers = Sequence[Sequence[float]]


def weighted_mean(values: Numbers, queries: Sequence[float]) -> float:
    """The mean over seeds of the mean over queries, each of which has the value of its class."""
    of_seeds = [sum(n * value for n, value in zip(queries, row, strict=True)) / sum(queries) for row in values]
    return sum(of_seeds) / len(of_seeds)


def resample(values: Numbers, queries: Sequence[float], random: np.random.Generator) -> float:
    """The mean of as many classes and seeds as there are, both drawn with replacement."""
    classes = random.integers(len(queries), size=len(queries)).tolist()
    seeds = random.integers(len(values), size=len(values)).tolist()
    return weighted_mean([[values[s][c] for c in classes] for s in seeds], [queries[c] for c in classes])


def mean_ranks(values: Numbers) -> list[float]:
    """Of methods over classes, 1 for the highest; equal ones share the mean of their places."""
    ranks: list[list[float]] = [[] for _ in values]
    for column in zip(*values, strict=True):
        for method, value in enumerate(column):
            above, same = sum(other > value for other in column), sum(other == value for other in column)
            ranks[method].append(above + (same + 1) / 2)
    return [sum(row) / len(row) for row in ranks]


def friedman(values: Numbers) -> float:
    """The statistic without ties, as Demšar writes it."""
    methods, classes = len(values), len(values[0])
    total = sum(rank**2 for rank in mean_ranks(values)) - methods * (methods + 1) ** 2 / 4
    return 12 * classes / (methods * (methods + 1)) * total


def half_width(values: Sequence[float], quantile: float) -> float:
    mean = sum(values) / len(values)
    return quantile * math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
