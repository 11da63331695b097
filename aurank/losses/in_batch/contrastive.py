"""Contrastive losses of one batch: InfoNCE and SupCon, and what others change: DCL, FlatNCE, SiMo, SimCo, spectral."""

import math
from typing import Annotated, Unpack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from aurank.losses.core.checks import Number, SoftmaxTemperature, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.temperature import AnyTemperature, attraction, log_mean_exp
from aurank.ranges import Range


def log_sum_exp(pairs: Pairs, temperature: float) -> Float[Tensor, " query"]:
    return log_mean_exp(pairs, temperature) + pairs.negative_count.clamp(min=1).to(pairs.similarity.dtype).log()


def one_positive_each(
    pairs: Pairs, log_negatives: Float[Tensor, " query"], temperature: float
) -> Float[Tensor, " query"]:
    """Return the mean over each query's positives of −log(exp(s⁺/τ) / (exp(s⁺/τ) + exp log_negatives))."""
    odds = log_negatives[:, None] - pairs.positives.similarity / temperature
    return pairs.positives.mean(-logsigmoid(-odds))  # softplus, exact at any odds


def cross_entropy(pairs: Pairs, temperature: AnyTemperature) -> Float[Tensor, " query"]:
    count = (pairs.positive | pairs.negative).sum(dim=1).clamp(min=1).to(pairs.similarity.dtype)
    return log_mean_exp(pairs, temperature, with_positives=True) + count.log() - attraction(pairs) / temperature


class InfoNCELoss(PairLoss):
    """−log(exp(s⁺/τ) / (exp(s⁺/τ) + Σ exp(s⁻/τ))) of each query and positive, the weighted mean over its positives.

    With cosine similarity it is NT-Xent. A query with several positives has one such term for each, in which the others
    are left out. PML's NTXentLoss is the mean over all pairs of queries and positives, and stops at 87, without
    gradient, where exp underflows.

    Args:
        temperature: τ; 0.1 as in SimCLR.
        two_way: the sum of both directions between two modalities; with one positive each, twice `CLIPLoss` at a fixed
            τ.

    Source:
        van den Oord et al., 2018, https://arxiv.org/abs/1807.03748; SimCLR, Eq. 1 (Chen et al., ICML 2020),
        https://arxiv.org/abs/2002.05709.

    Example:
        >>> import torch
        >>> views, images = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)  # s⁺ = 1, and all six s⁻ = 0
        >>> round(InfoNCELoss(temperature=1.0)(views, images).item(), 4)  # −log(e / (e + 6))
        1.1654
    """

    def __init__(
        self, temperature: SoftmaxTemperature = 0.1, *, two_way: bool = False, **options: Unpack[PairLossOptions]
    ) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)
        self.two_way = two_way

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        return one_positive_each(pairs, log_sum_exp(pairs, self.temperature), self.temperature)


class SupConLoss(PairLoss):
    """−log(exp(s⁺/τ) / Σ exp(s/τ)) of each query, the weighted mean over its positives, all in the denominator.

    With a single positive it is InfoNCE. The authors' code multiplies by τ / 0.07 besides.

    Args:
        temperature: τ; 0.1 as in the paper.

    Source: Supervised contrastive learning, Eq. 2, L_out (Khosla et al., NeurIPS 2020),
        https://arxiv.org/abs/2004.11362.

    Example:
        >>> import torch
        >>> views, images = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)  # s⁺ = 1, and all six s⁻ = 0
        >>> round(SupConLoss(temperature=1.0)(views, images // 2).item(), 4)  # of three positives, two have s⁺ = 0
        1.8321
    """

    def __init__(self, temperature: SoftmaxTemperature = 0.1, **options: Unpack[PairLossOptions]) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        return cross_entropy(pairs, self.temperature)


def hardness_weights(pairs: Pairs, sigma: float) -> Float[Tensor, "query width"]:
    """Return 2 − exp(s⁺/σ) / mean exp(s⁺/σ) of each query's positives; the mean over the batch's queries is 1."""
    valid = pairs.positives.mask & pairs.valid[:, None]
    scores = (pairs.positives.similarity / sigma).masked_fill(~valid, -torch.inf)
    shares = scores + pairs.positives.counted.log() - pairs.positives.total.to(scores.dtype).log()[:, None]
    log_mean = torch.logsumexp(shares.flatten(), dim=0) - math.log(max(len(pairs.valid_rows), 1))
    return 2 - (scores - log_mean).exp()


class DCLLoss(PairLoss):
    """−s⁺/τ + log Σ exp(s⁻/τ) of each query, the weighted mean over its positives: InfoNCE without the positive below.

    SogCLR of a single batch is τ times it, but for the logarithm of the number of negatives.

    Args:
        temperature: τ.
        weight_sigma: σ of DCLW, 0.5 in the paper: −s⁺/τ is multiplied by 2 − exp(s⁺/σ) / mean exp(s⁺/σ), the mean over
            the queries of the batch. None leaves it out.

    Source: Decoupled contrastive learning, Eq. 6 (Yeh et al., ECCV 2022), https://arxiv.org/abs/2110.06848. Programs in
        common use differ: the gradient goes through the weights of DCLW too; here they are constants, as in lightly.

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
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)
        self.weight_sigma = None if weight_sigma is None else require_number("weight_sigma", weight_sigma)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        similarity = pairs.positives.similarity
        if self.weight_sigma is not None:
            similarity = hardness_weights(pairs, self.weight_sigma).detach() * similarity
        return log_sum_exp(pairs, self.temperature) - pairs.positives.mean(similarity) / self.temperature


class FlatNCELoss(PairLoss):
    """F / F held constant, F = Σ exp((s⁻ − s⁺)/τ), of each query and positive: it has the gradient of `DCLLoss`.

    The value is InfoNCE, as in the authors' code, so that there is something to watch; F / F is 1. Means are weighted.

    Args:
        temperature: τ.

    Source: FlatNCE, in its method FlatCLR (Chen et al., 2021), https://arxiv.org/abs/2107.01152.

    Example:
        >>> import torch
        >>> views, images = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)  # s⁺ = 1, and all six s⁻ = 0
        >>> round(FlatNCELoss(temperature=1.0)(views, images).item(), 4)
        1.1654
    """

    def __init__(self, temperature: SoftmaxTemperature = 0.1, **options: Unpack[PairLossOptions]) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        log_negatives = log_sum_exp(pairs, self.temperature)
        log_ratio = log_negatives - attraction(pairs) / self.temperature
        flat = log_ratio - log_ratio.detach()  # 0, with the gradient of exp of it, and without an overflow
        return one_positive_each(pairs, log_negatives, self.temperature).detach() + flat


class SiMoLoss(PairLoss):
    """−log(exp(s⁺/τ) / (exp(s⁺/τ) + α/K·Σ exp(s⁻/τ))) of each query and positive, K its number of negatives.

    InfoNCE with a margin τ·log(α/K), so that any number of negatives pushes as α of them would. The mean is weighted.

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


FAR = -40.0  # odds below which softplus and sigmoid are the same number, also in float64


class SimCoLoss(PairLoss):
    """(1 − p′)/(1 − p) · InfoNCE of each query and positive, the first factor constant; a weighted mean.

    p is the share of the positive in InfoNCE's softmax at `temperature`, p′ that at `inter_temperature`.
    InfoNCE's gradient is 1 − p, how hard the query is at the temperature, times a distribution over its negatives. The
    factor puts the hardness at a higher temperature in the place of that, so that easy queries keep a weight in small
    batches. The authors' code contrasts a view with the other views alone; here negatives are in both, as in the losses
    beside.

    Args:
        temperature: τ of the distribution over the negatives of a query, as in the authors' code.
        inter_temperature: τ of the weights between queries, as in the authors' code.

    Source: Zhang et al., CVPR 2022, https://arxiv.org/abs/2203.17248.

    Example:
        >>> import torch
        >>> views, images = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)  # s⁺ = 1, and all six s⁻ = 0
        >>> round(SimCoLoss(temperature=1.0, inter_temperature=1.0)(views, images).item(), 4)  # InfoNCE
        1.1654
    """

    def __init__(
        self, temperature: SoftmaxTemperature = 0.1, inter_temperature: Number = 1.0, **options: Unpack[PairLossOptions]
    ) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)
        self.inter_temperature = require_number("inter_temperature", inter_temperature)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        # With odds x, 1 − p is sigmoid(x), InfoNCE softplus(x), and its gradient sigmoid(x)·∇x, so that of the product
        # is sigmoid(x′)·∇x. The quotient tends to 1 where both vanish.
        within, between = (
            log_sum_exp(pairs, tau)[:, None] - pairs.positives.similarity / tau
            for tau in (self.temperature, self.inter_temperature)
        )
        odds = within.detach().clamp(min=FAR)
        quotient = -logsigmoid(-odds) / odds.sigmoid()
        return pairs.positives.mean(between.detach().sigmoid() * (quotient + within - within.detach()))


class SpectralContrastiveLoss(PairLoss):
    """−2·weighted mean s⁺ + μ·mean (s⁻)² of each query.

    The paper's s is the inner product of embeddings of any length: `distance=DotProductSimilarity(
    normalize_embeddings=False)` of PML. Its code shortens those longer than √μ to that length, and divides by μ; with
    cosine similarity (default), all are of that length. There the negatives of a view are in the other one alone, here
    in both.

    Args:
        mu: μ, the squared length of embeddings; in the authors' runs 1 on CIFAR-10 and 10 on ImageNet.

    Source: HaoChen et al., NeurIPS 2021, https://arxiv.org/abs/2106.04156.

    Example:
        >>> import torch
        >>> views, images = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)  # s⁺ = 1, and all six s⁻ = 0
        >>> SpectralContrastiveLoss()(views, images)
        tensor(-2.)
    """

    def __init__(
        self, mu: Annotated[Number, Range(0.2, 20.0, log=True)] = 1.0, **options: Unpack[PairLossOptions]
    ) -> None:
        super().__init__(**options)
        self.mu = require_number("mu", mu)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        squares = pairs.similarity.masked_fill(~pairs.negative, 0).square().sum(dim=1)
        return self.mu * squares / pairs.negative_count.clamp(min=1) - 2 * attraction(pairs)
