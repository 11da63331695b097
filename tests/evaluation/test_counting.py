"""A code is even only where the bound decides it, and then it is right."""

import math

import numpy as np
import pytest
import torch

from aurank.evaluation.counting import exact_zones, find, zones


def thresholds_and_scores(seed: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten thresholds a row (some equal, some missing), and scores that fall on, between and beyond them."""
    chance = np.random.default_rng(seed)
    thresholds = np.sort(0.5 + spread * chance.normal(size=(40, 10)), axis=1)
    thresholds[:, 4] = thresholds[:, 3]
    thresholds[:10, 0] = -math.inf
    scores = 0.5 + 2 * spread * chance.normal(size=(40, 300))
    scores[:, :10] = np.where(np.isinf(thresholds), 0.5, thresholds)
    return torch.from_numpy(thresholds), torch.from_numpy(scores)


# Zones far apart, some overlapping, nearly all overlapping, one zone.
@pytest.mark.parametrize("spread", [1e-1, 1e-4, 2e-5, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_score_within_the_error_of_a_threshold_is_undecided_and_no_other(
    spread: float, dtype: torch.dtype
) -> None:
    error, slack = 1e-5, 4 * torch.finfo(dtype).eps
    for seed in range(5):
        thresholds, scores = thresholds_and_scores(seed, spread)
        edges = zones(thresholds, error, dtype)
        assert bool((edges.diff(dim=1)[~edges[:, :-1].isinf()] >= 0).all())
        codes = torch.searchsorted(edges, scores.to(dtype))
        nearest = (scores[:, :, None] - thresholds[:, None, :]).abs().amin(dim=2)
        assert bool((codes[nearest < error - slack] % 2 == 1).all())
        decided = nearest > error + slack
        assert bool((codes[decided] == 2 * (thresholds[:, None, :] < scores[:, :, None]).sum(2)[decided]).all())


@pytest.mark.parametrize("spread", [1e-1, 1e-15])
def test_exact_zones_and_bisection_agree_with_counting(spread: float) -> None:
    for seed in range(5):
        thresholds, scores = thresholds_and_scores(seed, spread)
        below = (thresholds[:, None, :] < scores[:, :, None]).sum(2)
        ties = (thresholds[:, None, :] == scores[:, :, None]).any(2)
        assert torch.equal(torch.searchsorted(exact_zones(thresholds), scores), 2 * below + ties)
        row = torch.arange(40).repeat_interleave(300)
        found, equal = find(thresholds, row, scores.flatten())
        assert torch.equal(found, below.flatten())
        assert torch.equal(equal, ties.flatten())
