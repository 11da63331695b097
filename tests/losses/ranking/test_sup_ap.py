"""SupAP and SupRecall: bounds, their limits, the authors' variants. Values and gradients: test_contract.py."""

import oracles
import pytest
import torch
from oracles import sup as oracles_sup
from sklearn.metrics import average_precision_score
from testing.equal import batch, check_equal

from aurank.losses import HierarchicalAPLoss, RecallAtKLoss, SupAPLoss, SupRecallLoss


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
    loss = SupAPLoss(**width, calibration=0)(embeddings, labels)
    sides = oracles.masks(labels.tolist())
    expected = oracles.mean(oracles_sup.sup_ap(oracles.cosine(embeddings), *sides, share=1.0, **width))
    check_equal(loss, expected, embeddings)


@pytest.mark.slow
@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("width", [{"offset": 1.0, "jump": 0.0}, {"offset": 6.44}, {"jump": 0.0}], ids=str)
def test_the_line_beyond_delta_begins_at_the_offset_as_in_their_configurations(
    width: dict[str, float], official: bool
) -> None:
    embeddings, labels = batch()
    given = oracles.cosine(embeddings), *oracles.masks(labels.tolist())
    table = [[0], [0], [1], [1], [0], [-1]]
    kind = {"official": official, **width}
    for loss, expected in (
        (SupAPLoss(calibration=0, **kind), oracles_sup.sup_ap(*given, share=1.0, **kind)),
        (SupRecallLoss(calibration=0, **kind), oracles_sup.sup_recall(*given, share=1.0, **kind)),
        (HierarchicalAPLoss(table, **kind), oracles_sup.hierarchical_ap(*given, labels.tolist(), table=table, **kind)),
    ):
        value, wanted = loss(embeddings, labels), oracles.mean(expected)
        torch.testing.assert_close(value, wanted, rtol=0, atol=1e-10)
        slopes = (torch.autograd.grad(each, embeddings, retain_graph=True)[0] for each in (value, wanted))
        torch.testing.assert_close(*slopes, rtol=1e-8, atol=1e-8)


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


def test_the_published_height_makes_the_step_fall_behind_delta_and_the_default_does_not() -> None:
    rows, labels = torch.zeros(3, 2, dtype=torch.float64), torch.tensor([0, 0, 1])
    values = []
    for gap in (0.0499, 0.0501):  # of the negative ahead of the positive
        cosines = torch.tensor([1.0, 0.5, 0.5 + gap], dtype=torch.float64)
        rows = torch.stack([cosines, (1 - cosines**2).sqrt()], dim=1)
        values.append([SupAPLoss(calibration=0, official=each)(rows, labels).item() for each in (False, True)])
    assert values[0][0] < values[1][0]
    assert values[0][1] > values[1][1]


def test_bounded_ranks_give_no_more_recall_than_smoothed_ones() -> None:
    embeddings, labels = batch()
    bounded = SupRecallLoss(calibration=0, rank_temperature=0.1)(embeddings, labels)
    assert bounded > RecallAtKLoss(rank_temperature=0.1)(embeddings, labels)


def test_scores_within_both_margins_have_no_calibration_loss() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    rows = torch.eye(2)[labels]
    assert SupAPLoss(calibration=0.5)(rows, labels) == SupAPLoss(calibration=0)(rows, labels) / 2
    assert SupAPLoss().extra_names == ("calibration",)
    assert SupAPLoss(calibration=0).extra_names == ()
