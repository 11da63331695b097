"""NeuCLIP (Wei, Lin, Yang, 2025): a global contrastive loss whose normaliser is predicted by a small network."""

from collections.abc import Sequence
from typing import Literal, Unpack, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.core.checks import Number, as_number, refuse_unused, require_choice, require_positive, require_whole
from aurank.losses.core.log_mean_exp import add_epsilon, attraction, log_mean_exp
from aurank.losses.core.loss_inputs import Inputs
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import writes
from aurank.losses.core.temperature import Temperature
from aurank.losses.global_contrastive._normalizer_network import MLP, NormalizerNetwork, Prototypes, Seen, see

Objective = Literal["unified", "separate"]
Network = Literal["prototypes", "mlp"]
Update = Literal["alternating", "simultaneous"]
STEEPEST = 10.0  # where the weight of a query stops growing: e^10 times what the right normaliser would give


def certainty_equivalent(
    log_normalizer: Float[Tensor, " query"], alpha: Float[Tensor, " query"]
) -> Float[Tensor, " query"]:
    """e^(−α)·(ε + g) + α − 1, which is log(ε + g) at its least, at α = log(ε + g) (Eq. 5).

    log_normalizer: log(ε + g). One exponential of the difference: neither factor has to be a number by itself. Where α
    is too small by more than STEEPEST the exponential goes on as its tangent, so that a network that is far off, at a
    low temperature by hundreds, gives numbers still.
    """
    excess = log_normalizer - alpha
    bounded = torch.where(excess < STEEPEST, excess, STEEPEST)
    return bounded.exp() * (1 + excess - bounded) + alpha - 1


class NeuCLIPLoss(PairLoss):
    """τ·[e^(−α)·(ε + g) + α − 1 + ρ] of each query (Eq. 12): at the right α, −s⁺ + τ·log of the normaliser, and τ·ρ.

    g is the mean of exp((s − s⁺)/τ) over the negatives in the batch, the positives left out, as in Eq. 1; s⁺ is the
    mean similarity to the positives. α, the logarithm of ε + g over the whole data set, is predicted by a network of
    prototypes W, one for each direction: α = log(ε + mean_j exp((cos(e, W_j) − s⁺)/τ)) (Eq. 10, 11). No state is kept
    per sample, so no ids are needed. A negative's weight is exp((s − s⁺)/τ − α) over their number.

    Each step in training mode (Alg. 1): every `restart_every` steps the prototypes become the embeddings of the other
    side of this batch, of unit length where the distance takes them so, in the order of its rows, and where those are
    fewer than num_prototypes, the newest of earlier batches too, as far as there are any. Then the prototypes go
    `inner_steps` steps of AdaGrad down the same objective on this batch. Then α is predicted. In evaluation mode, and
    while gradients are disabled, nothing moves. Before the first step α is log(ε + g) of the batch, which makes this
    the loss of the batch alone.

    num_prototypes: m, the most prototypes of a direction.
    temperature: τ, a parameter unless learn_temperature is False, within temperature_bounds. rho: the higher, the lower
        the learned τ; with a fixed one ρ, a constant then, is left out, and refused as bounds are.
    epsilon: ε. A query that is right by so much that g is far below it gets next to no gradient; with 0 it does.
    restart_every: T_r; None starts once. What AdaGrad has summed goes with the prototypes. inner_steps: T_u, may be 0.
    inner_lr: AdaGrad's rate. Its first step is the sign of the gradient times this, which at the paper's 1.0 is longer
        than a prototype: the estimates are worse for some steps after each start, then better than those of batches.
    detach_alpha: True (default) takes α as a constant in the gradient, which is right where α is. False lets the
        gradient through it, as that of Eq. 12 taken literally: the prototypes then act as further negatives.
    two_way: both directions between two modalities, as in the paper. False: within a batch, or against references.
    objective: "separate" fits the network to log(ε + g) of the batch by least squares, as AmorLIP does (§5.2).
    network: "mlp" predicts log mean exp(s/τ) from the embedding by an MLP in place of the prototypes (§5.2), from a
        random start that `seed` gives; it never starts anew. num_prototypes and restart_every are refused then.
    update: "simultaneous" predicts α before the network's steps, so that network and encoder step from one point. With
        inner_steps=1, restart_every=None and detach_alpha=False this is Alg. 3, AdaGrad in the place of its AdamW.

    Deviations: in the step of a start, a query's mean is over those of its batch that are its pairs, so that a query
    that is a reference itself is not its own prototype. Several processes learn from the batch of all, gathered or not,
    so that their networks stay equal.
    """

    def __init__(
        self,
        embedding_dim: int,
        num_prototypes: int = 4096,
        *,
        temperature: Number = 0.07,
        learn_temperature: bool = True,
        temperature_bounds: Sequence[Number | None] = (0.01, None),
        rho: Number = 6.5,
        epsilon: Number = 1e-8,
        restart_every: int | None = 500,
        inner_steps: int = 10,
        inner_lr: Number = 1.0,
        detach_alpha: bool = True,
        two_way: bool = True,
        objective: Objective = "unified",
        network: Network = "prototypes",
        update: Update = "alternating",
        seed: int = 0,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.embedding_dim = require_whole("embedding_dim", embedding_dim)
        num_prototypes = require_whole("num_prototypes", num_prototypes)
        self.temperature = Temperature(temperature, learnable=learn_temperature, bounds=temperature_bounds)
        if not learn_temperature:
            refuse_unused(NeuCLIPLoss, "learn_temperature=False", rho=rho, temperature_bounds=temperature_bounds)
        self.rho = require_positive("rho", rho) if learn_temperature else 0.0
        self.epsilon = as_number(epsilon)
        if not 0 <= self.epsilon < 1:
            raise UserError(f"epsilon must be >= 0 and < 1, got {epsilon!r}")
        self.restart_every = None if restart_every is None else require_whole("restart_every", restart_every)
        self.inner_steps = require_whole("inner_steps", inner_steps, least=0)
        self.inner_lr = require_positive("inner_lr", inner_lr)
        self.detach_alpha = detach_alpha
        self.two_way = two_way
        self.objective = require_choice("objective", objective, get_args(Objective))
        self.update = require_choice("update", update, get_args(Update))
        is_mlp = require_choice("network", network, get_args(Network)) == "mlp"
        if is_mlp:
            refuse_unused(NeuCLIPLoss, 'network="mlp"', num_prototypes=num_prototypes)
            if restart_every is not None:  # which is what it does
                refuse_unused(NeuCLIPLoss, 'network="mlp"', restart_every=restart_every)
        self.networks = nn.ModuleList(
            MLP(embedding_dim, seed + side) if is_mlp else Prototypes(num_prototypes, embedding_dim)
            for side in range(1 + two_way)
        )

    def prepared(self, inputs: Inputs) -> Inputs:
        """The inputs; UserError unless they are as wide as the prototypes."""
        if inputs.embeddings.shape[1] != self.embedding_dim:
            raise UserError(
                f"embeddings must be as wide as embedding_dim={self.embedding_dim}, got {inputs.embeddings.shape[1]}"
            )
        return inputs

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """τ·[e^(−α)·(ε + g) + α − 1 + ρ]."""
        network, seen = self.network(pairs), None
        temperature = self.temperature()
        log_normalizer = add_epsilon(log_mean_exp(pairs, temperature, relative=True), self.epsilon)
        if writes(self):
            restart = network.restarts(self.restart_every)
            seen = see(pairs, attraction(pairs), log_normalizer, self.distance, with_known=restart)
            network.take_in(seen, restart=restart)
            if self.update == "alternating":
                self.fit(network, seen, temperature)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.detach_alpha):
            known = None if seen is None or seen.known is None else seen.known[seen.own]
            alpha = self.alpha(pairs, known=known)
        if seen is not None and self.update == "simultaneous":
            self.fit(network, seen, temperature)
        value: Tensor = temperature * (certainty_equivalent(log_normalizer, alpha) + self.rho)
        return value

    def alpha(self, pairs: Pairs, *, known: Bool[Tensor, "query reference"] | None = None) -> Float[Tensor, " query"]:
        """α of each query as the network predicts it; before its first batch that of these pairs, log(ε + g).

        known: where the network was just started from references, which of them its mean is over.
        """
        network, temperature = self.network(pairs), self.temperature()
        if not network.ready:
            return add_epsilon(log_mean_exp(pairs, temperature, relative=True), self.epsilon)
        # a copy of the weights, which the next batch may change before this one's gradient is asked for
        weights = [weight.clone() for weight in network.weights()]
        log_mean = network.log_mean(weights, pairs.query, temperature, self.distance, known)
        return add_epsilon(log_mean - attraction(pairs) / temperature, self.epsilon)

    def network(self, pairs: Pairs) -> NormalizerNetwork:
        """The network of the pairs' direction."""
        network = self.networks[pairs.side]
        assert isinstance(network, NormalizerNetwork)
        return network

    def fit(self, network: NormalizerNetwork, seen: Seen, temperature: Tensor | float) -> None:
        """Nothing; fits the network to a batch, unless none of it counts."""
        if seen.empty:
            return
        temperature = temperature.detach() if isinstance(temperature, Tensor) else temperature
        pull, size = seen.attraction / temperature, seen.weight.sum().clamp(min=1)

        def objective(weights: list[Tensor]) -> Tensor:
            log_mean = network.log_mean(weights, seen.query, temperature, self.distance, seen.known)
            alpha = add_epsilon(log_mean - pull, self.epsilon)
            if self.objective == "separate":
                return (seen.weight * (alpha - seen.log_normalizer).square()).sum() / (2 * size)
            return temperature * (seen.weight * certainty_equivalent(seen.log_normalizer, alpha)).sum() / size

        network.fit(objective, steps=self.inner_steps, rate=self.inner_lr)
