"""Slow, obvious references of the losses with learnable temperatures, as those in oracles.py: loops over scalars."""

from torch import Tensor

from oracles import Mask, PerQuery, sides, weighted


def inner(row: Tensor, pull: Tensor, negatives: list[int], temperature: Tensor | float) -> Tensor:
    """g: the mean over the negatives of exp((s⁻ − s⁺)/τ), s⁺ being the mean over the positives."""
    return ((row[negatives] - pull) / temperature).exp().mean()


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
    """τ·(log(ε + g) + ρ), or without the factor τ and ρ."""
    found = {}
    for query, (positives, negatives) in sides(positive, negative).items():
        pull = weighted(similarity[query, positives], positive[query], positives)
        logarithm = (epsilon + inner(similarity[query], pull, negatives, temperature)).log()
        found[query] = temperature * (logarithm + rho) if factor else logarithm
    return found


def sigmoid(
    similarity: Tensor, positive: Mask, negative: Mask, *, temperature: Tensor | float, bias: Tensor | float
) -> PerQuery:
    """The sum of −log σ(−s/τ − b) over negatives, and of weight times −log σ(s/τ + b) over positives."""
    found = {}
    for query, (positives, negatives) in sides(positive, negative).items():
        logits = similarity[query] / temperature + bias
        below = (1 + logits[negatives].exp()).log().sum()
        found[query] = below + sum(float(positive[query][one]) * (1 + (-logits[one]).exp()).log() for one in positives)
    return found


def cross_modal(similarity: Tensor, positive: Mask, negative: Mask) -> Tensor:
    """1/N·Σ over two queries j, k of (s(j, partners of k) − s(k, partners of j))², means over the partners."""
    chosen = sides(positive, negative)
    total = similarity.new_zeros(())
    for j, (of_j, _) in chosen.items():
        for k, (of_k, _) in chosen.items():
            ahead = weighted(similarity[j, of_k], positive[k], of_k)
            total = total + (ahead - weighted(similarity[k, of_j], positive[j], of_j)) ** 2
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
