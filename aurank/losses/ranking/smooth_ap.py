"""SmoothAP (Brown et al., ECCV 2020): average precision with ranks counted by sigmoids."""

from functools import partial
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.core.checks import StepTemperature, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.ranking.ranking_sums import ranking_sums


class SmoothAPLoss(PairLoss):
    """1 − smoothed average precision of each query, in [0, 1] (Eq. 5-6).

    AP = mean over positives i of (1 + positives ahead of i) / (1 + references ahead of i), where j is ahead of i by
    sigmoid((s_j - s_i) / temperature). Time is O(queries · positives · references), memory that of the similarity and
    a block.

    Args:
        temperature: how far apart two similarities count as ordered; towards 0 the loss becomes 1 − average precision.
        include_self: False (default) leaves the query out of its own ranking, as retrieval is evaluated. True ranks it,
            its own first positive, as the authors' code does for the published numbers: with 4 images per class that
            free hit is about a quarter of the average precision.
        official: True does as the authors' code, which is include_self=True.

    Source: Brown et al., Smooth-AP, ECCV 2020, https://arxiv.org/abs/2007.12163.

    Example:
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> round(SmoothAPLoss()(rows, labels).item(), 4)
        0.0
    """

    def __init__(
        self,
        temperature: StepTemperature = 0.01,
        include_self: bool | None = None,
        *,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)
        if official and include_self is False:
            raise UserError("include_self=False contradicts official=True, which ranks the query itself")
        self.include_self = official if include_self is None else include_self

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.include_self else pairs.positives
        ahead = partial(ranking_sums, surrogate="sigmoid", temperature=self.temperature)
        among = positives.similarity.masked_fill(~positives.mask, -torch.inf)
        rank_among = 0.5 + ahead(positives.similarity, among)  # a positive is ahead of itself by sigmoid(0) = ½
        rank = rank_among + ahead(positives.similarity, pairs.negative_similarity)
        return 1 - positives.mean(rank_among / rank)
