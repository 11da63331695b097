"""Parameters of the loss: optimised beside the encoder's, at a rate of their own, right in every way of training."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.learnt import Learnt
from testing.runs import EXACT
from testing.tiny import tiny_config

import aurank
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.losses import LOSSES, CLIPLoss, CrossBatchMemory, ISogCLRLoss, SogCLRLoss
from aurank.training import read_config
from aurank.training.build import build_splits, learning_rate
from aurank.training.trainer import Trainer
from aurank.training.watch import learned_temperature

START = math.log(0.5)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "learnt", Learnt)


def learnt_config(**sections: dict[str, Any]) -> dict[str, Any]:
    optim = {**EXACT["optim"], "temperature_lr": 0.2, "schedule": {"name": "constant"}, **sections.pop("optim", {})}
    return tiny_config("learnt", model=EXACT["model"], **sections, optim=optim)


def temperature(out: Path, name: str = "last") -> torch.Tensor:
    value: torch.Tensor = load_checkpoint(out / f"{name}.safetensors")["loss"]["log_temperature"]
    return value


def trainer_of(config: dict[str, Any]) -> Trainer:
    settings = read_config(config)
    return Trainer(settings, build_splits(settings))


def test_what_is_logged_of_a_temperature_is_what_the_next_step_takes_and_the_mean_of_individual_ones() -> None:
    assert learned_temperature(SogCLRLoss(8)) == learned_temperature(CLIPLoss(learn_temperature=False)) == {}
    loss = CLIPLoss(0.2, two_way=False)
    assert learned_temperature(loss) == {"temperature": pytest.approx(0.2)}
    parameter = loss.temperature.parameter
    assert parameter is not None
    parameter.data.fill_(math.log(0.001))  # beyond its bounds, into which it is put before it is used
    assert learned_temperature(CrossBatchMemory(loss, embedding_size=4, memory_size=8)) == {
        "temperature": pytest.approx(0.01)
    }
    assert float(parameter.detach()) == pytest.approx(math.log(0.001))
    individual = ISogCLRLoss(8, temperature=0.6)
    individual.state_dict()["temperature.tables.0.rows"][0, 0] = 0.2
    assert learned_temperature(individual) == {"temperature": pytest.approx((7 * 0.6 + 0.2) / 8)}


def test_a_temperature_has_a_group_of_its_own_at_its_own_rate_without_decay() -> None:
    for given, rate in (({"temperature_lr": 0.2}, 0.2), ({"temperature_lr": None}, 0.05)):
        trainer = trainer_of(learnt_config(optim={**given, "batch_rule": "sqrt", "weight_decay": 0.1}))
        *_, group = trainer.optimiser.param_groups
        assert group["params"] == list(trainer.loss.parameters())
        assert group["weight_decay"] == 0
        assert group["lr_multiplier"] * learning_rate(trainer.config) == pytest.approx(rate)


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("linear", 32 / 256), ("sqrt", math.sqrt(32))])
def test_the_batch_rule_counts_the_images_of_an_update(rule: str, factor: float) -> None:
    config = read_config(learnt_config(optim={"batch_rule": rule}, train={"accumulate": 2}, data={"views": 3}))
    assert learning_rate(config) == pytest.approx(0.05 * factor)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_the_first_step_of_a_temperature_is_its_rate_times_its_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Under LARS too: a trust ratio would tie the step to the temperature's own size."""
    gradients: list[float] = []

    def remembering() -> Learnt:
        loss = Learnt()
        loss.log_temperature.register_hook(lambda gradient: gradients.append(float(gradient)))
        return loss

    monkeypatch.setitem(LOSSES, "remembering", remembering)
    optim = {"name": name, "params": {"nesterov": False}, "batch_rule": "linear", "warmup_steps": 2}
    config = {**learnt_config(optim=optim, train={"steps": 3, "checkpoint_every": 1}), "loss": {"name": "remembering"}}
    stopped: list[torch.Tensor] = []

    def listen(kind: str, values: dict[str, Any]) -> None:
        if kind == "saved" and values["name"] == "last" and values["step"] == 1:
            stopped.append(temperature(tmp_path / "out"))

    aurank.train(config, tmp_path / "out", listener=listen)
    # The first of two steps of warm-up, so half the rate.
    assert float(stopped[0]) == pytest.approx(START - 0.5 * 0.2 * gradients[0], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"data": {"views": 2}, "memory": {"size": 100, "start_at": 1}}], ids=str)
def test_cached_gradients_accumulated_and_clipped_move_the_temperature_as_plain_ones(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    for name, micro_batch in (("plain", None), ("cached", 5)):
        train = {"steps": 2, "accumulate": 2, "ema": 0.5, "micro_batch": micro_batch}
        aurank.train(learnt_config(train=train, **more), tmp_path / name)
    key = "loss.log_temperature" if "memory" in more else "log_temperature"
    plain, cached = (load_checkpoint(tmp_path / name / "last.safetensors") for name in ("plain", "cached"))
    torch.testing.assert_close(cached["loss"][key], plain["loss"][key], rtol=1e-5, atol=1e-6)
    assert abs(float(plain["loss"][key]) - START) > 3e-4
    for name, value in plain["encoder"].items():
        torch.testing.assert_close(cached["encoder"][name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_a_scaled_and_averaged_backward_pass_scales_the_gradient_of_the_temperature_too(
    monkeypatch: pytest.MonkeyPatch, micro_batch: int | None
) -> None:
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
