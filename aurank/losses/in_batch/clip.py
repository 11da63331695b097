"""CLIP and SigLIP: images and texts, from one batch at a time."""

from collections.abc import Sequence
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aurank.losses.core.checks import Number, SoftmaxTemperature, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import FullPrecision
from aurank.losses.core.temperature import Temperature
from aurank.losses.in_batch.info_nce import cross_entropy


class CLIPLoss(PairLoss):
    """The cross-entropy of finding each row's partner among the rows of the other side, the mean of both directions.

    In its standard form, not in similarity units. Rows of one label are partners, so captions that say the same are no
    negatives of each other: several are targets of equal weight, as in UniCL.

    Args:
        temperature: τ, the first one where it is learned.
        learn_temperature: True makes log τ a parameter of the loss: give it to an optimiser.
        temperature_bounds: least and greatest τ; 1/τ is at most 100, as in the paper.
        two_way: True takes another modality as `ref_emb`. False takes one direction, over any references or the batch
            itself: with rows as their own labels InfoNCE, with classes SupCon's L_out.

    Source: Radford et al., ICML 2021, https://arxiv.org/abs/2103.00020.

    Example:
        >>> import torch
        >>> loss = CLIPLoss(temperature=1.0)
        >>> images, texts, rows = torch.eye(2), torch.eye(2), torch.arange(2)
        >>> round(loss(images, rows, ref_emb=texts, ref_labels=rows).item(), 4)  # log(1 + exp(−1))
        0.3133
    """

    def __init__(
        self,
        temperature: SoftmaxTemperature = 0.07,
        *,
        learn_temperature: bool = True,
        temperature_bounds: Sequence[Number | None] = (0.01, None),
        two_way: bool = True,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.two_way = two_way
        self.temperature = Temperature(temperature, learnable=learn_temperature, bounds=temperature_bounds, scale="log")

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        return cross_entropy(pairs, self.temperature()) / (1 + self.two_way)


class Bias(FullPrecision):
    def __init__(self, start: Number, *, learnable: bool) -> None:
        super().__init__()
        self.start = require_number("bias", start, "(-inf, inf)")
        self.parameter = nn.Parameter(torch.tensor(self.start)) if learnable else None

    def forward(self) -> Float[Tensor, ""] | float:
        return self.start if self.parameter is None else self.parameter * 1


class SigLIPLoss(PairLoss):
    """The sum of −log sigmoid(z·(s/τ + b)) over all pairs, divided by the batch; z = 1 for rows of one label, else −1.

    In its standard form, not in similarity units. Where the sides differ in number, the sum is divided by the one and
    by the other, and the loss is the mean of the two.

    Args:
        temperature: τ, the first one where it is learned; 1/10 as in the paper.
        bias: b, the first one where it is learned; −10 as in the paper.
        learnable: True makes log τ and b parameters of the loss: give them to an optimiser.
        temperature_bounds: least and greatest τ; the paper has none, these keep numbers finite.
        two_way: True takes another modality as `ref_emb`. False takes any references or the batch itself.

    Source: Zhai et al., ICCV 2023, https://arxiv.org/abs/2303.15343.

    Example:
        >>> import torch
        >>> loss = SigLIPLoss(temperature=1.0, bias=0.0)
        >>> images, texts, rows = torch.eye(2), torch.eye(2), torch.arange(2)
        >>> round(loss(images, rows, ref_emb=texts, ref_labels=rows).item(), 4)  # log(1 + exp(−1)) + log 2
        1.0064
    """

    def __init__(
        self,
        temperature: SoftmaxTemperature = 0.1,
        bias: Number = -10.0,
        *,
        learnable: bool = True,
        temperature_bounds: Sequence[Number | None] = (0.001, None),
        two_way: bool = True,
        **options: Unpack[PairLossOptions],
    ) -> None:
        super().__init__(**options)
        self.two_way = two_way
        self.temperature = Temperature(temperature, learnable=learnable, bounds=temperature_bounds, scale="log")
        self.bias = Bias(bias, learnable=learnable)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        logits = pairs.similarity / self.temperature() + self.bias()
        losses = nn.functional.softplus(torch.where(pairs.positive, -logits, logits))
        return losses.masked_fill(~(pairs.positive | pairs.negative), 0).sum(dim=1) / (1 + self.two_way)
