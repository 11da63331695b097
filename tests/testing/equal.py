"""The comparison of a loss with its oracle."""

import torch
from torch import Tensor


def check_equal(loss: Tensor, expected: Tensor, *leaves: Tensor) -> None:
    """Values and gradients are the oracle's."""
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    for gradient, wanted in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-9)
