"""Contrastive losses for small batches: DCL, FlatNCE and SiMo change what the positive does in the denominator."""

import math
from typing import Literal, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import (
    Number,
    SoftmaxTemperature,
    require_choice,
    require_flag,
    require_number,
)
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.temperature import attraction, log_mean_exp
from aurank.losses.in_batch.info_nce import log_sum_exp, logarithm, one_positive_each

Value = Literal["info_nce", "one"]


def hardness_weights(pairs: Pairs, sigma: float) -> Float[Tensor, "query width"]:
    """Return 2 − exp(s⁺/σ) / mean exp(s⁺/σ) of each query's positives; the mean over the batch's queries is 1."""
    valid = pairs.positives.mask & pairs.valid[:, None]
    scores = (pairs.positives.similarity / sigma).masked_fill(~valid, -torch.inf)
    shares = scores - logarithm(pairs.positives.count, scores)[:, None]
    log_mean = torch.logsumexp(shares.flatten(), dim=0) - math.log(max(len(pairs.valid_rows), 1))
    return 2 - (scores - log_mean).exp()


class DCLLoss(PairLoss):
    """−s⁺/τ + log Σ exp(s⁻/τ) of each query, the mean over its positives: InfoNCE without the positive below.

    SogCLR of a single batch is τ times it, but for the logarithm of the number of negatives.

    Args:
        temperature: τ.
        weight_sigma: σ of DCLW, 0.5 in the paper: −s⁺/τ is multiplied by 2 − exp(s⁺/σ) / mean exp(s⁺/σ), the mean over
            the queries of the batch. None leaves it out.
        weight_gradient: False takes that weight as a constant, as lightly does. True goes through it too, as the code
            in common use does (raminnakhli/Decoupled-Contrastive-Learning, which is not the authors').

    Source: Decoupled contrastive learning, Eq. 6 (Yeh et al., ECCV 2022), https://arxiv.org/abs/2110.06848.

    Example:
        >>> import torch
        >>> views, images = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)  # s⁺ = 1, and all six s⁻ = 0
        >>> round(DCLLoss(temperature=1.0)(views, images).item(), 4)  # −1 + log 6
        0.7918
    """

    def __init__(
        self,
        temperature: SoftmaxTemperature = 0.1,
        weight_sigma: Number | None = None,
        *,
        weight_gradient: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)
        self.weight_sigma = None if weight_sigma is None else require_number("weight_sigma", weight_sigma)
        self.weight_gradient = require_flag("weight_gradient", weight_gradient)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        similarity = pairs.positives.similarity
        if self.weight_sigma is not None:
            weights = hardness_weights(pairs, self.weight_sigma)
            similarity = (weights if self.weight_gradient else weights.detach()) * similarity
        return log_sum_exp(pairs, self.temperature) - pairs.positives.mean(similarity) / self.temperature


class FlatNCELoss(PairLoss):
    """F / F held constant, F = Σ exp((s⁻ − s⁺)/τ), of each query and positive: 1, with the gradient of log F.

    That gradient is the one of `DCLLoss`; only the value differs.

    Args:
        temperature: τ.
        value: "info_nce" reports InfoNCE instead of 1, as the authors' code does, so that there is something to watch;
            "one" is the formula as printed.

    Source: FlatNCE, in its method FlatCLR (Chen et al., 2021), https://arxiv.org/abs/2107.01152.

    Example:
        >>> import torch
        >>> views, images = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)  # s⁺ = 1, and all six s⁻ = 0
        >>> FlatNCELoss(value="one")(views, images)
        tensor(1.)
    """

    def __init__(
        self, temperature: SoftmaxTemperature = 0.1, *, value: Value = "info_nce", **options: Unpack[PairLossOptions]
    ) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)
        self.value = require_choice("value", value, get_args(Value))

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        log_negatives = log_sum_exp(pairs, self.temperature)
        log_ratio = log_negatives - attraction(pairs) / self.temperature
        flat = log_ratio - log_ratio.detach()  # 0, with the gradient of exp of it, and without an overflow
        if self.value == "one":
            return 1 + flat
        return one_positive_each(pairs, log_negatives, self.temperature).detach() + flat


class SiMoLoss(PairLoss):
    """−log(exp(s⁺/τ) / (exp(s⁺/τ) + α/K·Σ exp(s⁻/τ))) of each query and positive, K its number of negatives.

    InfoNCE with a margin τ·log(α/K), so that any number of negatives pushes as α of them would.

    Args:
        temperature: τ; 0.2 as in MoCo v2, of which SiMo is a simpler form.
        alpha: α, the number of negatives that the batch's stand for; 65,536, MoCo's queue, as in SogCLR's comparison.

    Source: EqCo, in its method SiMo (Zhu et al., 2020), https://arxiv.org/abs/2010.01929.

    Example:
        >>> import torch
        >>> views, images = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)  # s⁺ = 1, and all six s⁻ = 0
        >>> round(SiMoLoss(temperature=1.0, alpha=1)(views, images).item(), 4)  # −log(e / (e + 1))
        0.3133
    """

    def __init__(
        self, temperature: SoftmaxTemperature = 0.2, alpha: Number = 65536, **options: Unpack[PairLossOptions]
    ) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)
        self.alpha = require_number("alpha", alpha)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        log_negatives = log_mean_exp(pairs, self.temperature) + math.log(self.alpha)
        return one_positive_each(pairs, log_negatives, self.temperature)
