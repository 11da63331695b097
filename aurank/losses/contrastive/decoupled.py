"""Contrastive losses for small batches: DCL, FlatNCE and SiMo change what the positive does in the denominator."""

import math
from typing import Literal, Unpack, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.losses.contrastive.info_nce import log_sum_exp, logarithm, one_positive_each
from aurank.losses.core.checks import Number, require_choice, require_positive
from aurank.losses.core.log_mean_exp import attraction, log_mean_exp
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs

Value = Literal["info_nce", "one"]


@torch.no_grad()
def hardness_weights(pairs: Pairs, sigma: float) -> Float[Tensor, "query width"]:
    """2 − exp(s⁺/σ) / mean exp(s⁺/σ) of each query's positives; the mean over the batch's queries is 1."""
    valid = pairs.positives.mask & pairs.valid[:, None]
    scores = (pairs.positives.similarity / sigma).masked_fill(~valid, -torch.inf)
    shares = scores - logarithm(pairs.positives.count, scores)[:, None]
    log_mean = torch.logsumexp(shares.flatten(), dim=0) - math.log(max(len(pairs.valid_rows), 1))
    return 2 - (scores - log_mean).exp()


class DCLLoss(PairLoss):
    """−s⁺/τ + log Σ exp(s⁻/τ) of each query, the mean over its positives: InfoNCE without the positive below.

    Eq. 6 of decoupled contrastive learning (Yeh et al., ECCV 2022). SogCLR of a single batch is τ times it, but for
    the logarithm of the number of negatives.

    temperature: τ.
    weight_sigma: σ of DCLW, 0.5 in the paper: −s⁺/τ is multiplied by 2 − exp(s⁺/σ) / mean exp(s⁺/σ), the mean over the
        queries of the batch, a constant to the gradient. None (default) leaves it out.
    """

    def __init__(
        self,
        temperature: Number = 0.1,
        weight_sigma: Number | None = None,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.temperature = require_positive("temperature", temperature)
        self.weight_sigma = None if weight_sigma is None else require_positive("weight_sigma", weight_sigma)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """The decoupled cross-entropies."""
        similarity = pairs.positives.similarity
        if self.weight_sigma is not None:
            similarity = hardness_weights(pairs, self.weight_sigma) * similarity
        return log_sum_exp(pairs, self.temperature) - pairs.positives.mean(similarity) / self.temperature


class FlatNCELoss(PairLoss):
    """F / F held constant, F = Σ exp((s⁻ − s⁺)/τ), of each query and positive: 1, with the gradient of log F.

    FlatNCE (Chen et al., 2021; its method is FlatCLR). That gradient is the one of `DCLLoss`; only the value
    differs.

    temperature: τ.
    value: "info_nce" (default) reports InfoNCE instead of 1, as the authors' code does, so that there is something to
        watch; "one" is the formula as printed.
    """

    def __init__(
        self, temperature: Number = 0.1, *, value: Value = "info_nce", **options: Unpack[PairLossOptions]
    ) -> None:
        super().__init__(**options)
        self.temperature = require_positive("temperature", temperature)
        self.value = require_choice("value", value, get_args(Value))

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """The flat ratio, or the cross-entropy with its gradient."""
        log_negatives = log_sum_exp(pairs, self.temperature)
        log_ratio = log_negatives - attraction(pairs) / self.temperature
        flat = log_ratio - log_ratio.detach()  # 0, with the gradient of exp of it, and without an overflow
        if self.value == "one":
            return 1 + flat
        return one_positive_each(pairs, log_negatives, self.temperature).detach() + flat


class SiMoLoss(PairLoss):
    """−log(exp(s⁺/τ) / (exp(s⁺/τ) + α/K·Σ exp(s⁻/τ))) of each query and positive, K its number of negatives.

    EqCo (Zhu et al., 2020), used in its method SiMo: InfoNCE with a margin τ·log(α/K), so that any number of negatives
    pushes as α of them would.

    temperature: τ; 0.2 as in MoCo v2, of which SiMo is a simpler form.
    alpha: α, the number of negatives that the batch's stand for; 65,536, MoCo's queue, as in SogCLR's comparison.
    """

    def __init__(self, temperature: Number = 0.2, alpha: Number = 65536, **options: Unpack[PairLossOptions]) -> None:
        super().__init__(**options)
        self.temperature = require_positive("temperature", temperature)
        self.alpha = require_positive("alpha", alpha)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """The cross-entropies with the margin."""
        log_negatives = log_mean_exp(pairs, self.temperature) + math.log(self.alpha)
        return one_positive_each(pairs, log_negatives, self.temperature)
