import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity
from torch import Tensor

from aurank.losses import NeuCLIPLoss, make_pairs
from aurank.losses.core.loss_inputs import read_inputs

LABELS = torch.tensor([0, 0, 1, 1, 2])


def rows(seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(len(LABELS), 4, generator=random, dtype=torch.float64).requires_grad_()


def make(network: str = "prototypes") -> NeuCLIPLoss:
    size = {"num_prototypes": 12} if network == "prototypes" else {}
    return NeuCLIPLoss(4, two_way=False, detach_alpha=False, network=network, **size).double()


@pytest.mark.parametrize("network", ["prototypes", "mlp"])
def test_the_gradient_of_a_batch_is_right_though_another_has_moved_the_network(network: str) -> None:
    loss, other = make(network), make(network)
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
    assert loss.networks[0].weights()[0].isfinite().all()
