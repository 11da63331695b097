"""Slow, obvious references of the losses: loops over queries in float64, which autograd differentiates too.

Each takes the similarity [query, reference] and which references are positive and negative (lists of lists of bool, or
of the weights of positives), and returns the loss of each valid query by its row: {row: scalar}.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Mask = list[list[bool]] | list[list[float]]
PerQuery = dict[int, Tensor]


def cosine(embeddings: Tensor, references: Tensor | None = None) -> Tensor:
    references = embeddings if references is None else references
    # products summed, and not embeddings @ references.T, whose rounding depends on which of two rows comes first
    products = (embeddings[:, None, :] * references[None, :, :]).sum(dim=2)
    return products / (embeddings.norm(dim=1)[:, None] * references.norm(dim=1))


def weight_of(one: set[int], other: set[int], positives: str | float) -> float:
    """How positive one set of labels is for another."""
    index = len(one & other) / len(one | other)
    if positives == "any":
        return float(bool(one & other))
    if positives == "equal":
        return float(one == other)
    return index if positives == "jaccard" else float(index >= positives)


def masks(
    labels: Sequence[Any],
    ref_labels: Sequence[Any] | None = None,
    *,
    weight: Callable[[Any, Any], float] = operator.eq,
    mined: Sequence[Tensor] | None = None,
    ids: Sequence[int] | None = None,
    ref_ids: Sequence[int] | None = None,
) -> tuple[Mask, Mask]:
    """Positives and negatives by definition: label, self left out (by row, or by id), and what a miner kept."""
    references = labels if ref_labels is None else ref_labels
    positive = [[weight(a, b) for b in references] for a in labels]
    negative = [[not weight(a, b) for b in references] for a in labels]
    for q in range(len(labels)):
        for r in range(len(references)):
            same = q == r if ref_labels is None else ids is not None and ref_ids is not None and ids[q] == ref_ids[r]
            if same:
                positive[q][r] = negative[q][r] = False
    if mined is not None:
        anchor, kept_positive, other_anchor, kept_negative = (
            mined if len(mined) == 4 else (mined[0], mined[1], mined[0], mined[2])
        )
        positive_pairs = set(zip(anchor.tolist(), kept_positive.tolist(), strict=True))
        negative_pairs = set(zip(other_anchor.tolist(), kept_negative.tolist(), strict=True))
        for q in range(len(labels)):
            for r in range(len(references)):
                positive[q][r] = (q, r) in positive_pairs and positive[q][r]
                negative[q][r] = (q, r) in negative_pairs and negative[q][r]
    return positive, negative


def sides(positive: Mask, negative: Mask) -> dict[int, tuple[list[int], list[int]]]:
    """Positive and negative references of each query that has both."""
    chosen = {}
    for row, (plus, minus) in enumerate(zip(positive, negative, strict=True)):
        positives = [j for j, wanted in enumerate(plus) if wanted]
        negatives = [j for j, wanted in enumerate(minus) if wanted]
        if positives and negatives:
            chosen[row] = (positives, negatives)
    return chosen


def mean(values: PerQuery) -> Tensor:
    return torch.stack(list(values.values())).mean()


def total(terms: dict[str, PerQuery | Tensor], reduce: Callable[[PerQuery], Tensor] = mean) -> Tensor:
    """The sum of the terms of a loss, a tensor being one value for the batch."""
    return sum((term if isinstance(term, Tensor) else reduce(term) for term in terms.values()), torch.zeros(()))


def weighted(values: Iterable[Tensor], weights: Sequence[float], chosen: Sequence[int]) -> Tensor:
    """The mean of one value for each chosen reference, of which each has its weight."""
    of_chosen = [float(weights[reference]) for reference in chosen]
    return sum(weight * value for value, weight in zip(values, of_chosen, strict=True)) / sum(of_chosen)


def smooth_ap(
    similarity: Tensor, positive: Mask, negative: Mask, *, temperature: float, include_self: bool = False
) -> PerQuery:
    """1 − the mean of precisions, in which a positive counts its weight, the query itself and a negative 1."""
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        ranked = [*positives, row] if include_self else positives
        weights = torch.tensor([float(positive[row][reference] or 1) for reference in ranked], dtype=torch.float64)
        ahead = soft_ahead(similarity[row, ranked], similarity[row, [*ranked, *negatives]], temperature)
        hits = weights + ahead[:, : len(ranked)] @ weights
        precisions = hits / (hits + ahead[:, len(ranked) :].sum(dim=1))
        losses[row] = 1 - (weights * precisions).sum() / weights.sum()
    return losses


def soft_ahead(scores: Tensor, others: Tensor, temperature: float) -> Tensor:
    """[score, other] how far the other is ahead; nothing of a score ahead of itself, where others begin with scores."""
    ahead = 1 / (1 + torch.exp((scores[:, None] - others) / temperature))
    return ahead * ~torch.eye(len(scores), len(others), dtype=torch.bool)


def one_sided_huber(x: Tensor, tau1: float) -> Tensor:
    return torch.where(x < 0, 1 - 2 * x / tau1, torch.where(x < tau1, (1 - x / tau1) ** 2, 0))


def one_sided_sigmoid(x: Tensor, tau2: float) -> Tensor:
    return torch.where(x < 0, torch.tanh(-x / (2 * tau2)), 0)


def soprc(
    similarity: Tensor,
    positive: Mask,
    negative: Mask,
    *,
    quantiles: dict[int, list[float]],
    prior: dict[int, float],
    tau1: float = 0.1,
    tau2: float = 0.001,
    tpr_gradient: bool = False,
) -> PerQuery:
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        scores = similarity[row, positives]
        false_rate = one_sided_huber(scores[:, None] - similarity[row, negatives], tau1).mean(dim=1)
        fixed = scores if tpr_gradient else scores.detach()
        higher = one_sided_sigmoid(fixed[:, None] - torch.tensor(quantiles[row], dtype=scores.dtype), tau2).sum(dim=1)
        ratio = (1 - prior[row]) / prior[row] * false_rate / ((1 + higher) / (len(quantiles[row]) + 1))
        losses[row] = weighted(ratio / (1 + ratio), positive[row], positives)
    return losses


def semi_variance(similarity: Tensor, positive: Mask, negative: Mask, *, weights: tuple[float, float]) -> PerQuery:
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        plus, minus = similarity[row, positives], similarity[row, negatives]
        below = (weighted(plus, positive[row], positives) - plus).clamp(min=0).square()
        above = (minus - minus.mean()).clamp(min=0).square().mean()
        losses[row] = weights[0] * weighted(below, positive[row], positives) + weights[1] * above
    return losses


def pooled_semi_variance(similarity: Tensor, positive: Mask, negative: Mask, *, weights: tuple[float, float]) -> Tensor:
    chosen = sides(positive, negative)
    plus = torch.cat([similarity[row, positives] for row, (positives, _) in chosen.items()])
    minus = torch.cat([similarity[row, negatives] for row, (_, negatives) in chosen.items()])
    below, above = plus[plus < plus.mean()] - plus.mean(), minus[minus > minus.mean()] - minus.mean()
    return weights[0] * below.square().mean() + weights[1] * above.square().mean()


def quantile_scores(scores: Sequence[float], number: int) -> list[float]:
    """Linear through (i/(n+1), u_i), read at k/(number+1); the end segments go on, clamped to [-1, 1]."""
    ordered = sorted(scores)
    n = len(ordered)
    result = []
    for k in range(1, number + 1):
        place = k / (number + 1)
        if n == 1:
            value = ordered[0]
        else:
            i = 1
            while i < n - 1 and place > (i + 1) / (n + 1):
                i += 1
            slope = (ordered[i] - ordered[i - 1]) * (n + 1)
            value = ordered[i - 1] + (place - i / (n + 1)) * slope
        result.append(min(max(value, -1.0), 1.0))
    return result


def extended(scores: Sequence[float]) -> list[float]:
    """u_0, u_1 ... u_n, u_{n+1} of Algorithm 2, ascending; a lone score is repeated."""
    ordered = sorted(scores)
    second, second_last = (ordered[1], ordered[-2]) if len(ordered) > 1 else (ordered[0], ordered[0])
    return [max(2 * ordered[0] - second, -1.0), *ordered, min(2 * ordered[-1] - second_last, 1.0)]


def paper_scores(scores: Sequence[float], number: int) -> list[float]:
    """Algorithm 2, mended: two loops over i, each over the j with t = jn/number in [i-1, i)."""
    u, n = extended(scores), len(scores)
    result = [0.0] * number
    for i in range(1, n + 1):
        for j in range(number):
            if (i - 1) * number <= j * n < i * number:
                t = j * n / number
                result[j] += ((i - t) * u[i - 1] + (t - i + 1) * u[i]) / 2
                result[j] += ((i - t) * u[i] + (t - i + 1) * u[i + 1]) / 2
    return result


def official_scores(scores: Sequence[float], number: int) -> list[float]:
    """The authors' code: ceil(number/n) steps for each score, concatenated, then cut off."""
    u, n = extended(scores), len(scores)
    length = math.ceil(number / n)
    result = []
    for i in range(1, n + 1):
        for step in range(length):
            share = step / length
            lower, upper = u[i - 1] + share * (u[i] - u[i - 1]), u[i] + share * (u[i + 1] - u[i])
            result.append((lower + upper) / 2)
    return result[:number]


def first_batch_quantiles(
    similarity: Tensor,
    positive: Mask,
    negative: Mask,
    labels: Sequence[int],
    number: int = 100,
    *,
    interpolate=quantile_scores,
) -> dict[int, list[float]]:
    """What v holds for each valid query's class after one batch: the mean over the class's valid queries."""
    own = {
        row: interpolate([float(similarity[row, j].detach()) for j in positives], number)
        for row, (positives, _) in sides(positive, negative).items()
    }
    averaged = {}
    for row in own:
        mates = [other for other in own if labels[other] == labels[row]]
        averaged[row] = [sum(own[mate][k] for mate in mates) / len(mates) for k in range(number)]
    return averaged


def soprc_first_batch(
    similarity: Tensor, positive: Mask, negative: Mask, labels: Sequence[int], *, class_counts: Sequence[int]
) -> dict[str, PerQuery]:
    """SOPRC with its defaults on a class's first batch: its two terms."""
    ranking = soprc(
        similarity,
        positive,
        negative,
        quantiles=first_batch_quantiles(similarity, positive, negative, labels),
        prior={row: 0.1 * class_counts[label] / max(class_counts) for row, label in enumerate(labels)},
    )
    extra = semi_variance(similarity, positive, negative, weights=(1.0, 5.0))
    return {"loss": ranking, "semi_variance": extra}


def official_quantiles(
    similarity: Tensor, positive: Mask, negative: Mask, labels: Sequence[int], *, number: int, beta: float
) -> dict[int, list[float]]:
    """What v holds in the authors' code: 0, 1/number ... moved by beta towards those of a class's last query."""
    chosen, quantiles = sides(positive, negative), {}
    start = torch.tensor([k / number for k in range(number)]).tolist()  # a state is float32 at first
    for row in chosen:
        last = max(mate for mate in chosen if labels[mate] == labels[row])
        scores = official_scores([float(similarity[last, j].detach()) for j in chosen[last][0]], number)
        quantiles[row] = [(1 - beta) * before + beta * score for before, score in zip(start, scores, strict=True)]
    return quantiles


def official_soprc_first_batch(
    similarity: Tensor, positive: Mask, negative: Mask, labels: Sequence[int], *, class_counts: Sequence[int]
) -> dict[str, PerQuery | Tensor]:
    """The authors' code on its first batch, with its defaults."""
    quantiles = official_quantiles(similarity, positive, negative, labels, number=100, beta=0.1)
    prior = {row: 0.1 * class_counts[label] / max(class_counts) for row, label in enumerate(labels)}
    ranking = soprc(similarity, positive, negative, quantiles=quantiles, prior=prior)
    extra = pooled_semi_variance(similarity, positive, negative, weights=(1.0, 5.0))
    return {"loss": ranking, "semi_variance": extra}


def auroc(similarity: Tensor, positive: Mask, negative: Mask, *, surrogate: str, temperature: float) -> PerQuery:
    def of(x: Tensor) -> Tensor:  # x = (s+ - s-) / temperature, the authors' way round
        if surrogate == "huber":
            return torch.where(x < 0, 1 - 2 * x, torch.where(x < 1, (x - 1) ** 2, 0))
        return torch.log2(1 + torch.exp(-x)) if surrogate == "logistic" else 1 / (1 + torch.exp(x))

    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        risks = of((similarity[row, positives][:, None] - similarity[row, negatives]) / temperature).mean(dim=1)
        losses[row] = weighted(risks, positive[row], positives)
    return losses


def recall_at_k(
    similarity: Tensor, positive: Mask, negative: Mask, *, k: Sequence[int], temperature: float, rank_temperature: float
) -> PerQuery:
    losses = {}
    for row, (positives, negatives) in sides(positive, negative).items():
        others = similarity[row, [*positives, *negatives]]
        ranks = 1 + soft_ahead(similarity[row, positives], others, temperature).sum(dim=1)
        found = [1 / (1 + torch.exp((ranks - cut) / rank_temperature)) for cut in k]
        losses[row] = 1 - weighted(sum(found) / len(k), positive[row], positives)
    return losses


def mixed_up(embeddings: Tensor, labels: Sequence[int], shares: Sequence[float]) -> tuple[Tensor, list[int]]:
    """Rows of unit length followed by a mixture of each two of a class, and the labels of all; see RecallAtKLoss."""
    rows = [row / row.norm() for row in embeddings]
    pairs = [(i, j) for i in range(len(labels)) for j in range(i + 1, len(labels)) if labels[i] == labels[j]]
    for (i, j), share in zip(pairs, shares, strict=True):
        rows.append(share * rows[i] + (1 - share) * rows[j])
    return torch.stack(rows), [*labels, *(labels[i] for i, _ in pairs)]


def blackbox_list(scores: Tensor, hits: int, *, lambda_: float, weight: float, share: float) -> Tensor:
    """weight · (1 − AP) of one list, hits first; its gradient is the published finite difference, as a linear term.

    Published: the ranker's backward gets the gradient of the whole loss, here share · weight · (1 − AP), with respect
    to ranks divided by the length, moves the scores by lambda times that, and returns the change of rank / lambda.
    """
    values, number = scores.detach(), len(scores)

    def ranks(of: Tensor) -> Tensor:
        return (of[None, :] >= of[:, None]).sum(dim=1).double() / number

    rank, gradient = ranks(values), torch.zeros_like(values)
    within = ranks(values[:hits])
    precision = (within / rank[:hits]).sum() / hits
    gradient[:hits] = share * weight * within / rank[:hits] ** 2 / hits
    slopes = (ranks(values + lambda_ * gradient) - rank) / lambda_ / share
    return weight * (1 - precision) + (slopes * (scores - values)).sum()


def blackbox_ap(
    similarity: Tensor, positive: Mask, negative: Mask, *, lambda_: float = 5.0, flat_weight: float = 0.9
) -> dict[str, PerQuery | Tensor]:
    """BlackBox AP without a margin: a list per query, and one list of all."""
    chosen = sides(positive, negative)
    every: list[tuple[Tensor, Tensor]] = []
    losses = {}
    for row, (positives, negatives) in chosen.items():
        hits, others = similarity[row, positives], similarity[row, negatives]
        losses[row] = blackbox_list(
            torch.cat([hits, others]), len(hits), lambda_=lambda_, weight=1 - flat_weight, share=1 / len(chosen)
        )
        every.append((hits, others))
    hits, others = (torch.cat(parts) for parts in zip(*every, strict=True))
    flat = blackbox_list(torch.cat([hits, others]), len(hits), lambda_=lambda_, weight=flat_weight, share=1.0)
    return {"loss": losses, "flat": flat}
