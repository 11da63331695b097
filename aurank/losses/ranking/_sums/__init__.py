"""Kernels of the pairwise ranking sums: one contract, in blocks of plain torch, by intervals, or in triton.

A kernel takes `scores` [query, width] and `others` [query, reference] of one type and device, no entry of `scores`
infinite. With x = (other − score) / temperature it returns Σ_j ℓ(x) for each score and, from the gradient of those
sums, the gradients of `scores` and `others`, all contiguous, as compilers are told. What is made of a score or other
that is not a number is none. None of them keeps a tensor of query · width · reference entries.
"""

from functools import cache
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from aurank.losses.ranking._sums import intervals, plain

Surrogate = Literal["sigmoid", "huber", "logistic", "tanh"]


@runtime_checkable
class Kernel(Protocol):
    """What each module of this package offers."""

    def sums(
        self,
        scores: Float[Tensor, "query width"],
        others: Float[Tensor, "query reference"],
        *,
        surrogate: str,
        temperature: float,
    ) -> Float[Tensor, "query width"]:
        """Σ_j ℓ((other_j − score) / temperature) for each score."""
        ...

    def gradients(
        self,
        gradient: Float[Tensor, "query width"],
        scores: Float[Tensor, "query width"],
        others: Float[Tensor, "query reference"],
        *,
        surrogate: str,
        temperature: float,
    ) -> tuple[Float[Tensor, "query width"], Float[Tensor, "query reference"]]:
        """The gradients of scores and others, given that of the sums."""
        ...


def choose_kernel(scores: Tensor, others: Tensor, surrogate: str) -> Kernel:
    """The fastest kernel there is for such tensors."""
    fused = triton_kernel() if scores.is_cuda else None
    if fused is not None:
        return fused
    # On a GPU its sums would be atomic additions, in an order that changes from run to run.
    if surrogate == "huber" and scores.device.type == "cpu" and scores.shape[1] >= intervals.LEAST_WIDTH:
        return intervals
    return plain


@cache
def triton_kernel() -> Kernel | None:
    """The kernel in triton; None where that is not to be had."""
    try:
        from aurank.losses.ranking._sums import gpu
    except ImportError:
        return None
    return gpu
