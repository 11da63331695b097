"""NeuCLIP takes no notice of how long embeddings are, as its similarity takes none."""

import pytest
import torch
from pytorch_metric_learning.distances import DotProductSimilarity
from testing import two_way_batches as two_way
from torch import Tensor
from torch.nn.functional import normalize

from aurank.losses import NeuCLIPLoss


def scaled(given: dict[str, Tensor], factor: float) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The batch with rows of other lengths, no two alike, and by how much each side is longer."""
    sides = ("embeddings", "ref_emb")
    by = [factor * torch.arange(1, len(given[side]) + 1, dtype=torch.float64)[:, None] for side in sides]
    rows = [(given[side].detach() * each).requires_grad_() for side, each in zip(sides, by, strict=True)]
    return {**given, **dict(zip(sides, rows, strict=True))}, by


@pytest.mark.parametrize("given", [{"num_prototypes": 20, "restart_every": 3}, {"network": "mlp", "inner_lr": 0.01}])
def test_value_state_and_direction_of_the_gradient_are_those_of_any_other_length(given: dict[str, object]) -> None:
    loss, longer = (NeuCLIPLoss(5, temperature=0.125, **given).double() for _ in range(2))
    for step, factor in enumerate([1000.0, 1e-3, 7.0, 0.5]):
        batch = two_way.batch(step)
        other, by = scaled(batch, factor)
        value, found = loss(**batch), longer(**other)
        torch.testing.assert_close(found, value, rtol=1e-11, atol=0)
        wanted = torch.autograd.grad(value, [batch["embeddings"], batch["ref_emb"]])
        gradients = torch.autograd.grad(found, [other["embeddings"], other["ref_emb"]])
        for gradient, each, expected in zip(gradients, by, wanted, strict=True):
            torch.testing.assert_close(gradient * each, expected, rtol=1e-8, atol=1e-10)
        for network, same in zip(loss.networks, longer.networks, strict=True):
            torch.testing.assert_close(network.weights(), same.weights(), rtol=1e-8, atol=1e-10)


def test_prototypes_of_unit_length_are_taken_bit_by_bit_and_any_where_the_distance_has_lengths() -> None:
    batch = two_way.batch()
    images, texts = (normalize(batch[side].detach().float()) for side in ("embeddings", "ref_emb"))
    labels = {"labels": batch["labels"], "ref_labels": batch["ref_labels"]}
    loss = NeuCLIPLoss(5, inner_steps=0)
    loss(images, ref_emb=texts, **labels)
    assert [network.weights()[0].tolist() for network in loss.networks] == [texts.tolist(), images.tolist()]
    loss = NeuCLIPLoss(5, inner_steps=0, distance=DotProductSimilarity(normalize_embeddings=False))
    loss(2 * images, ref_emb=3 * texts, **labels)
    assert [network.weights()[0].tolist() for network in loss.networks] == [(3 * texts).tolist(), (2 * images).tolist()]
