"""Cosines of a query made of several embeddings, in float64, one number at a time."""

import math
from collections.abc import Sequence


def unit(row: Sequence[float]) -> list[float]:
    length = math.sqrt(math.fsum(value * value for value in row))
    return [value / length for value in row]


def mixed_cosines(
    parts: Sequence[Sequence[float]], weights: Sequence[float], gallery: Sequence[Sequence[float]]
) -> list[float]:
    """The cosine of each gallery row and the weighted sum of the parts, each of length 1 before it is weighted."""
    units = [unit(part) for part in parts]
    total = [
        math.fsum(weight * row[column] for weight, row in zip(weights, units, strict=True))
        for column in range(len(units[0]))
    ]
    query = unit(total)
    return [math.fsum(left * right for left, right in zip(query, unit(row), strict=True)) for row in gallery]
