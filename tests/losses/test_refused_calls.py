"""Calls that no loss can answer: each is refused with the name of what is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import BaseDistance, CosineSimilarity
from pytorch_metric_learning.miners import BatchEasyHardMiner, MultiSimilarityMiner
from testing.equal import rows_of_four
from testing.stateful import PROXIES
from torch import Tensor

from aurank.errors import UserError
from aurank.losses import (
    LOSSES,
    CLIPLoss,
    CrossBatchMemory,
    EMC2Loss,
    HierarchicalAPLoss,
    InfoNCELoss,
    MultipleLosses,
    NeuCLIPLoss,
    PMLLoss,
    RecallAtKLoss,
    SigLIPLoss,
    SmoothAPLoss,
    SogCLRLoss,
    SOPRCLoss,
    contrastive,
    make_pairs,
)
from aurank.losses.core.pairs import read_inputs
from aurank.losses.ranking.binned_ap import default_limits

ROWS, LABELS = rows_of_four()  # 12 rows of 5 numbers, labels below 4
OTHERS, OTHER_LABELS = rows_of_four(1)
VIEWS = torch.arange(6).repeat(2)
KEYS = torch.arange(12) > 5
MINER, EASY = MultiSimilarityMiner(), BatchEasyHardMiner()
REFERENCES = {"ref_emb": OTHERS, "ref_labels": OTHER_LABELS}
TWO_WAY = {"ref_emb": OTHERS, "ref_labels": VIEWS, "ids": VIEWS}


def mined(*parts: list[Any]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(part) for part in parts)


def memory(loss: Any = None, **given: Any) -> CrossBatchMemory:
    return CrossBatchMemory(loss or contrastive(), **{"embedding_size": 5, **given}).double()


def sogclr(**given: Any) -> SogCLRLoss:
    return SogCLRLoss(6, **given).double()


def reencoding(answer: Callable[[Tensor], object] | None, **given: Any) -> None:
    """Train until states lie outside of the batch."""
    loss = EMC2Loss(10, out_of_batch="reencode").double()
    loss.reencode = answer
    for images in ([0, 1], [0, 2], [0, 3], [1, 2]):
        loss(ROWS[:4], torch.tensor(images * 2), **given)


def changed_width(loss: EMC2Loss) -> None:
    loss(ROWS[:4], torch.tensor([0, 1, 0, 1]))
    loss(ROWS[:4, :3], torch.tensor([0, 1, 0, 1]))


def proxies(name: str, *given: Any, **named: Any) -> Tensor:
    return LOSSES[name](num_classes=4, embedding_size=5).double()(*given, **named)


class OwnDistance(BaseDistance):  # type: ignore[misc]
    """A distance of which nothing is known."""

    def compute_mat(self, query: Tensor, reference: Tensor) -> Tensor:
        return query @ reference.T


CALLS: list[tuple[str, Callable[[], object]]] = [
    # what goes with the embeddings
    (r"embeddings.*\[12, 0\]", lambda: SmoothAPLoss()(ROWS[:, :0], LABELS)),
    (r"embeddings.*\[12\]", lambda: read_inputs(ROWS[:, 0], LABELS)),
    ("floating-point", lambda: read_inputs(ROWS.long(), LABELS)),
    (r"embeddings.*\[0, 5\]", lambda: SmoothAPLoss()(ROWS[:0], LABELS[:0])),
    ("labels are required", lambda: read_inputs(ROWS, None)),
    (r"labels must be a tensor of 12 integers.*\[9\]", lambda: read_inputs(ROWS, LABELS[:9])),
    ("labels must be a tensor of 12 integers", lambda: read_inputs(ROWS, LABELS[:, None])),
    (r"labels must .*torch\.float32", lambda: read_inputs(ROWS, LABELS.float())),
    ("ids must be a tensor of 12 integers", lambda: read_inputs(ROWS, LABELS, ids=LABELS[:4])),
    ("ref_emb, which was not given", lambda: read_inputs(ROWS, LABELS, ref_labels=LABELS)),
    ("ref_labels are required", lambda: read_inputs(ROWS, LABELS, ref_emb=OTHERS)),
    ("as wide as embeddings, 5, got 4", lambda: read_inputs(ROWS, LABELS, ref_emb=OTHERS[:, :4], ref_labels=LABELS)),
    ("ref_labels must be a tensor of 12", lambda: read_inputs(ROWS, LABELS, ref_emb=OTHERS, ref_labels=LABELS[:2])),
    ("ref_ids must be a tensor of 12", lambda: read_inputs(ROWS, LABELS, **REFERENCES, ref_ids=LABELS[:2])),
    (
        "ref_labels differ from labels",
        lambda: make_pairs(
            read_inputs(ROWS, LABELS, ref_emb=ROWS, ref_labels=OTHER_LABELS), distance=CosineSimilarity()
        ),
    ),
    # labels and ids that the loss has no place for
    (r"label -1 is none of the loss's 2 classes", lambda: SOPRCLoss([2, 2])(ROWS, -LABELS.clamp(max=1))),
    (r"label 3 is none of the loss's 2 classes", lambda: SOPRCLoss([2, 2])(ROWS, LABELS.clamp(min=3))),
    (r"label 109951162777. is none", lambda: SOPRCLoss([2, 2])(ROWS, LABELS + 2**40)),
    (r"label \d is none of .* super_labels an entry for each", lambda: HierarchicalAPLoss([0, 0])(ROWS, LABELS)),
    ("embedding_size=4", lambda: HierarchicalAPLoss([0] * 4, clustering=0.1, embedding_size=4)(ROWS, LABELS)),
    ("ids hold 6, outside the 6 rows.*num_samples", lambda: sogclr()(ROWS, VIEWS, ids=VIEWS + 1)),
    ("labels, taken for ids, hold -3", lambda: sogclr()(ROWS, VIEWS - 3)),
    (r"label 0 occurs 6 times, more than views=2.*ids=batch.id", lambda: sogclr()(ROWS, VIEWS % 2)),
    ("pass ref_ids beside ids", lambda: sogclr(two_way=True)(ROWS, VIEWS, **TWO_WAY)),
    ("ref_ids hold 6", lambda: sogclr(two_way=True)(ROWS, VIEWS, **TWO_WAY, ref_ids=VIEWS + 1)),
    # two modalities
    ("contrasts two modalities", lambda: CLIPLoss()(ROWS, LABELS)),
    ("contrasts two modalities", lambda: SigLIPLoss()(ROWS, LABELS)),
    ("InfoNCELoss with two_way=True", lambda: InfoNCELoss(two_way=True)(ROWS, LABELS)),
    ("two_way=True contrasts two modalities", lambda: NeuCLIPLoss(5)(ROWS, LABELS)),
    ("SogCLRLoss with two_way=True", lambda: sogclr(two_way=True)(ROWS, VIEWS)),
    ("two_way", lambda: memory(NeuCLIPLoss(5))),
    # states kept outside of the batch
    ("embedding_size=5, got 3", lambda: changed_width(EMC2Loss(4))),
    ("embedding_size=6, got 5", lambda: changed_width(EMC2Loss(4, embedding_size=6))),
    ("attribute reencode", lambda: reencoding(None)),
    ("pass ref_ids", lambda: reencoding(lambda ids: ROWS[ids], ref_emb=OTHERS[:2], ref_labels=VIEWS[4:6] + 1)),
    # references, mined indices and miners
    ("ref_emb cannot be given", lambda: RecallAtKLoss(similarity_mixup=True)(ROWS, LABELS, **REFERENCES)),
    ("indices_tuple cannot", lambda: RecallAtKLoss(similarity_mixup=True)(ROWS, LABELS, MINER(ROWS, LABELS))),
    ("has its own miners", lambda: MultipleLosses([SmoothAPLoss()], [MINER])(ROWS, LABELS, MINER(ROWS, LABELS))),
    ("outside the 12 embeddings", lambda: SmoothAPLoss()(ROWS, LABELS, mined([12], [0], [0], [1]), OTHERS, LABELS)),
    ("outside the 12 references", lambda: memory()(ROWS, LABELS, mined([0], [12], [1]))),
    # a memory
    ("memory_size", lambda: memory(memory_size=0)),
    ("start_at", lambda: memory(start_at=-1)),
    ("embedding_size", lambda: memory(embedding_size=0)),
    ("distributed", lambda: memory(contrastive(distributed=True))),
    ("distributed", lambda: memory(MultipleLosses([contrastive(distributed=True)]))),
    ("ArcFaceLoss", lambda: memory(pml.ArcFaceLoss(4, 5))),
    ("RecallAtKLoss takes no references", lambda: memory(MultipleLosses([RecallAtKLoss(similarity_mixup=True)]))),
    ("its own references", lambda: memory()(ROWS, LABELS, None, ROWS)),
    ("its own references", lambda: MultipleLosses([memory()])(ROWS, LABELS, None, ROWS, LABELS)),
    ("CrossBatchMemory has one", lambda: memory(miner=MINER)(ROWS, LABELS, MINER)),
    ("query itself", lambda: memory(miner=EASY)(ROWS, LABELS)),
    ("query itself", lambda: memory(MultipleLosses([SmoothAPLoss()], [EASY]))(ROWS, LABELS)),
    ("embedding_size=5", lambda: memory()(ROWS[:, :3], LABELS)),
    ("labels are required", lambda: memory()(ROWS)),
    ("on cpu .* on meta", lambda: CrossBatchMemory(SmoothAPLoss(), 5)(ROWS.float().to("meta"), LABELS)),
    (r"enqueue_mask .*torch\.int64", lambda: memory()(ROWS, LABELS, None, LABELS)),
    (r"torch\.bool of shape \[3\]", lambda: memory()(ROWS, LABELS, None, KEYS[:3])),
    ("indices_tuple and enqueue_mask", lambda: memory()(ROWS, LABELS, MINER(ROWS, LABELS), KEYS)),
    ("True for all", lambda: memory()(ROWS, LABELS, enqueue_mask=KEYS | True)),
    ("the memory is empty", lambda: memory()(ROWS, LABELS, enqueue_mask=KEYS & False)),
    # sums, widths and bins
    ("at least as wide as widths, 8", lambda: MultipleLosses([SmoothAPLoss()], widths=[8])(ROWS, LABELS)),
    ("OwnDistance, .* give range=", lambda: default_limits(OwnDistance())),
]
PROXY_CALLS: list[tuple[str, Callable[[str], object]]] = [
    ("label 7 is none of the loss's 4 classes", lambda name: proxies(name, ROWS, LABELS.where(LABELS == 0, 7))),
    ("takes no references", lambda name: memory(LOSSES[name](num_classes=4, embedding_size=5))),
    ("num_classes", lambda name: LOSSES[name](num_classes=0, embedding_size=5)),
    ("embedding_size=5, got 4", lambda name: proxies(name, ROWS[:, :4], LABELS)),
]
MINED: list[tuple[str, tuple[list[Any], ...]]] = [
    (r"holds 12, outside the 12 (embeddings|references)", ([0], [12], [0], [1])),
    ("holds -1, outside the 12 embeddings", ([-1], [0], [1])),
    ("pair up one by one", ([0, 1], [1], [0], [1])),
    ("3 .triplets. or 4 .pairs. tensors", ([0], [1])),
    (r"torch\.float32", ([0.0], [1.0], [2.0])),
    (r"torch\.bool", ([True], [True], [False])),
]


@pytest.mark.parametrize(("word", "call"), CALLS)
@pytest.mark.filterwarnings("ignore:no query of the batch")
def test_a_call_that_cannot_be_is_refused_with_the_name(word: str, call: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=word):
        call()


@pytest.mark.parametrize(("word", "call"), PROXY_CALLS)
@pytest.mark.parametrize("name", PROXIES)
def test_a_loss_of_proxies_refuses_too(name: str, word: str, call: Callable[[str], object]) -> None:
    with pytest.raises(UserError, match=word):
        call(name)
    with pytest.raises(ValueError, match="ref_emb is not supported"):  # in PML's words
        proxies(name, ROWS, LABELS, **REFERENCES)


@pytest.mark.parametrize("references", [(), (OTHERS, OTHER_LABELS)], ids=["batch", "references"])
@pytest.mark.parametrize("loss", [contrastive(), PMLLoss(pml.ArcFaceLoss(4, 5))], ids=["pairs", "proxies"])
@pytest.mark.parametrize(("word", "parts"), MINED)
def test_mined_indices_that_fit_nothing_are_named(
    word: str, parts: tuple[list[Any], ...], loss: PMLLoss, references: tuple[Tensor, ...]
) -> None:
    with pytest.raises(UserError, match=word):
        loss(ROWS.float(), LABELS, mined(*parts), *references)


def test_a_refused_call_leaves_no_state() -> None:
    loss = sogclr(two_way=True)
    with pytest.raises(UserError, match="ref_ids"):
        loss(ROWS, VIEWS, **TWO_WAY, ref_ids=VIEWS + 1)
    assert not any(bool(table.seen.any()) for table in loss.tables)
    for given in ({"out_of_batch": "restart"}, {"official": True}):  # which keep no embeddings, so any width goes
        changed_width(EMC2Loss(4, **given))
