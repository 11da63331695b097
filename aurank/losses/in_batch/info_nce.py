"""InfoNCE, also called NT-Xent, and SupCon: cross-entropies of picking a positive among the negatives of a batch."""

from typing import Unpack

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from aurank.losses.core.checks import SoftmaxTemperature, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.temperature import AnyTemperature, attraction, log_mean_exp


def log_sum_exp(pairs: Pairs, temperature: float) -> Float[Tensor, " query"]:
    return log_mean_exp(pairs, temperature) + logarithm(pairs.negative_count, pairs.similarity)


def logarithm(count: Tensor, like: Tensor) -> Tensor:
    return count.clamp(min=1).to(like.dtype).log()


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
    """−log(exp(s⁺/τ) / (exp(s⁺/τ) + Σ exp(s⁻/τ))) of each query and positive, the mean over its positives.

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
    """−log(exp(s⁺/τ) / Σ exp(s/τ)) of each query, the mean over its positives, all of which are in the denominator.

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
