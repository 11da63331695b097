"""Slow, obvious references of the contrastive losses, as those in oracles.py: loops over float64 scalars."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oracles import Mask, PerQuery, sides, weighted


def mean_exp(row: Tensor, references: list[int], *, temperature: float) -> Tensor:
    """The mean of exp(s/τ) over some references."""
    total = row.new_zeros(())
    for reference in references:
        total = total + (row[reference] / temperature).exp()
    return total / len(references)


def decoupled(similarity: Tensor, positive: Mask, negative: Mask, *, temperature: float) -> PerQuery:
    """−mean s⁺ + τ·log mean exp(s⁻/τ): the positive is no part of the denominator."""
    found = {}
    for query, (positives, negatives) in sides(positive, negative).items():
        row = similarity[query]
        pull = weighted(row[positives], positive[query], positives)
        found[query] = temperature * mean_exp(row, negatives, temperature=temperature).log() - pull
    return found


def per_positive(
    similarity: Tensor, positive: Mask, negative: Mask, value: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> PerQuery:
    """The mean over each query's positives of value(s⁺, all s⁻, all s⁺)."""
    found = {}
    for query, (positives, negatives) in sides(positive, negative).items():
        row = similarity[query]
        above, below = (torch.stack([row[reference] for reference in side]) for side in (positives, negatives))
        found[query] = weighted((value(one, below, above) for one in above), positive[query], positives)
    return found


def info_nce(similarity: Tensor, positive: Mask, negative: Mask, *, temperature: float) -> PerQuery:
    """−log of the positive's share of exp(s/τ) among itself and the negatives."""

    def value(one: Tensor, below: Tensor, _: Tensor) -> Tensor:
        return -((one / temperature).exp() / ((one / temperature).exp() + (below / temperature).exp().sum())).log()

    return per_positive(similarity, positive, negative, value)


def sup_con(similarity: Tensor, positive: Mask, negative: Mask, *, temperature: Tensor | float) -> PerQuery:
    """−log of the positive's share of exp(s/τ) among all positives and negatives."""

    def value(one: Tensor, below: Tensor, above: Tensor) -> Tensor:
        return -((one / temperature).exp() / (torch.cat([below, above]) / temperature).exp().sum()).log()

    return per_positive(similarity, positive, negative, value)


def dcl(
    similarity: Tensor, positive: Mask, negative: Mask, *, temperature: float, weight_sigma: float | None = None
) -> PerQuery:
    """−w·s⁺/τ + log Σ exp(s⁻/τ), w = 2 − exp(s⁺/σ) over its mean, of positives in a query and then of queries."""
    mean: Tensor | float = 1.0
    if weight_sigma is not None:
        scores = per_positive(similarity.detach(), positive, negative, lambda one, *_: (one / weight_sigma).exp())
        mean = sum(scores.values()) / len(scores)

    def value(one: Tensor, below: Tensor, _: Tensor) -> Tensor:
        weight = 1.0 if weight_sigma is None else 2 - (one.detach() / weight_sigma).exp() / mean
        return (below / temperature).exp().sum().log() - weight * one / temperature

    return per_positive(similarity, positive, negative, value)


def flat_nce(similarity: Tensor, positive: Mask, negative: Mask, *, temperature: float) -> PerQuery:
    """F over F held constant, F = Σ exp((s⁻ − s⁺)/τ); its value, 1, replaced by InfoNCE's."""

    def value(one: Tensor, below: Tensor, _: Tensor) -> Tensor:
        total = ((below - one) / temperature).exp().sum()
        return total / total.detach() - 1

    watched = info_nce(similarity, positive, negative, temperature=temperature)
    flat = per_positive(similarity, positive, negative, value)
    return {query: watched[query].detach() + flat[query] for query in flat}


def simo(similarity: Tensor, positive: Mask, negative: Mask, *, temperature: float, alpha: float) -> PerQuery:
    """InfoNCE with the margin τ·log(α/K) taken off the positive, K negatives being seen."""

    def value(one: Tensor, below: Tensor, _: Tensor) -> Tensor:
        margin = temperature * math.log(alpha / len(below))
        own = ((one - margin) / temperature).exp()
        return -(own / (own + (below / temperature).exp().sum())).log()

    return per_positive(similarity, positive, negative, value)


def spectral(similarity: Tensor, positive: Mask, negative: Mask, *, mu: float) -> PerQuery:
    """−2·s⁺ + μ·mean (s⁻)²."""

    def value(one: Tensor, below: Tensor, _: Tensor) -> Tensor:
        return mu * (below**2).mean() - 2 * one

    return per_positive(similarity, positive, negative, value)


def simco(
    similarity: Tensor, positive: Mask, negative: Mask, *, temperature: float, inter_temperature: float
) -> PerQuery:
    """(1 − p′)/(1 − p) held constant, times −log p, of the positive's shares p and p′ at the two temperatures."""

    def value(one: Tensor, below: Tensor, _: Tensor) -> Tensor:
        share, other = (
            (one / tau).exp() / ((one / tau).exp() + (below / tau).exp().sum())
            for tau in (temperature, inter_temperature)
        )
        return ((1 - other) / (1 - share)).detach() * -share.log()

    return per_positive(similarity, positive, negative, value)


LEVEL = -1  # no id


def log_normalizers(table: dict[int, float], number: int) -> Tensor:
    """log u of so many samples as `sogclr` left them, at the level of the last batch; 0 for one not seen."""
    found = torch.zeros(number, dtype=torch.float64)
    for row in table.keys() - {LEVEL}:
        found[row] = math.log(table[row] * table[LEVEL])
    return found


def sogclr(
    similarity: Tensor,
    positive: Mask,
    negative: Mask,
    ids: Sequence[int],
    table: dict[int, float],
    *,
    temperature: float,
    gamma: float,
    shared: bool = False,
    previous: bool = False,
    plain: bool = False,
) -> PerQuery:
    """−s⁺ + τ·log u with the gradient −∇s⁺ + (τ/u)·∇ḡ of each query; the table, u by id, moves on.

    u is the blend of the table with the query's own ḡ or, shared, with the mean over all queries of the id. Unless
    plain, the table has u over the level, the geometric mean of ḡ over the batch's queries, which is its entry
    LEVEL, and u is multiplied by what makes the mean weight ḡ/u 1.
    """
    both = sides(positive, negative)
    own = {query: mean_exp(similarity[query], below, temperature=temperature) for query, (_, below) in both.items()}
    means = {
        one: float(sum(own[query].detach() for query in own if ids[query] == one))
        / [ids[query] for query in own].count(one)
        for one in {ids[query] for query in own}
    }

    level = 1.0
    if not plain:
        for value in own.values():
            level *= float(value.detach()) ** (1 / len(own))

    def blend(one: int, new: float) -> float:
        return (1 - gamma) * level * table[one] + gamma * new if one in table else new

    normalizers = {}
    for query in own:
        one = ids[query]
        normalizers[query] = blend(one, means[one] if shared else float(own[query].detach()))
        if previous and one in table:
            normalizers[query] = level * table[one]
    balance = 1.0
    if not plain:
        balance = sum(float(own[query].detach()) / normalizers[query] for query in own) / len(own)
    found = {}
    for query, (above, _) in both.items():
        normalizer = normalizers[query] * balance
        pull = sum(similarity[query, reference] for reference in above) / len(above)
        slope = temperature / normalizer * (own[query] - own[query].detach())
        found[query] = temperature * math.log(normalizer) + slope - pull
    table.update({one: blend(one, new) / level for one, new in means.items()})
    table[LEVEL] = level
    return found


def distilled(
    rows: Tensor, teacher: Tensor, ids: Sequence[int], *, cosine: float, similarity: float, temperature: float
) -> Tensor:
    """cosine · (1 − cos(x, t)) + similarity · KL(p‖q), the mean over rows; both have one width for the first term."""
    total = rows.new_zeros(())
    for query in range(len(rows)):
        if cosine:
            total = total + cosine * (1 - cos(rows[query], teacher[query]))
        others = [other for other in range(len(rows)) if ids[other] != ids[query]]
        p, q = ([(cos(each[query], each[other]) / temperature).exp() for other in others] for each in (teacher, rows))
        for chosen in range(len(others)):
            share_p, share_q = p[chosen] / sum(p), q[chosen] / sum(q)
            total = total + similarity * share_p * (share_p / share_q).log()
    return total / len(rows)


def cos(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum() / (left.square().sum() * right.square().sum()).sqrt()
