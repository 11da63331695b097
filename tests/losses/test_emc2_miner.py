import copy

import pytest
import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from states import same_state
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses import CrossBatchMemory, EMC2Loss, EMC2Miner, PMLLoss, SmoothAPLoss

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
    memory = CrossBatchMemory(SmoothAPLoss(), embedding_dim=5, memory_size=24, miner=miner)
    for step in range(3):
        assert memory(rows(step), LABELS, ids=ids + 8 * step).isfinite()
    assert miner.emc2.states[10:17].max() <= 17
    assert miner.emc2.states[26:33].min() >= 10  # of the memory, too


def test_labels_that_repeat_more_often_than_views_need_ids() -> None:
    with pytest.raises(UserError, match="ids="):
        EMC2Miner(20)(rows(), LABELS)
    with pytest.raises(UserError, match="per_anchor"):
        EMC2Miner(20, per_anchor=0)
    assert isinstance(EMC2Miner(20, out_of_batch="reencode").emc2.chains, nn.Module)
