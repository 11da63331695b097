"""Losses of rankings tend to one minus the metric that they stand for as their widths vanish, or stay above it."""

import pytest
import torch
from pytorch_metric_learning.losses import SmoothAPLoss as PMLSmoothAPLoss
from sklearn.metrics import average_precision_score, roc_auc_score
from testing.equal import batch, exact_loss

from aurank.losses import AUROCLoss, ListwiseAPLoss, SmoothAPLoss, SupAPLoss

LIMITS = {
    "auroc": (lambda width: AUROCLoss("sigmoid", width), (1e-1, 1e-2, 1e-6)),
    "listwise_ap tie_aware": (lambda width: ListwiseAPLoss(round(1 / width), tie_aware=True), (0.2, 0.02, 1e-5)),
    "smooth_ap": (SmoothAPLoss, (1e-1, 1e-3, 1e-7)),
    "smooth_ap official": (lambda width: SmoothAPLoss(width, official=True), (1e-1, 1e-3, 1e-7)),
    "sup_ap": (
        lambda width: SupAPLoss(width, delta=40 * width, slope=width, jump=0, calibration=0),
        (1e-1, 1e-3, 1e-11),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "tie_aware" in name else ()) for name in LIMITS]
)
def test_a_loss_tends_to_the_exact_one_as_its_width_falls(name: str) -> None:
    make, widths = LIMITS[name]
    embeddings, labels = batch()
    metric = roc_auc_score if name == "auroc" else average_precision_score
    wanted = exact_loss(embeddings, labels, metric, with_self="official" in name)
    errors = [abs(make(width)(embeddings, labels).item() - wanted) for width in widths]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < (1e-12 if "tie" in name else 1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_a_bound_is_at_least_the_loss_of_the_exact_ap_equal_scores_included(seed: int) -> None:
    embeddings, labels = batch(seed=seed)
    rows = embeddings.detach()
    rows[::3] = rows[0]
    for loss in (SupAPLoss(0.01, calibration=0), SupAPLoss(0.3, calibration=0), ListwiseAPLoss(10**4)):
        assert loss(rows, labels) >= exact_loss(rows, labels) - 1e-12
    wanted = exact_loss(embeddings, labels)
    assert wanted < ListwiseAPLoss(10**5)(embeddings, labels).item() < wanted + 0.2


def test_pml_s_smooth_ap_agrees_where_it_is_right() -> None:
    # PML groups the wrong rows unless there are as many classes as samples per class, and needs them in blocks
    labels = torch.arange(4).repeat_interleave(4)
    embeddings = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(PMLSmoothAPLoss()(embeddings, labels), SmoothAPLoss(official=True)(embeddings, labels))
