"""Slow, obvious references of the losses that rank soft bins; see oracles.py for what they take and return."""

import itertools

import numpy as np
import torch
from torch import Tensor

from oracles import Mask, PerQuery, sides


def bin_shares(
    similarity: Tensor, positive: Mask, negative: Mask, *, number: int, limits=(-1.0, 1.0)
) -> dict[int, tuple[int, Tensor]]:
    """Per valid query how many positives it has, and [item, bin] the share of positives, then negatives, in each bin.

    A share is the height of a triangle that falls to 0 one step to either side of the bin's centre; bins go from the
    greatest similarity on.
    """
    step = (limits[1] - limits[0]) / (number - 1)
    centres = torch.tensor([limits[1] - m * step for m in range(number)], dtype=torch.float64)
    chosen = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        score = similarity[row, [*positives, *negatives]].clamp(*limits)
        chosen[row] = len(positives), (1 - (score[:, None] - centres).abs() / step).clamp(min=0)
    return chosen


def binned_ap(similarity: Tensor, positive: Mask, negative: Mask, *, number: int, **bins: object) -> PerQuery:
    """1 - sum over bins of precision up to the bin times the recall gained in it: FastAP's and DIR's definition.

    A positive counts its weight in both.
    """
    losses = {}
    for row, (count, shares) in bin_shares(similarity, positive, negative, number=number, **bins).items():
        weights = torch.tensor([float(weight) for weight in positive[row] if weight], dtype=torch.float64)
        gained, missed = weights @ shares[:count], shares[count:].sum(dim=0)
        some = gained > 0
        precision = gained.cumsum(dim=0)[some] / (gained + missed).cumsum(dim=0)[some]
        losses[row] = 1 - (precision * gained[some]).sum() / weights.sum()
    return losses


def tie_aware_ap(similarity: Tensor, positive: Mask, negative: Mask, *, number: int, **bins: object) -> PerQuery:
    """1 - mean over positives of their expected precision over the orders within a bin, others counting by share."""
    losses = {}
    for row, (count, shares) in bin_shares(similarity, positive, negative, number=number, **bins).items():
        total = similarity.new_zeros(())
        for i, m in (shares[:count] > 0).nonzero().tolist():
            others = torch.cat([shares[:i], shares[i + 1 :]])
            ahead, tied = others[:, :m].sum(), others[:, m].sum()
            positives_ahead, positives_tied = others[: count - 1, :m].sum(), others[: count - 1, m].sum()
            rate = positives_tied / tied if tied > 0 else similarity.new_zeros(())
            precision = (1 + positives_ahead) * inverses(ahead, tied) + rate * places_over_ranks(ahead, tied)
            total = total + shares[i, m] * precision
        losses[row] = 1 - total / count
    return losses


def grid() -> tuple[Tensor, Tensor]:
    """Places x from 0 to 40 and the weights of Gauss and Legendre's quadrature there."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    ends = [0.0, 1.0, 4.0, 12.0, 40.0]
    pieces = [
        (low + (nodes + 1) / 2 * (high - low), weights / 2 * (high - low)) for low, high in itertools.pairwise(ends)
    ]
    places, sizes = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return torch.from_numpy(places), torch.from_numpy(sizes)


PLACES, SIZES = grid()


def inverses(ahead: Tensor, tied: Tensor) -> Tensor:
    """The mean over k = 0 ... tied of 1 / (1 + ahead + k), also for counts that are not whole.

    1 / (1 + a + k) is the integral of t^(a + k) over t from 0 to 1; the sum over k is then a geometric one,
    (1 - t^(c + 1)) / (1 - t), which needs no whole c. Integrated numerically, with t = exp(-x).
    """
    total = -torch.expm1(-(tied + 1) * PLACES) / -torch.expm1(-PLACES)
    return (SIZES * torch.exp(-(ahead + 1) * PLACES) * total).sum() / (tied + 1)


def places_over_ranks(ahead: Tensor, tied: Tensor) -> Tensor:
    """The mean over k = 0 ... tied of k / (1 + ahead + k): as `inverses`, with the sum of k t^k."""
    t, one_minus_t = torch.exp(-PLACES), -torch.expm1(-PLACES)
    total = -torch.expm1(-(tied + 1) * PLACES) - (tied + 1) * torch.exp(-tied * PLACES) * one_minus_t
    return (SIZES * torch.exp(-(ahead + 1) * PLACES) * t * total / one_minus_t**2).sum() / (tied + 1)
