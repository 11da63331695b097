"""What a step changed before its loss turned out not to be finite can be taken back."""

import pytest
import torch
from test_resume import assert_equal
from torch import Tensor, nn

from aurank.losses import BlackBoxAPLoss, CrossBatchMemory, EMC2Miner, SogCLRLoss, SOPRCLoss
from aurank.losses.ranking.blackbox_ap import RankingMemory
from aurank.training.random_state import random_state
from aurank.training.state import Before, Progress


class Drawing(SOPRCLoss):
    """A loss that keeps a generator's state beside its buffers."""

    def __init__(self) -> None:
        super().__init__(class_counts=torch.tensor([8, 8, 8]).numpy())
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, *given: object, **named: object) -> Tensor:
        value: Tensor = super().forward(*given, **named)
        return value * (1 + torch.rand((), generator=self.generator))

    def get_extra_state(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.generator.set_state(state["generator"])


def state_of(*modules: nn.Module) -> list[dict[str, object]]:
    return [
        {name: torch.clone(v) if isinstance(v, Tensor) else v for name, v in m.state_dict().items()} for m in modules
    ]


@pytest.mark.parametrize("memory", [None, 5, 13, 100])
def test_a_step_of_several_batches_is_taken_back_whole(memory: int | None) -> None:
    encoder, loss = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout()), Drawing()
    whole: nn.Module = loss if memory is None else CrossBatchMemory(loss, embedding_size=3, memory_size=memory)
    labels, progress = torch.tensor([0, 0, 1, 1, 2, 2]), Progress(step=3, epoch=1, batch=2)

    def step() -> None:
        for _ in range(2):
            whole(encoder(torch.randn(6, 4)), labels)
        progress.batch += 2

    for _ in range(3):
        before = Before(encoder, whole, progress)
        modules, random, position = state_of(encoder, whole), random_state(), vars(progress).copy()
        step()
        after = state_of(encoder, whole)
        before.restore(progress)
        assert_equal(state_of(encoder, whole), modules, ignore=())
        assert_equal(random_state(), random, ignore=("python",))
        assert vars(progress) == position
        step()  # and the same step again does the same
        assert_equal(state_of(encoder, whole), after, ignore=())


def test_of_a_memory_only_the_rows_that_are_written_are_kept() -> None:
    memory = CrossBatchMemory(SOPRCLoss([8, 8, 8]), 3, 10_000)
    before = Before(nn.Linear(2, 3), memory, Progress())
    assert all(value.numel() < 100 for value in before.kept[0].state.values() if isinstance(value, Tensor))
    memory(torch.randn(6, 3), torch.tensor([0, 0, 1, 1, 2, 2]))
    assert memory._before is not None
    assert max(len(value) for value in memory._before[0]) == 6


def test_of_a_table_of_samples_only_what_a_step_overwrites_is_kept() -> None:
    loss, ids = SogCLRLoss(num_samples=10_000), torch.tensor([7, 7, 9_999, 3, 3, 0])
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    loss(torch.randn(6, 4), labels, ids=ids)
    before = Before(nn.Linear(2, 3), loss, Progress())
    assert all(value.numel() < 100 for value in before.kept[0].state.values() if isinstance(value, Tensor))
    whole = state_of(loss)
    for _ in range(2):  # as under train.accumulate
        loss(torch.randn(6, 4), labels, ids=ids.flip(0) + 1 - (ids.flip(0) == 9_999).long())
        assert not loss.log_u.equal(whole[0]["tables.0.rows"].T)
    before.restore(Progress())
    assert_equal(state_of(loss), whole, ignore=())


def test_a_memory_of_rankings_is_taken_back_and_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    loss, labels = BlackBoxAPLoss(official=True, batch_memory=3), torch.tensor([0, 0, 1, 1, 2, 2])
    for _ in range(4):
        loss(torch.randn(6, 4), labels)
    whole = state_of(loss)
    with monkeypatch.context() as forbidding:
        forbidding.setattr(RankingMemory, "get_extra_state", None)
        before = Before(nn.Linear(2, 3), loss, Progress())
    for _ in range(2):
        loss(torch.randn(6, 4), labels)
    with pytest.raises(AssertionError):
        assert_equal(state_of(loss), whole, ignore=())
    before.restore(Progress())
    assert_equal(state_of(loss), whole, ignore=())


def test_a_miner_s_chains_are_taken_back_and_not_copied() -> None:
    loss, miner, labels = SogCLRLoss(num_samples=500), EMC2Miner(num_samples=500), torch.tensor([0, 0, 1, 1, 2, 2])
    miner(torch.randn(6, 4), labels)
    before = Before(nn.Linear(2, 3), loss, Progress(), miner=miner)
    assert all(value.numel() < 500 for value in before.kept[1].state.values() if value.dtype != torch.uint8)
    whole = state_of(miner)
    for _ in range(3):
        miner(torch.randn(6, 4), labels)
    with pytest.raises(AssertionError):
        assert_equal(state_of(miner), whole, ignore=())
    before.restore(Progress())
    assert_equal(state_of(miner), whole, ignore=())
