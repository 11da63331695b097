"""Slow, obvious references of positives by sets of labels, and of losses whose positives have weights.

A relation is [query][reference]: the weight of a positive, 0 for a negative, None for what is left out. The losses
take the similarity and a relation, and return the loss of each query with a positive and a negative by its row.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oracles import Mask, PerQuery, binned, first_batch_quantiles, one_sided_huber, one_sided_sigmoid, soft_ahead
from oracles.neuclip import normalizer, term
from oracles.sup import PUBLISHED, step_bound

Relation = list[list[float | None]]
Sides = dict[int, tuple[list[int], list[float], list[int]]]


def weight_of(one: set[int], other: set[int], positives: str | float) -> float:
    """How positive one set is for another."""
    index = len(one & other) / len(one | other)
    if positives == "any":
        return float(bool(one & other))
    if positives == "equal":
        return float(one == other)
    return index if positives == "jaccard" else float(index >= positives)


def relate(
    sets: Sequence[set[int]],
    ref_sets: Sequence[set[int]] | None = None,
    *,
    positives: str | float,
    ids: Sequence[int] | None = None,
    ref_ids: Sequence[int] | None = None,
) -> Relation:
    """By definition, the query itself left out: by row, or among references by id."""
    relation: Relation = []
    for row, one in enumerate(sets):
        relation.append([])
        for column, other in enumerate(sets if ref_sets is None else ref_sets):
            itself = row == column if ref_sets is None else ids is not None and ids[row] == ref_ids[column]
            relation[row].append(None if itself else weight_of(one, other, positives))
    return relation


def masks(relation: Relation) -> tuple[Mask, Mask]:
    """Positives and negatives."""
    positive = [[weight is not None and weight > 0 for weight in row] for row in relation]
    negative = [[weight == 0 for weight in row] for row in relation]
    return positive, negative


def sides(relation: Relation) -> Sides:
    """Positives, their weights and negatives of each query with both."""
    chosen: Sides = {}
    for row, weights in enumerate(relation):
        positives = [column for column, weight in enumerate(weights) if weight]
        negatives = [column for column, weight in enumerate(weights) if weight == 0]
        if positives and negatives:
            chosen[row] = positives, [weights[column] for column in positives], negatives
    return chosen


def mean_of(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted mean."""
    return sum(weight * value for value, weight in zip(values, weights, strict=True)) / sum(weights)


def one_at_a_time(similarity: Tensor, relation: Relation, oracle: Callable[[Tensor, Mask, Mask], PerQuery]) -> PerQuery:
    """The weighted mean over positives of what the loss is with that positive alone."""
    losses = {}
    _, negative = masks(relation)
    for row, (positives, weights, _) in sides(relation).items():
        values = []
        for one in positives:
            alone = [
                [(query, column) == (row, one) for column in range(len(relation[0]))] for query in range(len(relation))
            ]
            values.append(oracle(similarity, alone, negative)[row])
        losses[row] = mean_of(values, weights)
    return losses


def cross_entropy(similarity: Tensor, relation: Relation, *, temperature: float) -> PerQuery:
    """The weighted mean of −log of a positive's share of exp(s/τ), each reference counting once below."""
    losses = {}
    for row, (positives, weights, negatives) in sides(relation).items():
        powers = (similarity[row] / temperature).exp()
        below = powers[[*positives, *negatives]].sum()
        losses[row] = mean_of([-(powers[one] / below).log() for one in positives], weights)
    return losses


def weighted_dcl(similarity: Tensor, relation: Relation, *, temperature: float, sigma: float) -> PerQuery:
    """DCLW: its weights are 2 − exp(s⁺/σ) over the mean of that, which is weighted within a query."""
    chosen, losses = sides(relation), {}
    hard = (similarity.detach() / sigma).exp()
    means = [mean_of([hard[row, one] for one in positives], weights) for row, (positives, weights, _) in chosen.items()]
    mean = sum(means) / len(means)
    for row, (positives, weights, negatives) in chosen.items():
        below = (similarity[row, negatives] / temperature).exp().sum().log()
        pulls = [(2 - hard[row, one] / mean) * similarity[row, one] / temperature for one in positives]
        losses[row] = below - mean_of(pulls, weights)
    return losses


def robust(
    similarity: Tensor, relation: Relation, *, temperature: float, rho: float, epsilon: float = 0.0, factor: bool = True
) -> PerQuery:
    """τ·(log(ε + mean exp((s⁻ − s⁺)/τ)) + ρ), or without τ and ρ, s⁺ the weighted mean."""
    losses = {}
    for row, (positives, weights, negatives) in sides(relation).items():
        pull = mean_of(list(similarity[row, positives]), weights)
        logarithm = (epsilon + ((similarity[row, negatives] - pull) / temperature).exp().mean()).log()
        losses[row] = temperature * (logarithm + rho) if factor else logarithm
    return losses


def neuclip(similarity: Tensor, relation: Relation, *, temperature: float, epsilon: float, rho: float) -> PerQuery:
    """NeuCLIP where the prototypes are the references, s⁺ the weighted mean."""
    losses, given = {}, {"temperature": temperature, "epsilon": epsilon}
    for row, (positives, weights, negatives) in sides(relation).items():
        pull = mean_of(list(similarity[row, positives]), weights)
        alpha = normalizer(similarity[row], [*positives, *negatives], pull, **given).log().detach()
        g = normalizer(similarity[row], negatives, pull, **given)
        losses[row] = term(g, alpha, temperature=temperature, rho=rho)
    return losses


def sigmoid(similarity: Tensor, relation: Relation, *, temperature: float, bias: float) -> PerQuery:
    """The sum of −log σ(−s/τ − b) over negatives, and of weight times −log σ(s/τ + b) over positives."""
    losses = {}
    for row, (positives, weights, negatives) in sides(relation).items():
        logits = similarity[row] / temperature + bias
        total = (1 + logits[negatives].exp()).log().sum()
        losses[row] = total + sum(
            w * (1 + (-logits[one]).exp()).log() for one, w in zip(positives, weights, strict=True)
        )
    return losses


def cross_modal(similarity: Tensor, relation: Relation) -> Tensor:
    """1/N·Σ over two queries j, k of (s(j, partners of k) − s(k, partners of j))², the partners' means weighted."""
    chosen, total = sides(relation), similarity.new_zeros(())
    for j, (of_j, weights_j, _) in chosen.items():
        for k, (of_k, weights_k, _) in chosen.items():
            ahead, back = mean_of(list(similarity[j, of_k]), weights_k), mean_of(list(similarity[k, of_j]), weights_j)
            total = total + (ahead - back) ** 2
    return total / len(chosen)


def smooth_ap(similarity: Tensor, relation: Relation, *, temperature: float, include_self: bool = False) -> PerQuery:
    """1 − the weighted mean of precisions, in which a positive counts its weight and a negative 1."""
    losses = {}
    for row, (positives, weights, negatives) in sides(relation).items():
        ranked, of_ranked = ([*positives, row], [*weights, 1.0]) if include_self else (positives, weights)
        precisions = []
        for i, weight in zip(ranked, of_ranked, strict=True):
            own = similarity[row, i]
            others = [(j, w) for j, w in zip(ranked, of_ranked, strict=True) if j != i]
            hits = weight + sum(w / (1 + torch.exp((own - similarity[row, j]) / temperature)) for j, w in others)
            misses = (1 / (1 + torch.exp((own - similarity[row, negatives]) / temperature))).sum()
            precisions.append(hits / (hits + misses))
        losses[row] = 1 - mean_of(precisions, of_ranked)
    return losses


def recall_at_k(
    similarity: Tensor, relation: Relation, *, k: Sequence[int], temperature: float, rank_temperature: float
) -> PerQuery:
    """1 − the weighted share of positives within rank k; a rank counts each reference once."""
    losses = {}
    for row, (positives, weights, negatives) in sides(relation).items():
        others = similarity[row, [*positives, *negatives]]
        ranks = 1 + soft_ahead(similarity[row, positives], others, temperature).sum(dim=1)
        recalls = [mean_of(list(torch.sigmoid((cut - ranks) / rank_temperature)), weights) for cut in k]
        losses[row] = 1 - sum(recalls) / len(k)
    return losses


def semi_variance(similarity: Tensor, relation: Relation, *, weights: tuple[float, float]) -> PerQuery:
    """The semi-variance of positives with weighted means, and that of negatives."""
    losses = {}
    for row, (positives, own, negatives) in sides(relation).items():
        plus, minus = similarity[row, positives], similarity[row, negatives]
        below = mean_of(list((mean_of(list(plus), own) - plus).clamp(min=0) ** 2), own)
        above = ((minus - minus.mean()).clamp(min=0) ** 2).mean()
        losses[row] = weights[0] * below + weights[1] * above
    return losses


def binned_ap(similarity: Tensor, relation: Relation, *, number: int) -> PerQuery:
    """1 − Σ over bins of precision times recall gained, a positive counting its weight in all of it."""
    losses, chosen = {}, sides(relation)
    for row, (count, shares) in binned.bin_shares(similarity, *masks(relation), number=number).items():
        weights = torch.tensor(chosen[row][1], dtype=torch.float64)
        gained, missed = (weights[:, None] * shares[:count]).sum(dim=0), shares[count:].sum(dim=0)
        some = gained > 0
        precision = gained.cumsum(dim=0)[some] / (gained + missed).cumsum(dim=0)[some]
        losses[row] = 1 - (precision * gained[some]).sum() / weights.sum()
    return losses


def sup_ap(similarity: Tensor, relation: Relation, *, share: float = 0.9) -> PerQuery:
    """SupAP: r⁺ is the sum of the weights of the positives that score at least as high."""
    losses = {}
    for row, (positives, weights, negatives) in sides(relation).items():
        scores, precisions = similarity[row], []
        for i in positives:
            among = sum(w for j, w in zip(positives, weights, strict=True) if scores[j] >= scores[i])
            behind = sum(step_bound(scores[j] - scores[i], **PUBLISHED) for j in negatives)
            precisions.append(among / (among + behind))
        losses[row] = share * (1 - mean_of(precisions, weights))
    return losses


def sup_recall(similarity: Tensor, relation: Relation, *, share: float = 0.9) -> PerQuery:
    """SupRecall: a rank counts each positive once."""
    losses = {}
    for row, (positives, weights, negatives) in sides(relation).items():
        scores, recalls = similarity[row], []
        for i in positives:
            among = sum(bool(scores[j] >= scores[i]) for j in positives)
            rank = among + sum(step_bound(scores[j] - scores[i], **PUBLISHED) for j in negatives)
            recalls.append(sum(torch.sigmoid(cut - rank) for cut in (1, 2, 4, 8, 16)) / 5)
        losses[row] = share * (1 - mean_of(recalls, weights))
    return losses


def soprc(similarity: Tensor, relation: Relation) -> PerQuery:
    """SOPRC by the batch alone: each query's own quantiles, its prior the share of its positives' weights."""
    labels = list(range(len(relation)))  # so that each query has quantiles of its own
    quantiles, losses = first_batch_quantiles(similarity, *masks(relation), labels), {}
    for row, (positives, weights, negatives) in sides(relation).items():
        scores, prior = similarity[row, positives], sum(weights) / (sum(weights) + len(negatives))
        false_rate = one_sided_huber(scores[:, None] - similarity[row, negatives], 0.1).mean(dim=1)
        levels = torch.tensor(quantiles[row], dtype=scores.dtype)
        higher = one_sided_sigmoid(scores.detach()[:, None] - levels, 0.001).sum(dim=1)
        ratio = (1 - prior) / prior * false_rate / ((1 + higher) / (len(levels) + 1))
        losses[row] = mean_of(list(ratio / (1 + ratio)), weights)
    return losses
