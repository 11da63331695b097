import oracles
import pytest
import torch
from sklearn.metrics import roc_auc_score
from testing.equal import batch

from aurank.losses import AUROCLoss


def exact(embeddings: torch.Tensor, labels: torch.Tensor) -> float:
    similarity = oracles.cosine(embeddings.detach()).numpy()
    values = []
    for row, (positives, negatives) in oracles.sides(*oracles.masks(labels.tolist())).items():
        truth = [1] * len(positives) + [0] * len(negatives)
        values.append(1 - roc_auc_score(truth, similarity[row, [*positives, *negatives]]))
    return sum(values) / len(values)


def test_sigmoid_tends_to_one_minus_auroc_as_temperature_falls() -> None:
    embeddings, labels = batch()
    assert AUROCLoss("sigmoid", 1e-6)(embeddings, labels).item() == pytest.approx(exact(embeddings, labels), abs=1e-9)


def test_values_by_hand() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    rows = torch.eye(2, dtype=torch.float64)[labels]  # s+ = 1, s- = 0
    assert AUROCLoss("huber", 2.0)(rows, labels).item() == pytest.approx((1 - 1 / 2) ** 2)
    assert AUROCLoss("logistic", 1.0)(rows, labels).item() == pytest.approx(torch.tensor(-1.0).exp().log1p() / 0.693147)
    assert AUROCLoss("huber")(torch.ones(4, 2), labels) == 1  # all equal
