"""iSogCLR: SogCLR with a temperature for each sample, found by distributional robustness."""

import math
from collections.abc import Sequence
from typing import Annotated, Unpack

from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Number, Share, require_number
from aurank.losses.core.common import CosineSimilarity
from aurank.losses.core.pair_loss import KeyedLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.temperature import Temperature, require_bounds
from aurank.losses.global_contrastive._normalizer import (
    Average,
    IndividualTemperatures,
    RobustLoss,
    Schedule,
    Update,
    surrogate_loss,
)
from aurank.ranges import Range


class ISogCLRLoss(RobustLoss):
    """τ_i·(log u_i + ρ) of each query: the contrastive loss over all negatives, with a temperature for each sample.

    It is the dual of RGCL (Eq. 6-7), the greatest mean of h = s⁻ − s⁺ under weights of the negatives whose divergence
    KL from uniform is at most ρ: where τ_i comes to rest within its bounds, the divergence is ρ. u_i is the moving
    average of ḡ = mean exp(h/τ_i), taken as in `SogCLRLoss`; the paper's is average="plain". In training mode the
    loss of τ_i is computed first, then τ_i moves down G = log u + ρ − (ḡ/u)·E_w[h]/τ and is projected onto its bounds
    (Alg. 1-2); views of a sample share τ_i, and their gradients are averaged. In evaluation mode nothing is written,
    and the value is the one that training mode would give. s⁺ is the mean similarity to the positives.

    Deviations: Eq. 13-14 are printed with u before this batch; here it is the new one, as in the authors' code. Their
    code for two modalities (commit 98aca98) is not reproduced: it counts the positive in ḡ but divides by the number of
    negatives; u starts from 0 and not from the first ḡ; it pulls as weighted_pull=True does; and it clips G to [−5, 5].

    State: `temperatures` and `log_u`; `temperature` and `tables` in `state_dict`.

    Args:
        num_samples: rows of the data set, which `ids` (or labels, in their absence) name.
        rho: ρ > 0, below the logarithm of the number of negatives. The paper has 0.1 to 4 on images, about 6 on image
            and text at batches of 512.
        temperature: the first τ of every sample.
        temperature_bounds: least and greatest τ; None is the bound of Lemma 1, the least + 2/ρ (none for a distance
            other than cosine similarity).
        temperature_lr: step of τ (0.01 unless given), the paper's rate without its 1/n.
        temperature_update: "momentum" (unless given) as Alg. 1, or "adam".
        temperature_beta: share β1 of the new gradient in its average, 1 less what momentum usually means (0.9 unless
            given, 0.1 for "adam").
        temperature_clip: greatest |G|; None leaves it.
        individual: False has one τ for all samples, a parameter of the loss that the training's optimiser moves.
        gamma: γ, the share of the new ḡ in u, β0 of Eq. 12.
        gamma_schedule, average: as in `SogCLRLoss`.
        official: True does as LibAUC's GCLoss_v1 with enable_isogclr (2.0.1; 812f98f): ḡ is the mean of exp(s⁻/τ_i), so
            that u holds no s⁺ of earlier batches; the rest is as in `SogCLRLoss`. Its defaults are temperature=0.1,
            temperature_bounds=(0.05, 0.7). With temperature_clip=3 it is the iSogCLR repository's loss (unimodal_exps,
            commit 4f28823), which has γ = 1 in the first epoch in place of the copies.
        weighted_pull: False pulls the positive with weight 1, as the objective's gradient does. True with ḡ/u, as
            Eq. 14 estimates that weight: at small τ no gradient is left in a batch that is easier than earlier ones.
        two_way: both directions between two modalities (App. B), each with u and τ of its own.

    Source: Qiu et al., ICML 2023, https://arxiv.org/abs/2305.11965.

    Example:
        >>> import torch
        >>> loss = ISogCLRLoss(num_samples=4, rho=0.3, temperature=0.7)
        >>> loss(torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2))  # 0.7·(−1/0.7 + 0.3)
        tensor(-0.7900)
        >>> loss.temperatures.shape
        torch.Size([4])
    """

    def __init__(
        self,
        num_samples: int,
        rho: Annotated[Number, Range(0.05, 2.0, log=True)] = 0.3,
        *,
        temperature: Annotated[Number, Range(0.05, 1.0, log=True)] = 0.7,
        temperature_bounds: Sequence[Number | None] = (0.05, None),
        temperature_lr: Number | None = None,
        temperature_update: Update | None = None,
        temperature_beta: Number | None = None,
        temperature_clip: Number | None = None,
        individual: bool = True,
        gamma: Share = 0.9,
        gamma_schedule: Schedule = "constant",
        average: Average = "relative",
        official: bool = False,
        weighted_pull: bool = False,
        two_way: bool = False,
        **options: Unpack[KeyedLossOptions],
    ) -> None:
        super().__init__(num_samples, gamma, gamma_schedule, average, two_way=two_way, official=official, **options)
        self.of_similarity = official
        self.rho = require_number("rho", rho)
        self.weighted_pull = weighted_pull
        low, high = require_bounds("temperature_bounds", temperature_bounds)
        if temperature_bounds[1] is None and isinstance(self.distance, CosineSimilarity):
            high = low + 2 / self.rho
        if individual:
            self.temperature = IndividualTemperatures(
                self.tables,
                temperature,
                bounds=(low, high),
                rate=0.01 if temperature_lr is None else temperature_lr,
                update="momentum" if temperature_update is None else temperature_update,
                beta=temperature_beta,
                clip=temperature_clip,
            )
            return
        self.temperature = Temperature(temperature, learnable=True, bounds=(low, None if high == math.inf else high))

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        temperature = self.temperature_of(pairs)
        log_mean, rest_of_pull = self.relative_log_mean(pairs, temperature)
        log_u = self.log_normalizer(pairs, log_mean)
        self.step_temperatures(pairs, temperature, log_mean, log_u)
        return surrogate_loss(log_mean, log_u, temperature) + temperature * self.rho - rest_of_pull
