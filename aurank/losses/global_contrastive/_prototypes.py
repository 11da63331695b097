"""The network of NeuCLIP: prototypes that stand for all references, fitted to the batches by AdaGrad."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, distributed

from aurank.losses.core.common import BaseDistance
from aurank.losses.core.distributed import world_size
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import Counters, FullPrecision, gather_entries
from aurank.losses.core.temperature import attraction


@dataclass(frozen=True, eq=False)
class Seen:
    """What the prototypes learn from: the batch of all processes, without a graph, the same in each of them."""

    query: Float[Tensor, "query dim"]
    attraction: Float[Tensor, " query"]  # mean similarity to the positives
    log_normalizer: Float[Tensor, " query"]  # log(ε + g) of the batch
    weight: Float[Tensor, " query"]  # 1 where the query counts
    reference: Float[Tensor, "reference dim"]  # of unit length where the distance normalises
    known: Bool[Tensor, "query reference"] | None  # True where a reference is a pair of the query, and not itself
    own: slice  # the queries that are this process's
    empty: bool  # no query counts


@torch.no_grad()
def see(pairs: Pairs, log_normalizer: Float[Tensor, " query"], distance: BaseDistance, *, with_known: bool) -> Seen:
    """Gather the batch of all processes, which must all call with equal `with_known`."""
    query, reference = pairs.query.detach(), pairs.reference.detach()
    known = pairs.positive | pairs.negative if with_known else None
    numbers = torch.stack([attraction(pairs), log_normalizer, pairs.valid.to(query.dtype)], dim=1)
    own, empty = slice(0, len(query)), len(pairs.valid_rows) == 0
    if not pairs.is_shared and world_size() > 1:
        places = torch.arange(max(len(query), len(reference)), device=query.device)
        starts, everyone = gather_entries(places[: len(reference)], reference)
        if known is not None:  # a reference of another process is a pair of any query
            first = int((starts == 0).nonzero()[distributed.get_rank()])
            wide = known.new_ones(len(query), len(everyone))
            wide[:, first : first + len(reference)] = known
            known = wide
        parts = [query, numbers] if known is None else [query, numbers, known.to(query.dtype)]
        starts, rows = gather_entries(places[: len(query)], torch.cat(parts, dim=1))
        start, dim, reference = int((starts == 0).nonzero()[distributed.get_rank()]), query.shape[1], everyone
        own = slice(start, start + len(query))
        query, numbers = rows[:, :dim], rows[:, dim : dim + 3]
        known = None if known is None else rows[:, dim + 3 :] > 0
        empty = not bool(numbers[:, 2].any())
    # A row that is not a number makes the loss none, but would stay in the prototypes for long.
    finite = query.isfinite().all(dim=1) & numbers.isfinite().all(dim=1)
    pull, log_normalizer, weight = numbers.masked_fill(~finite[:, None], 0).unbind(dim=1)
    query, reference = (rows.masked_fill(~rows.isfinite().all(dim=1)[:, None], 0) for rows in (query, reference))
    return Seen(query, pull, log_normalizer, weight, normalized(reference, distance), known, own, empty)


def normalized(rows: Float[Tensor, "row dim"], distance: BaseDistance) -> Float[Tensor, "row dim"]:
    """Return the rows as the distance normalises them; one that is so already, but for rounding, stays as it is."""
    found: Tensor = distance.maybe_normalize(rows)
    same = torch.isclose(found, rows, rtol=16 * torch.finfo(rows.dtype).eps, atol=0).all(dim=1, keepdim=True)
    return torch.where(same, rows, found)


class Prototypes(Counters, FullPrecision):
    """The log mean of exp(cos(e, W_j)/τ) over prototypes W_j, for a query e, and AdaGrad's steps on W."""

    COUNTERS = ("steps", "count", "position", "filled")
    weight_0: Tensor
    squares_0: Tensor
    queue: Tensor

    def __init__(self, num_prototypes: int, embedding_size: int) -> None:
        super().__init__()
        for name in ("weight_0", "squares_0", "queue"):
            self.register_buffer(name, torch.zeros(num_prototypes, embedding_size))
        self.steps = self.count = self.position = self.filled = 0

    @property
    def prototypes(self) -> Float[Tensor, "prototype dim"]:
        return self.weight_0[: self.count]

    @torch.no_grad()
    def take_in(self, seen: Seen, *, restart: bool) -> None:
        if seen.empty:
            return
        size = len(self.queue)
        rows = seen.reference[:size].to(self.queue.dtype)
        places = torch.arange(size, device=rows.device)
        if restart:
            older = min(self.filled, size - len(rows))
            newest = self.queue[(places[:older] + self.position - older) % size]
            self.count = len(rows) + older
            self.weight_0[: self.count] = torch.cat([rows, newest])
            self.squares_0.zero_()
        self.queue[(places[: len(rows)] + self.position) % size] = rows
        self.position = (self.position + len(rows)) % size
        self.filled = min(self.filled + len(rows), size)
        self.steps += 1

    def log_mean(
        self,
        prototypes: Float[Tensor, "prototype dim"],
        query: Float[Tensor, "query dim"],
        temperature: Tensor | float,
        distance: BaseDistance,
        known: Bool[Tensor, "query reference"] | None,
    ) -> Float[Tensor, " query"]:
        similarity = distance(query, prototypes.to(query.dtype))
        scores = similarity / (temperature if distance.is_inverted else -temperature)
        if known is None:
            return torch.logsumexp(scores, dim=1) - math.log(len(prototypes))
        known = known[:, : len(prototypes)]
        wanted = torch.ones_like(scores, dtype=torch.bool)
        wanted[:, : known.shape[1]] = known
        wanted |= ~wanted.any(dim=1, keepdim=True)  # a query without any pair is left out in the end, but stays finite
        masked = scores.masked_fill(~wanted, -torch.inf)
        return torch.logsumexp(masked, dim=1) - wanted.sum(dim=1).to(scores.dtype).log()

    @torch.no_grad()
    def fit(self, objective: Callable[[Tensor], Tensor], *, steps: int, rate: float) -> None:
        """Take AdaGrad's steps down an objective of the prototypes, by the formula of torch.optim.Adagrad."""
        squares = self.squares_0[: self.count]
        for _ in range(steps):
            leaf = self.prototypes.detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(objective(leaf), leaf)
            squares.addcmul_(gradient, gradient)
            self.prototypes.addcdiv_(gradient, squares.sqrt().add_(1e-10), value=-rate)
