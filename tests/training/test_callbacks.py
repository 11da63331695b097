"""What losses and miners are told and offered in training, and the state of a miner."""

from pathlib import Path
from typing import Any

import pytest
import torch
from testing.learnt import Learnt
from testing.runs import assert_equal
from testing.tiny import tiny_config
from torch import Tensor, nn

import aurank
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.errors import AurankError, UserError
from aurank.losses import LOSSES, MINERS
from aurank.training import read_config
from aurank.training.build import build_splits
from aurank.training.state import random_state
from aurank.training.trainer import Reencode, Trainer


class Wants(Learnt):
    """Asks in every step for images of the batch, as they are without augmentation."""

    wants_reencode = True

    def __init__(self) -> None:
        super().__init__()
        self.reencode: Any = None
        self.found: list[Tensor] = []

    def per_query(self, pairs: Any) -> Tensor:
        assert pairs.query_ids is not None
        self.found.append(self.reencode(pairs.query_ids[:3]))
        return super().per_query(pairs)


class Content(Wants):
    wants_reencode = False

    def per_query(self, pairs: Any) -> Tensor:
        return Learnt.per_query(self, pairs)


class Counting(nn.Module):
    """A miner of all pairs that keeps count, of its calls and of what it is told."""

    def __init__(self, *, num_samples: int) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(num_samples))
        self.steps: list[int] = []

    def set_progress(self, *, step: int, steps: int, epoch: int, epochs: float) -> None:
        self.steps.append(step)

    def forward(self, embeddings: Tensor, labels: Tensor, ref_emb: Any = None, ref_labels: Any = None) -> Any:
        self.calls += 1
        same = labels[:, None] == labels
        positive, negative = same.fill_diagonal_(False).nonzero().T, (labels[:, None] != labels).nonzero().T
        return positive[0], positive[1], negative[0], negative[1]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for loss in (Learnt, Wants, Content):
        monkeypatch.setitem(LOSSES, loss.__name__.lower(), loss)
    monkeypatch.setitem(MINERS, "counting", Counting)


def build(loss: str, **sections: dict[str, Any]) -> Trainer:
    settings = read_config(tiny_config(loss, **sections))
    return Trainer(settings, build_splits(settings))


@pytest.mark.slow
def test_every_module_that_listens_is_told_where_training_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def keep(module: Any) -> Any:
        made.append(module)
        return module

    monkeypatch.setitem(LOSSES, "kept", lambda: keep(Learnt()))
    monkeypatch.setitem(MINERS, "kept", lambda num_samples: keep(Counting(num_samples=num_samples)))
    # 149 images make 5 batches of at most 30, so 5 steps of 2 batches are two epochs.
    sampler = {"name": "shuffled", "batch": 30, "params": {}}
    config = tiny_config("kept", train={"steps": 5, "accumulate": 2}, sampler=sampler)
    aurank.train({**config, "miner": {"name": "kept"}, "memory": {"size": 1000}}, tmp_path / "out")
    loss, miner = made[-2:]  # those before were tried by the reading of the configuration
    assert [at["step"] for at in loss.progress] == miner.steps == list(range(5))
    assert {at["steps"] for at in loss.progress} == {5}
    assert [at["epoch"] for at in loss.progress] == [0, 0, 0, 1, 1]
    assert {at["epochs"] for at in loss.progress} == {2.0}


def images_of(trainer: Trainer, ids: list[int]) -> torch.Tensor:
    found = trainer.train_data.__getitems__(ids).image
    assert isinstance(found, torch.Tensor)
    return trainer.train_data.to_input(found)


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_images_are_embedded_anew_as_they_are_with_the_weights_as_they_are(micro_batch: int | None) -> None:
    trainer = build("wants", model={"freeze_batch_norm": True, "params": {}}, train={"micro_batch": micro_batch})
    for ids in ([5, 0, 7, 7, 140], [4], []):
        found = trainer.loss.reencode(torch.tensor(ids, dtype=torch.int64))
        assert found.shape == (len(ids), 8)
        assert not found.requires_grad
        if ids:
            torch.testing.assert_close(found, trainer.model(images_of(trainer, ids)).detach())
    with torch.no_grad():
        trainer.model.head.bias.add_(1.0)
    moved = trainer.loss.reencode(torch.tensor([5, 0]))
    torch.testing.assert_close(moved, trainer.model(images_of(trainer, [5, 0])).detach())


@pytest.mark.parametrize("training", [True, False])
def test_embedding_anew_changes_nothing_and_keeps_the_mode(training: bool) -> None:
    trainer = build("wants", model={"params": {"drop_rate": 0.5}, "head_layers": 2})
    trainer.encoder.train(training)
    images = images_of(trainer, [1, 2, 3, 4])
    embeddings = trainer.embed((images,))
    buffers, before = [value.clone() for value in trainer.encoder.buffers()], random_state()
    first, second = (trainer.loss.reencode(torch.tensor([1, 2, 3, 4])) for _ in range(2))
    # Checking types in this process draws from Python's own generator; nothing of this does.
    assert_equal(random_state(), before, ignore=("python",))
    assert_equal(buffers, list(trainer.encoder.buffers()), ignore=())
    assert trainer.model.training is trainer.encoder.training is training
    assert torch.equal(first, second)
    assert torch.equal(first, embeddings) is not training  # but for dropout, drawn anew in training
    embeddings[:, 0].sum().backward()  # which a buffer written to in between would forbid


@pytest.mark.slow
def test_only_who_wants_it_is_given_the_callback() -> None:
    assert isinstance(build("wants").loss.reencode, Reencode)
    assert build("content").loss.reencode is None
    trainer = build("wants", memory={"size": 100})
    assert isinstance(trainer.loss.loss.reencode, Reencode)
    assert not hasattr(build("learnt").loss, "reencode")


def test_an_image_that_is_gone_is_named(tmp_path: Path) -> None:
    trainer = build("wants", data={"on_error": "skip"})
    trainer.train_data._unreadable[7] = True
    with pytest.raises(UserError, match=r"was read before and cannot be read any more"):
        trainer.loss.reencode(torch.tensor([3, 7]))


@pytest.mark.slow
def test_the_state_of_a_miner_is_saved_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**tiny_config("learnt", train={"steps": 4, "checkpoint_every": 1}), "miner": {"name": "counting"}}
    original, calls = Learnt.per_query, []

    def poisoned(self: Learnt, pairs: Any) -> Tensor:
        calls.append(1)
        return original(self, pairs) * (float("nan") if len(calls) == 3 else 1.0)

    monkeypatch.setattr(Learnt, "per_query", poisoned)
    with pytest.raises(AurankError, match="the loss is nan at step 3"):
        aurank.train(config, tmp_path / "out")
    assert load_checkpoint(tmp_path / "out" / "last.safetensors")["miner"]["calls"].tolist() == [2.0] * 149
    aurank.train(config, tmp_path / "out", resume=True)
    state = load_checkpoint(tmp_path / "out" / "last.safetensors")
    assert state["miner"]["calls"].tolist() == [4.0] * 149
