"""Networks that predict the normaliser of a contrastive loss from an embedding (NeuCLIP; Wei, Lin, Yang, 2025).

Each predicts ℓ, the logarithm of the mean of exp(s/τ) over what a query is contrasted with, and is fitted to the
batches by AdaGrad within the loss. Its numbers are buffers, no parameters: the optimiser of the encoder leaves them be.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, distributed
from torch.nn.functional import linear

from aurank.losses.core.distributed import world_size
from aurank.losses.core.from_pml import BaseDistance
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import Counters, FullPrecision, gather_entries


@dataclass(frozen=True, eq=False)
class Seen:
    """What a network learns from: the batch of all processes, without a graph, the same in each of them."""

    query: Float[Tensor, "query dim"]
    attraction: Float[Tensor, " query"]  # mean similarity to the positives
    log_normalizer: Float[Tensor, " query"]  # log(ε + g) of the batch
    weight: Float[Tensor, " query"]  # 1 where the query counts
    reference: Float[Tensor, "reference dim"]  # of unit length where the distance takes them so
    known: (
        Bool[Tensor, "query reference"] | None
    )  # False where a reference is no pair of the query, as the query itself
    own: slice  # the queries that are this process's
    empty: bool  # no query counts


@torch.no_grad()
def see(
    pairs: Pairs,
    attraction: Float[Tensor, " query"],
    log_normalizer: Float[Tensor, " query"],
    distance: BaseDistance,
    *,
    with_known: bool,
) -> Seen:
    """The batch as a network learns from it; every process must call, with equal `with_known`."""
    query, reference, known = pairs.query.detach(), pairs.reference.detach(), None
    numbers = torch.stack([attraction, log_normalizer, pairs.valid.to(query.dtype)], dim=1).detach()
    start, empty = 0, len(pairs.valid_rows) == 0
    if with_known:
        known = pairs.positive | pairs.negative
    if not pairs.is_shared and world_size() > 1:
        places = torch.arange(max(len(query), len(reference)), device=query.device)
        starts, everyone = gather_entries(places[: len(reference)], reference)
        if known is not None:  # what another process has is a pair of anyone
            first = int((starts == 0).nonzero()[distributed.get_rank()])
            wide = known.new_ones(len(query), len(everyone))
            wide[:, first : first + len(reference)] = known
            known = wide
        parts = [query, numbers] if known is None else [query, numbers, known.to(query.dtype)]
        starts, rows = gather_entries(places[: len(query)], torch.cat(parts, dim=1))
        start = int((starts == 0).nonzero()[distributed.get_rank()])
        own, dim, reference = slice(start, start + len(query)), query.shape[1], everyone
        query, numbers = rows[:, :dim], rows[:, dim : dim + 3]
        known = None if known is None else rows[:, dim + 3 :] > 0
        empty = not bool(numbers[:, 2].any())
    else:
        own = slice(0, len(query))
    # A row that is not a number makes the loss none, but would stay in the network for long.
    finite = query.isfinite().all(dim=1) & numbers.isfinite().all(dim=1)
    attraction, log_normalizer, weight = numbers.masked_fill(~finite[:, None], 0).unbind(dim=1)
    query, reference = (rows.masked_fill(~rows.isfinite().all(dim=1)[:, None], 0) for rows in (query, reference))
    reference = normalized(reference, distance)
    return Seen(query, attraction, log_normalizer, weight, reference, known, own, empty)


def normalized(rows: Float[Tensor, "row dim"], distance: BaseDistance) -> Float[Tensor, "row dim"]:
    """Return the rows as long as the distance takes them; one that is so already, but for rounding, stays as it is."""
    found: Tensor = distance.maybe_normalize(rows)
    same = torch.isclose(found, rows, rtol=16 * torch.finfo(rows.dtype).eps, atol=0).all(dim=1, keepdim=True)
    return torch.where(same, rows, found)


class NormalizerNetwork(Counters, FullPrecision):
    """A network from a query to ℓ with the squares that AdaGrad has summed.

    Buffers: `weight_0`, `weight_1`, … and `squares_0`, …; `steps` counts the batches it learned from.
    """

    COUNTERS: ClassVar[tuple[str, ...]] = ("steps",)

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.number = len(weights)
        for place, weight in enumerate(weights):
            self.register_buffer(f"weight_{place}", weight)
            self.register_buffer(f"squares_{place}", torch.zeros_like(weight))
        self.steps = 0

    @property
    def ready(self) -> bool:
        """True if it can predict."""
        return True

    def restarts(self, every: int | None) -> bool:
        """True if the next batch starts it anew."""
        return False

    def take_in(self, seen: Seen, *, restart: bool) -> None:
        """Nothing; counts the batch, unless none of it counts, and starts anew from it where told."""
        self.steps += not seen.empty

    def weights(self) -> list[Tensor]:
        """What is learned, as it is used."""
        return [self.get_buffer(f"weight_{place}") for place in range(self.number)]

    def squares(self) -> list[Tensor]:
        """The sums of squared gradients, as the weights."""
        return [self.get_buffer(f"squares_{place}") for place in range(self.number)]

    @abstractmethod
    def log_mean(
        self,
        weights: list[Tensor],
        query: Float[Tensor, "query dim"],
        temperature: Tensor | float,
        distance: BaseDistance,
        known: Bool[Tensor, "query reference"] | None,
    ) -> Float[Tensor, " query"]:
        """ℓ of each query. known: of the batch that the network was just started from, what it is a mean over."""
        raise NotImplementedError

    @torch.no_grad()
    def fit(self, objective: Callable[[list[Tensor]], Tensor], *, steps: int, rate: float) -> None:
        """Nothing; takes AdaGrad's steps down an objective of the weights, by the formula of torch.optim.Adagrad."""
        weights, squares = self.weights(), self.squares()
        for _ in range(steps):
            leaves = [weight.detach().requires_grad_() for weight in weights]
            with torch.enable_grad():
                gradients = torch.autograd.grad(objective(leaves), leaves)
            for weight, square, gradient in zip(weights, squares, gradients, strict=True):
                square.addcmul_(gradient, gradient)
                weight.addcdiv_(gradient, square.sqrt().add_(1e-10), value=-rate)


class Prototypes(NormalizerNetwork):
    """ℓ = log of the mean of exp(cos(e, W_j)/τ) over prototypes W_j: a few that stand for all references (Eq. 10, 11).

    Started from the references of a batch in their order, and where they are fewer than num_prototypes, from the newest
    ones of earlier batches, as far as there are any: `count` says how many prototypes there are. `queue` keeps the
    newest references. The similarity is the loss's own; the cosine's takes no notice of the prototypes' lengths.
    """

    COUNTERS = ("steps", "count", "position", "filled")
    queue: Tensor

    def __init__(self, num_prototypes: int, embedding_dim: int) -> None:
        super().__init__([torch.zeros(num_prototypes, embedding_dim)])
        self.register_buffer("queue", torch.zeros(num_prototypes, embedding_dim))
        self.count = self.position = self.filled = 0

    @property
    def ready(self) -> bool:
        """True once it has seen a batch."""
        return self.count > 0

    def restarts(self, every: int | None) -> bool:
        """True at first, and then each so many batches."""
        return self.steps == 0 if every is None else self.steps % every == 0

    @torch.no_grad()
    def take_in(self, seen: Seen, *, restart: bool) -> None:
        """Nothing; counts the batch, starts anew from it where told, and puts its references into the queue."""
        if seen.empty:
            return
        size = len(self.queue)
        rows = seen.reference[:size].to(self.queue.dtype)
        places = torch.arange(size, device=rows.device)
        if restart:
            older = min(self.filled, size - len(rows))
            newest = self.queue[(places[:older] + self.position - older) % size]
            self.count = len(rows) + older
            for prototypes, squares in zip(super().weights(), super().squares(), strict=True):
                prototypes[: self.count] = torch.cat([rows, newest])
                squares.zero_()
        self.queue[(places[: len(rows)] + self.position) % size] = rows
        self.position = (self.position + len(rows)) % size
        self.filled = min(self.filled + len(rows), size)
        self.steps += 1

    def weights(self) -> list[Tensor]:
        """The prototypes there are."""
        return [weight[: self.count] for weight in super().weights()]

    def squares(self) -> list[Tensor]:
        """The sums of squared gradients of the prototypes there are."""
        return [square[: self.count] for square in super().squares()]

    def log_mean(
        self,
        weights: list[Tensor],
        query: Float[Tensor, "query dim"],
        temperature: Tensor | float,
        distance: BaseDistance,
        known: Bool[Tensor, "query reference"] | None,
    ) -> Float[Tensor, " query"]:
        """ℓ of each query. known: of the references that are the prototypes, those of which it is the mean."""
        similarity = distance(query, weights[0].to(query.dtype))
        scores = similarity / (temperature if distance.is_inverted else -temperature)
        if known is None:
            return torch.logsumexp(scores, dim=1) - math.log(len(weights[0]))
        known = known[:, : len(weights[0])]
        wanted = torch.ones_like(scores, dtype=torch.bool)
        wanted[:, : known.shape[1]] = known
        wanted |= ~wanted.any(dim=1, keepdim=True)  # a query without any pair: left out in the end, but a number
        masked = scores.masked_fill(~wanted, -torch.inf)
        return torch.logsumexp(masked, dim=1) - wanted.sum(dim=1).to(scores.dtype).log()


class MLP(NormalizerNetwork):
    """ℓ as the output of two hidden layers of the embedding's width: no notion of what it stands for.

    The paper's ablation has "MLPs with random weights" of no given size; the widths are those of AmorLIP's code (Sun et
    al., 2025), without its layer norms and residual. It starts once, from a seed, and never anew.
    """

    def __init__(self, embedding_dim: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        weights = []
        for width in (embedding_dim, embedding_dim, 1):  # torch's own start of a linear layer
            bound = 1 / math.sqrt(embedding_dim)
            weights += [(torch.rand(width, embedding_dim, generator=random) * 2 - 1) * bound, torch.zeros(width)]
        super().__init__(weights)

    def log_mean(
        self,
        weights: list[Tensor],
        query: Float[Tensor, "query dim"],
        temperature: Tensor | float,
        distance: BaseDistance,
        known: Bool[Tensor, "query reference"] | None,
    ) -> Float[Tensor, " query"]:
        """ℓ of each query, of its embedding alone."""
        values: Tensor = distance.maybe_normalize(query)
        first, first_bias, second, second_bias, last, last_bias = (each.to(query.dtype) for each in weights)
        values = linear(values, first, first_bias).relu()
        values = linear(values, second, second_bias).relu()
        return linear(values, last, last_bias).squeeze(1)
