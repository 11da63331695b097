"""Slow, obvious references of the losses with learnable temperatures, as those in oracles.py: loops over scalars."""

import torch
from torch import Tensor

from oracles import Mask, PerQuery, sides


def mean_of(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean()


def inner(row: Tensor, positives: list[int], negatives: list[int], temperature: Tensor | float) -> Tensor:
    """g: the mean over the negatives of exp((s⁻ − mean s⁺)/τ)."""
    pull = mean_of([row[reference] for reference in positives])
    return mean_of([((row[reference] - pull) / temperature).exp() for reference in negatives])


def robust(
    similarity: Tensor,
    positive: Mask,
    negative: Mask,
    *,
    temperature: Tensor | float,
    rho: float,
    epsilon: float = 0.0,
    factor: bool = True,
) -> PerQuery:
    """τ·(log(ε + g) + ρ), or without the factor τ and ρ. τ: one for all, or one for each query."""
    found = {}
    for query, (positives, negatives) in sides(positive, negative).items():
        own = temperature[query] if isinstance(temperature, Tensor) and temperature.ndim else temperature
        logarithm = (epsilon + inner(similarity[query], positives, negatives, own)).log()
        found[query] = own * (logarithm + rho) if factor else logarithm
    return found


def cross_entropy(similarity: Tensor, positive: Mask, negative: Mask, *, temperature: Tensor | float) -> PerQuery:
    """The mean over positives of −log(exp(s⁺/τ) / Σ exp(s/τ)), positives and negatives below."""
    found = {}
    for query, (positives, negatives) in sides(positive, negative).items():
        row = similarity[query]
        below = torch.stack([(row[reference] / temperature).exp() for reference in positives + negatives]).sum()
        found[query] = mean_of([-((row[reference] / temperature).exp() / below).log() for reference in positives])
    return found


def sigmoid(
    similarity: Tensor, positive: Mask, negative: Mask, *, temperature: Tensor | float, bias: Tensor | float
) -> PerQuery:
    """The sum over references of −log 1/(1 + exp(z·(−s/τ − b))), z = 1 for positives and −1 for negatives."""
    found = {}
    for query, (positives, negatives) in sides(positive, negative).items():
        total = similarity.new_zeros(())
        for reference in positives + negatives:
            sign = 1 if reference in positives else -1
            total = total - (1 / (1 + (sign * (-similarity[query, reference] / temperature - bias)).exp())).log()
        found[query] = total
    return found


def cross_modal(similarity: Tensor, positive: Mask, negative: Mask) -> Tensor:
    """1/N·Σ over two queries j, k of (s(j, partners of k) − s(k, partners of j))², means over the partners."""
    chosen = sides(positive, negative)
    total = similarity.new_zeros(())
    for j, (of_j, _) in chosen.items():
        for k, (of_k, _) in chosen.items():
            ahead = mean_of([similarity[j, reference] for reference in of_k])
            total = total + (ahead - mean_of([similarity[k, reference] for reference in of_j])) ** 2
    return total / len(chosen)


def in_modal(queries: Tensor, references: Tensor, positive: Mask, negative: Mask) -> Tensor:
    """1/N·Σ over two queries j ≠ k of (cos(j, k) − cos(their partners' mean directions))²."""
    chosen = sides(positive, negative)
    partner = {j: sum(references[r] / references[r].norm() for r in of_j) for j, (of_j, _) in chosen.items()}
    total = queries.new_zeros(())
    for j in chosen:
        for k in chosen:
            if j != k:
                own = queries[j] @ queries[k] / (queries[j].norm() * queries[k].norm())
                other = partner[j] @ partner[k] / (partner[j].norm() * partner[k].norm())
                total = total + (own - other) ** 2
    return total / len(chosen)
