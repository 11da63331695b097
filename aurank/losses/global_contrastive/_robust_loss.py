"""RobustLoss: what iSogCLR and FastCLIP have in common, a normaliser and a temperature that both move."""

import math
import warnings
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.errors import AurankWarning
from aurank.losses.core.checks import Number, require_positive
from aurank.losses.core.log_mean_exp import add_epsilon, attraction, column, descend, log_mean_exp
from aurank.losses.core.pairs import Pairs, count_equal
from aurank.losses.core.row_table import writes
from aurank.losses.core.temperature import Temperature
from aurank.losses.global_contrastive._gamma import Schedule
from aurank.losses.global_contrastive._individual_temperatures import IndividualTemperatures
from aurank.losses.global_contrastive._normalizer_loss import NormalizerLoss, NormalizerLossOptions


@torch.no_grad()
def temperature_gradient(
    pairs: Pairs,
    temperature: Float[Tensor, " query"],
    log_mean: Float[Tensor, " query"],
    log_normalizer: Float[Tensor, " query"],
    *,
    rho: float,
) -> Float[Tensor, " query"]:
    """dF/dτ of each query: log u + ρ − (ḡ/u)·E_w[h]/τ, with w ∝ exp(h/τ) over the batch's negatives. 001, Eq. 13.

    Without the paper's 1/n, which belongs to the rate. log_mean: log ḡ, of h = s − s⁺. log_normalizer: log u.
    """
    relative = pairs.similarity - attraction(pairs)[:, None]
    count = pairs.negative_count.clamp(min=1).to(relative.dtype)
    log_weight = relative / column(temperature) - (log_mean + count.log())[:, None]
    mean = (log_weight.masked_fill(~pairs.negative, -torch.inf).exp() * relative).sum(dim=1)
    return log_normalizer + rho - (log_mean - log_normalizer).exp() * mean / temperature


class RobustLoss(NormalizerLoss):
    """F = τ·(log(ε + u) + ρ) of each query, u the moving average of ḡ = mean exp((s⁻ − s⁺)/τ).

    A subclass's constructor sets `temperature`.

    rho: ρ; 0 where no temperature is learned.
    weighted_pull: False (default) pulls the positive with weight 1, as the objective's gradient does; True with
        ḡ/(ε + u), as the papers estimate that weight.
    multiplied: False leaves out the factor τ, and ρ with it.
    counted_twice: True doubles what the gradient of a global τ owes to ḡ.
    """

    temperature: Temperature | IndividualTemperatures

    def __init__(
        self,
        num_samples: int,
        gamma: Number,
        *,
        gamma_schedule: Schedule,
        two_way: bool,
        rho: Number,
        epsilon: Number = 0.0,
        weighted_pull: bool = False,
        multiplied: bool = True,
        counted_twice: bool = False,
        **options: Unpack[NormalizerLossOptions],
    ) -> None:
        super().__init__(num_samples, gamma, gamma_schedule=gamma_schedule, two_way=two_way, **options)
        self.rho = require_positive("rho", rho) if rho else 0.0
        self.epsilon = require_positive("epsilon", epsilon) if epsilon else 0.0
        self.weighted_pull = weighted_pull
        self.multiplied = multiplied
        self.counted_twice = counted_twice
        self.warned = False

    @property
    def temperatures(self) -> Float[Tensor, "*sample"]:
        """τ of each sample, Tensor[sample], Tensor[direction, sample] of a two-way loss; a scalar where τ is global."""
        if isinstance(self.temperature, IndividualTemperatures):
            return self.temperature.values if self.two_way else self.temperature.values[0]
        return torch.as_tensor(self.temperature()).detach()

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """τ·(log(ε + u) + ρ). The loss is of τ as it was before this batch's step."""
        self._warn_of_rho(pairs)
        source = self.temperature
        temperature: Tensor | float = source(pairs) if isinstance(source, IndividualTemperatures) else source()
        constant = temperature.detach() if isinstance(temperature, Tensor) else temperature
        inner = 2 * temperature - constant if self.counted_twice else temperature
        pull = attraction(pairs)
        log_mean = log_mean_exp(pairs, inner) - (pull if self.weighted_pull else pull.detach()) / inner
        log_normalizer = add_epsilon(self.log_normalizer(pairs, log_mean), self.epsilon)
        if isinstance(source, IndividualTemperatures) and writes(self):
            assert isinstance(temperature, Tensor)
            source.descend(pairs, temperature_gradient(pairs, temperature, log_mean, log_normalizer, rho=self.rho))
        pulled = 0 if self.weighted_pull else pull - pull.detach()
        if not self.multiplied:
            return descend(log_mean, log_normalizer, 1.0) - pulled / constant
        return descend(log_mean, log_normalizer, temperature) + temperature * self.rho - pulled

    def _warn_of_rho(self, pairs: Pairs) -> None:
        if self.warned or not self.rho or not self.training or len(pairs.valid_rows) == 0:
            return
        self.warned = True
        # counted on the host, by label: a miner may leave fewer, none leaves more
        same = count_equal(pairs.host_query_labels, pairs.host_reference_labels.sort().values)[1]
        most = len(pairs.host_reference_labels) - int(same.min())
        if self.rho >= math.log(most):
            warnings.warn(
                f"rho={self.rho:g} is not below log({most}) = {math.log(most):.3g}, the most that weights of the "
                f"batch's {most} negatives can diverge from uniform ones: every temperature will fall to its lower "
                "bound; take a smaller rho or larger batches",
                AurankWarning,
                stacklevel=2,
            )
