"""List-wise average precision (Revaud et al., ICCV 2019; "DIR"): precision and recall of soft bins of similarity."""

from collections.abc import Sequence
from typing import Unpack

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from aurank.losses.core.checks import Bins, Number, require_pair, require_whole
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs, Positives
from aurank.losses.ranking._soft_histogram import average_precision, bin_position, soft_histogram


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
    for index, own_before, own in ((first, 0.0, 1 - share), (first + 1, 1 - share, share)):
        others: list[Tensor] = []  # positives ahead of each positive, and tied with it, then all; itself in none
        for histogram in (plus, every):
            before = histogram.cumsum(dim=1) - histogram
            others += [
                (before.gather(1, index) - own_before).clamp(min=0),
                (histogram.gather(1, index) - own).clamp(min=0),
            ]
        precision = precision + own * expected_precision(*others)
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

    Time and memory are O(queries · references).

    Args:
        num_bins: bins that the range is quantised into, their centres evenly spaced, the outermost at its ends.
        range: the least and the greatest similarity; others count at the nearer end and get no gradient. (-1, 1) is
            that of cosine similarity; a distance counts negative, (-2, 0) for PML's LpDistance.
        tie_aware: False (default) gives each positive the precision at the end of its bin, as the paper: of equal
            similarities at a centre the negatives come first. A positive between two centres then counts at the first
            with a part of itself only, so that even very many bins stay below the exact average precision. True takes
            the mean over all orders within a bin, each positive counting whole, and tends to the exact one. The
            authors' code has a tie-aware variant too, whose logarithms stand in for sums: it gives 0.69 to a perfect
            ranking of one positive.
        official: True ranks the query itself, as its own first positive, as the copy in the SOPRC repository does for
            that paper's numbers; the authors' own code ranks what its label matrix says. A query without another
            positive is left out all the same; there it counts, with a loss of about 0.

    Source: Revaud et al., Learning with Average Precision, ICCV 2019, https://arxiv.org/abs/1906.07589.

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
        *,
        official: bool = False,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.num_bins = require_whole("num_bins", num_bins, least=2)
        self.limits = require_pair("range", range, rising=True)
        self.tie_aware = tie_aware
        self.official = official

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        positives = pairs.positives_and_self if self.official else pairs.positives
        plus = soft_histogram(positives.similarity, positives.mask, num_bins=self.num_bins, limits=self.limits)
        minus = soft_histogram(pairs.similarity, pairs.negative, num_bins=self.num_bins, limits=self.limits)
        if self.tie_aware:
            return 1 - tie_aware_average_precision(positives, plus, minus, self.limits)
        return 1 - average_precision(plus, minus, positives.count)
