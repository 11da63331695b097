"""Slow, obvious references of the losses of Ramzi et al. and of PNP: loops over queries, positives and references.

As in oracles.py: similarity, positives, negatives (and labels) in, {row: scalar} out.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from oracles import Mask, PerQuery, sides, weighted


def step_bound(t: Tensor, *, temperature: float, slope: float, delta: float, jump: float) -> Tensor:
    """H⁻ of one difference of scores of ROADMAP."""
    sigmoid = 1 / (1 + torch.exp(-t / temperature))
    if t < 0:
        return sigmoid
    if t <= delta:
        return sigmoid + jump
    return slope * (t - delta) + 1 / (1 + math.exp(-delta / temperature)) + jump


PUBLISHED = {"temperature": 0.01, "slope": 100.0, "delta": 0.05, "jump": 0.5}


def bounded_ranks(
    scores: Tensor, positives: list[int], negatives: list[int], weights: Sequence[float], **width: float
) -> tuple[list[float], list[Tensor]]:
    """The weight of the positives that are at least as high as each, and its rank."""
    width = PUBLISHED | width
    among, ranks = [], []
    for i in positives:
        among.append(sum(float(weights[j]) for j in positives if scores[j] >= scores[i]))
        behind = [step_bound(scores[j] - scores[i], **width) for j in negatives]
        ranks.append(among[-1] + torch.stack(behind).sum())
    return among, ranks


def sup_ap(similarity: Tensor, positive: Mask, negative: Mask, *, share: float = 0.9, **width: float) -> PerQuery:
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        among, ranks = bounded_ranks(similarity[row], positives, negatives, positive[row], **width)
        precisions = [count / rank for count, rank in zip(among, ranks, strict=True)]
        losses[row] = share * (1 - weighted(precisions, positive[row], positives))
    return losses


def sup_recall(
    similarity: Tensor,
    positive: Mask,
    negative: Mask,
    *,
    share: float = 0.9,
    cuts: Sequence[int] = (1, 2, 4, 8, 16),
    **width: float,
) -> PerQuery:
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        _, ranks = bounded_ranks(similarity[row], positives, negatives, [1.0] * len(similarity[row]), **width)
        recalls = [sum(torch.sigmoid(k - rank) for k in cuts) / len(cuts) for rank in ranks]  # an exp would overflow
        losses[row] = share * (1 - weighted(recalls, positive[row], positives))
    return losses


def calibration(similarity: Tensor, positive: Mask, negative: Mask, *, share: float = 0.1) -> PerQuery:
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        short = weighted((0.9 - similarity[row, positives]).clamp(min=0), positive[row], positives)
        losses[row] = share * (short + (similarity[row, negatives] - 0.6).clamp(min=0).mean())
    return losses


def pnp(
    similarity: Tensor, positive: Mask, negative: Mask, *, variant: str, alpha: float = 4.0, b: float = 2.0
) -> PerQuery:
    def penalty(ahead: Tensor) -> Tensor:
        return {
            "O": ahead,
            "I_u": (1 + ahead) * torch.log(1 + ahead) - ahead,
            "I_b": (b * ahead - torch.log(1 + b * ahead)) / b**2,
            "D_s": torch.log(1 + ahead),
            "D_q": 1 - 1 / (1 + ahead) ** alpha,
        }[variant]

    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        scores = similarity[row]
        ahead = [(1 / (1 + torch.exp((scores[i] - scores[negatives]) / 0.01))).sum() for i in positives]
        losses[row] = weighted(map(penalty, ahead), positive[row], positives)
    return losses


def level_of(one: int, other: int, table: Sequence[Sequence[int]]) -> int:
    """How many levels two classes share: all of them, or as many super-categories, of which -1 is none."""
    if one == other:
        return len(table[one]) + 1
    return sum(a == b and a >= 0 for a, b in zip(table[one], table[other], strict=True))


def hierarchical_ap(
    similarity: Tensor,
    positive: Mask,
    negative: Mask,
    labels: Sequence[int],
    *,
    table: Sequence[Sequence[int]],
    ref_labels: Sequence[int] | None = None,
    relevance: str = "level",
    alpha: float = 1.0,
    share: float = 1.0,
    **width: float,
) -> PerQuery:
    """1 − H-AP by its definition, each rank made of exact counts and H⁻ of what is less relevant."""
    references = labels if ref_labels is None else ref_labels
    most = len(table[0]) + 1
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        level = {j: level_of(labels[row], references[j], table) for j in [*positives, *negatives]}
        sizes = [sum(each == wanted for each in level.values()) for wanted in range(most + 1)]

        def relevance_at(place: int, sizes: list[int] = sizes) -> float:
            if place == 0:
                return 0.0
            if relevance == "level":
                return (place / most) ** alpha / sizes[place]
            return sum(1 / sum(sizes[part:]) for part in range(1, place + 1))

        worth = {j: relevance_at(place) for j, place in level.items()}
        scores, shares = similarity[row], []
        for k in worth:
            if worth[k] == 0:
                continue
            rank, reached = similarity.new_zeros(()), 0.0
            for j in worth:
                ahead = bool(scores[j] >= scores[k])
                reached += min(worth[j], worth[k]) * ahead
                less = level[j] < level[k]
                rank = rank + (step_bound(scores[j] - scores[k], **PUBLISHED | width) if less else int(ahead))
            shares.append(reached / rank)
        losses[row] = share * (1 - torch.stack(shares).sum() / sum(worth.values()))
    return losses
