"""The slow, obvious sum over pairs of cells that a cosine of average-pooled features is."""

from collections.abc import Callable

import numpy as np

Cells = np.ndarray  # float64 [cell, channel]


def cosine_of_cells(
    first: Cells, second: Cells, weight: np.ndarray, bias: np.ndarray, scaled: Callable[[Cells], Cells] = lambda c: c
) -> np.ndarray:
    """Return what each pair of cells [cell of the first, cell of the second] adds to the cosine of W · mean + b.

    `scaled`: what is done to the pooled cells before, with its divisor that of the whole image.
    """
    parts = []
    for cells in (first, second):
        normed = scaled(cells)
        parts.append([(weight @ cell + bias) / len(cells) for cell in normed])
    lengths = [np.sqrt(sum(part for part in side) @ sum(part for part in side)) for side in parts]
    pairs = np.zeros((len(first), len(second)))
    for row, one in enumerate(parts[0]):
        for column, other in enumerate(parts[1]):
            pairs[row, column] = sum(a * b for a, b in zip(one, other, strict=True)) / lengths[0] / lengths[1]
    return pairs


def layer_norm_of_mean(cells: Cells, weight: np.ndarray, bias: np.ndarray, epsilon: float) -> Cells:
    """Return cells whose mean is the layer norm of the mean of these cells."""
    pooled = sum(cells) / len(cells)
    deviation = np.sqrt(((pooled - pooled.mean()) ** 2).mean() + epsilon)
    return np.stack([(cell - cell.mean()) / deviation * weight + bias for cell in cells])
