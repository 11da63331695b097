import importlib.util
import sys
import types

import jaxtyping
import pytest
import torch
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses import LOSSES, CrossBatchMemory, LightlyLoss, MultipleLosses, barlow_twins, from_lightly, vicreg
from aurank.losses.wrappers.lightly import two_views

INSTALLED = importlib.util.find_spec("lightly") is not None
with_lightly = pytest.mark.skipif(not INSTALLED, reason="lightly is not installed")
LABELS = torch.tensor([7, 3, 5, 5, 7, 3])


def embeddings(number: int = 6) -> Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randn(number, 4, generator=random, dtype=torch.float64).requires_grad_()


class Recorder(nn.Module):
    """A loss of two views that remembers them."""

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        self.seen = (first, second)
        return (first * second).sum()


def test_the_two_rows_of_a_label_are_its_views_in_any_order() -> None:
    rows, recorder = embeddings(), Recorder()
    value = LightlyLoss(recorder)(rows, LABELS, ids=torch.arange(6))
    assert recorder.seen[0].equal(rows[[1, 2, 0]])  # of 3, 5 and 7
    assert recorder.seen[1].equal(rows[[5, 3, 4]])
    assert torch.autograd.grad(value, rows)[0].equal(rows.detach()[[4, 5, 3, 2, 0, 1]])


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0, 0, 1], "label 1 occurs 1 times"), ([4, 4, 4, 4], "label 4 occurs 4 times"), ([1, 2, 2, 2], "label 1 occurs")],
)
def test_a_label_that_does_not_occur_twice_is_named(labels: list[int], message: str) -> None:
    with pytest.raises(UserError, match=rf"{message}.*data.views=2 and data.train_labels=image"):
        two_views(torch.tensor(labels))


def test_what_no_loss_of_two_views_can_take_is_refused() -> None:
    rows, loss = embeddings(), LightlyLoss(Recorder())
    with pytest.raises(UserError, match="Recorder compares the two views of a batch: leave out a miner"):
        loss(rows, LABELS, MultiSimilarityMiner())
    with pytest.raises(UserError, match="leave out ref_emb"):
        loss(rows, LABELS, ref_emb=rows.detach().clone(), ref_labels=LABELS)
    with pytest.raises(UserError, match="LightlyLoss takes no references"):
        CrossBatchMemory(MultipleLosses([loss]), embedding_size=4)


def test_unit_variance_brings_rows_to_the_root_of_their_width() -> None:
    rows, recorder = embeddings(), Recorder()
    LightlyLoss(recorder, unit_variance=True)(rows, LABELS)
    for view in recorder.seen:
        torch.testing.assert_close(view.norm(dim=1), torch.full((3,), 2.0, dtype=torch.float64))


def test_a_single_label_gives_zero_with_zero_gradient() -> None:
    rows = embeddings(2)
    value = LightlyLoss(Recorder())(rows, torch.tensor([3, 3]))
    assert value == 0
    assert not torch.autograd.grad(value, rows)[0].any()


@pytest.mark.parametrize("name", ["barlow_twins", "vicreg"])
def test_without_lightly_the_message_says_how_to_install_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightly.loss", None)
    with pytest.raises(UserError, match=r"the loss .* needs lightly, .*'aurank\[lightly\]'"):
        LOSSES[name]()


class OneView(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows.sum()


def test_names_that_are_no_losses_of_two_views_are_answered_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as everywhere but in these tests
    monkeypatch.setitem(sys.modules, "lightly.loss", None)
    with pytest.raises(UserError, match=r"RecorderLoss needs lightly, .*'aurank\[lightly\]'"):
        LightlyLoss("RecorderLoss")
    classes = types.ModuleType("lightly.loss")
    vars(classes).update(VICRegLoss=Recorder, NTXentLoss=Recorder, OtherLoss=Recorder, OneView=OneView, nn=nn)
    monkeypatch.setitem(sys.modules, "lightly.loss", classes)
    for call, message in (
        (
            lambda: LightlyLoss("VICRegLoss"),
            r"of lightly that was made.*, got 'VICRegLoss'; from_lightly .*: NTXentLoss, VICRegLoss$",
        ),
        (lambda: LightlyLoss(Recorder), r"of lightly that was made, as .*, got <class .*from_lightly"),
        (lambda: from_lightly("Loss"), r"must name a class of lightly.loss, NTXentLoss, VICRegLoss, got 'Loss'"),
        (lambda: from_lightly("OneView"), "OneView of lightly takes rows: take one of NTXentLoss, VICRegLoss"),
        (
            lambda: from_lightly("VICRegLoss", {"sharpness": 2}),
            r"VICRegLoss of lightly .* arguments=\{'sharpness': 2\}: .*sharp",
        ),
    ):
        with pytest.raises(UserError, match=message):
            call()
    assert isinstance(from_lightly("NTXentLoss").loss, Recorder)


@with_lightly
def test_they_are_lightly_s_own_of_both_views() -> None:
    from lightly.loss import BarlowTwinsLoss, NTXentLoss, VICRegLoss

    rows = embeddings(16)
    first, second, labels = rows[:8], rows[8:], torch.arange(8).repeat(2)
    for own, theirs in (
        (barlow_twins(0.01), BarlowTwinsLoss(0.01)),
        (vicreg(10.0, unit_variance=False), VICRegLoss(10.0)),
        (from_lightly("NTXentLoss", {"temperature": 0.2}), NTXentLoss(0.2)),
    ):
        value, expected = own(rows, labels), theirs(first, second)
        assert value == expected
        gradients = [torch.autograd.grad(each, rows)[0] for each in (value, expected)]
        torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


@with_lightly
def test_vicreg_s_variance_term_vanishes_only_for_rows_that_are_long_enough() -> None:
    spread = torch.eye(4, dtype=torch.float64)
    rows = torch.cat([spread, -spread]).repeat(2, 1)  # what an encoder that spreads evenly gives: unit length
    labels = torch.arange(8).repeat(2)
    assert vicreg(0.0, 1.0, 0.0)(rows, labels) == pytest.approx(0, abs=1e-9)
    assert vicreg(0.0, 1.0, 0.0, unit_variance=False)(rows, labels) > 0.4


@with_lightly
def test_what_lightly_does_not_have_is_named() -> None:
    with pytest.raises(UserError, match=r"loss must name a class of lightly\.loss, BarlowTwinsLoss, .*, got 'Barlow'"):
        from_lightly("Barlow")
    with pytest.raises(UserError, match="loss must be one of two views, but KoLeoLoss of lightly takes x"):
        from_lightly("KoLeoLoss")
