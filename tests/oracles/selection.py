"""Choices of images to label, one pair of rows at a time."""

import math

import numpy as np

from oracles.brute_force import exact_score


def gap(row: np.ndarray, centres: list[np.ndarray]) -> float:
    """The cosine distance to the nearest centre."""
    return min((1 - exact_score(row, centre) for centre in centres), default=math.inf)


def farthest_first(rows: np.ndarray, k: int, known: np.ndarray) -> tuple[list[int], list[float]]:
    """The rows chosen, each the farthest from those before it and from the known ones, and how far that was."""
    chosen: list[int] = []
    distances = []
    for _ in range(k):
        centres = [*known, *rows[chosen]]
        gaps = {row: gap(rows[row], centres) for row in range(len(rows)) if row not in chosen}
        row = max(gaps, key=gaps.__getitem__)
        chosen.append(row)
        distances.append(gaps[row])
    return chosen, distances


def class_margin(row: np.ndarray, gallery: np.ndarray, labels: list[int]) -> tuple[float, list[int]]:
    """How far the nearest class is ahead of the second, and which they are."""
    scores = dict.fromkeys(sorted(labels), -math.inf)
    for other, label in zip(gallery, labels, strict=True):
        scores[label] = max(scores[label], exact_score(row, other))
    first, second = sorted(scores, key=scores.__getitem__, reverse=True)[:2]
    return scores[first] - scores[second], [first, second]
