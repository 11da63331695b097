import copy

import pytest
import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from testing.stateful import same_state
from torch import Tensor

from aurank.errors import UserError
from aurank.losses import CrossBatchMemory, EMC2Loss, EMC2Miner, InfoNCELoss, PMLLoss, SmoothAPLoss

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])


def rows(seed: int = 0, number: int = 8) -> Tensor:
    return torch.randn(number, 5, generator=torch.Generator().manual_seed(seed))


def test_negatives_are_kept_states_of_the_chains_of_the_loss() -> None:
    miner, loss = EMC2Miner(20, temperature=0.2, per_anchor=400), EMC2Loss(20, temperature=0.2)
    ids = torch.arange(8) + 10
    for seed in range(3):
        anchor, positive, negative = miner(rows(seed), LABELS, ids=ids)
        walks = []
        loss.chains.register_forward_hook(lambda module, given, walk, walks=walks: walks.append(walk))
        loss(rows(seed), LABELS, ids=ids)
        for row in range(7):
            mine = anchor == row
            positives = (LABELS[row] == LABELS).nonzero().squeeze(1)
            assert set(positive[mine].tolist()) == set(positives.tolist()) - {row}
            found = torch.bincount(negative[mine], minlength=8) / mine.sum()
            steps = walks[0].steps[row]
            assert found[steps == 0].sum() == 0
            torch.testing.assert_close(found, steps / steps.sum(), rtol=0, atol=0.1)
        assert 7 not in anchor  # it has no positive
        assert miner.emc2.states.equal(loss.states)
    assert len(anchor) == 400 * (3 * 2 + 4 * 1)


def test_a_chain_that_stays_outside_of_the_batch_gives_no_triplet() -> None:
    miner = EMC2Miner(4, temperature=0.005)
    query = torch.eye(5)[[0, 0, 1, 1]]
    miner(query, torch.tensor([0, 0, 1, 1]))
    near = torch.eye(5)[[1, 1, 2, 2]]  # image 0 as image 1 was: its state, outside now, is all it could wish for
    anchor, _, _ = miner(near, torch.tensor([0, 0, 2, 2]))
    assert set(anchor.tolist()) == {2, 3}


def test_the_same_triplets_come_again_after_a_restart_and_in_evaluation_mode() -> None:
    miner, fresh = EMC2Miner(4), EMC2Miner(4, views=2)
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    miner(rows(1), labels)
    fresh.load_state_dict(miner.state_dict())
    before = copy.deepcopy(miner.state_dict())
    miner.eval()
    first = miner(rows(2), labels)
    assert same_state(miner.state_dict(), before)
    miner.train()
    for again in (miner(rows(2), labels), fresh(rows(2), labels)):
        assert all(one.equal(other) for one, other in zip(first, again, strict=True))
    assert same_state(miner.state_dict(), fresh.state_dict())


def test_losses_hand_it_ids_also_through_a_memory() -> None:
    ids = torch.arange(8) + 10
    for loss in (PMLLoss(TripletMarginLoss()), SmoothAPLoss()):
        miner = EMC2Miner(20)
        value = loss(rows().requires_grad_(), LABELS, miner, ids=ids)
        value.backward()
        assert (miner.emc2.states >= 10).nonzero().squeeze(1).tolist() == list(range(10, 17))
    miner = EMC2Miner(40)
    memory = CrossBatchMemory(SmoothAPLoss(), embedding_size=5, memory_size=24, miner=miner)
    for step in range(3):
        assert memory(rows(step), LABELS, ids=ids + 8 * step).isfinite()
    assert miner.emc2.states[10:17].max() <= 17
    assert miner.emc2.states[26:33].min() >= 10  # of the memory, too


def test_autocast_leaves_the_similarity_to_states_of_earlier_batches_as_it_is() -> None:
    labels, found = torch.arange(4).repeat(2), []
    for enabled in (False, True):
        miner = EMC2Miner(20)
        miner(rows(0), labels)
        miner.emc2.chains.register_forward_hook(lambda module, given, walk: found.append(walk.outside))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            miner(rows(1), labels)
    assert found[0].any()
    assert found[1].equal(found[0])


@pytest.mark.parametrize("with_ids", [False, True])
def test_other_views_in_a_memory_s_batch_are_positives(with_ids: bool) -> None:
    miner = EMC2Miner(4, temperature=0.2)
    memory = CrossBatchMemory(InfoNCELoss(), embedding_size=5, memory_size=16, miner=miner)
    labels = torch.arange(4).repeat(2)
    for step in range(4):
        leaf = rows(step).requires_grad_()
        memory(leaf, labels, ids=labels if with_ids else None).backward()
        assert leaf.grad is not None
        assert leaf.grad.any()
    assert miner.emc2.chains.table.seen.all()
    assert (miner.emc2.states >= 0).all() == with_ids
    whole = torch.cat([rows(3), rows(2)])
    found = miner(rows(3), labels, whole, labels.repeat(2), ids=labels, ref_ids=labels.repeat(2), batch_leads=True)
    positives = set(zip(found[0].tolist(), found[1].tolist(), strict=True))
    # the other view of the batch, and of the memory's rows, which are of the image itself, none
    assert positives == {(row, (row + 4) % 8) for row in set(found[0].tolist())}


def test_references_that_are_the_batch_itself_are_mined_as_the_batch() -> None:
    labels, ids = torch.arange(4).repeat(2), torch.arange(4).repeat(2)
    loss, embeddings = SmoothAPLoss(), rows()
    plain = loss(embeddings, labels, EMC2Miner(4), ids=ids)
    for given in ({"ref_labels": labels, "ref_ids": ids}, {"ref_labels": labels}, {}):
        assert loss(embeddings, labels, EMC2Miner(4), ref_emb=embeddings, ids=ids, **given) == plain


def test_states_outside_of_the_batch_are_embedded_anew_by_the_miner_s_own_callback() -> None:
    miner, labels = EMC2Miner(10, out_of_batch="reencode"), torch.tensor([0, 1, 0, 1])
    with pytest.raises(UserError, match=r"EMC² with .* set its attribute reencode"):
        miner(rows(0, 4), labels)
    asked: list[int] = []

    def reencode(ids: Tensor) -> Tensor:
        asked.extend(ids.tolist())
        return torch.ones(len(ids), 5)

    miner.reencode = reencode
    miner(rows(0, 4), labels)
    assert asked == []
    miner(rows(1, 4), labels * 3)
    assert asked == [1]
