import pytest
import torch
from testing.equal import check_equal, two_views
from torch.nn.functional import normalize

from aurank.losses import InfoNCELoss, SimCoLoss


@pytest.mark.parametrize("temperatures", [(0.1, 1.0), (0.5, 0.2)])
def test_one_view_against_the_other_is_the_authors_loss(temperatures: tuple[float, float]) -> None:
    first, second, labels = two_views()
    logits = normalize(first) @ normalize(second).T
    share, other = ((logits / tau).softmax(dim=1).diagonal() for tau in temperatures)
    expected = (((1 - other) / (1 - share)).detach() * -share.log()).mean()
    loss = SimCoLoss(*temperatures)(first, labels, ref_emb=second, ref_labels=labels)
    check_equal(loss, expected, first, second)


def test_with_one_temperature_it_is_info_nce() -> None:
    first, second, labels = two_views()
    rows, both = torch.cat([first, second]), labels.repeat(2)
    loss, expected = SimCoLoss(0.2, 0.2)(rows, both), InfoNCELoss(0.2)(rows, both)
    check_equal(loss, expected, first, second, value=1e-12)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_small_temperature_in_float32_leaves_easy_queries_their_weight(autocast: bool) -> None:
    # the share of the negatives is exp(-200), which float32 cannot hold: a quotient of shares would be 0 / 0
    labels = torch.tensor([0, 0, 1, 1])
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]], requires_grad=True)
    with torch.autocast("cpu", enabled=autocast):
        loss = SimCoLoss(0.005, 0.05)(rows, labels)
    assert loss.item() > 0
    (gradient,) = torch.autograd.grad(loss, rows)
    wide = rows.detach().double().requires_grad_()
    logits = normalize(wide) @ normalize(wide).T
    total = torch.zeros((), dtype=torch.float64)
    for query, (positive, negatives) in enumerate([(1, [2, 3]), (0, [2, 3]), (3, [0, 1]), (2, [0, 1])]):
        x, other = (
            torch.logsumexp(logits[query, negatives] / tau, 0) - logits[query, positive] / tau for tau in (0.005, 0.05)
        )
        total = total + other.detach().sigmoid() * x / 4  # the closed form of the gradient
    torch.testing.assert_close(gradient.double(), torch.autograd.grad(total, wide)[0], rtol=1e-3, atol=1e-8)
    assert gradient.any()
