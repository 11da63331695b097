"""PNP: its variants' derivatives. Values and gradients: test_contract.py."""

from collections.abc import Callable

import pytest
import torch

from aurank.losses import PNPLoss

DERIVATIVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # of the paper, at so many negatives ahead
    "O": torch.ones_like,
    "I_u": lambda ahead: torch.log(1 + ahead),
    "I_b": lambda ahead: ahead / (1 + 2 * ahead),
    "D_s": lambda ahead: 1 / (1 + ahead),
    "D_q": lambda ahead: 4 / (1 + ahead) ** 5,
}


@pytest.mark.parametrize("variant", DERIVATIVES)
def test_the_derivative_is_that_of_the_paper(variant: str) -> None:
    ahead = torch.tensor([[0.0, 0.5, 3.0, 100.0]], dtype=torch.float64, requires_grad=True)
    penalty = PNPLoss(variant).penalty(ahead)
    assert penalty[0, 0] == 0
    (slope,) = torch.autograd.grad(penalty.sum(), ahead)
    torch.testing.assert_close(slope, DERIVATIVES[variant](ahead.detach()))


def test_other_positives_ahead_do_not_matter() -> None:
    labels, loss = torch.tensor([0, 0, 0, 1]), PNPLoss("O", temperature=1e-4)
    rows = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.9, 0.1], [0.85, 0.3]])
    query, far, near, negative = (torch.tensor([row]) for row in range(4))
    alone = loss(rows, labels, (query, far, query, negative))
    assert alone == 1
    both = loss(rows, labels, (query.repeat(2), torch.cat([far, near]), query, negative))
    assert both == alone / 2  # the mean over both positives, of which one has a negative ahead
