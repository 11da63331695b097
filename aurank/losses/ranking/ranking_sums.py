"""Sums over references of a surrogate of "ranked above", for each score of a query: what ranking losses are made of."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import huber_loss, softplus

Scores: TypeAlias = Float[Tensor, "query width"]
References: TypeAlias = Float[Tensor, "query reference"]
BLOCK_BYTES = 2**22  # bytes, of which up to three blocks live at a time; of 1 to 16 MiB, 4 was the fastest on two cores


def block_sums(
    scores: Tensor, references: Tensor, surrogate: str, temperature: float, constants: Sequence[float]
) -> Tensor:
    """Return Σ_j ℓ((reference_j − score) / temperature) for each score; `constants` are those of "bound"."""
    sums = scores.new_empty(scores.shape)
    for queries, columns in _blocks(scores, references):
        part = scores[queries, columns], references[queries]
        sums[queries, columns] = definition(*part, surrogate, temperature, constants)
    return sums


def definition(
    scores: Scores, references: References, surrogate: str, temperature: float, constants: Sequence[float]
) -> Scores:
    """Return the sums of one block, in operations that torch can differentiate any number of times."""
    return VALUES[surrogate](_differences(scores, references, temperature), *constants).sum(dim=2)


def block_gradients(
    gradient: Tensor, scores: Tensor, references: Tensor, surrogate: str, temperature: float, constants: Sequence[float]
) -> tuple[Tensor, Tensor]:
    of_scores, of_references = scores.new_zeros(scores.shape), references.new_zeros(references.shape)
    scaled = gradient / temperature
    for queries, columns in _blocks(scores, references):
        slope = SLOPES[surrogate](_differences(scores[queries, columns], references[queries], temperature), *constants)
        of_scores[queries, columns] = slope.sum(dim=2)
        of_references[queries].unsqueeze(1).baddbmm_(scaled[queries, None, columns], slope)
    return of_scores.mul_(-scaled), of_references


def _blocks(scores: Tensor, references: Tensor) -> Iterator[tuple[slice, slice]]:
    (queries, width), room = scores.shape, max(1, BLOCK_BYTES // scores.element_size())
    columns = min(max(1, room // max(1, references.shape[1])), max(1, width))
    step = max(1, room // (columns * max(1, references.shape[1])))
    for query in range(0, queries, step):
        for column in range(0, width, columns):
            yield slice(query, query + step), slice(column, column + columns)


def _differences(scores: Scores, references: References, temperature: float) -> Float[Tensor, "query width reference"]:
    return (references[:, None, :] - scores[:, :, None]).mul_(1 / temperature)


# What follows may overwrite its argument.


def _huber(x: Tensor) -> Tensor:
    excess = x.add_(1).relu_()
    return huber_loss(excess, torch.zeros_like(excess[:1, :1, :1]).expand_as(excess), reduction="none").mul_(2)


def _sigmoid_slope(x: Tensor) -> Tensor:
    value = x.sigmoid_()
    return value.mul_(1 - value)


def _tanh_slope(x: Tensor) -> Tensor:
    above = x > 0
    value = x.div_(2).tanh_()
    return value.mul_(value).neg_().add_(1).mul_(0.5).mul_(above)


def _bound(x: Tensor, jump: float = 0.5, knee: float = 5.0, slope: float = 1.0) -> Tensor:
    """Return σ(x) up to `knee`, then a line; `jump` more from x = 0 on, so that it bounds a step."""
    ahead, beyond = x >= 0, (x - knee).relu()
    return x.clamp(max=knee).sigmoid().add(beyond, alpha=slope).add_(ahead, alpha=jump)


def _bound_slope(x: Tensor, jump: float = 0.5, knee: float = 5.0, slope: float = 1.0) -> Tensor:
    beyond = x > knee
    value = _sigmoid_slope(x.clamp_(max=knee))
    flat = 1 / (1 + math.exp(-knee))  # added, since to fill by a mask takes four times as long
    return value.add_(beyond, alpha=slope - flat * (1 - flat))


VALUES: dict[str, Callable[..., Tensor]] = {
    "sigmoid": torch.sigmoid_,
    "huber": _huber,
    "logistic": lambda x: softplus(x, threshold=40).mul_(1 / math.log(2)),
    "tanh": lambda x: (x.relu_() / 2).tanh_(),
    "bound": _bound,
}
SLOPES: dict[str, Callable[..., Tensor]] = {
    "sigmoid": _sigmoid_slope,
    "huber": lambda x: x.add_(1).clamp_(0, 1).mul_(2),
    "logistic": lambda x: x.sigmoid_().mul_(1 / math.log(2)),
    "tanh": _tanh_slope,
    "bound": _bound_slope,
}


# -- the operators ----

Surrogate = Literal["sigmoid", "huber", "logistic"]


def ranking_sums(
    scores: Scores,
    references: References,
    *,
    surrogate: Surrogate | Literal["tanh", "bound"],
    temperature: float,
    bound: Sequence[float] = (),
) -> Scores:
    """Return for each score Σ_j ℓ((reference_j − score) / temperature) over its query's references; −∞ adds 0.

    `bound` has the jump, knee and slope of "bound".
    """
    sums: Tensor = sum_operator(scores, references, surrogate, temperature, list(bound))
    return sums


sum_operator = torch.library.custom_op("aurank::ranking_sums", block_sums, mutates_args=())
gradient_operator = torch.library.custom_op("aurank::ranking_sums_backward", block_gradients, mutates_args=())


@sum_operator.register_fake
def _(scores: Tensor, references: Tensor, *_: Any) -> Tensor:
    return scores.new_empty(scores.shape)


@gradient_operator.register_fake
def _(gradient: Tensor, scores: Tensor, references: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape), references.new_empty(references.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    scores, references, *ctx.options = inputs
    ctx.save_for_backward(scores, references)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    scores, references = ctx.saved_tensors
    none = [None] * len(ctx.options)
    if torch.is_grad_enabled():  # under create_graph
        backward = torch.func.vjp(lambda *sides: definition(*sides, *ctx.options), scores, references)[1]
        return *backward(gradient), *none
    return *gradient_operator(gradient, scores, references, *ctx.options), *none


sum_operator.register_autograd(_backward, setup_context=_remember)
