"""Batches of two views for EMC², and the embeddings of a small data set."""

import torch
from torch import Tensor

IMAGES, DIM = 24, 6
ENCODED = torch.nn.functional.normalize(
    torch.randn(2, IMAGES, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64), dim=2
)


def batch(images: list[int], *, seed: int = 0, fixed: bool = False) -> dict[str, Tensor]:
    """Both views of some images; their embeddings are the data set's own, or new ones."""
    rows = torch.randn(2 * len(images), DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if fixed:
        rows = ENCODED[:, images].flatten(0, 1)
    return {"embeddings": rows.clone().requires_grad_(), "labels": torch.tensor(images * 2)}


BATCHES = ([0, 1, 2], [0, 3, 4], [5, 0, 1], [2, 3, 0], [4, 1, 6], [0, 5, 2])
