"""Sums over references of a surrogate of "ranked above", for each score of a query: what ranking losses are made of.

They are operators of torch (`torch.ops.aurank`), which compilers take as they are. Behind them stand two kernels,
modules with the functions `sums` and `gradients`: `plain` (blocks of torch) and `intervals` (fewer steps for "huber").
A kernel takes `scores` [query, width] and `others` [query, reference] of one type and device, no score
infinite. With x = (other − score) / temperature it returns Σ_j ℓ(x) for each score and, given the gradient of those
sums, the gradients of `scores` and `others`, all contiguous. NaN in, NaN out, in that query alone. No kernel keeps a
tensor of query · width · reference entries.
"""

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from aurank.losses.ranking._sums import intervals, plain
from aurank.losses.ranking._sums.plain import Bound, Others, Scores

Surrogate = Literal["sigmoid", "huber", "logistic"]


def ranking_sums(
    scores: Scores,
    others: Others,
    *,
    surrogate: Surrogate | Literal["tanh", "bound"],
    temperature: float,
    bound: Bound | None = None,
) -> Scores:
    """Return for each score Σ_j ℓ(x) over the query's others, x = (other_j − score) / temperature; −∞ adds 0.

    Memory beyond arguments, result and their gradients is some 16 MB, forward and backward; time is
    O(query · width · reference), and for "huber" with many scores per query O(query · reference · log width). Second
    derivatives are right, but hold tensors of query · width · reference entries.

    Args:
        surrogate: "sigmoid" 1/(1+e^{−x}); "huber" 0 up to x = −1, (1+x)² up to 0, then 1 + 2x; "logistic" log2(1+e^x);
            "tanh" 0 up to x = 0, then tanh(x/2); "bound" at least the step that is 1 from x = 0 on.
        bound: the constants of "bound".
    """
    sums: Tensor = sum_operator(scores, others, surrogate, temperature, bound and list(bound))
    return sums


def choose_kernel(scores: Tensor, surrogate: str) -> ModuleType:
    """Return the kernel to use."""
    # On a GPU the sums of `intervals` would be atomic additions, in an order that changes from run to run.
    if surrogate == "huber" and scores.device.type == "cpu" and scores.shape[1] >= intervals.LEAST_WIDTH:
        return intervals
    return plain


@torch.library.custom_op("aurank::ranking_sums", mutates_args=())
def sum_operator(
    scores: Tensor,
    others: Tensor,
    surrogate: str,
    temperature: float,
    constants: Sequence[float] | None = None,
) -> Tensor:
    """Return the sums."""
    kernel = choose_kernel(scores, surrogate)
    found: Tensor = kernel.sums(scores, others, **_options(surrogate, temperature, constants))
    return found


@torch.library.custom_op("aurank::ranking_sums_backward", mutates_args=())
def gradient_operator(
    gradient: Tensor,
    scores: Tensor,
    others: Tensor,
    surrogate: str,
    temperature: float,
    constants: Sequence[float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of scores and others, given that of the sums."""
    kernel = choose_kernel(scores, surrogate)
    options = _options(surrogate, temperature, constants)
    found: tuple[Tensor, Tensor] = kernel.gradients(gradient, scores, others, **options)
    return found


def _options(surrogate: str, temperature: float, constants: Sequence[float] | None) -> dict[str, Any]:
    given = {"surrogate": surrogate, "temperature": temperature}
    return {**given, "constants": constants} if constants else given


@sum_operator.register_fake
def _(scores: Tensor, others: Tensor, *_: Any) -> Tensor:
    return scores.new_empty(scores.shape)


@gradient_operator.register_fake
def _(gradient: Tensor, scores: Tensor, others: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape), others.new_empty(others.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    scores, others, *ctx.options = inputs
    ctx.save_for_backward(scores, others)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    scores, others = ctx.saved_tensors
    if torch.is_grad_enabled():  # under create_graph
        surrogate, temperature, *constants = ctx.options
        definition = partial(plain.definition, **_options(surrogate, temperature, constants[0] if constants else None))
        return *torch.func.vjp(definition, scores, others)[1](gradient), *[None] * len(ctx.options)
    return *gradient_operator(gradient, scores, others, *ctx.options), *[None] * len(ctx.options)


sum_operator.register_autograd(_backward, setup_context=_remember)
