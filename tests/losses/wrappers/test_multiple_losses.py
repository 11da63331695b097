import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.miners import MultiSimilarityMiner
from torch import Tensor, nn
from torch.nn.functional import normalize

from aurank.losses import MultipleLosses, SmoothAPLoss, SOPRCLoss

EMBEDDINGS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2, 1])


class Recorder(nn.Module):
    """Remembers what it was called with."""

    def forward(
        self, embeddings: Tensor, labels: Tensor, *rest: object, ids: object = None, ref_ids: object = None
    ) -> Tensor:
        self.seen = (rest, ids, ref_ids)
        return embeddings.sum() * 0


def test_ids_reach_the_losses_that_take_them_and_pml_s_get_five_arguments() -> None:
    recorder, ids = Recorder(), torch.arange(8)
    total = MultipleLosses({"mine": recorder, "pml": pml_losses.ContrastiveLoss(), "ap": SmoothAPLoss()})
    given = {"ref_emb": EMBEDDINGS.clone(), "ref_labels": LABELS, "ids": ids, "ref_ids": ids + 8}
    total(EMBEDDINGS, LABELS, **given)
    rest, seen_ids, seen_ref_ids = recorder.seen
    assert rest == (None, given["ref_emb"], LABELS)
    assert seen_ids is ids
    assert seen_ref_ids is given["ref_ids"]


def test_wrappers_nest_and_keep_all_state() -> None:
    inner = MultipleLosses([SOPRCLoss([2, 3, 3]), SmoothAPLoss()], weights=[1, 0.5])
    outer = MultipleLosses({"both": inner, "ap": SmoothAPLoss()})
    expected = SOPRCLoss([2, 3, 3])(EMBEDDINGS, LABELS) + 1.5 * SmoothAPLoss()(EMBEDDINGS, LABELS)
    torch.testing.assert_close(outer(EMBEDDINGS, LABELS, ids=torch.arange(8)), expected)
    assert any(name.endswith("table.rows") for name in outer.state_dict())


def test_each_loss_gets_its_own_miner_s_tuple() -> None:
    miner, loss = MultiSimilarityMiner(epsilon=0.01), SmoothAPLoss()
    expected = loss(EMBEDDINGS, LABELS, miner(EMBEDDINGS, LABELS)) + loss(EMBEDDINGS, LABELS)
    for losses, miners in (([loss, loss], [miner, None]), ({"a": loss, "b": loss}, {"a": miner})):
        torch.testing.assert_close(MultipleLosses(losses, miners)(EMBEDDINGS, LABELS), expected)


def test_a_width_is_of_the_first_numbers_at_unit_length() -> None:
    random = torch.Generator().manual_seed(1)
    references, labels = torch.randn(6, 4, generator=random), torch.tensor([0, 1, 2, 2, 1, 0])
    both = MultipleLosses({"a": SmoothAPLoss(), "b": SmoothAPLoss()}, weights={"a": 2, "b": 0.5}, widths={"a": 2})
    for given in ((), (None, references, labels)):
        rows = EMBEDDINGS.clone().requires_grad_()
        short = [given[0], normalize(given[1][:, :2], dim=1), given[2]] if given else []
        first = 2 * SmoothAPLoss()(normalize(rows[:, :2], dim=1), LABELS, *short)
        second = 0.5 * SmoothAPLoss()(rows, LABELS, *given)
        value = both(rows, LABELS, *given)
        torch.testing.assert_close(value, first + second)
        found, wanted = (torch.autograd.grad(one, rows)[0] for one in (value, first + second))
        torch.testing.assert_close(found, wanted)
        assert both.last_terms == {"a": first.detach(), "b": second.detach()}


def test_a_width_of_half_precision_is_taken_in_float32_inside_of_autocast_too() -> None:
    half, narrow = EMBEDDINGS.bfloat16().requires_grad_(), MultipleLosses([SmoothAPLoss()], widths=[2])
    wanted = SmoothAPLoss()(half.float()[:, :2], LABELS)
    for references in ({}, {"ref_emb": half.detach().clone(), "ref_labels": LABELS}):
        with torch.autocast("cpu", torch.bfloat16):
            value = narrow(half, LABELS, **references)
        assert value.dtype == torch.float32
        if not references:
            assert value == wanted
    assert narrow(EMBEDDINGS.double(), LABELS).dtype == torch.float64
