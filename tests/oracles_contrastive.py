"""Slow, obvious references of the contrastive losses, as those in oracles.py: loops over float64 scalars."""

from oracles import Mask, PerQuery, sides
from torch import Tensor


def mean_exp(row: Tensor, references: list[int], *, temperature: float) -> Tensor:
    """The mean of exp(s/τ) over some references."""
    total = row.new_zeros(())
    for reference in references:
        total = total + (row[reference] / temperature).exp()
    return total / len(references)


def decoupled(
    similarity: Tensor, positive: Mask, negative: Mask, *, temperature: float, positive_in_denominator: bool = False
) -> PerQuery:
    """−mean s⁺ + τ·log mean exp(s⁻/τ): the positive is no part of the denominator unless asked for."""
    found = {}
    for query, (positives, negatives) in sides(positive, negative).items():
        row = similarity[query]
        below = negatives + positives if positive_in_denominator else negatives
        pull = sum(row[reference] for reference in positives) / len(positives)
        found[query] = temperature * mean_exp(row, below, temperature=temperature).log() - pull
    return found
