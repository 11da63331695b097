"""A checkpoint is what was written, or refused in one line."""

import copy
import functools
import math
import operator
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from testing.runs import tiny_config
from torch import nn

import aurank
from aurank.commands import embed_model, evaluate_model
from aurank.embedding import ImageSelection
from aurank.embedding.build import build_encoder, with_preprocessing
from aurank.embedding.locations import resolve_checkpoint
from aurank.embedding.stored.checkpoint import load_checkpoint, save_checkpoint
from aurank.errors import AurankError, UserError
from aurank.training import read_config
from aurank.training.build import build_splits
from aurank.training.loop import Loop
from aurank.training.run import restore, training_group
from aurank.training.state import Progress, random_state, restore_random_state
from aurank.training.trainer import Trainer


def content(**parts: Any) -> dict[str, Any]:
    """A checkpoint of a model, empty but for ``parts`` and a configuration."""
    empty = {"manifest": "", "data": None, "progress": {}, "encoder": {}, "average": None, "tokeniser": None}
    return {**empty, "config": tiny_config(), **parts}


def run_content(**parts: Any) -> dict[str, Any]:
    empty = {"loss": {}, "miner": {}, "scaler": None, "sampler": {}, "random": []}
    return {**content(), **empty, "optimiser": {"state": {}, "param_groups": []}, **parts}


def test_every_random_generator_continues_where_it_stood(tmp_path):
    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002

    draw()
    state = random_state()  # checking types draws as well, in tests
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, run_content() | {"random": [state]})
    saved = load_checkpoint(path, read_run=read_config)["random"][0]
    restore_random_state(state)
    expected = draw()
    draw()
    restore_random_state(saved)
    assert draw() == expected


def test_the_weights_are_read_by_safetensors_alone(tmp_path):
    path, weight = tmp_path / "best.safetensors", torch.ones(2, 3, dtype=torch.bfloat16)
    save_checkpoint(path, content(encoder={"head.weight": weight}))
    assert load_file(path)["encoder/head.weight"].equal(weight)
    assert load_checkpoint(path)["encoder"]["head.weight"].equal(weight)


def test_a_name_without_suffix_or_a_folder_finds_the_file(tmp_path):
    assert resolve_checkpoint(tmp_path / "best") == tmp_path / "best.safetensors"
    assert resolve_checkpoint(str(tmp_path / "last.safetensors")) == tmp_path / "last.safetensors"
    assert resolve_checkpoint(tmp_path) == tmp_path / "best.safetensors"


@pytest.mark.parametrize("change", [{"average": []}, {"optimiser": {"state": 3}}])
def test_a_part_of_another_type_is_refused_by_name(tmp_path, change):
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, run_content() | change)
    with pytest.raises(UserError, match=rf"last\.safetensors: .*{next(iter(change))}") as caught:
        load_checkpoint(path, read_run=read_config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("written", [b"not a checkpoint", b"pickle", None])
def test_another_file_or_none_is_refused_in_one_line(tmp_path, written):
    path = tmp_path / "last.safetensors"
    if written == b"pickle":
        torch.save({"weights": 1}, path)
    elif written is not None:
        path.write_bytes(written)
    with pytest.raises(UserError, match=r"last\.safetensors") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_model_is_used_whose_loss_may_no_longer_be_configured_so(tmp_path):
    path = tmp_path / "best.safetensors"
    settings = with_preprocessing(read_config(tiny_config("emc2")))
    config = settings.model_dump(mode="json")
    encoder = build_encoder(settings.model, channels=1).state_dict()
    config["loss"]["params"] = {"official": True, "burn_in": 0.1}
    config["sampler"]["params"] = {"gone": 1}
    config["optim"]["name"] = "gone"
    weights = run_content(config=config, encoder=encoder, progress=vars(Progress()))
    save_checkpoint(path, weights)
    assert evaluate_model(f"aurank:{path}").metrics["mauprc"] > 0
    assert aurank.load(path).module.dim == 8
    with pytest.raises(UserError, match=r"best\.safetensors: "):
        load_checkpoint(path, read_run=read_config)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["encoder"], {}, r"'encoder' is refused \(.*Missing key.*conv1\.0\.weight.*timm is \d"),
        (["encoder", "more"], torch.zeros(1), r"'encoder' is refused \(.*more"),
        (["average", "values"], {}, r"'average' is refused \("),
        (["loss"], {}, r"'loss' is refused \(.*Missing key"),
        (["sampler"], {"nearest": 3}, r"'sampler' is refused"),
        (["random", 0], {}, r"'random' is refused \('python'\)"),
        (["optimiser", "param_groups", 0, "params"], [0], r"'optimiser' is refused"),
        (["progress", "batch"], -1, r"progress of a run \(batch:"),
        (["progress", "best"], {"mauprc": "x"}, r"progress of a run \(best\.mauprc:"),
    ],
)
def test_a_run_is_not_resumed_from_what_does_not_fit(run, trainer, path, value, message):
    state = copy.deepcopy(load_checkpoint(run / "last.safetensors"))
    functools.reduce(operator.getitem, path[:-1], state)[path[-1]] = value
    with pytest.raises(UserError, match=rf"last\.safetensors.*{message}") as caught:
        restore(trainer, run / "last.safetensors", state, [])
    assert "\n" not in str(caught.value)
    assert "; use " in str(caught.value)


def test_a_model_whose_weights_do_not_fit_is_told_wherever_it_is_read(run, tmp_path):
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
        with pytest.raises(UserError, match=r"best\.safetensors does not fit.*conv1\.0\.weight"):
            work()


def test_what_is_not_finite_is_not_saved(trainer, tmp_path):
    loop = Loop(trainer, tmp_path, {}, progress=Progress(step=3))
    loop.metrics.close()
    bias = dict(trainer.model.named_parameters())["head.bias"]
    kept = bias.detach().clone()
    bias.data[0] = math.nan
    with pytest.raises(AurankError, match="those of step 3 stay in"):
        loop.save("last")
    bias.data.copy_(kept)
    trainer.loss.temperature = nn.Parameter(torch.tensor(math.inf))
    with pytest.raises(AurankError, match="those of step 3 stay in"):
        loop.save("best")
    del trainer.loss.temperature
    assert not list(tmp_path.glob("*.safetensors"))
