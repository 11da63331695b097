import oracles
import pytest
import torch
from pytorch_metric_learning.losses import SmoothAPLoss as PMLSmoothAPLoss
from sklearn.metrics import average_precision_score
from testing.equal import batch

from aurank.losses import SmoothAPLoss


@pytest.mark.parametrize("official", [False, True])
def test_smooth_ap_tends_to_exact_ap_as_temperature_falls(official: bool) -> None:
    embeddings, labels = batch()
    embeddings = embeddings.detach()
    similarity = oracles.cosine(embeddings).numpy()
    exact = []
    for row, label in enumerate(labels.tolist()):
        kept = [j for j in range(len(labels)) if official or j != row]
        relevant = [int(labels[j]) == label for j in kept]
        if (labels == label).sum() > 1:
            exact.append(average_precision_score(relevant, similarity[row, kept]))
    wanted = 1 - sum(exact) / len(exact)
    losses = (SmoothAPLoss(temperature, official=official)(embeddings, labels) for temperature in (1e-1, 1e-3, 1e-7))
    errors = [abs(float(loss) - wanted) for loss in losses]
    assert errors[0] > errors[1]
    assert errors[2] < 1e-10


def test_pml_s_loss_agrees_where_it_is_right() -> None:
    # PML groups the wrong rows unless there are as many classes as samples per class, and needs them in blocks
    labels = torch.arange(4).repeat_interleave(4)
    embeddings = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(PMLSmoothAPLoss()(embeddings, labels), SmoothAPLoss(official=True)(embeddings, labels))
