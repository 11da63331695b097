"""The comparison of a loss with its oracle, and a batch for it."""

import torch
from torch import Tensor

SHUFFLED = [0] * 5 + [1] * 2 + [2] * 7 + [3] + [4] * 3 + [5]  # unequal classes, two queries without a positive


def batch(labels: list[int] = SHUFFLED, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=random)
    embeddings = torch.randn(len(labels), 5, generator=random, dtype=torch.float64)
    return embeddings.requires_grad_(), torch.tensor(labels)[order]


def check_equal(loss: Tensor, expected: Tensor, *leaves: Tensor) -> None:
    """Values and gradients are the oracle's."""
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    for gradient, wanted in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-9)
