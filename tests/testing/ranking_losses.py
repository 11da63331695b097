"""What the tests of the ranking kernels share: cases, and the definition of the sums and their gradients in float64."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def soft_step(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


SOFT_STEP_OF_5 = 1 / (1 + math.exp(-5))

# value and slope, from the formulas of the papers; a branch that is not taken may overflow
DEFINITIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "sigmoid": (soft_step, lambda x: soft_step(x) * soft_step(-x)),
    "huber": (
        lambda x: torch.where(x <= -1, 0, torch.where(x <= 0, (1 + x) ** 2, 1 + 2 * x)),
        lambda x: torch.where(x <= -1, 0, torch.where(x <= 0, 2 * (1 + x), 2)),
    ),
    "logistic": (
        lambda x: torch.logaddexp(x, torch.zeros_like(x)) / math.log(2),
        lambda x: soft_step(x) / math.log(2),
    ),
    "tanh": (
        lambda x: torch.where(x <= 0, 0, torch.tanh(x / 2)),
        lambda x: torch.where(x <= 0, 0, 2 * soft_step(x) * soft_step(-x)),
    ),
    "bound": (  # of its default constants
        lambda x: torch.where(x < 0, soft_step(x), torch.where(x <= 5, soft_step(x) + 0.5, x - 4.5 + SOFT_STEP_OF_5)),
        lambda x: torch.where(x <= 5, soft_step(x) * soft_step(-x), 1),
    ),
}


def sides(
    queries: int, width: int, references: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    """A gradient, scores and others; some others are left out as −∞, some equal a score."""
    random = torch.Generator().manual_seed(queries + width + references)
    gradient, scores = (torch.randn(queries, width, generator=random, dtype=dtype) for _ in range(2))
    others = torch.rand(queries, references, generator=random, dtype=dtype) * 2 - 1
    scores = scores.tanh()
    others[torch.rand(queries, references, generator=random) < 0.2] = -torch.inf
    same = min(width, references) // 2
    others[:, :same] = scores[:, :same]
    return gradient.to(device), scores.to(device), others.to(device)


def defined(
    gradient: Tensor, scores: Tensor, others: Tensor, *, surrogate: str, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums and the gradients of scores and others, in float64 over all triples."""
    value, slope = DEFINITIONS[surrogate]
    x = (others.double()[:, None, :] - scores.double()[:, :, None]) / temperature
    pull = gradient.double()[:, :, None] * slope(x) / temperature
    return value(x).sum(dim=2), -pull.sum(dim=2), pull.sum(dim=1)


def compare(kernel: Any, gradient: Tensor, scores: Tensor, others: Tensor, **named: Any) -> None:
    """Nothing; raises unless the kernel's sums and gradients are those of the definition, to the type's precision.

    In float32 a gradient may be off by a rounding of x, which the temperature magnifies.
    """
    found = (kernel.sums(scores, others, **named), *kernel.gradients(gradient, scores, others, **named))
    for each, wanted, like in zip(
        found, defined(gradient, scores, others, **named), (scores, scores, others), strict=True
    ):
        assert each.dtype == like.dtype
        assert each.device == like.device
        size = max(1.0, float(wanted.abs().amax()) if wanted.numel() else 0.0)
        tolerance = {torch.float32: 1e-5, torch.float64: 1e-10}[each.dtype]
        torch.testing.assert_close(each.double(), wanted, rtol=tolerance, atol=tolerance * size)
    compare_not_a_number(kernel, gradient, scores, others, **named)


def compare_not_a_number(kernel: Any, gradient: Tensor, scores: Tensor, others: Tensor, **named: Any) -> None:
    """Nothing; raises unless what is made of a score or other that is not a number is none, in its query alone."""
    for left, right in ((spoilt(scores), others), (scores, spoilt(others))):
        found = (kernel.sums(left, right, **named), *kernel.gradients(gradient, left, right, **named))
        for each, wanted in zip(found, defined(gradient, left, right, **named), strict=True):
            assert each[wanted.isnan()].isnan().all()
            assert not each[1:].isnan().any()


def spoilt(values: Tensor) -> Tensor:
    """The values with one of the first query's, where it has any, that is not a number."""
    values = values.clone()
    values[:1, -1:] = torch.nan
    return values
