"""NeuCLIP and the two sides that it is called with in its tests."""

import torch
from torch import Tensor

from aurank.losses import NeuCLIPLoss

DIM = 5
SETTINGS = {"temperature": 0.125, "epsilon": 1e-8, "rho": 2.0}  # a temperature that float32 holds exactly
# more texts than images in no order; two texts of one label, images of one label, an image and a text without a partner
LABELS = torch.tensor([4, 0, 1, 7, 2, 4, 3])
TEXT_LABELS = torch.tensor([1, 2, 0, 0, 3, 4, 9, 4, 1])


def sides(seed: int = 0, *, images: int = len(LABELS), texts: int = len(TEXT_LABELS)) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(images + texts, DIM, generator=random, dtype=torch.float64)
    return rows[:images].clone().requires_grad_(), rows[images:].clone().requires_grad_()


def make(**given: object) -> NeuCLIPLoss:
    return NeuCLIPLoss(DIM, **{"num_prototypes": 20, **SETTINGS, **given}).double()


def call(
    loss: NeuCLIPLoss, images: Tensor, texts: Tensor, labels: Tensor = LABELS, other: Tensor = TEXT_LABELS
) -> Tensor:
    value: Tensor = loss(images, labels, ref_emb=texts, ref_labels=other)
    return value
