"""SupAP and SupRecall: bounds and their limits. Values and gradients: test_contract.py."""

import oracles
import pytest
import torch
from oracles import sup as oracles_sup
from sklearn.metrics import average_precision_score
from testing.equal import batch, check_equal

from aurank.losses import HierarchicalAPLoss, SupAPLoss, SupRecallLoss


def exact_loss(embeddings: torch.Tensor, labels: torch.Tensor) -> float:
    similarity, losses = oracles.cosine(embeddings.detach()).numpy(), []
    for row, label in enumerate(labels.tolist()):
        kept = [j for j in range(len(labels)) if j != row]
        if (labels == label).sum() > 1:
            losses.append(1 - average_precision_score([int(labels[j]) == label for j in kept], similarity[row, kept]))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("width", [{"temperature": 0.1, "delta": 0.2}, {"slope": 1.0, "jump": 0.0}, {"delta": 0.0}])
def test_other_widths_equal_the_loop(width: dict[str, float]) -> None:
    embeddings, labels = batch()
    masks, table = oracles.masks(labels.tolist()), [[0], [0], [1], [1], [0], [-1]]
    for loss, oracle, levels in (
        (SupAPLoss(calibration=0, **width), oracles_sup.sup_ap, {}),
        (SupRecallLoss(calibration=0, **width), oracles_sup.sup_recall, {}),
        (HierarchicalAPLoss(table, **width), oracles_sup.hierarchical_ap, {"labels": labels.tolist(), "table": table}),
    ):
        expected = oracle(oracles.cosine(embeddings), *masks, share=1.0, **levels, **width)
        check_equal(loss(embeddings, labels), oracles.mean(expected), embeddings)


def test_sup_ap_tends_to_exact_ap_as_its_widths_vanish() -> None:
    embeddings, labels = batch()
    wanted = exact_loss(embeddings, labels)
    errors = []
    for width in (1e-1, 1e-3, 1e-11):
        loss = SupAPLoss(width, delta=40 * width, slope=width, jump=0, calibration=0)
        errors.append(abs(loss(embeddings, labels).item() - wanted))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-10


@pytest.mark.parametrize("seed", range(5))
def test_it_is_at_least_the_loss_of_the_exact_ap_equal_scores_included(seed: int) -> None:
    embeddings, labels = batch(seed=seed)
    rows = embeddings.detach()
    rows[::3] = rows[0]
    for temperature in (0.01, 0.3):
        assert SupAPLoss(temperature, calibration=0)(rows, labels) >= exact_loss(rows, labels) - 1e-12


def test_the_gradient_of_a_negative_far_ahead_does_not_fade() -> None:
    labels = torch.tensor([0, 0, 1])
    rows = torch.tensor([[1.0, 0.0], [-0.6, 0.8], [0.9, 0.1]], dtype=torch.float64, requires_grad=True)
    gradients = [
        torch.autograd.grad(SupAPLoss(slope=slope, calibration=0)(rows, labels), rows)[0].abs().max()
        for slope in (0.0, 100.0)
    ]
    assert gradients[0] < 1e-20
    assert gradients[1] > 1e-3


@pytest.mark.parametrize("make", [SupAPLoss, SupRecallLoss, HierarchicalAPLoss])
def test_second_order_gradients_are_those_of_finite_differences(make: type) -> None:
    embeddings, labels = batch([0, 0, 1, 1, 1])
    embeddings = embeddings[:, :2].detach().requires_grad_()
    loss = make(temperature=0.2, slope=2.0, delta=1.0)
    assert torch.autograd.gradcheck(lambda rows: loss(rows, labels), (embeddings,))
    assert torch.autograd.gradgradcheck(lambda rows: loss(rows, labels), (embeddings,))


def test_scores_within_both_margins_have_no_calibration_loss() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    rows = torch.eye(2)[labels]
    assert SupAPLoss(calibration=0.5)(rows, labels) == SupAPLoss(calibration=0)(rows, labels) / 2
    assert SupAPLoss().extra_names == ("calibration",)
    assert SupAPLoss(calibration=0).extra_names == ()
