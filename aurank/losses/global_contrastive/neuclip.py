"""NeuCLIP: a global contrastive loss whose normaliser is predicted by a small network."""

from collections.abc import Sequence
from typing import Annotated, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from aurank.losses.core.checks import (
    Number,
    SoftmaxTemperature,
    check_width,
    require_number,
    require_whole,
)
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Inputs, Pairs
from aurank.losses.core.row_table import writes
from aurank.losses.core.temperature import Temperature, add_epsilon, attraction, log_mean_exp
from aurank.losses.global_contrastive._prototypes import Prototypes, Seen, see
from aurank.ranges import Range

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

    g is the mean of exp((s − s⁺)/τ) over the negatives in the batch; s⁺ is the mean similarity to the positives. α, the
    logarithm of ε + g over the whole data set, is predicted from prototypes W, one set for each direction:
    α = log(ε + mean_j exp((cos(e, W_j) − s⁺)/τ)) (Eq. 10, 11). No state is kept per sample, so no ids are needed.

    Each step in training mode (Alg. 1): every `restart_every` steps the prototypes become the references of this
    batch, normalised where the distance does so, in their order, and where those are fewer than num_prototypes, the
    newest of earlier batches too, as far as there are any. Then the prototypes take `inner_steps` steps of AdaGrad down
    the same objective on this batch. Then α is predicted. In evaluation mode, and while gradients are disabled, nothing
    moves. Before the first step α is log(ε + g) of the batch, which makes this the loss of the batch alone.

    Deviations: in the step of a start, a query's mean is over those of its batch that are its pairs, so that a query
    that is a reference itself is not its own prototype. Several processes learn from the batch of all, gathered or not,
    so that their prototypes stay equal.

    Args:
        embedding_size: width of the embeddings.
        num_prototypes: m, the most prototypes of a direction.
        temperature: τ, a parameter unless learn_temperature is False, within temperature_bounds.
        rho: the higher, the lower the learned τ; with a fixed one ρ, a constant then, is left out.
        epsilon: ε. A query that is right by so much that g is far below it gets next to no gradient; with 0 it does.
        restart_every: T_r; None starts once. What AdaGrad has summed goes with the prototypes.
        inner_steps: T_u, may be 0.
        inner_lr: AdaGrad's rate. Its first step is the sign of the gradient times this, which at the paper's 1.0 is
            longer than a prototype: the estimates are worse for some steps after each start, then better than those of
            batches.
        detach_alpha: True takes α as a constant in the gradient, which is right where α is. False lets the gradient
            through it, as that of Eq. 12 taken literally: the prototypes then act as further negatives.
        two_way: both directions between two modalities, as in the paper. False: within a batch, or against references.

    Source: Wei, Lin, Yang, ICLR 2026, https://arxiv.org/abs/2511.08417.

    Example:
        >>> import torch
        >>> images, texts, rows = torch.eye(4), torch.eye(4).flip(1), torch.arange(4)
        >>> loss = NeuCLIPLoss(embedding_size=4, num_prototypes=8, inner_lr=0.01)
        >>> loss(images, rows, ref_emb=texts, ref_labels=rows).backward()
        >>> [network.prototypes.shape for network in loss.networks]  # the references of the one batch so far
        [torch.Size([4, 4]), torch.Size([4, 4])]
    """

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
        temperature, known = self.temperature(), None
        log_normalizer = self._of_batch(pairs, temperature)
        if writes(self):
            network, every = self._network(pairs), self.restart_every
            restart = network.steps == 0 if every is None else network.steps % every == 0
            seen = see(pairs, log_normalizer, self.distance, with_known=restart)
            network.take_in(seen, restart=restart)
            self._fit(network, seen, temperature)
            known = None if seen.known is None else seen.known[seen.own]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.detach_alpha):
            alpha = self.alpha(pairs, known=known)
        value: Tensor = temperature * (certainty_equivalent(log_normalizer, alpha) + self.rho)
        return value

    def alpha(self, pairs: Pairs, *, known: Bool[Tensor, "query reference"] | None = None) -> Float[Tensor, " query"]:
        """Return α of each query as the prototypes predict it; before their first batch, log(ε + g) of these pairs."""
        network, temperature = self._network(pairs), self.temperature()
        if network.count == 0:
            return self._of_batch(pairs, temperature)
        # a copy, as the next batch may change the prototypes before this one's gradient is asked for
        log_mean = network.log_mean(network.prototypes.clone(), pairs.query, temperature, self.distance, known)
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
            log_mean = network.log_mean(prototypes, seen.query, temperature, self.distance, seen.known)
            alpha = add_epsilon(log_mean - pull, self.epsilon)
            return temperature * (seen.weight * certainty_equivalent(seen.log_normalizer, alpha)).sum() / size

        network.fit(objective, steps=self.inner_steps, rate=self.inner_lr)
