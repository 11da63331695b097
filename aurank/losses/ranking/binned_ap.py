"""Average precision read off soft histograms of similarities: FastAP (CVPR 2019), and list-wise AP (ICCV 2019)."""

import math
from collections.abc import Sequence
from typing import Unpack

import torch
from jaxtyping import Float, Float64, Int64, Shaped
from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor
from torch.nn.functional import pad

from aurank.errors import UserError
from aurank.losses.core.checks import Bins, Number, require_pair, require_whole
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs, Positives

Limits = tuple[float, float]  # the least and the greatest similarity, where the outermost bins have their centres


def bin_position(
    similarity: Float[Tensor, "query item"], *, num_bins: int, limits: Limits
) -> tuple[Int64[Tensor, "query item"], Float[Tensor, "query item"]]:
    """Return the first of the two bins that each similarity counts in, and its share in the one after, in [0, 1]."""
    # in the precision of the similarities, so that the ends are met exactly
    least, greatest = (similarity.new_full((), limit) for limit in limits)
    position = ((greatest - similarity) / (greatest - least) * (num_bins - 1)).clamp(0, num_bins - 1)
    # clamped again: NaN becomes some whole number, and must index a bin nevertheless
    first = position.detach().long().clamp_(0, num_bins - 2)
    return first, position - first


def soft_histogram(
    similarity: Float[Tensor, "query item"], counted: Shaped[Tensor, "query item"], *, num_bins: int, limits: Limits
) -> Float[Tensor, "query bin"]:
    first, share = bin_position(similarity, num_bins=num_bins, limits=limits)
    column = first.masked_fill(counted == 0, num_bins)  # what does not count goes to a column of its own
    empty = share.new_zeros(len(share), num_bins + 1)
    in_first, in_next = (empty.scatter_add(1, column, each * counted) for each in (1 - share, share))
    return in_first[:, :-1] + pad(in_next[:, :-2], (1, 0))


def histogram_average_precision(
    positives: Float[Tensor, "query bin"], negatives: Float[Tensor, "query bin"], total: Shaped[Tensor, " query"]
) -> Float[Tensor, " query"]:
    """Return Σ_m h⁺_m H⁺_m / (H_m N⁺) of each query, N⁺ its `Positives.total`, in [0, 1]; 0 without a positive."""
    positives_so_far = positives.cumsum(dim=1)
    so_far = positives_so_far + negatives.cumsum(dim=1)
    # divided before it is multiplied: the product of two small counts would vanish
    precision = positives_so_far / so_far.clamp(min=torch.finfo(so_far.dtype).tiny)
    return (positives * precision).sum(dim=1) / total


def default_limits(distance: BaseDistance) -> Limits:
    unit = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    same, opposite = distance(unit, torch.cat([unit, -unit]))[0].tolist()
    limits = (opposite, same) if distance.is_inverted else (-opposite, -same)
    if not (math.isfinite(limits[0]) and math.isfinite(limits[1]) and limits[0] < limits[1]):
        raise UserError(
            f"no range follows from {type(distance).__name__}, by which opposite and equal unit vectors have the "
            f"similarities {limits}: give range=(least, greatest)"
        )
    return limits


class FastAPLoss(PairLoss):
    """1 − Σ_l h⁺_l H⁺_l / (H_l N⁺) of each query, in [0, 1]: FastAP over num_bins + 1 bins of its references (Eq. 5).

    The paper's bins divide the squared distance d² = 2 − 2s of unit vectors, 0 to 4, evenly; so they divide the
    similarity s. The query is left out of its own ranking, as in the authors' code. Time and memory are O(queries ·
    references). h⁺, H⁺ and N⁺ are sums of weights.

    Args:
        num_bins: parts that the range of similarities is divided into; bins have their centres where parts meet.
        range: the least and the greatest similarity; others count at the nearer end and get no gradient. A distance
            counts negative: (-4, 0) for PML's LpDistance(power=2), with which PML's FastAPLoss has the same value. None
            (default) takes that of unit vectors under the distance: (-1, 1) for cosine similarity.
        official: True multiplies the gradient by half the number of queries, as the authors' backward does. The value
            is the same. Not reproduced: that backward ignores the gradient it is given, so that weights of several
            losses and the scale of mixed precision have no effect.

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
        plus = soft_histogram(positives.similarity, positives.counted, num_bins=centres, limits=self.limits)
        minus = soft_histogram(pairs.similarity, pairs.negative, num_bins=centres, limits=self.limits)
        loss = 1 - histogram_average_precision(plus, minus, positives.total)
        if not self.official:
            return loss
        value = loss.detach()
        return value + len(pairs.valid_rows) / 2 * (loss - value)  # the difference is 0, its gradient is not


def tie_aware_average_precision(
    positives: Positives,
    plus: Float[Tensor, "query bin"],
    minus: Float[Tensor, "query bin"],
    limits: tuple[float, float],
) -> Float[Tensor, " query"]:
    """Return the mean of each query's average precision over all orders within a bin, 0 without a positive."""
    first, share = bin_position(positives.similarity, num_bins=plus.shape[1], limits=limits)
    # differences of counts and of digamma cancel; these tensors are small
    share, plus, every = share.double(), plus.double(), plus.double() + minus.double()
    precision = torch.zeros_like(share)
    for index, own_before, weight in ((first, 0.0, 1 - share), (first + 1, 1 - share, share)):
        ahead_and_tied: list[Tensor] = []  # how many positives are ahead, and tied, then of all; itself in none
        for histogram in (plus, every):
            before = histogram.cumsum(dim=1) - histogram
            ahead_and_tied += [
                (before.gather(1, index) - own_before).clamp(min=0),
                (histogram.gather(1, index) - weight).clamp(min=0),
            ]
        precision = precision + weight * expected_precision(*ahead_and_tied)
    return positives.mean(precision).to(positives.similarity.dtype)


def expected_precision(
    positives_ahead: Float64[Tensor, "query width"],
    positives_tied: Float64[Tensor, "query width"],
    ahead: Float64[Tensor, "query width"],
    tied: Float64[Tensor, "query width"],
) -> Float64[Tensor, "query width"]:
    """Return the mean precision at a positive over the orders of it and the c others that tie, a others being ahead."""
    mean_inverse = (torch.digamma(ahead + tied + 2) - torch.digamma(ahead + 1)) / (tied + 1)
    # Where next to nothing is tied the ratio is of no weight, and its gradient must not become rounding noise over 0.
    ratio = positives_tied / tied.clamp(min=1e-8)
    return (1 + positives_ahead) * mean_inverse + ratio * (1 - (1 + ahead) * mean_inverse)


class ListwiseAPLoss(PairLoss):
    """1 − Σ_m precision_m · Δrecall_m over the bins m of each query's references, in [0, 1]: AP_Q of Eq. 5-9.

    Time and memory are O(queries · references). A positive counts by its weight in precision and recall.

    Args:
        num_bins: bins that the range is quantised into, their centres evenly spaced, the outermost at its ends.
        range: the least and the greatest similarity; others count at the nearer end and get no gradient. (-1, 1) is
            that of cosine similarity; a distance counts negative, (-2, 0) for PML's LpDistance.
        tie_aware: False (default) gives each positive the precision at the end of its bin, as the paper: equal
            similarities count negatives first, and even very many bins stay below the exact average precision. True
            takes the mean over all orders within a bin, and tends to the exact one.

    Source: Revaud et al., Learning with Average Precision, ICCV 2019, https://arxiv.org/abs/1906.07589. The copy in the
        SOPRC repository ranks the query itself, as its own first positive.

    Example:
        >>> rows, labels = torch.eye(2).repeat_interleave(2, 0), torch.tensor([0, 0, 1, 1])
        >>> ListwiseAPLoss()(rows, labels).item()
        0.0
    """

    def __init__(
        self,
        num_bins: Bins = 20,
        range: Sequence[Number] = (-1, 1),
        tie_aware: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.num_bins = require_whole("num_bins", num_bins, least=2)
        self.limits = require_pair("range", range, rising=True)
        self.tie_aware = tie_aware
        self.takes_weights = not tie_aware

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives
        plus = soft_histogram(positives.similarity, positives.counted, num_bins=self.num_bins, limits=self.limits)
        minus = soft_histogram(pairs.similarity, pairs.negative, num_bins=self.num_bins, limits=self.limits)
        if self.tie_aware:
            return 1 - tie_aware_average_precision(positives, plus, minus, self.limits)
        return 1 - histogram_average_precision(plus, minus, positives.total)
