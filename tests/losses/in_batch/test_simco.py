import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from aurank.losses import InfoNCELoss, SimCoLoss


def views(number: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, number, 4, generator=random, dtype=torch.float64)
    return first.requires_grad_(), second.requires_grad_(), torch.arange(number)


def gradients(loss: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("temperatures", [(0.1, 1.0), (0.5, 0.2)])
def test_one_view_against_the_other_is_the_authors_loss(temperatures: tuple[float, float]) -> None:
    first, second, labels = views()
    logits = normalize(first) @ normalize(second).T
    share, other = ((logits / tau).softmax(dim=1).diagonal() for tau in temperatures)
    expected = (((1 - other) / (1 - share)).detach() * -share.log()).mean()
    loss = SimCoLoss(*temperatures)(first, labels, ref_emb=second, ref_labels=labels)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradients(loss, first, second), gradients(expected, first, second), rtol=0, atol=1e-9)


def test_with_one_temperature_it_is_info_nce() -> None:
    first, second, labels = views()
    rows, both = torch.cat([first, second]), labels.repeat(2)
    loss, expected = SimCoLoss(0.2, 0.2)(rows, both), InfoNCELoss(0.2)(rows, both)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients(loss, first, second), gradients(expected, first, second), rtol=0, atol=1e-12)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_small_temperature_in_float32_leaves_easy_queries_their_weight(autocast: bool) -> None:
    # the share of the negatives is exp(-200), which float32 cannot hold: a quotient of shares would be 0 / 0
    labels = torch.tensor([0, 0, 1, 1])
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]], requires_grad=True)
    with torch.autocast("cpu", enabled=autocast):
        loss = SimCoLoss(0.005, 0.05)(rows, labels)
    assert loss.item() > 0
    (gradient,) = gradients(loss, rows)
    wide = rows.detach().double().requires_grad_()
    logits = normalize(wide) @ normalize(wide).T
    total = torch.zeros((), dtype=torch.float64)
    for query, (positive, negatives) in enumerate([(1, [2, 3]), (0, [2, 3]), (3, [0, 1]), (2, [0, 1])]):
        x, other = (
            torch.logsumexp(logits[query, negatives] / tau, 0) - logits[query, positive] / tau for tau in (0.005, 0.05)
        )
        total = total + other.detach().sigmoid() * x / 4  # the closed form of the gradient
    torch.testing.assert_close(gradient.double(), gradients(total, wide)[0], rtol=1e-3, atol=1e-8)
    assert gradient.any()
