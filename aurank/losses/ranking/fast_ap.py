"""FastAP (Cakir et al., CVPR 2019): average precision of a soft histogram of distances."""

from collections.abc import Sequence
from typing import Unpack

from jaxtyping import Float
from torch import Tensor

from aurank.losses.core.checks import Bins, Number, require_pair, require_whole
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.ranking._soft_histogram import average_precision, default_limits, soft_histogram


class FastAPLoss(PairLoss):
    """1 − Σ_l h⁺_l H⁺_l / (H_l N⁺) of each query, in [0, 1]: FastAP over num_bins + 1 bins of its references (Eq. 5).

    The paper's bins divide the squared distance d² = 2 − 2s of unit vectors, 0 to 4, evenly; so they divide the
    similarity s. The query is left out of its own ranking, as in the authors' code. Time and memory are O(queries ·
    references).

    Args:
        num_bins: parts that the range of similarities is divided into; bins have their centres where parts meet, so
            there are num_bins + 1.
        range: the least and the greatest similarity; others count at the nearer end and get no gradient. A distance
            counts negative: (-4, 0) for PML's LpDistance(power=2), the default of PML's FastAPLoss, which this equals
            in value. None (default) takes that of unit vectors under the distance: (-1, 1) for cosine similarity.
        official: True multiplies the gradient by half the number of queries, to half the sum over queries: what the
            authors' backward computes, instead of the gradient of the mean that its forward returns. The value is the
            same. Not reproduced: that backward ignores the gradient it is given, so that weights of several losses do
            nothing, and the scale of mixed precision is taken out of a gradient it never went into.

    Source: Cakir et al., Deep Metric Learning to Rank, CVPR 2019,
        https://openaccess.thecvf.com/content_CVPR_2019/html/Cakir_Deep_Metric_Learning_to_Rank_CVPR_2019_paper.html.

    Example:
        >>> import torch
        >>> rows, labels = torch.eye(2).repeat_interleave(2, 0), torch.tensor([0, 0, 1, 1])
        >>> FastAPLoss()(rows, labels).item()
        0.0
    """

    def __init__(
        self,
        num_bins: Bins = 10,
        range: Sequence[Number] | None = None,
        *,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.num_bins = require_whole("num_bins", num_bins)
        self.limits = default_limits(self.distance) if range is None else require_pair("range", range, rising=True)
        self.official = official

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives, centres = pairs.positives, self.num_bins + 1
        plus = soft_histogram(positives.similarity, positives.mask, num_bins=centres, limits=self.limits)
        minus = soft_histogram(pairs.similarity, pairs.negative, num_bins=centres, limits=self.limits)
        loss = 1 - average_precision(plus, minus, positives.count)
        if not self.official:
            return loss
        value = loss.detach()
        return value + len(pairs.valid_rows) / 2 * (loss - value)  # the difference is 0, its gradient is not
