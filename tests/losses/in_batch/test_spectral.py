import pytest
import torch
from pytorch_metric_learning.distances import DotProductSimilarity
from testing.equal import two_views
from torch import Tensor
from torch.nn.functional import normalize

from aurank.losses import SpectralContrastiveLoss


def spectral(first: Tensor, second: Tensor, mu: float) -> Tensor:
    """(−2·E z·z⁺ + E (z·z⁻)²)/μ by the definition, negatives being the other images of the other view."""
    number = len(first)
    pull = sum(first[i] @ second[i] for i in range(number)) / number
    push = [(first[i] @ second[j]) ** 2 for i in range(number) for j in range(number) if i != j]
    return (sum(push) / len(push) - 2 * pull) / mu


@pytest.mark.parametrize("mu", [0.5, 1.0, 10.0])
def test_one_view_against_the_other_is_the_authors_loss_of_embeddings_of_length_root_mu(mu: float) -> None:
    first, second, labels = two_views()
    loss = SpectralContrastiveLoss(mu)(first, labels, ref_emb=second, ref_labels=labels)
    expected = spectral(*(normalize(each) * mu**0.5 for each in (first, second)), mu)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)


def test_with_inner_products_it_is_the_paper_s_of_embeddings_of_any_length() -> None:
    first, second, labels = two_views()
    loss = SpectralContrastiveLoss(distance=DotProductSimilarity(normalize_embeddings=False))
    value = loss(first, labels, ref_emb=second, ref_labels=labels)
    torch.testing.assert_close(value, spectral(first, second, 1.0), rtol=0, atol=1e-12)


def test_orthogonal_classes_have_the_least_loss() -> None:
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    assert SpectralContrastiveLoss(3.0)(torch.eye(3)[labels], labels) == -2
    assert SpectralContrastiveLoss(3.0)(torch.ones(6, 3), labels) == pytest.approx(1)
