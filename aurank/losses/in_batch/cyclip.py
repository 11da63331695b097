"""CyCLIP: CLIP with similarities that are consistent between and within modalities."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from aurank.losses.core.checks import Number, SoftmaxTemperature, require_number
from aurank.losses.core.pair_loss import PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.in_batch.clip import CLIPLoss


class CyCLIPLoss(CLIPLoss):
    """CLIP's cross-entropy, plus how inconsistent similarities are: the terms "cross_modal" and "in_modal".

    Of an image j and a text k, cross-modal consistency compares s(image j, text k) with s(image k, text j), in-modal
    consistency s(image j, image k) with s(text j, text k): λ/N·Σ_jk of the squared difference, without τ, as in the
    authors' code. A row's partners are those of its label; where there are several, the mean of their similarities
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
        >>> import torch
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
        for name, weight in weights.items():
            require_number(name, weight, "[0, inf)")
        weights = {name: weight for name, weight in weights.items() if weight}
        self.extra_names = tuple(weights)
        super().__init__(
            temperature,
            learn_temperature=learn_temperature,
            temperature_bounds=temperature_bounds,
            two_way=two_way,
            **options,
        )
        self.weights = weights

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        partner = pairs.positive.to(pairs.similarity.dtype)
        partner = partner / partner.sum(dim=1, keepdim=True).clamp(min=1)
        counted = (pairs.valid[:, None] & pairs.valid).fill_diagonal_(False)
        found = {}
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
            found[name] = weight / (1 + self.two_way) * squares
        return found
