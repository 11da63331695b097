"""Soft histograms of a query's similarities, in triangular bins, and average precision read off them."""

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import pad

from aurank.errors import UserError
from aurank.losses.core.common import BaseDistance

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
    similarity: Float[Tensor, "query item"], wanted: Bool[Tensor, "query item"], *, num_bins: int, limits: Limits
) -> Float[Tensor, "query bin"]:
    first, share = bin_position(similarity, num_bins=num_bins, limits=limits)
    column = first.masked_fill(~wanted, num_bins)  # what is not wanted goes to a column of its own
    empty = share.new_zeros(len(share), num_bins + 1)
    here, after = empty.scatter_add(1, column, 1 - share), empty.scatter_add(1, column, share)
    return here[:, :-1] + pad(after[:, :-2], (1, 0))


def average_precision(
    positives: Float[Tensor, "query bin"], negatives: Float[Tensor, "query bin"], count: Int64[Tensor, " query"]
) -> Float[Tensor, " query"]:
    """Return Σ_m h⁺_m H⁺_m / (H_m N⁺) of each query, in [0, 1]; 0 for a query without a positive (a count of 0)."""
    positives_so_far = positives.cumsum(dim=1)
    so_far = positives_so_far + negatives.cumsum(dim=1)
    # divided before it is multiplied: the product of two small counts would vanish
    precision = positives_so_far / so_far.clamp(min=torch.finfo(so_far.dtype).tiny)
    return (positives * precision).sum(dim=1) / count.clamp(min=1)


def default_limits(distance: BaseDistance) -> Limits:
    unit = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    same, opposite = distance(unit, torch.cat([unit, -unit]))[0].tolist()
    limits = (opposite, same) if distance.is_inverted else (-opposite, -same)
    if not (math.isfinite(limits[0]) and math.isfinite(limits[1]) and limits[0] < limits[1]):
        raise UserError(
            f"distance {type(distance).__name__} gives opposite and equal unit vectors the similarities {limits}: "
            "give the least and the greatest similarity as range"
        )
    return limits
