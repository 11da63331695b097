"""The one-sided Huber sums in O(reference · log width) per query: a query's scores cut the line into few intervals.

Σ_j ℓ = (Q(score − temperature) − Q(score)) / temperature² with Q(a) = Σ_{other_j > a} (other_j − a)². Sort the 2·width
edges a, find each other's interval among them, and add up count, sum and sum of squares per interval: sums over the
intervals above an edge give its Q. Likewise the gradient of an other is linear in it on each interval. The references
need no sort, which takes longer where there are many. Sums are float64, centred at the query's greatest score.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from aurank.losses.ranking._sums.plain import Others, Scores

LEAST_WIDTH = 96  # about where this overtakes `plain` on two cores, 128 with 500 references
BLOCK = 2**19  # others at a time, at up to 40 bytes each


class _Cut(NamedTuple):
    """Some queries' edges and others, centred, and which interval each other is in."""

    queries: slice
    edges: Float64[Tensor, "query edge"]  # ascending
    order: Int64[Tensor, "query edge"]  # of the scores − temperature, then the scores
    others: Float64[Tensor, "query reference"]  # raised to the lowest edge, below which nothing counts
    interval: Int64[Tensor, "query reference"]  # how many edges the other is above

    def above(self, terms: Float64[Tensor, "query reference"]) -> Float64[Tensor, "query edge"]:
        """Return for each edge the sum of the terms of the others above it."""
        shape = len(self.edges), self.edges.shape[1] + 1
        per_interval = self.edges.new_zeros(shape).scatter_add_(1, self.interval, terms)
        return per_interval.flip(1).cumsum(dim=1).flip(1)[:, 1:]

    def by_score(self, parts: Float64[Tensor, "query edge"]) -> tuple[Tensor, ...]:
        """Return for each score the part of the edge at score − temperature, and that of the edge at the score."""
        return torch.empty_like(parts).scatter_(1, self.order, parts).chunk(2, dim=1)


def _cuts(scores: Tensor, others: Tensor, temperature: float) -> Iterator[_Cut]:
    """Yield the cut of some queries at a time."""
    step = max(1, BLOCK // max(1, others.shape[1]))
    for query in range(0, len(others), step):
        queries = slice(query, query + step)
        centred = scores[queries].double()
        centre = centred.amax(dim=1, keepdim=True)
        centred = centred - centre
        edges, order = torch.cat([centred - temperature, centred], dim=1).sort(dim=1)
        contiguous = others[queries].double().contiguous()  # what searchsorted wants
        values = (contiguous - centre).maximum(edges[:, :1])
        yield _Cut(queries, edges, order, values, torch.searchsorted(edges, values))


def sums(scores: Scores, others: Others, *, surrogate: str, temperature: float) -> Scores:
    """Return Σ_j ℓ((other_j − score) / temperature) for each score."""
    found = scores.new_empty(scores.shape)
    for cut in _cuts(scores, others, temperature):
        ones = torch.ones_like(cut.others[:1, :1]).expand_as(cut.others)
        count, total, square = (cut.above(terms) for terms in (ones, cut.others, cut.others.square()))
        parts = count * cut.edges.square() - 2 * cut.edges * total + square
        lower, upper = cut.by_score(parts)
        found[cut.queries] = (lower - upper) / temperature**2
    return found


def gradients(
    gradient: Scores, scores: Scores, others: Others, *, surrogate: str, temperature: float
) -> tuple[Scores, Others]:
    """Return the gradients of scores and others, given that of the sums."""
    of_scores, of_others = scores.new_empty(scores.shape), others.new_empty(others.shape)
    scaled = gradient.double() * (2 / temperature**2)
    for cut in _cuts(scores, others, temperature):
        ones = torch.ones_like(cut.others[:1, :1]).expand_as(cut.others)
        parts = cut.above(cut.others) - cut.edges * cut.above(ones)
        own, (lower, upper) = scaled[cut.queries], cut.by_score(parts)
        of_scores[cut.queries] = own * (upper - lower)
        # an other above an edge at score − temperature gets the score's gradient times how far above; less the same
        # again above the score
        weight = torch.cat([own, -own], dim=1).gather(1, cut.order)
        below = (torch.nn.functional.pad(terms.cumsum(dim=1), (1, 0)) for terms in (weight, weight * cut.edges))
        factor, constant = (each.gather(1, cut.interval) for each in below)
        of_others[cut.queries] = factor.mul_(cut.others).sub_(constant)
    return of_scores, of_others
