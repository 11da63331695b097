"""Slow, obvious references of the losses of Ramzi et al. and of PNP: loops over queries, positives and references.

As in oracles.py: similarity, positives, negatives (and labels) in, {row: scalar} out. With include_self the query is a
positive of its own.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from oracles import Mask, PerQuery, sides

OFFICIAL = 1.44


def step_bound(
    t: Tensor,
    *,
    temperature: float,
    slope: float,
    delta: float,
    jump: float,
    official: bool,
    offset: float | None = None,
) -> Tensor:
    """H⁻ of one difference of scores of ROADMAP; `official`, SupRank's step_rank."""
    sigmoid = 1 / (1 + torch.exp(-t / temperature))
    if t < 0 or (official and t == 0):
        return sigmoid
    if t <= delta:
        return sigmoid + jump
    if offset is None:
        offset = OFFICIAL if official else 1 / (1 + math.exp(-delta / temperature)) + jump
    return slope * (t - delta) + offset


PUBLISHED = {"temperature": 0.01, "slope": 100.0, "delta": 0.05, "jump": 0.5}


def bounded_ranks(
    scores: Tensor, positives: list[int], negatives: list[int], *, official: bool, **width: float
) -> tuple[list[int], list[Tensor]]:
    """How many positives are at least as high as each, and its rank."""
    width = PUBLISHED | width
    among, ranks = [], []
    for i in positives:
        among.append(sum(bool(scores[j] >= scores[i]) for j in positives))
        behind = [step_bound(scores[j] - scores[i], official=official, **width) for j in negatives]
        ranks.append(among[-1] + torch.stack(behind).sum())
    return among, ranks


def sup_ap(
    similarity: Tensor,
    positive: Mask,
    negative: Mask,
    *,
    official: bool = False,
    include_self: bool = True,
    share: float = 0.9,
    **width: float,
) -> PerQuery:
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        ranked = [*positives, row] if official and include_self else positives
        among, ranks = bounded_ranks(similarity[row], ranked, negatives, official=official, **width)
        precisions = [count / rank for count, rank in zip(among, ranks, strict=True)]
        losses[row] = share * (1 - torch.stack(precisions).mean())
    return losses


def sup_recall(
    similarity: Tensor,
    positive: Mask,
    negative: Mask,
    *,
    official: bool = False,
    include_self: bool = True,
    share: float = 0.9,
    cuts: Sequence[int] = (1, 2, 4, 8, 16),
    **width: float,
) -> PerQuery:
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        ranked = [*positives, row] if official and include_self else positives
        _, ranks = bounded_ranks(similarity[row], ranked, negatives, official=official, **width)
        recalls = []
        for k in cuts:
            hits = torch.sigmoid(k - torch.stack(ranks)).sum()  # an exponential would overflow
            recalls.append(hits / (min(k, len(ranked)) if official else len(ranked)))
        losses[row] = share * (1 - torch.stack(recalls).mean())
    return losses


def calibration(similarity: Tensor, positive: Mask, negative: Mask, *, share: float = 0.1) -> PerQuery:
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        short = torch.stack([torch.clamp(0.9 - similarity[row, j], min=0) for j in positives])
        over = torch.stack([torch.clamp(similarity[row, j] - 0.6, min=0) for j in negatives])
        losses[row] = share * (short.mean() + over.mean())
    return losses


def pooled_calibration(similarity: Tensor, positive: Mask, negative: Mask, *, share: float = 0.1) -> Tensor:
    """PML's contrastive loss: over all pairs of the batch, of those that are not there yet."""
    total = similarity.new_zeros(())
    for mask, loss in ((positive, lambda s: 0.9 - s), (negative, lambda s: s - 0.6)):
        values = [loss(similarity[q, r]) for q, line in enumerate(mask) for r, wanted in enumerate(line) if wanted]
        left = [value for value in values if value > 0]
        total = total + (torch.stack(left).mean() if left else 0)
    return share * total


def pnp(
    similarity: Tensor,
    positive: Mask,
    negative: Mask,
    *,
    variant: str,
    alpha: float = 4.0,
    b: float = 2.0,
    official: bool = False,
    include_self: bool = True,
) -> PerQuery:
    def penalty(ahead: Tensor) -> Tensor:
        return {
            "O": ahead,
            "I_u": (1 + ahead) * torch.log(1 + ahead) - (0 if official else ahead),
            "I_b": (b * ahead - torch.log(1 + b * ahead)) / b**2,
            "D_s": torch.log(1 + ahead),
            "D_q": 1 - 1 / (1 + ahead) ** alpha,
        }[variant]

    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        ranked = [*positives, row] if official and include_self else positives
        scores = similarity[row]
        ahead = [(1 / (1 + torch.exp((scores[i] - scores[negatives]) / 0.01))).sum() for i in ranked]
        losses[row] = torch.stack([penalty(each) for each in ahead]).mean()
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
    official: bool = False,
    include_self: bool = True,
    share: float = 1.0,
    **width: float,
) -> PerQuery:
    """1 − H-AP by its definition, each rank made of exact counts and H⁻ of what is less relevant."""
    references = labels if ref_labels is None else ref_labels
    most = len(table[0]) + 1
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        level = {j: level_of(labels[row], references[j], table) for j in [*positives, *negatives]}
        if official and include_self:
            level[row] = most
        sizes = [sum(each == wanted for each in level.values()) for wanted in range(most + 1)]

        def relevance_at(place: int, sizes: list[int] = sizes) -> float:
            if place == 0:
                return 0.0
            if relevance == "level":
                return place / most / sizes[place]
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
                rank = rank + (
                    step_bound(scores[j] - scores[k], official=official, **PUBLISHED | width) if less else int(ahead)
                )
            shares.append(reached / rank)
        losses[row] = share * (1 - torch.stack(shares).sum() / sum(worth.values()))
    return losses
