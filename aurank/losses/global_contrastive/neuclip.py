"""NeuCLIP: a global contrastive loss whose normaliser is predicted by prototypes, fitted to the batches by AdaGrad."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Unpack

import torch
from jaxtyping import Bool, Float
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor, distributed, nn

from aurank.losses.core.checks import Number, SoftmaxTemperature, check_width, require_number, require_whole
from aurank.losses.core.distributed import world_size
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Inputs, Pairs
from aurank.losses.core.row_table import Counters, FullPrecision, gather_entries, writes
from aurank.losses.core.temperature import Temperature, add_epsilon, attraction, log_mean_exp
from aurank.ranges import Range


@dataclass(frozen=True, eq=False)
class Seen:
    """What the prototypes learn from: the batch of all processes, without a graph, the same in each of them."""

    query: Float[Tensor, "query dim"]
    attraction: Float[Tensor, " query"]  # mean similarity to the positives
    log_normalizer: Float[Tensor, " query"]  # log(ε + g) of the batch
    weight: Float[Tensor, " query"]  # 1 where the query counts
    reference: Float[Tensor, "reference dim"]  # of unit length where the distance normalises
    is_pair: Bool[Tensor, "query reference"] | None  # True where a reference is a pair of the query, and not itself
    shard: slice  # the queries that are this process's
    empty: bool  # no query counts


@torch.no_grad()
def see(pairs: Pairs, log_normalizer: Float[Tensor, " query"], distance: BaseDistance, *, with_pairs: bool) -> Seen:
    """Gather the batch of all processes, which must all call with equal `with_pairs`."""
    query, reference = pairs.query.detach(), pairs.reference.detach()
    is_pair = pairs.positive | pairs.negative if with_pairs else None
    numbers = torch.stack([attraction(pairs), log_normalizer, pairs.valid.to(query.dtype)], dim=1)
    shard, empty = slice(0, len(query)), len(pairs.valid_rows) == 0
    if not pairs.is_shared and world_size() > 1:
        positions = torch.arange(max(len(query), len(reference)), device=query.device)
        starts, everyone = gather_entries(positions[: len(reference)], reference)
        if is_pair is not None:  # a reference of another process is a pair of any query
            first = int((starts == 0).nonzero()[distributed.get_rank()])
            wide = is_pair.new_ones(len(query), len(everyone))
            wide[:, first : first + len(reference)] = is_pair
            is_pair = wide
        parts = [query, numbers] if is_pair is None else [query, numbers, is_pair.to(query.dtype)]
        starts, rows = gather_entries(positions[: len(query)], torch.cat(parts, dim=1))
        start, dim, reference = int((starts == 0).nonzero()[distributed.get_rank()]), query.shape[1], everyone
        shard = slice(start, start + len(query))
        query, numbers = rows[:, :dim], rows[:, dim : dim + 3]
        is_pair = None if is_pair is None else rows[:, dim + 3 :] > 0
        empty = not bool(numbers[:, 2].any())
    # A row that is not a number makes the loss none, but would stay in the prototypes for long.
    finite = query.isfinite().all(dim=1) & numbers.isfinite().all(dim=1)
    pull, log_normalizer, weight = numbers.masked_fill(~finite[:, None], 0).unbind(dim=1)
    query, reference = (rows.masked_fill(~rows.isfinite().all(dim=1)[:, None], 0) for rows in (query, reference))
    unit = distance.maybe_normalize(reference)
    # a row of unit length, but for rounding, stays as it is
    same = torch.isclose(unit, reference, rtol=16 * torch.finfo(unit.dtype).eps, atol=0).all(dim=1, keepdim=True)
    unit = torch.where(same, reference, unit)
    return Seen(query, pull, log_normalizer, weight, unit, is_pair, shard, empty)


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
        positions = torch.arange(size, device=rows.device)
        if restart:
            older = min(self.filled, size - len(rows))
            newest = self.queue[(positions[:older] + self.position - older) % size]
            self.count = len(rows) + older
            self.weight_0[: self.count] = torch.cat([rows, newest])
            self.squares_0.zero_()
        self.queue[(positions[: len(rows)] + self.position) % size] = rows
        self.position = (self.position + len(rows)) % size
        self.filled = min(self.filled + len(rows), size)
        self.steps += 1

    def log_mean(
        self,
        prototypes: Float[Tensor, "prototype dim"],
        query: Float[Tensor, "query dim"],
        temperature: Tensor | float,
        distance: BaseDistance,
        is_pair: Bool[Tensor, "query reference"] | None,
    ) -> Float[Tensor, " query"]:
        similarity = distance(query, prototypes.to(query.dtype))
        scores = similarity / (temperature if distance.is_inverted else -temperature)
        if is_pair is None:
            return torch.logsumexp(scores, dim=1) - math.log(len(prototypes))
        is_pair = is_pair[:, : len(prototypes)]
        mask = torch.ones_like(scores, dtype=torch.bool)
        mask[:, : is_pair.shape[1]] = is_pair
        mask |= ~mask.any(dim=1, keepdim=True)  # a query without any pair is left out in the end, but stays finite
        return torch.logsumexp(scores.masked_fill(~mask, -torch.inf), dim=1) - mask.sum(dim=1).to(scores.dtype).log()

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


LARGEST_EXCESS = 10.0  # beyond it a query's weight stops growing: e^10 times what the right normaliser would give


def certainty_equivalent(
    log_normalizer: Float[Tensor, " query"], alpha: Float[Tensor, " query"]
) -> Float[Tensor, " query"]:
    """Return e^(−α)·(ε + g) + α − 1, whose least value is log(ε + g), at α = log(ε + g) (Eq. 5)."""
    excess = log_normalizer - alpha
    bounded = torch.where(excess < LARGEST_EXCESS, excess, LARGEST_EXCESS)
    return bounded.exp() * (1 + excess - bounded) + alpha - 1


class NeuCLIPLoss(PairLoss):
    """τ·[e^(−α)·(ε + g) + α − 1 + ρ] of each query (Eq. 12): at the right α, −s⁺ + τ·log of the normaliser, and τ·ρ.

    g is the mean of exp((s − s⁺)/τ) over the negatives in the batch; s⁺ is the weighted mean over the positives. α, the
    logarithm of ε + g over the whole data set, is predicted from prototypes W, one set for each direction:
    α = log(ε + mean_j exp((cos(e, W_j) − s⁺)/τ)) (Eq. 10, 11). No state is kept per sample, so no ids are needed.

    Each step in training mode (Alg. 1): every `restart_every` steps the references of this batch, then the newest of
    earlier batches, become the prototypes, at most num_prototypes. The prototypes take `inner_steps` steps of AdaGrad
    down the same objective on this batch. Then α is predicted. In evaluation mode, and while gradients are disabled,
    nothing moves. Before the first step α is log(ε + g) of the batch, which makes this the loss of the batch alone.

    Deviations: in the step of a restart, a query's mean is over those of its batch that are its pairs, so that a query
    that is a reference itself is not its own prototype. Several processes learn from the batch of all, gathered or not,
    so that their prototypes stay equal.

    Args:
        embedding_size: width of the embeddings.
        num_prototypes: m, the most prototypes of a direction.
        temperature: τ, a parameter unless learn_temperature is False, within temperature_bounds.
        rho: the higher, the lower the learned τ; with a fixed one ρ, a constant then, is left out.
        epsilon: ε. A query that is right by so much that g is far below it gets next to no gradient; with 0 it does.
        restart_every: T_r; None starts once. AdaGrad's sums start anew too.
        inner_steps: T_u, may be 0.
        inner_lr: AdaGrad's rate. Its first step is the sign of the gradient times this, which at the paper's 1.0 is
            longer than a prototype: estimates are worse for some steps after a restart, then better than the batches'.
        detach_alpha: True takes α as a constant in the gradient, which is right where α is. False lets the gradient
            through it, as that of Eq. 12 taken literally: the prototypes then act as further negatives.
        two_way: both directions between two modalities, as in the paper. False: within a batch, or against references.

    Source: Wei, Lin, Yang, ICLR 2026, https://arxiv.org/abs/2511.08417.

    Example:
        >>> images, texts, rows = torch.eye(4), torch.eye(4).flip(1), torch.arange(4)
        >>> loss = NeuCLIPLoss(embedding_size=4, num_prototypes=8, inner_lr=0.01)
        >>> loss(images, rows, ref_emb=texts, ref_labels=rows).backward()
        >>> [network.prototypes.shape for network in loss.networks]  # the references of the one batch so far
        [torch.Size([4, 4]), torch.Size([4, 4])]
    """

    unused: ClassVar = {("learn_temperature", False): ("rho", "temperature_bounds")}

    def __init__(
        self,
        embedding_size: int,
        num_prototypes: int = 4096,
        *,
        temperature: SoftmaxTemperature = 0.07,
        learn_temperature: bool = True,
        temperature_bounds: Sequence[Number | None] = (0.01, None),
        rho: Number = 6.5,
        epsilon: Number = 1e-8,
        restart_every: int | None = 500,
        inner_steps: int = 10,
        inner_lr: Annotated[Number, Range(1e-3, 1.0, log=True)] = 1.0,
        detach_alpha: bool = True,
        two_way: bool = True,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.embedding_size = require_whole("embedding_size", embedding_size)
        num_prototypes = require_whole("num_prototypes", num_prototypes)
        self.temperature = Temperature(temperature, learnable=learn_temperature, bounds=temperature_bounds)
        self.rho = require_number("rho", rho) if learn_temperature else 0.0
        self.epsilon = require_number("epsilon", epsilon, "[0, 1)")
        self.restart_every = None if restart_every is None else require_whole("restart_every", restart_every)
        self.inner_steps = require_whole("inner_steps", inner_steps, least=0)
        self.inner_lr = require_number("inner_lr", inner_lr)
        self.detach_alpha = detach_alpha
        self.two_way = two_way
        self.networks = nn.ModuleList(Prototypes(num_prototypes, embedding_size) for _ in range(1 + two_way))

    def prepared(self, inputs: Inputs) -> Inputs:
        check_width(inputs.embeddings, "embedding_size", self.embedding_size)
        return inputs

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        temperature, is_pair = self.temperature(), None
        log_normalizer = self._of_batch(pairs, temperature)
        if writes(self):
            network, every = self._network(pairs), self.restart_every
            restart = network.steps == 0 if every is None else network.steps % every == 0
            seen = see(pairs, log_normalizer, self.distance, with_pairs=restart)
            network.take_in(seen, restart=restart)
            self._fit(network, seen, temperature)
            is_pair = None if seen.is_pair is None else seen.is_pair[seen.shard]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.detach_alpha):
            alpha = self.alpha(pairs, is_pair=is_pair)
        value: Tensor = temperature * (certainty_equivalent(log_normalizer, alpha) + self.rho)
        return value

    def alpha(self, pairs: Pairs, *, is_pair: Bool[Tensor, "query reference"] | None = None) -> Float[Tensor, " query"]:
        """Return α of each query as the prototypes predict it; before their first batch, log(ε + g) of these pairs."""
        network, temperature = self._network(pairs), self.temperature()
        if network.count == 0:
            return self._of_batch(pairs, temperature)
        # a copy, as the next batch may change the prototypes before this one's gradient is asked for
        log_mean = network.log_mean(network.prototypes.clone(), pairs.query, temperature, self.distance, is_pair)
        return add_epsilon(log_mean - attraction(pairs) / temperature, self.epsilon)

    def _of_batch(self, pairs: Pairs, temperature: Tensor | float) -> Float[Tensor, " query"]:
        return add_epsilon(log_mean_exp(pairs, temperature, relative=True), self.epsilon)

    def _network(self, pairs: Pairs) -> Prototypes:
        network = self.networks[pairs.side]
        assert isinstance(network, Prototypes)
        return network

    def _fit(self, network: Prototypes, seen: Seen, temperature: Tensor | float) -> None:
        if seen.empty:
            return
        temperature = temperature.detach() if isinstance(temperature, Tensor) else temperature
        pull, size = seen.attraction / temperature, seen.weight.sum().clamp(min=1)

        def objective(prototypes: Tensor) -> Tensor:
            log_mean = network.log_mean(prototypes, seen.query, temperature, self.distance, seen.is_pair)
            alpha = add_epsilon(log_mean - pull, self.epsilon)
            return temperature * (seen.weight * certainty_equivalent(seen.log_normalizer, alpha)).sum() / size

        network.fit(objective, steps=self.inner_steps, rate=self.inner_lr)
