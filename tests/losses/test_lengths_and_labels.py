"""What every loss makes of rows that are not finite, of labels of any integer type."""

import pytest
import torch
from testing.stateful import EVERY as MAKERS
from torch import Tensor, nn

from aurank.losses import LOSSES, contrastive

NAMES = sorted(LOSSES)
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])


def make(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)  # of proxies and centres
    return MAKERS[name]().to(dtype)


def rows(dtype: torch.dtype = torch.float32, *, seed: int = 0) -> Tensor:
    return torch.randn(len(LABELS), 6, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def value_and_gradient(loss: nn.Module, embeddings: Tensor, **given: object) -> tuple[Tensor, Tensor]:
    embeddings = embeddings.clone().requires_grad_()
    value = loss(embeddings, LABELS, **given)
    return value.detach(), torch.autograd.grad(value, embeddings)[0]


@pytest.mark.parametrize(("name", "wrong"), [*((name, torch.nan) for name in NAMES), ("smooth_ap", torch.inf)])
def test_a_row_that_is_not_finite_gives_a_loss_and_a_gradient_that_are_not(name: str, wrong: float) -> None:
    # training stops at such a loss; where nobody looks, a gradient of zeros would let it go on unnoticed
    spoilt = rows()
    spoilt[3] = wrong
    value, gradient = value_and_gradient(make(name), spoilt)
    assert value.isnan()
    assert gradient[3].isnan().all()


def test_a_mean_over_pairs_above_zero_counts_those_that_are_not_a_number() -> None:
    spoilt = rows()
    spoilt[3] = torch.nan
    value, gradient = value_and_gradient(contrastive(reduction="pml"), spoilt)
    assert value.isnan()
    assert gradient.isnan().any()


@pytest.mark.parametrize("name", NAMES)
def test_labels_of_any_integer_type_are_those_of_int64(name: str) -> None:
    assert make(name)(rows(), LABELS.to(torch.uint8)) == make(name)(rows(), LABELS)
