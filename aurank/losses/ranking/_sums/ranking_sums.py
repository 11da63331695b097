"""Sums over references of a surrogate of "ranked above", for each score of a query: what ranking losses are made of.

They are operators of torch (`torch.ops.aurank`), which compilers take as they are, with kernels of `kernels/` behind.
"""

import math
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from aurank.losses.ranking._sums import choose_kernel

Surrogate = Literal["sigmoid", "huber", "logistic"]
Step = Literal["tanh"]


def ranking_sums(
    scores: Float[Tensor, "query width"],
    others: Float[Tensor, "query reference"],
    *,
    surrogate: Surrogate | Step,
    temperature: float,
) -> Float[Tensor, "query width"]:
    """For each score Σ_j ℓ(x) over the query's others, x = (other_j − score) / temperature; a reference at −∞ adds 0.

    surrogate: "sigmoid" 1/(1+e^{−x}); "huber" 0 up to x = −1, (1+x)² up to 0, then 1 + 2x; "logistic" log2(1+e^x);
        "tanh" 0 up to x = 0, then tanh(x/2).

    Memory beyond arguments, result and their gradients is some 16 MB, forward and backward; time is
    O(query · width · reference), and for "huber" with many scores per query O(query · reference · log width). Second
    derivatives are right, but hold tensors of query · width · reference entries.
    """
    sums: Tensor = sum_operator(scores, others, surrogate, temperature)
    return sums


@torch.library.custom_op(
    "aurank::ranking_sums",
    mutates_args=(),
    schema="(Tensor scores, Tensor others, str surrogate, float temperature) -> Tensor",
)
def sum_operator(
    scores: Float[Tensor, "query width"],
    others: Float[Tensor, "query reference"],
    surrogate: str,
    temperature: float,
) -> Float[Tensor, "query width"]:
    """The sums."""
    kernel = choose_kernel(scores, others, surrogate)
    return kernel.sums(scores, others, surrogate=surrogate, temperature=temperature)


@torch.library.custom_op(
    "aurank::ranking_sums_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor scores, Tensor others, str surrogate, float temperature) -> (Tensor, Tensor)",
)
def gradient_operator(
    gradient: Float[Tensor, "query width"],
    scores: Float[Tensor, "query width"],
    others: Float[Tensor, "query reference"],
    surrogate: str,
    temperature: float,
) -> tuple[Float[Tensor, "query width"], Float[Tensor, "query reference"]]:
    """The gradients of scores and others, given that of the sums."""
    kernel = choose_kernel(scores, others, surrogate)
    return kernel.gradients(gradient, scores, others, surrogate=surrogate, temperature=temperature)


@sum_operator.register_fake
def _(scores: Tensor, others: Tensor, surrogate: str, temperature: float) -> Tensor:
    return scores.new_empty(scores.shape)


@gradient_operator.register_fake
def _(gradient: Tensor, scores: Tensor, others: Tensor, surrogate: str, temperature: float) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape), others.new_empty(others.shape)


def remember(ctx: Any, inputs: tuple[Tensor, Tensor, str, float], output: Tensor) -> None:
    """Keeps for the backward what it needs."""
    scores, others, ctx.surrogate, ctx.temperature = inputs
    ctx.save_for_backward(scores, others)


def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
    """The gradients of the arguments of the sums."""
    scores, others = ctx.saved_tensors
    if torch.is_grad_enabled():  # under create_graph
        pull_back = torch.func.vjp(
            lambda left, right: formula(left, right, ctx.surrogate, ctx.temperature), scores, others
        )[1]
        of_scores, of_others = pull_back(gradient)
        return of_scores, of_others, None, None
    return *gradient_operator(gradient, scores, others, ctx.surrogate, ctx.temperature), None, None


sum_operator.register_autograd(backward, setup_context=remember)


def formula(scores: Tensor, others: Tensor, surrogate: str, temperature: float) -> Tensor:
    """The sums as they are defined, as torch can differentiate them any number of times."""
    x = (others[:, None, :] - scores[:, :, None]) / temperature
    if surrogate == "sigmoid":
        return x.sigmoid().sum(dim=2)
    if surrogate == "logistic":
        return softplus(x, threshold=40).sum(dim=2) / math.log(2)
    if surrogate == "tanh":
        return (x.relu() / 2).tanh().sum(dim=2)
    return ((1 + x).relu().square() - x.relu().square()).sum(dim=2)
