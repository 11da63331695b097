"""Semi-variance of scores (Wen et al., NeurIPS 2022, Eq. 9): positives below their mean, negatives above theirs."""

from collections.abc import Sequence
from typing import Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.core.checks import Number, as_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs


def semi_variance_per_query(pairs: Pairs, *, weights: tuple[float, float]) -> Float[Tensor, " query"]:
    """Return for each query λ1/n⁺ Σ_{s<μ⁺} (s − μ⁺)² + λ2/n⁻ Σ_{s>μ⁻} (s − μ⁻)², the means μ being its own.

    Each sum is divided by the number of all its positives or negatives; the gradient goes through the means too.

    Source: Eq. 9 of Wen et al., https://arxiv.org/abs/2209.13262.
    """
    positives = pairs.positives
    positive_mean = positives.mean(positives.similarity)
    below = (positive_mean[:, None] - positives.similarity).relu().square()
    negative_count = pairs.negative_count.clamp(min=1)
    negative_mean = pairs.similarity.masked_fill(~pairs.negative, 0).sum(dim=1) / negative_count
    above = (pairs.negative_similarity - negative_mean[:, None]).relu().square()
    return weights[0] * positives.mean(below) + weights[1] * above.sum(dim=1) / negative_count


def semi_variance_pooled(pairs: Pairs, *, weights: tuple[float, float]) -> Float[Tensor, ""]:
    """Return λ1·mean_{s<μ⁺} (s − μ⁺)² + λ2·mean_{s>μ⁻} (s − μ⁻)² over the pairs of all valid queries together.

    The authors' code: one mean μ for all queries, and each sum divided by the number of selected pairs only.
    """
    positive = pairs.positive & pairs.valid[:, None]
    negative = pairs.negative & pairs.valid[:, None]
    below = (_masked_mean(pairs.similarity, positive) - pairs.similarity).relu()
    above = (pairs.similarity - _masked_mean(pairs.similarity, negative)).relu()
    # "not <= 0" selects NaN too, so that it shows in the loss
    low, high = positive & ~(below <= 0), negative & ~(above <= 0)
    return weights[0] * _masked_mean(below.square(), low) + weights[1] * _masked_mean(above.square(), high)


def _masked_mean(values: Float[Tensor, "query reference"], mask: Bool[Tensor, "query reference"]) -> Float[Tensor, ""]:
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp(min=1)


class SemiVarianceLoss(PairLoss):
    """λ1 · semi-variance of each query's positive scores below their mean + λ2 · that of its negatives above theirs.

    Combine it with another loss by `MultipleLosses`: by itself it is least where all scores are equal.

    Args:
        weights: λ1 and λ2.
        official: True does as the authors' code: one mean for the scores of all queries, and each sum divided by the
            number of scores on its side of the mean. That is one value for the batch, given to every query.

    Source: Eq. 9 of Wen et al., NeurIPS 2022, https://arxiv.org/abs/2209.13262.

    Example:
        >>> rows, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> SemiVarianceLoss()(rows, labels).item()
        0.0
    """

    def __init__(
        self, weights: Sequence[Number] = (1.0, 5.0), official: bool = False, **options: Unpack[PairLossOptions]
    ) -> None:
        super().__init__(**options)
        self.weights = check_weights("weights", weights)
        self.official = official

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """Return the weighted semi-variances, of each query or of the batch."""
        if self.official:
            return semi_variance_pooled(pairs, weights=self.weights).expand(len(pairs.query))
        return semi_variance_per_query(pairs, weights=self.weights)


def check_weights(name: str, weights: Sequence[Number]) -> tuple[float, float]:
    """Return the two weights; UserError unless they are two finite numbers >= 0."""
    pair = tuple(map(as_number, weights)) if isinstance(weights, Sequence) else ()
    if len(pair) != 2 or not all(0 <= weight < torch.inf for weight in pair):
        raise UserError(f"{name} must be two numbers >= 0, as (1.0, 5.0), got {weights!r}")
    return pair[0], pair[1]
