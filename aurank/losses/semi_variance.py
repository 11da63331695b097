"""Semi-variance of scores (Wen et al., NeurIPS 2022, Eq. 9): positives below their mean, negatives above theirs."""

from jaxtyping import Bool, Float
from torch import Tensor

from aurank.losses.pairs import Pairs


def semi_variance_per_query(pairs: Pairs, *, weights: tuple[float, float]) -> Float[Tensor, " query"]:
    """For each query λ1/n⁺ Σ_{s<μ⁺} (s − μ⁺)² + λ2/n⁻ Σ_{s>μ⁻} (s − μ⁻)², the means μ being its own. Eq. 9.

    Each sum is divided by the number of all its positives or negatives; the gradient goes through the means too.
    """
    positives = pairs.positives
    positive_mean = positives.mean(positives.similarity)
    below = (positive_mean[:, None] - positives.similarity).relu().square()
    negative_count = pairs.negative_count.clamp(min=1)
    negative_mean = pairs.similarity.masked_fill(~pairs.negative, 0).sum(dim=1) / negative_count
    above = (pairs.negative_similarity - negative_mean[:, None]).relu().square()
    return weights[0] * positives.mean(below) + weights[1] * above.sum(dim=1) / negative_count


def semi_variance_pooled(pairs: Pairs, *, weights: tuple[float, float]) -> Float[Tensor, ""]:
    """λ1·mean_{s<μ⁺} (s − μ⁺)² + λ2·mean_{s>μ⁻} (s − μ⁻)² over the pairs of all valid queries together.

    The authors' code: one mean μ for all queries, and each sum divided by the number of selected pairs only.
    """
    positive = pairs.positive & pairs.valid[:, None]
    negative = pairs.negative & pairs.valid[:, None]
    below = (masked_mean(pairs.similarity, positive) - pairs.similarity).relu()
    above = (pairs.similarity - masked_mean(pairs.similarity, negative)).relu()
    return weights[0] * masked_mean(below.square(), positive & (below > 0)) + weights[1] * masked_mean(
        above.square(), negative & (above > 0)
    )


def masked_mean(values: Float[Tensor, "query reference"], mask: Bool[Tensor, "query reference"]) -> Float[Tensor, ""]:
    """The mean of the values where the mask is True; 0 if it nowhere is."""
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp(min=1)
