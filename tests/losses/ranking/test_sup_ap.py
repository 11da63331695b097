"""SupAP and SupRecall: their bounds. Values and gradients: test_contract.py; limits: test_limits.py."""

import oracles
import pytest
import torch
from oracles import sup as oracles_sup
from testing.equal import batch, check_equal

from aurank.losses import HierarchicalAPLoss, SupAPLoss, SupRecallLoss


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
