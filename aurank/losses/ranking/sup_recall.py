"""SupRecall (Ramzi et al., 2023): smoothed recall@k of ranks that are bounded from above."""

from collections.abc import Sequence
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Number, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.ranking._bounded_ranks import BoundedRanks, Calibration, ascending, count_ahead
from aurank.losses.ranking.recall_at_k import check_cuts


class SupRecallLoss(PairLoss):
    """(1 − λ) · (1 − the mean over k of each query's smoothed recall@k) + λ · the calibration of its scores.

    recall@k = 1/|P| Σ_{i∈P} σ((k − rank_i) / rank_temperature), as `RecallAtKLoss` has it, with SupAP's rank: the
    positives that score at least s_i, counted exactly and without a gradient, and H⁻(s_j − s_i) of each negative j. As
    H⁻ is at least a step, no rank is taken for better than it is.

    Args:
        k: the cuts; a recall@k with k below the number of positives cannot reach 1, and the loss then not 0.
        temperature, slope, delta, jump, offset: of H⁻, as in `SupAPLoss`.
        rank_temperature: how far a rank must be from k to count as inside or outside.
        calibration, positive_margin, negative_margin: as in `SupAPLoss`.
        official: True does as the authors' code (SupRank): recall@k is divided by the lesser of k and |P|; the query is
            a positive of its own, at rank 1; H⁻ and the calibration are as `SupAPLoss` says.

    Source: Ramzi et al., Optimization of Rank Losses for Image Retrieval, 2023, https://arxiv.org/abs/2309.08250.

    Example:
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> round(SupRecallLoss(k=(1, 2), rank_temperature=0.1, calibration=0)(rows, labels).item(), 4)
        0.25
    """

    def __init__(
        self,
        k: Sequence[int] = (1, 2, 4, 8, 16),
        temperature: Number = 0.01,
        *,
        slope: Number = 100.0,
        delta: Number = 0.05,
        jump: Number = 0.5,
        offset: Number | None = None,
        rank_temperature: Number = 1.0,
        calibration: Number = 0.1,
        positive_margin: Number = 0.9,
        negative_margin: Number = 0.6,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        own = Calibration(calibration, positive_margin, negative_margin, official)
        self.extra_names = own.names
        super().__init__(**options)
        self.k = check_cuts(k)
        self.calibration = own
        self.ranks = BoundedRanks(temperature, slope, delta, jump, offset, official)
        self.rank_temperature = require_number("rank_temperature", rank_temperature)
        self.official = official

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.official else pairs.positives
        rank = count_ahead(positives.similarity, ascending(positives))
        rank = rank + self.ranks.behind(positives.similarity, pairs.negative_similarity)
        count, recall = positives.count.clamp(min=1), torch.zeros_like(rank[:, 0])
        for cut in self.k:
            hits = ((cut - rank) / self.rank_temperature).sigmoid().masked_fill(~positives.mask, 0).sum(dim=1)
            recall = recall + hits / (count.clamp(max=cut) if self.official else count)
        return (1 - self.calibration.weight) * (1 - recall / len(self.k))

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        return self.calibration.terms(pairs)
