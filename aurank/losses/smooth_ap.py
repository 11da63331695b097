"""SmoothAP (Brown et al., ECCV 2020): average precision with ranks counted by sigmoids."""

import torch
from jaxtyping import Float
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.reducers import BaseReducer
from pytorch_metric_learning.regularizers import BaseRegularizer
from torch import Tensor

from aurank.losses.base import PairLoss
from aurank.losses.checks import Number, require_positive
from aurank.losses.pairs import Pairs


def smooth_average_precision(
    pairs: Pairs, *, temperature: float, include_self: bool = False
) -> Float[Tensor, " query"]:
    """The smoothed average precision of each query, in [0, 1]; 0 for a query without a positive.

    Eq. 5-6 of the paper: AP = mean over positives i of (1 + positives ahead of i) / (1 + references ahead of i), where
    j is ahead of i by sigmoid((s_j - s_i) / temperature). Time and memory are O(queries · positives · references).
    """
    positives = pairs.positives_and_self if include_self else pairs.positives
    scaled = positives.similarity / temperature
    # a query's positives among themselves are few; without j = i, whose sigmoid(0) is no rank
    others = positives.mask[:, None, :] & ~torch.eye(scaled.shape[1], dtype=torch.bool, device=scaled.device)
    positives_ahead = (scaled[:, None, :] - scaled[:, :, None]).sigmoid().masked_fill(~others, 0).sum(dim=2)
    # The one large tensor. No mask, since a reference at minus infinity is ahead of nobody;
    # a sum, since the backward of a difference negates a copy of it.
    negatives = pairs.negative_similarity / temperature
    negatives_ahead = (negatives[:, None, :] + (-scaled)[:, :, None]).sigmoid_().sum(dim=2)
    rank_among_positives = 1 + positives_ahead
    return positives.mean(rank_among_positives / (rank_among_positives + negatives_ahead))


class SmoothAPLoss(PairLoss):
    """1 − smoothed average precision of each query, in [0, 1].

    temperature: how far apart two similarities count as ordered; towards 0 the loss becomes 1 − average precision.
    include_self: False (default) leaves the query out of its own ranking, as retrieval is evaluated. True ranks it, its
        own first positive, as the authors' code does for the published numbers: with 4 images per class that free hit
        is about a quarter of the average precision.
    """

    def __init__(
        self,
        temperature: Number = 0.01,
        include_self: bool = False,
        *,
        distance: BaseDistance | None = None,
        reducer: BaseReducer | None = None,
        embedding_regularizer: BaseRegularizer | None = None,
        embedding_reg_weight: Number = 1.0,
    ) -> None:
        super().__init__(
            distance=distance,
            reducer=reducer,
            embedding_regularizer=embedding_regularizer,
            embedding_reg_weight=embedding_reg_weight,
        )
        self.temperature = require_positive("temperature", temperature)
        self.include_self = include_self

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """1 − smoothed average precision."""
        return 1 - smooth_average_precision(pairs, temperature=self.temperature, include_self=self.include_self)
