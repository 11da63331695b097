"""What losses and miners are told and offered in training, and the state of a miner."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from testing.runs import EXACT, SUM, Learnt, assert_equal, tiny_config, trainer_of
from torch import Tensor, nn

import aurank
from aurank.data import HierarchicalSampler
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.errors import AurankWarning
from aurank.losses import LOSSES, MINERS, CLIPLoss, HierarchicalAPLoss, ISogCLRLoss, SogCLRLoss
from aurank.losses.wrappers.cross_batch import CrossBatchMemory
from aurank.losses.wrappers.multiple import MultipleLosses
from aurank.training import read_config
from aurank.training.build import build_loss, build_optimiser, build_sampler, build_splits, learning_rate
from aurank.training.state import random_state
from aurank.training.trainer import Trainer
from aurank.training.watch import learned_temperature


class Wants(Learnt):
    """Asks in every step for images of the batch, as they are without augmentation."""

    wants_reencode = True

    def __init__(self) -> None:
        super().__init__()
        self.reencode: Any = None
        self.found: list[Tensor] = []

    def per_query(self, pairs: Any) -> Tensor:
        self.found.append(self.reencode(pairs.query_ids[:3]))
        return super().per_query(pairs)


class Counting(nn.Module):
    """A miner of all pairs that keeps count, of its calls and of what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(8))
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
    for loss in (Learnt, Wants):
        monkeypatch.setitem(LOSSES, loss.__name__.lower(), loss)
    monkeypatch.setitem(MINERS, "counting", Counting)


@pytest.mark.slow
def test_every_module_that_listens_is_told_where_training_stands(tmp_path, monkeypatch):
    made: list[Any] = []

    def keep(module: Any) -> Any:
        made.append(module)
        return module

    monkeypatch.setitem(LOSSES, "kept", lambda: keep(Learnt()))
    monkeypatch.setitem(MINERS, "kept", lambda: keep(Counting()))
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
def test_images_are_embedded_anew_as_they_are_with_the_weights_as_they_are(micro_batch):
    model = {"freeze_batch_norm": True, "params": {}}
    trainer = trainer_of(tiny_config("wants", model=model, train={"micro_batch": micro_batch}))
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
def test_embedding_anew_changes_nothing_and_keeps_the_mode(training):
    trainer = trainer_of(tiny_config("wants", model={"params": {"drop_rate": 0.5}, "head_layers": 2}))
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
def test_the_state_of_a_miner_is_saved_and_resumed(tmp_path):
    for steps in (2, 4):
        config = tiny_config(
            "learnt", train={"steps": steps}, optim={"schedule": {"name": "constant"}, "warmup_steps": 0}
        )
        aurank.train({**config, "miner": {"name": "counting"}}, tmp_path / "out", resume=steps == 4)
        state = load_checkpoint(tmp_path / "out" / "last.safetensors")
        assert state["miner"]["calls"].tolist() == [steps] * 8


START = math.log(0.5)


def learnt_config(**sections: dict[str, Any]) -> dict[str, Any]:
    optim = {**EXACT["optim"], "temperature_lr": 0.2, "schedule": {"name": "constant"}, **sections.pop("optim", {})}
    return tiny_config("learnt", model=EXACT["model"], **sections, optim=optim)


def test_what_is_logged_of_a_temperature_is_what_the_next_step_takes_and_the_mean_of_individual_ones():
    assert learned_temperature(SogCLRLoss(8)) == learned_temperature(CLIPLoss(learn_temperature=False)) == {}
    loss = CLIPLoss(0.2, two_way=False)
    assert learned_temperature(loss) == {"temperature": pytest.approx(0.2)}
    parameter = loss.temperature.parameter
    parameter.data.fill_(math.log(0.001))  # beyond its bounds, into which it is put before it is used
    memory = CrossBatchMemory(loss, embedding_size=4, memory_size=8)
    assert learned_temperature(memory) == {"temperature": pytest.approx(0.01)}
    assert float(parameter.detach()) == pytest.approx(math.log(0.001))
    individual = ISogCLRLoss(8, temperature=0.6)
    individual.state_dict()["temperature.tables.0.rows"][0, 0] = 0.2
    assert learned_temperature(individual) == {"temperature": pytest.approx((7 * 0.6 + 0.2) / 8)}


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 32 / 256), ("sqrt", math.sqrt(32))])
def test_the_batch_rule_counts_the_images_of_an_update(rule, factor):
    config = read_config(learnt_config(optim={"batch_rule": rule}, train={"accumulate": 2}, data={"views": 3}))
    assert learning_rate(config) == pytest.approx(0.05 * factor)


@pytest.mark.slow
def test_cached_gradients_accumulated_and_clipped_move_the_temperature_as_plain_ones(tmp_path):
    crops = {"views": 4, "train_transform": {"name": "simclr", "params": {"blur": 0}}}
    for name, micro_batch in (("plain", None), ("cached", 10)):
        train = {"steps": 2, "accumulate": 2, "ema": 0.5, "micro_batch": micro_batch}
        aurank.train(learnt_config(train=train, data=crops, memory={"size": 100, "start_at": 1}), tmp_path / name)
    key = "loss.log_temperature"
    plain, cached = (load_checkpoint(tmp_path / name / "last.safetensors") for name in ("plain", "cached"))
    torch.testing.assert_close(cached["loss"][key], plain["loss"][key], rtol=1e-5, atol=1e-6)
    assert abs(float(plain["loss"][key]) - START) > 3e-4
    torch.testing.assert_close(cached["encoder"], plain["encoder"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_a_scaled_and_averaged_backward_pass_scales_the_gradient_of_the_temperature_too(monkeypatch, micro_batch):
    """As a gradient scaler does, whose optimiser step divides all gradients again."""
    found = []
    for scale in (1.0, 512.0):
        torch.manual_seed(0)
        trainer = trainer_of(learnt_config(train={"micro_batch": micro_batch}))
        monkeypatch.setattr(trainer.accelerator, "backward", lambda value, scale=scale: (scale * value).backward())
        rows = [(row, 0, 0) for row in trainer.sampler.epoch(0)[0].tolist()]
        batch = trainer.train_data.__getitems__(rows)
        for _ in range(2):  # gradients add up
            trainer.backward(trainer.loss(trainer.embed((batch.image,)), batch.label, trainer.miner, ids=batch.id))
        values = [*trainer.loss.parameters(), *trainer.model.parameters()]
        found.append([value.grad / scale for value in values if value.grad is not None])
    assert len(found[0]) > 10
    assert float(found[0][0].abs()) > 0
    for plain, scaled in zip(*found, strict=True):
        torch.testing.assert_close(scaled, plain, rtol=1e-4, atol=1e-7)


def test_a_list_is_built_to_a_sum_with_weights_widths_and_miners():
    config = read_config(tiny_config(SUM))
    splits = build_splits(config)
    loss = build_loss(config, splits.train)
    assert isinstance(loss, MultipleLosses)
    assert loss.weights == {"soprc@4": 1.0, "soprc@8": 1.0, "proxy_anchor": 0.1, "multi_similarity": 0.3}
    assert loss.widths == {"soprc@4": 4, "soprc@8": 8}
    assert list(loss.miners) == ["multi_similarity"]
    assert loss.losses["proxy_anchor"].loss.proxies.shape == (len(splits.train.classes), 8)


def test_each_loss_has_groups_of_its_own_in_the_optimiser():
    terms = [*SUM[:2], {"name": "clip", "weight_decay": 0.5}]
    config = read_config(tiny_config(terms, optim={"temperature_lr": 1e-4}))
    loss = build_loss(config, build_splits(config).train)
    optimiser = build_optimiser(config, torch.nn.Linear(2, 2), loss)
    groups = {group["name"]: group for group in optimiser.param_groups if group["name"].startswith("loss")}
    proxies = groups["loss proxy_anchor decayed"]
    assert (proxies["lr_multiplier"], proxies["weight_decay"]) == (100, 0.01)
    (temperature,) = [group for name, group in groups.items() if "proxy" not in name]
    assert temperature["lr_multiplier"] == pytest.approx(0.1)
    assert temperature["weight_decay"] == 0
    assert sum(len(group["params"]) for group in groups.values()) == len(list(loss.parameters()))


@pytest.mark.slow
def test_the_logged_losses_add_up(tmp_path):
    result = aurank.train(tiny_config(SUM, train={"steps": 3, "log_every": 3}), tmp_path / "run")
    assert [code["dim"] for code in result.report.codes] == [4]  # beside all 8 numbers
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    terms = {name: value for name, value in line.items() if name.startswith("loss ")}
    assert list(terms) == ["loss soprc@4", "loss soprc@8", "loss proxy_anchor", "loss multi_similarity"]
    assert sum(terms.values()) == pytest.approx(line["loss"], rel=1e-5)


SAMPLER = {"name": "hierarchical", "params": {"per_class": 2, "categories": 2}}


def test_loss_and_sampler_get_those_of_the_training_classes():
    given = tiny_config("hierarchical_ap", sampler=SAMPLER)
    given["loss"]["params"] = {"clustering": 0.1}
    config = read_config(given)
    train = build_splits(config).train
    train = dataclasses.replace(train, super_labels=train.labels // 3)
    loss = build_loss(config, train)
    assert isinstance(loss, HierarchicalAPLoss)
    assert loss.super_labels[:, 0].tolist() == [label // 3 for label in range(len(train.classes))]
    assert loss.proxies.shape == (len(train.classes), 8)
    sampler = build_sampler(config, train, rank=0, world_size=1, neighbours=lambda count: None)
    assert isinstance(sampler, HierarchicalSampler)
    assert all(len(np.unique(train.labels[rows] // 3)) <= 2 for rows in sampler.epoch(0))


def test_a_data_set_without_them_is_said_to_be_of_one_level():
    config = read_config(tiny_config("hierarchical_ap", memory={"size": 100}))
    with pytest.warns(AurankWarning, match="loss hierarchical_ap: digits has no super-categories, so classes alone"):
        loss = build_loss(config, build_splits(config).train)
    assert isinstance(loss, CrossBatchMemory)
