"""SimCo: InfoNCE with one temperature within a query and another between queries."""

from typing import Unpack

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from aurank.losses.core.checks import Number, SoftmaxTemperature, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.in_batch.info_nce import log_sum_exp

FAR = -40.0  # odds below which softplus and sigmoid are the same number, also in float64


class SimCoLoss(PairLoss):
    """(1 − p′)/(1 − p) · InfoNCE of each query and positive, the first factor held constant; the mean over positives.

    p is the share of the positive in InfoNCE's softmax at `temperature`, p′ that at `inter_temperature`.
    InfoNCE's gradient is 1 − p, how hard the query is at the temperature, times a distribution over its negatives. The
    factor puts the hardness at a higher temperature in the place of that, so that easy queries keep a weight in small
    batches. The authors' code contrasts a view with the other views alone; here negatives are in both, as in the losses
    beside.

    Args:
        temperature: τ of the distribution over the negatives of a query, as in the authors' code.
        inter_temperature: τ of the weights between queries, as in the authors' code.

    Source: Zhang et al., CVPR 2022, https://arxiv.org/abs/2203.17248.

    Example:
        >>> import torch
        >>> views, images = torch.eye(4).repeat(2, 1), torch.arange(4).repeat(2)  # s⁺ = 1, and all six s⁻ = 0
        >>> round(SimCoLoss(temperature=1.0, inter_temperature=1.0)(views, images).item(), 4)  # InfoNCE
        1.1654
    """

    def __init__(
        self, temperature: SoftmaxTemperature = 0.1, inter_temperature: Number = 1.0, **options: Unpack[PairLossOptions]
    ) -> None:
        super().__init__(**options)
        self.temperature = require_number("temperature", temperature)
        self.inter_temperature = require_number("inter_temperature", inter_temperature)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        # With odds x, 1 − p is sigmoid(x), InfoNCE softplus(x), and its gradient sigmoid(x)·∇x, so that of the product
        # is sigmoid(x′)·∇x. The quotient tends to 1 where both vanish.
        within, between = (
            log_sum_exp(pairs, tau)[:, None] - pairs.positives.similarity / tau
            for tau in (self.temperature, self.inter_temperature)
        )
        odds = within.detach().clamp(min=FAR)
        quotient = -logsigmoid(-odds) / odds.sigmoid()
        return pairs.positives.mean(between.detach().sigmoid() * (quotient + within - within.detach()))
