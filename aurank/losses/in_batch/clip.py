"""CLIP, SigLIP and CyCLIP: images and texts, from one batch at a time."""

from collections.abc import Sequence
from typing import ClassVar, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aurank.losses.core.checks import Number, SoftmaxTemperature, require_number
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import FullPrecision
from aurank.losses.core.temperature import Temperature
from aurank.losses.in_batch.contrastive import cross_entropy


class CLIPLoss(PairLoss):
    """The cross-entropy of finding each row's partner among the rows of the other side, the mean of both directions.

    In its standard form, not in similarity units. Rows of one label are partners, so captions that say the same are no
    negatives of each other: several are targets of equal weight, as in UniCL, or of their own.

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

    unused: ClassVar = {("learn_temperature", False): ("temperature_bounds",)}

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
    by the other, and the loss is the mean of the two. The term of a positive is multiplied by its weight.

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

    unused: ClassVar = {("learnable", False): ("temperature_bounds",)}

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
        losses = losses if pairs.weight is None else losses * pairs.weight.masked_fill(~pairs.positive, 1)
        return losses.masked_fill(~(pairs.positive | pairs.negative), 0).sum(dim=1) / (1 + self.two_way)


class CyCLIPLoss(CLIPLoss):
    """CLIP's cross-entropy, plus how inconsistent similarities are: the terms "cross_modal" and "in_modal".

    Of an image j and a text k, cross-modal consistency compares s(image j, text k) with s(image k, text j), in-modal
    consistency s(image j, image k) with s(text j, text k): λ/N·Σ_jk of the squared difference, without τ, as in the
    authors' code. A row's partners are those of its label; where there are several, their weighted mean similarity
    stands for the one of the paper, in "in_modal" the similarity of their mean embeddings. Rows without a partner or a
    negative are left out. Each direction is computed from its own rows, and the mean taken: where each image has one
    text, both are the same.

    Args:
        cross_modal, in_modal: the weights λ, 0.25 each in the paper; 0 leaves a term out.
        temperature, learn_temperature, temperature_bounds: as in `CLIPLoss`.
        two_way: True takes another modality as `ref_emb`. False takes one direction; in a batch by itself, as of two
            views of each image, partners are the other rows of the label.

    Source: Goel et al., NeurIPS 2022, https://arxiv.org/abs/2205.14459.

    Example:
        >>> images, rows = torch.eye(2), torch.arange(2)
        >>> pairs = {"ref_emb": torch.ones(2, 2), "ref_labels": rows}  # texts that are all alike
        >>> term = CyCLIPLoss()(images, rows, **pairs) - CLIPLoss()(images, rows, **pairs)
        >>> round(term.item(), 4)  # in_modal/2·(1 + 1), as s is 0 between the images and 1 between the texts
        0.25
    """

    def __init__(
        self,
        temperature: SoftmaxTemperature = 0.07,
        *,
        cross_modal: Number = 0.25,
        in_modal: Number = 0.25,
        learn_temperature: bool = True,
        temperature_bounds: Sequence[Number | None] = (0.01, None),
        two_way: bool = True,
        **options: Unpack[PairLossOptions],
    ) -> None:
        weights = {"cross_modal": cross_modal, "in_modal": in_modal}
        weights = {name: require_number(name, weight, "[0, inf)") for name, weight in weights.items()}
        self.weights = {name: weight for name, weight in weights.items() if weight}
        self.extra_names = tuple(self.weights)
        super().__init__(
            temperature,
            learn_temperature=learn_temperature,
            temperature_bounds=temperature_bounds,
            two_way=two_way,
            **options,
        )

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        partner = pairs.positive.to(pairs.similarity.dtype)
        partner = (partner if pairs.weight is None else partner * pairs.weight) / pairs.positives.total[:, None]
        counted = (pairs.valid[:, None] & pairs.valid).fill_diagonal_(False)
        terms = {}
        for name, weight in self.weights.items():
            if name == "cross_modal":
                similarity = pairs.similarity @ partner.T
                difference = similarity - similarity.T
            else:
                partners = partner @ self.distance.maybe_normalize(pairs.reference)
                # A query without any is left out later, but the length of zero has no second derivative.
                partners = torch.where(pairs.positive.any(dim=1, keepdim=True), partners, 1)
                difference = self.distance(pairs.query) - self.distance(partners)
            squares = difference.masked_fill(~counted, 0).square().sum() / max(1, len(pairs.valid_rows))
            terms[name] = weight / (1 + self.two_way) * squares
        return terms
