"""The comparison of a loss with its oracle, and batches for it."""

from collections.abc import Callable

import oracles
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

SHUFFLED = [0] * 5 + [1] * 2 + [2] * 7 + [3] + [4] * 3 + [5]  # unequal classes, two queries without a positive


def batch(labels: list[int] = SHUFFLED, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=random)
    embeddings = torch.randn(len(labels), 6, generator=random, dtype=torch.float64)
    return embeddings.requires_grad_(), torch.tensor(labels)[order]


def rows_of_four(seed: int = 0, number: int = 12) -> tuple[Tensor, Tensor]:
    """Rows of 5 numbers, of four classes drawn at random."""
    random = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(number, 5, generator=random, dtype=torch.float64)
    return embeddings.requires_grad_(), torch.randint(4, (number,), generator=random)


def two_views(number: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Images and texts, or two views, that pair up row by row, and their labels."""
    first, second = torch.randn(2, number, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return first.requires_grad_(), second.requires_grad_(), torch.arange(number)


def exact_loss(
    embeddings: Tensor,
    labels: Tensor,
    metric: Callable[..., float] = average_precision_score,
    *,
    with_self: bool = False,
) -> float:
    """One minus the mean over queries with a positive of a metric of scikit-learn, average precision by default."""
    similarity, values = oracles.cosine(embeddings.detach()).numpy(), []
    for row, label in enumerate(labels.tolist()):
        kept = [other for other in range(len(labels)) if with_self or other != row]
        if (labels == label).sum() > 1:
            values.append(metric((labels[kept] == label).int().numpy(), similarity[row, kept]))
    return 1 - sum(values) / len(values)


def check_equal(
    loss: Tensor, expected: Tensor, *leaves: Tensor, value: float = 1e-10, rtol: float = 1e-8, atol: float = 1e-9
) -> None:
    """Values and gradients are the oracle's."""
    torch.testing.assert_close(loss, expected, rtol=0, atol=value)
    found, wanted = (torch.autograd.grad(each, leaves, retain_graph=True) for each in (loss, expected))
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)
