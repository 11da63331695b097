"""The ranking sums in plain torch, block by block: memory is that of a block, small enough for the processor's caches.

The backward computes each block anew, which is faster than to read it from memory.
"""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import huber_loss, softplus

BLOCK = 2**22  # bytes, of which up to three blocks live at a time; of 1 to 16 MiB, 4 was the fastest on two cores


def sums(
    scores: Float[Tensor, "query width"],
    others: Float[Tensor, "query reference"],
    *,
    surrogate: str,
    temperature: float,
) -> Float[Tensor, "query width"]:
    """Σ_j ℓ((other_j − score) / temperature) for each score."""
    found = scores.new_empty(scores.shape)
    for rows, columns in blocks(scores, others):
        x = differences(scores[rows, columns], others[rows], temperature)
        found[rows, columns] = VALUES[surrogate](x).sum(dim=2)
    return found


def gradients(
    gradient: Float[Tensor, "query width"],
    scores: Float[Tensor, "query width"],
    others: Float[Tensor, "query reference"],
    *,
    surrogate: str,
    temperature: float,
) -> tuple[Float[Tensor, "query width"], Float[Tensor, "query reference"]]:
    """The gradients of scores and others, given that of the sums."""
    of_scores, of_others = scores.new_zeros(scores.shape), others.new_zeros(others.shape)
    scaled = gradient / temperature
    for rows, columns in blocks(scores, others):
        slope = SLOPES[surrogate](differences(scores[rows, columns], others[rows], temperature))
        of_scores[rows, columns] = slope.sum(dim=2)
        of_others[rows].unsqueeze(1).baddbmm_(scaled[rows, None, columns], slope)
    return of_scores.mul_(-scaled), of_others


def blocks(scores: Tensor, others: Tensor) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the scores, such that those with all others of the rows make a block."""
    (queries, width), room = scores.shape, max(1, BLOCK // scores.element_size())
    columns = min(max(1, room // max(1, others.shape[1])), max(1, width))
    rows = max(1, room // (columns * max(1, others.shape[1])))
    for row in range(0, queries, rows):
        for column in range(0, width, columns):
            yield slice(row, row + rows), slice(column, column + columns)


def differences(
    scores: Float[Tensor, "query width"], others: Float[Tensor, "query reference"], temperature: float
) -> Float[Tensor, "query width reference"]:
    """x: subtracted first, since scores divided by a small temperature are large, and their rounding too."""
    return (others[:, None, :] - scores[:, :, None]).mul_(1 / temperature)


# What follows may overwrite its argument.


def huber_values(x: Tensor) -> Tensor:
    """(1+x)² where it is below 1, else 2(1+x) − 1, twice torch's Huber loss of max(0, 1+x)."""
    excess = x.add_(1).relu_()
    return huber_loss(excess, torch.zeros_like(excess[:1, :1, :1]).expand_as(excess), reduction="none").mul_(2)


def sigmoid_slopes(x: Tensor) -> Tensor:
    """σ(1 − σ)."""
    value = x.sigmoid_()
    return value.mul_(1 - value)


def tanh_slopes(x: Tensor) -> Tensor:
    """½(1 − tanh²(x/2)) above 0."""
    above = x > 0
    value = x.div_(2).tanh_()
    return value.mul_(value).neg_().add_(1).mul_(0.5).mul_(above)


VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid_,
    "huber": huber_values,
    "logistic": lambda x: softplus(x, threshold=40).mul_(1 / math.log(2)),
    "tanh": lambda x: x.relu_().div_(2).tanh_(),
}
SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": sigmoid_slopes,
    "huber": lambda x: x.add_(1).clamp_(0, 1).mul_(2),
    "logistic": lambda x: x.sigmoid_().mul_(1 / math.log(2)),
    "tanh": tanh_slopes,
}
