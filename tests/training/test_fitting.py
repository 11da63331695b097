"""What a checkpoint holds and a run or a model cannot take is told in one line that names file and part."""

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.tiny import tiny_config
from torch import nn

import aurank
from aurank.commands import embed_model, evaluate_model
from aurank.embedding import ImageSelection
from aurank.embedding.from_config import build_encoder
from aurank.embedding.stored.checkpoint import load_checkpoint, save_checkpoint
from aurank.errors import AurankError, UserError
from aurank.training.build import build_splits
from aurank.training.components import read_config
from aurank.training.loop import Loop
from aurank.training.run import Resumed, restore, training_group
from aurank.training.state import Progress
from aurank.training.trainer import Trainer

CONFIG = tiny_config(
    train={"steps": 2, "ema": 0.5, "checkpoint_every": 1},
    sampler={"name": "hard_negative", "params": {"per_class": 4, "refresh_every": 2, "num_neighbours": 2}},
    memory={"size": 40},
    optim={"warmup_steps": 0},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fitting") / "run"
    aurank.train(CONFIG, out)
    return out


@pytest.fixture(scope="module")
def trainer(run: Path) -> Iterator[Trainer]:
    config = read_config(CONFIG)
    with training_group(config):
        yield Trainer(config, build_splits(config))


def without(*path: Any) -> Callable[[Any], None]:
    def change(state: Any) -> None:
        for key in path[:-1]:
            state = state[key]
        del state[path[-1]]

    return change


def with_(value: Any, *path: Any) -> Callable[[Any], None]:
    def change(state: Any) -> None:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("encoder", "head.bias"), r"1 tensors of its encoder are .*'head\.bias'"),
        (with_(torch.zeros(9), "encoder", "head.bias"), r"'head\.bias'"),
        (with_(torch.zeros(8).long(), "encoder", "head.bias"), r"'head\.bias'.*timm is \d"),
        (with_(torch.zeros(1), "encoder", "more"), r"'more'"),
        (with_({}, "average", "values"), r"tensors of its average are"),
        (with_({}, "loss"), r"'loss' is refused \(.*Missing key"),
        (with_({"nearest": 3}, "sampler"), r"'sampler' is refused"),
        (with_({}, "random", 0), r"'random' is refused \('python'\)"),
        (with_(torch.zeros(3), "random", 0, "torch"), r"'random' is refused"),
        (with_({}, "optimiser"), r"'optimiser' is refused"),
        (with_([0], "optimiser", "param_groups", 0, "params"), r"'optimiser' is refused"),
        (with_("two", "progress", "step"), r"progress of a run \(step:"),
        (with_(-1, "progress", "batch"), r"progress of a run \(batch:"),
        (with_(1, "progress", "steps"), r"progress of a run \(steps:"),
        (with_({"mauprc": "x"}, "progress", "best"), r"progress of a run \(best\.mauprc:"),
    ],
)
def test_a_run_is_not_resumed_from_what_does_not_fit(
    run: Path, trainer: Trainer, change: Callable[[Any], None], message: str
) -> None:
    state = copy.deepcopy(load_checkpoint(run / "last.safetensors"))
    change(state)
    with pytest.raises(UserError, match=rf"last\.safetensors.*{message}") as caught:
        restore(trainer, Resumed(run / "last.safetensors", state, []))
    assert "\n" not in str(caught.value)
    assert "; use " in str(caught.value)


def test_a_whole_state_is_restored(run: Path, trainer: Trainer) -> None:
    state = load_checkpoint(run / "last.safetensors")
    assert vars(restore(trainer, Resumed(run / "last.safetensors", state, []))) == state["progress"]


def test_a_model_whose_weights_do_not_fit_is_told_wherever_it_is_read(run: Path, tmp_path: Path) -> None:
    """As after an upgrade of the library that has the backbone."""
    best, path = load_checkpoint(run / "best.safetensors"), tmp_path / "best.safetensors"
    best["average"]["values"]["backbone.conv1.0.weight"] = torch.zeros(2, 2)
    save_checkpoint(path, best)
    config = read_config({**CONFIG, "model": {**CONFIG["model"], "init_from": str(path)}})
    for work in (
        lambda: aurank.load(path),
        lambda: evaluate_model(f"aurank:{path}"),
        lambda: embed_model(f"aurank:{path}", ImageSelection(split="test")),
        lambda: build_encoder(config.model, channels=1),
    ):
        with pytest.raises(UserError, match=r"best\.safetensors does not fit .*conv1\.0\.weight'"):
            work()


@pytest.mark.parametrize(("step", "message"), [(0, "the first weights are not finite"), (3, "those of step 3 stay in")])
def test_what_is_not_finite_is_not_saved(trainer: Trainer, tmp_path: Path, step: int, message: str) -> None:
    loop = Loop(trainer, tmp_path, {}, progress=Progress(step=step))
    assert loop.metrics is not None
    loop.metrics.close()
    bias = dict(trainer.model.named_parameters())["head.bias"]
    kept = bias.detach().clone()
    bias.data[0] = math.nan
    with pytest.raises(AurankError, match=message):
        loop.save("last")
    bias.data.copy_(kept)
    trainer.loss.temperature = nn.Parameter(torch.tensor(math.inf))
    with pytest.raises(AurankError, match=message):
        loop.save("best")
    del trainer.loss.temperature
    assert not list(tmp_path.glob("*.safetensors"))
