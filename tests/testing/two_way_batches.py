"""Batches of two modalities for the tests of two-way losses: images and texts in any order and number."""

from collections.abc import Callable

import oracles
import torch
from torch import Tensor

IMAGES = [0, 1, 2, 3, 4, 1]  # labels: two images of 1
TEXTS = [3, 0, 0, 1, 4, 2, 5, 0]  # three texts of 0, one without an image


def batch(seed: int = 0) -> dict[str, Tensor]:
    """The arguments of a loss; sample ids differ from labels and between rows of one label."""
    random = torch.Generator().manual_seed(seed)
    images, texts = torch.tensor(IMAGES), torch.tensor(TEXTS)
    orders = [torch.randperm(len(rows), generator=random) for rows in (images, texts)]
    embeddings = [torch.randn(len(rows), 5, generator=random, dtype=torch.float64) for rows in (images, texts)]
    return {
        "embeddings": embeddings[0].requires_grad_(),
        "labels": images[orders[0]],
        "ref_emb": embeddings[1].requires_grad_(),
        "ref_labels": texts[orders[1]],
        "ids": (torch.arange(len(images)) + 10)[orders[0]],
        "ref_ids": (torch.arange(len(texts)) + 10)[orders[1]],
    }


def both_directions(given: dict[str, Tensor], oracle: Callable[..., oracles.PerQuery]) -> Tensor:
    """The sum over both directions of an oracle's mean over the rows with a positive and a negative."""
    similarity = oracles.cosine(given["embeddings"], given["ref_emb"])
    labels = given["labels"].tolist(), given["ref_labels"].tolist()
    total = similarity.new_zeros(())
    for scores, own, other in ((similarity, *labels), (similarity.T, *labels[::-1])):
        total = total + oracles.mean(oracle(scores, *oracles.masks(own, other)))
    return total


def check_equal(loss: Tensor, expected: Tensor, given: dict[str, Tensor], *others: Tensor) -> None:
    """Nothing; raises unless value and gradient are the same, of both modalities and whatever else is given."""
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    leaves = (given["embeddings"], given["ref_emb"], *others)
    for found, wanted in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-9)
