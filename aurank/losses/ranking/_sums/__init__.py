"""Sums over references of a surrogate of "ranked above", for each score of a query: what ranking losses are made of.

They are operators of torch (`torch.ops.aurank`), which compilers take as they are. Behind them stand three kernels,
modules with the functions `sums` and `gradients`: `plain` (blocks of torch), `intervals` (fewer steps for "huber"), and
`gpu` (triton). A kernel takes `scores` [query, width] and `others` [query, reference] of one type and device, no score
infinite. With x = (other − score) / temperature it returns Σ_j ℓ(x) for each score and, given the gradient of those
sums, the gradients of `scores` and `others`, all contiguous. NaN in, NaN out, in that query alone. No kernel keeps a
tensor of query · width · reference entries.
"""

import warnings
from collections.abc import Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from aurank.errors import AurankWarning, UserError
from aurank.losses.core.checks import require_choice
from aurank.losses.ranking._sums import intervals, plain
from aurank.losses.ranking._sums.plain import Bound, Others, Scores

Surrogate = Literal["sigmoid", "huber", "logistic"]
Backend = Literal["auto", "triton"]
ROUNDINGS = 64  # of the largest entry, by which triton's sums may differ from plain ones: another order, another exp


def ranking_sums(
    scores: Scores,
    others: Others,
    *,
    surrogate: Surrogate | Literal["tanh", "bound"],
    temperature: float,
    backend: Backend = "auto",
    bound: Bound | None = None,
) -> Scores:
    """Return for each score Σ_j ℓ(x) over the query's others, x = (other_j − score) / temperature; −∞ adds 0.

    Memory beyond arguments, result and their gradients is some 16 MB, forward and backward; time is
    O(query · width · reference), and for "huber" with many scores per query O(query · reference · log width). Second
    derivatives are right, but hold tensors of query · width · reference entries.

    Args:
        surrogate: "sigmoid" 1/(1+e^{−x}); "huber" 0 up to x = −1, (1+x)² up to 0, then 1 + 2x; "logistic" log2(1+e^x);
            "tanh" 0 up to x = 0, then tanh(x/2); "bound" at least the step that is 1 from x = 0 on.
        backend: "auto" computes in torch; "triton", for CUDA devices, in triton: its speed is not measured.
        bound: the constants of "bound", which is always computed in torch.
    """
    sums: Tensor = sum_operator(scores, others, surrogate, temperature, backend, bound and list(bound))
    return sums


def require_backend(backend: Backend) -> Backend:
    """Return the backend; UserError for another name."""
    require_choice("backend", backend, get_args(Backend))
    return backend


def choose_kernel(scores: Tensor, others: Tensor, surrogate: str, backend: str) -> ModuleType:
    """Return the kernel to use; UserError where triton is asked for and cannot run."""
    if backend == "triton" and surrogate != "bound":
        return _triton_kernel(scores.device, scores.dtype, surrogate)
    # On a GPU the sums of `intervals` would be atomic additions, in an order that changes from run to run.
    if surrogate == "huber" and scores.device.type == "cpu" and scores.shape[1] >= intervals.LEAST_WIDTH:
        return intervals
    return plain


@cache
def _triton_kernel(device: torch.device, dtype: torch.dtype, surrogate: str) -> ModuleType:
    """Return the kernel in triton, once a small tile of it was equal to `plain` on this device; else `plain`.

    Equal means within ROUNDINGS of the type, relative to the largest entry of the sums and of either gradient.
    """
    try:
        from aurank.losses.ranking._sums import gpu
    except ImportError as error:
        raise UserError('backend="triton" needs the package triton: install it, or use backend="auto"') from error
    if device.type != "cuda" and not gpu.INTERPRETED:
        raise UserError(f'backend="triton" does not run on {device}: use backend="auto"')
    scores = torch.linspace(-1, 1, 27, dtype=torch.float64).view(3, 9)
    others = torch.arange(900, dtype=torch.float64).cos().view(3, 300)
    others[:, ::7] = -torch.inf
    scores, others, gradient = (each.to(device, dtype) for each in (scores, others, scores.cos()))
    options = {"surrogate": surrogate, "temperature": 0.1}
    found, expected = (
        (kernel.sums(scores, others, **options), *kernel.gradients(gradient, scores, others, **options))
        for kernel in (gpu, plain)
    )
    tolerance = ROUNDINGS * torch.finfo(dtype).eps
    if all(((a - b).abs() <= tolerance * b.abs().max()).all() for a, b in zip(found, expected, strict=True)):
        return gpu
    warnings.warn(
        f"the triton kernel of {surrogate!r} in {dtype} gives other sums on {device} than plain torch, which is used "
        'instead: leave out backend="triton"',
        AurankWarning,
        stacklevel=2,
    )
    return plain


@torch.library.custom_op("aurank::ranking_sums", mutates_args=())
def sum_operator(
    scores: Tensor,
    others: Tensor,
    surrogate: str,
    temperature: float,
    backend: str,
    constants: Sequence[float] | None = None,
) -> Tensor:
    """Return the sums."""
    kernel = choose_kernel(scores, others, surrogate, backend)
    found: Tensor = kernel.sums(scores, others, **_options(surrogate, temperature, constants))
    return found


@torch.library.custom_op("aurank::ranking_sums_backward", mutates_args=())
def gradient_operator(
    gradient: Tensor,
    scores: Tensor,
    others: Tensor,
    surrogate: str,
    temperature: float,
    backend: str,
    constants: Sequence[float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of scores and others, given that of the sums."""
    kernel = choose_kernel(scores, others, surrogate, backend)
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
        surrogate, temperature, _, *constants = ctx.options
        definition = partial(plain.definition, **_options(surrogate, temperature, constants[0] if constants else None))
        return *torch.func.vjp(definition, scores, others)[1](gradient), *[None] * len(ctx.options)
    return *gradient_operator(gradient, scores, others, *ctx.options), *[None] * len(ctx.options)


sum_operator.register_autograd(_backward, setup_context=_remember)
