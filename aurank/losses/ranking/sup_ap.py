"""SupAP (Ramzi et al., NeurIPS 2021): an upper bound of the loss of average precision, and calibrated scores."""

from typing import Unpack

from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.ranking._bounded_ranks import BoundedRanks, Calibration, ascending, count_ahead


class SupAPLoss(PairLoss):
    """(1 − λ) · an upper bound of each query's 1 − average precision + λ · the calibration of its scores (ROADMAP).

    AP = mean over positives i of r⁺/(r⁺ + r⁻): r⁺ counts the positives that score at least s_i, exactly and without a
    gradient; r⁻ adds up H⁻(s_j − s_i) over negatives j. With t = s_j − s_i, H⁻ is σ(t/temperature) for t < 0, jump more
    from 0 on, and goes on with `slope` beyond `delta`: the further ahead a negative is, the more it counts, and the
    gradient does not fade. Time and memory are those of SmoothAP.

    Args:
        temperature: width of the sigmoid.
        slope: of the line beyond `delta`, per unit of similarity.
        delta: from where on the sigmoid is flat.
        jump: what a negative ahead counts more than its sigmoid. From ½ on, H⁻ is at least 1 there, which makes the
            bound. As temperature, delta and slope go to 0, temperature the fastest, the loss becomes 1 − average
            precision with jump=0 and calibration=0; with a jump, that of negatives counted 1 + jump times.
        offset: where the line beyond `delta` begins; None: where the curve is, σ(delta/temperature) + jump.
        calibration: λ, in [0, 1); reported as the term "calibration".
        positive_margin, negative_margin: the score above which a positive, and below which a negative, has no
            calibration loss.
        official: True does as the authors' code (SupRank, commit 99041e8; HAPPIER, commit 4d7c054). The query counts as
            a positive of its own. `offset` is 1.44 unless given, so H⁻ falls by 0.05 at `delta`: their class has that,
            whatever `jump` is. For iNaturalist their configurations have offset=1.0, jump=0.0; ROADMAP's first release
            has offset=6.44. A tied negative counts ½. The calibration is PML's contrastive loss over the batch: means
            over the pairs whose loss is not 0. The weights stay: SupRank has 0.9 and 0.1 as here, ROADMAP's
            configurations 1 and 1.

    Source: Ramzi et al., Robust and Decomposable Average Precision for Image Retrieval, NeurIPS 2021,
        https://arxiv.org/abs/2110.01445.

    Example:
        >>> import torch
        >>> rows, labels = torch.eye(4).repeat_interleave(2, 0), torch.arange(4).repeat_interleave(2)
        >>> SupAPLoss()(rows, labels).item()
        0.0
    """

    def __init__(
        self,
        temperature: Number = 0.01,
        *,
        slope: Number = 100.0,
        delta: Number = 0.05,
        jump: Number = 0.5,
        offset: Number | None = None,
        calibration: Number = 0.1,
        positive_margin: Number = 0.9,
        negative_margin: Number = 0.6,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        own = Calibration(calibration, positive_margin, negative_margin, official)
        self.extra_names = own.names
        super().__init__(**options)
        self.calibration = own
        self.ranks = BoundedRanks(temperature, slope, delta, jump, offset, official)
        self.official = official

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.official else pairs.positives
        among = count_ahead(positives.similarity, ascending(positives))
        rank = among + self.ranks.behind(positives.similarity, pairs.negative_similarity)
        # at least 1 but for padding
        return (1 - self.calibration.weight) * (1 - positives.mean(among / rank.clamp(min=1)))

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        return self.calibration.terms(pairs)
