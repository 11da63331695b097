"""PML's losses with vectors of classes: equal to their papers' formulas, finite gradients, clear refusals."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from testing.equal import check_equal
from testing.stateful import PROXIES
from torch import Tensor, nn
from torch.nn.functional import one_hot

from aurank.losses import LOSSES, CrossBatchMemory, MultipleLosses, SmoothAPLoss, arcface, circle, proxy_anchor

CLASSES, WIDTH, ROWS = 4, 5, 9
EACH = pytest.mark.parametrize("name", PROXIES)


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(ROWS, WIDTH, generator=random, dtype=torch.float64)
    return rows.requires_grad_(), torch.arange(ROWS) % (CLASSES - 1)  # a class that the batch has not


def made(name: str, **own: Any) -> nn.Module:
    torch.manual_seed(1)
    return LOSSES[name](num_classes=CLASSES, embedding_size=WIDTH, **own).double()


def cosine(rows: Tensor, vectors: Tensor) -> Tensor:
    unit = [each / each.norm(dim=1, keepdim=True) for each in (rows, vectors)]
    return torch.stack([torch.stack([row @ vector for vector in unit[1]]) for row in unit[0]])


def softmax_loss(logits: Tensor, labels: Tensor) -> Tensor:
    terms = [
        -torch.log(torch.exp(row)[label] / torch.exp(row).sum()) for row, label in zip(logits, labels, strict=True)
    ]
    return torch.stack(terms).mean()


def angular(scores: Tensor, labels: Tensor) -> Tensor:
    """64 · cos θ, of the right class 64 · cos(θ + 28.6°)."""
    turned = torch.cos(torch.acos(scores) + math.radians(28.6))
    return 64 * torch.where(one_hot(labels, CLASSES).bool(), turned, scores)


def anchors(scores: Tensor, labels: Tensor) -> Tensor:
    """Proxy-Anchor, Eq. 4."""
    plus, minus, present = [], [], set(labels.tolist())
    for proxy in range(CLASSES):
        right = [score for score, label in zip(scores[:, proxy], labels, strict=True) if label == proxy]
        wrong = [score for score, label in zip(scores[:, proxy], labels, strict=True) if label != proxy]
        plus.append(torch.log(1 + sum((torch.exp(-32 * (score - 0.1)) for score in right), torch.zeros(()))))
        minus.append(torch.log(1 + sum((torch.exp(32 * (score + 0.1)) for score in wrong), torch.zeros(()))))
    return torch.stack(plus).sum() / len(present) + torch.stack(minus).sum() / CLASSES


def distances(rows: Tensor, vectors: Tensor) -> Tensor:
    unit = [each / each.norm(dim=1, keepdim=True) for each in (rows, vectors)]
    return (unit[0][:, None] - unit[1][None]).square().sum(2)


def centres(scores: Tensor, labels: Tensor) -> Tensor:
    """SoftTriple, Eq. 7 and 8: K = 10 centres, γ = 0.1, λ = 20, δ = 0.01."""
    of_class = scores.view(len(scores), CLASSES, 10)
    soft = (torch.softmax(of_class / 0.1, 2) * of_class).sum(2)
    return 20 * (soft - 0.01 * one_hot(labels, CLASSES).double())


# Of the rows and the loss's vectors, one a row.
ORACLES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "arcface": lambda rows, own, labels: softmax_loss(angular(cosine(rows, own), labels), labels),
    "subcenter_arcface": lambda rows, own, labels: softmax_loss(
        angular(cosine(rows, own).view(ROWS, CLASSES, 3).amax(2), labels), labels
    ),
    "cosface": lambda rows, own, labels: softmax_loss(
        64 * (cosine(rows, own) - 0.35 * one_hot(labels, CLASSES).double()), labels
    ),
    "normalized_softmax": lambda rows, own, labels: softmax_loss(cosine(rows, own) / 0.05, labels),
    "proxy_anchor": lambda rows, own, labels: anchors(cosine(rows, own), labels),
    "proxy_nca": lambda rows, own, labels: softmax_loss(-9 * distances(rows, own), labels),
    "soft_triple": lambda rows, own, labels: softmax_loss(centres(cosine(rows, own), labels), labels),
}


@EACH
def test_a_loss_is_its_paper_s(name: str) -> None:
    (rows, labels), loss = batch(), made(name)
    (vectors,) = loss.parameters()
    own = vectors if name.startswith("proxy") else vectors.T
    check_equal(loss(rows, labels), ORACLES[name](rows, own, labels), rows, vectors, rtol=0, atol=1e-8)


def test_circle_is_its_paper_s() -> None:
    rows, labels = batch()
    scores, terms = cosine(rows, rows), []
    for a in range(ROWS):
        plus = [scores[a, b] for b in range(ROWS) if b != a and labels[b] == labels[a]]
        minus = [scores[a, b] for b in range(ROWS) if labels[b] != labels[a]]
        near = sum((torch.exp(80 * (one.detach() + 0.4).relu() * (one - 0.4)) for one in minus), torch.zeros(()))
        far = sum((torch.exp(-80 * (1.4 - one.detach()).relu() * (one - 0.6)) for one in plus), torch.zeros(()))
        terms.append(torch.log(1 + near * far))
    value, wanted = circle()(rows, labels), torch.stack(terms).mean()
    torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-10)
    found, expected = (torch.autograd.grad(one, rows)[0] for one in (value, wanted))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-8)


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


def test_a_miner_s_weights_reach_a_proxy_loss() -> None:
    (rows, labels), loss = batch(), proxy_anchor(CLASSES, WIDTH).double()
    twice = torch.tensor([0, 0]), torch.tensor([3, 6]), torch.tensor([0]), torch.tensor([1])
    assert loss(rows, labels, twice) != loss(rows, labels)
