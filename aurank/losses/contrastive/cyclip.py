"""CyCLIP (Goel et al., NeurIPS 2022): CLIP with similarities that are consistent between and within modalities."""

import math
from collections.abc import Sequence
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from aurank.errors import UserError
from aurank.losses.contrastive.info_nce import cross_entropy
from aurank.losses.core.checks import Number, as_number, refuse_unused
from aurank.losses.core.from_pml import BaseDistance
from aurank.losses.core.pair_loss import PairLoss, PairLossOptions
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.temperature import Temperature


def cross_modal_difference(pairs: Pairs) -> Float[Tensor, "query query"]:
    """s(query j, partner k) − s(query k, partner j), a partner's similarity being the mean over a query's positives."""
    similarity = pairs.similarity @ partner_weights(pairs).T
    return similarity - similarity.T


def in_modal_difference(pairs: Pairs, distance: BaseDistance) -> Float[Tensor, "query query"]:
    """s(query j, query k) − s(partner j, partner k), a partner being the mean embedding of a query's positives.

    Up to the sign, where the distance is greater for what is farther.
    """
    partners = partner_weights(pairs) @ distance.maybe_normalize(pairs.reference)
    # A query without any is left out later, but the length of zero has no second derivative.
    partners = torch.where(pairs.positive.any(dim=1, keepdim=True), partners, 1)
    found: Tensor = distance(pairs.query) - distance(partners)
    return found


def partner_weights(pairs: Pairs) -> Float[Tensor, "query reference"]:
    """1 / their number for each query's positives, else 0."""
    weights = pairs.positive.to(pairs.similarity.dtype)
    return weights / weights.sum(dim=1, keepdim=True).clamp(min=1)


def inconsistency(difference: Float[Tensor, "query query"], pairs: Pairs) -> Float[Tensor, ""]:
    """The sum of squares over pairs of different valid queries, divided by the number of valid queries."""
    wanted = (pairs.valid[:, None] & pairs.valid).fill_diagonal_(False)
    return difference.masked_fill(~wanted, 0).square().sum() / max(1, len(pairs.valid_rows))


class CyCLIPLoss(PairLoss):
    """CLIP's cross-entropy, plus how inconsistent similarities are: the terms "cross_modal" and "in_modal".

    Of an image j and a text k, cross-modal consistency compares s(image j, text k) with s(image k, text j), in-modal
    consistency s(image j, image k) with s(text j, text k): λ/N·Σ_jk of the squared difference, without τ, as in the
    authors' code. A row's partners are those of its label; where there are several, the mean of their similarities
    stands for the one of the paper, in "in_modal" the similarity of their mean embeddings. Rows without a partner or a
    negative are left out. Each direction is computed from its own rows, and the mean taken: where each image has one
    text, both are the same.

    cross_modal, in_modal: the weights λ, 0.25 each in the paper; 0 leaves a term out.
    temperature, learn_temperature, temperature_bounds: as in `CLIPLoss`.
    two_way: True (default) takes another modality as `ref_emb`. False takes one direction; in a batch by itself, as of
        two views of each image, partners are the other rows of the label.
    """

    def __init__(
        self,
        temperature: Number = 0.07,
        *,
        cross_modal: Number = 0.25,
        in_modal: Number = 0.25,
        learn_temperature: bool = True,
        temperature_bounds: Sequence[Number | None] = (0.01, None),
        two_way: bool = True,
        **options: Unpack[PairLossOptions],
    ) -> None:
        weights = {
            "cross_modal": require_weight("cross_modal", cross_modal),
            "in_modal": require_weight("in_modal", in_modal),
        }
        weights = {name: weight for name, weight in weights.items() if weight > 0}
        self.extra_names = tuple(weights)
        super().__init__(**options)
        self.weights = weights
        self.two_way = two_way
        self.temperature = Temperature(temperature, learnable=learn_temperature, bounds=temperature_bounds, scale="log")
        if not learn_temperature:
            refuse_unused(CyCLIPLoss, "learn_temperature=False", temperature_bounds=temperature_bounds)

    def per_query(self, pairs: Pairs) -> Float[Tensor, " query"]:
        """CLIP's cross-entropy; half of it where both directions are added."""
        return cross_entropy(pairs, self.temperature()) / (1 + self.two_way)

    def extra_terms(self, pairs: Pairs) -> dict[str, Tensor]:
        """Both inconsistencies, weighted; half of them where both directions are added."""
        found = {}
        for name, weight in self.weights.items():
            cross = name == "cross_modal"
            difference = cross_modal_difference(pairs) if cross else in_modal_difference(pairs, self.distance)
            found[name] = weight / (1 + self.two_way) * inconsistency(difference, pairs)
        return found


def require_weight(name: str, value: Number) -> float:
    """The weight; UserError unless it is a finite number of at least 0."""
    weight = as_number(value)
    if not 0 <= weight < math.inf:
        raise UserError(f"{name} must be >= 0, got {value!r}")
    return weight
