"""The expected accuracy of few-shot episodes, by trying all of them."""

from collections.abc import Sequence
from itertools import combinations, permutations, product
from statistics import mean
from typing import Any

import numpy as np

from oracles.brute_force import exact_score


def accuracy_of_all_episodes(
    rows: np.ndarray,
    labels: Sequence[int],
    within: Sequence[int] | None,
    cameras: Sequence[int] | None,
    *,
    ways: int,
    shots: int,
) -> float:
    """Each super-category with each pair of cameras counts alike; within one of them, each episode does."""
    numbers = range(len(labels))
    of_pools = []
    for above in sorted(set(within or [0])):
        members = [row for row in numbers if within is None or within[row] == above]
        for pair in permutations(sorted({cameras[row] for row in members}), 2) if cameras else [None]:
            choices: dict[int, list[Any]] = {}  # of each class: shots, and the row to classify
            for row in members:
                others = [other for other in members if labels[other] == labels[row] and other != row]
                if pair is not None and cameras is not None:
                    others = [other for other in others if cameras[other] == pair[0]]
                    others *= cameras[row] == pair[1]
                choices.setdefault(labels[row], []).extend((learnt, row) for learnt in combinations(others, shots))
            classes = [each for each in choices.values() if each]
            episodes = [episode for drawn in combinations(classes, ways) for episode in product(*drawn)]
            if episodes:
                of_pools.append(mean(_accuracy(rows, episode) for episode in episodes))
    return mean(of_pools)


def _accuracy(rows: np.ndarray, episode: Sequence[Any]) -> float:
    means = [sum(rows[row] / np.linalg.norm(rows[row]) for row in learnt) for learnt, _ in episode]
    correct = 0
    for own, (_, row) in enumerate(episode):
        scores = [exact_score(rows[row], center) for center in means]
        correct += all(score < scores[own] for way, score in enumerate(scores) if way != own)
    return correct / len(episode)
