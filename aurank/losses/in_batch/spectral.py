"""The spectral contrastive loss: the low-rank factors of the graph of augmentations."""

from typing import Annotated, Unpack

from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Number, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.temperature import attraction
from aurank.ranges import Range


class SpectralContrastiveLoss(PairLoss):
    """−2·mean s⁺ + μ·mean (s⁻)² of each query.

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
