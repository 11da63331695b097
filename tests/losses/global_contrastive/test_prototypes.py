"""The prototypes of NeuCLIP: their lengths, their steps, and queries without a pair."""

import torch
from pytorch_metric_learning.distances import CosineSimilarity, DotProductSimilarity
from testing import cases as two_way
from torch import Tensor
from torch.nn.functional import normalize

from aurank.losses import NeuCLIPLoss, make_pairs
from aurank.losses.core.pairs import read_inputs

LABELS = torch.tensor([0, 0, 1, 1, 2])


def scaled(given: dict[str, Tensor], factor: float) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The batch with rows of other lengths, no two alike, and by how much each side is longer."""
    sides = ("embeddings", "ref_emb")
    by = [factor * torch.arange(1, len(given[side]) + 1, dtype=torch.float64)[:, None] for side in sides]
    rows = [(given[side].detach() * each).requires_grad_() for side, each in zip(sides, by, strict=True)]
    return {**given, **dict(zip(sides, rows, strict=True))}, by


def test_value_state_and_direction_of_the_gradient_are_those_of_any_other_length() -> None:
    given = {"num_prototypes": 20, "restart_every": 3}
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
            torch.testing.assert_close(network.prototypes, same.prototypes, rtol=1e-8, atol=1e-10)


def test_prototypes_of_unit_length_are_taken_bit_by_bit_and_any_where_the_distance_has_lengths() -> None:
    batch = two_way.batch()
    images, texts = (normalize(batch[side].detach().float()) for side in ("embeddings", "ref_emb"))
    labels = {"labels": batch["labels"], "ref_labels": batch["ref_labels"]}
    loss = NeuCLIPLoss(5, inner_steps=0)
    loss(images, ref_emb=texts, **labels)
    assert [network.prototypes.tolist() for network in loss.networks] == [texts.tolist(), images.tolist()]
    loss = NeuCLIPLoss(5, inner_steps=0, distance=DotProductSimilarity(normalize_embeddings=False))
    loss(2 * images, ref_emb=3 * texts, **labels)
    assert [network.prototypes.tolist() for network in loss.networks] == [(3 * texts).tolist(), (2 * images).tolist()]


def rows(seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(len(LABELS), 4, generator=random, dtype=torch.float64).requires_grad_()


def make() -> NeuCLIPLoss:
    return NeuCLIPLoss(4, two_way=False, detach_alpha=False, num_prototypes=12).double()


def test_the_gradient_of_a_batch_is_right_though_another_has_moved_the_prototypes() -> None:
    loss, other = make(), make()
    first, second = rows(0), rows(1)
    (expected,) = torch.autograd.grad(other(first, LABELS), first)
    value = loss(first, LABELS)
    loss(second, LABELS)
    assert torch.autograd.grad(value, first)[0].equal(expected)


def test_a_query_that_a_miner_left_without_any_pair_has_a_value_and_spoils_nothing() -> None:
    batch, loss = rows(0), make()
    mined = (torch.tensor([0, 1]), torch.tensor([1, 0]), torch.tensor([0, 1]), torch.tensor([2, 4]))
    values = loss.per_query(make_pairs(read_inputs(batch, LABELS, mined), distance=CosineSimilarity()))
    (gradient,) = torch.autograd.grad(values.sum(), batch)
    assert values.isfinite().all()
    assert gradient.isfinite().all()
    assert loss.networks[0].prototypes.isfinite().all()
