"""PML's losses with vectors of classes: their constants, finite gradients, memories."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as pml
from testing.stateful import PROXIES
from torch import Tensor, nn

from aurank.losses import LOSSES, CrossBatchMemory, MultipleLosses, SmoothAPLoss, arcface

CLASSES, WIDTH, ROWS = 4, 5, 9
EACH = pytest.mark.parametrize("name", PROXIES)


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(ROWS, WIDTH, generator=random, dtype=torch.float64)
    return rows.requires_grad_(), torch.arange(ROWS) % (CLASSES - 1)  # a class that the batch has not


def made(name: str, **own: Any) -> nn.Module:
    torch.manual_seed(1)
    return LOSSES[name](num_classes=CLASSES, embedding_size=WIDTH, **own).double()


PLAIN: dict[str, Callable[..., nn.Module]] = {
    "arcface": pml.ArcFaceLoss,
    "cosface": pml.CosFaceLoss,
    "normalized_softmax": pml.NormalizedSoftmaxLoss,
    "proxy_anchor": pml.ProxyAnchorLoss,
    "proxy_nca": partial(pml.ProxyNCALoss, softmax_scale=9),
    "soft_triple": pml.SoftTripleLoss,
    "subcenter_arcface": pml.SubCenterArcFaceLoss,
}


@EACH
def test_a_loss_is_pml_s_with_the_paper_s_constants(name: str) -> None:
    (rows, labels), loss = batch(), made(name)
    torch.manual_seed(1)
    plain = PLAIN[name](num_classes=CLASSES, embedding_size=WIDTH).double()
    value, expected = loss(rows, labels), plain(rows, labels)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-10)
    found = torch.autograd.grad(value, [rows, *loss.parameters()])
    torch.testing.assert_close(found, torch.autograd.grad(expected, [rows, *plain.parameters()]), rtol=0, atol=1e-8)


def test_in_a_memory_a_proxy_loss_sees_the_batch_alone() -> None:
    proxies, both = made("proxy_anchor"), [SmoothAPLoss(), made("proxy_anchor")]
    memory = CrossBatchMemory(MultipleLosses(both), embedding_size=WIDTH, memory_size=40)
    alone = CrossBatchMemory(SmoothAPLoss(), embedding_size=WIDTH, memory_size=40)
    for seed in range(3):
        rows, labels = batch(seed)
        torch.testing.assert_close(memory(rows, labels), alone(rows, labels) + proxies(rows, labels))
    queries = torch.arange(ROWS) < 6
    value = memory(rows, labels, enqueue_mask=~queries)
    wanted = alone(rows, labels, enqueue_mask=~queries) + proxies(rows[queries], labels[queries])
    torch.testing.assert_close(value, wanted)


class AnchorsBelow(nn.Module):
    """A miner of every pair, or triplet, of the queries of labels below 2 with the references."""

    def __init__(self, *, triplets: bool) -> None:
        super().__init__()
        self.triplets = triplets

    def forward(self, rows: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> tuple[Tensor, ...]:
        same, kept = labels[:, None] == ref_labels, labels[:, None] < 2
        if self.triplets:
            return (same[:, :, None] & ~same[:, None, :] & kept[:, :, None]).nonzero(as_tuple=True)
        return *(same & kept).nonzero(as_tuple=True), *(~same & kept).nonzero(as_tuple=True)


@pytest.mark.parametrize("triplets", [False, True])
def test_of_what_is_mined_in_a_memory_a_proxy_loss_gets_what_is_within_the_batch(triplets: bool) -> None:
    miner, proxies = AnchorsBelow(triplets=triplets), made("proxy_anchor")
    both, given = MultipleLosses([SmoothAPLoss(), made("proxy_anchor")]), {"embedding_size": WIDTH, "memory_size": 40}
    memory, alone = CrossBatchMemory(both, **given, miner=miner), CrossBatchMemory(SmoothAPLoss(), **given, miner=miner)
    for seed in range(3):
        rows, labels = batch(seed)
        mined = [part.tolist() for part in miner(rows, labels, rows, labels)]
        places = list(zip(*mined, strict=True)) if triplets else list(zip(*mined[:2], strict=True))
        columns = torch.tensor([place for place in places if place[0] != place[1]]).T  # of none with itself
        within = (*columns,) if triplets else (*columns, *map(torch.tensor, mined[2:]))
        torch.testing.assert_close(memory(rows, labels), alone(rows, labels) + proxies(rows, labels, within))
        assert proxies(rows, labels, within) != proxies(rows, labels)
    # beside references that are not the batch, what was mined says nothing of it
    others = {"ref_emb": rows.detach().flip(0), "ref_labels": labels.flip(0)}
    value = both(rows, labels, within, **others)
    torch.testing.assert_close(value, SmoothAPLoss()(rows, labels, within, **others) + proxies(rows, labels))


@pytest.mark.parametrize("make", [arcface, LOSSES["subcenter_arcface"]])
def test_arcface_s_gradient_is_finite_on_a_class_s_own_vector(make: Callable[..., nn.Module]) -> None:
    loss = make(3, 3, scale=1)
    loss.loss.W.data = torch.eye(3).repeat_interleave(loss.loss.W.shape[1] // 3, dim=1)
    rows = torch.eye(3).requires_grad_()
    loss(rows, torch.arange(3)).backward()
    assert rows.grad.isfinite().all()
    cosines = torch.tensor([1.0, 1 - 6e-8, 6e-8 - 1, -1.0], requires_grad=True)  # PML's slope is 2,900 at the second
    loss.loss.get_angles(cosines).sum().backward()
    assert cosines.grad.abs().max() < 1001
