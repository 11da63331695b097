"""What every loss makes of rows that are not finite, of labels of any integer type."""

import pytest
import torch
from testing.stateful import EVERY as MAKERS
from torch import nn

from aurank.losses import LOSSES

NAMES = sorted(LOSSES)
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])
ROWS = torch.randn(len(LABELS), 6, generator=torch.Generator().manual_seed(0))


def make(name: str) -> nn.Module:
    torch.manual_seed(0)  # of proxies and centres
    return MAKERS[name]()


@pytest.mark.parametrize(("name", "wrong"), [*((name, torch.nan) for name in NAMES), ("smooth_ap", torch.inf)])
def test_a_row_that_is_not_finite_gives_a_loss_and_a_gradient_that_are_not(name: str, wrong: float) -> None:
    # training stops at such a loss; where nobody looks, a gradient of zeros would let it go on unnoticed
    spoilt = ROWS.clone()
    spoilt[3] = wrong
    value = make(name)(spoilt.requires_grad_(), LABELS)
    (gradient,) = torch.autograd.grad(value, spoilt)
    assert value.isnan()
    assert gradient[3].isnan().all()


@pytest.mark.parametrize("name", NAMES)
def test_labels_of_any_integer_type_are_those_of_int64(name: str) -> None:
    assert make(name)(ROWS, LABELS.to(torch.uint8)) == make(name)(ROWS, LABELS)
