"""A checkpoint is what was written, or refused in one line."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from testing.tiny import tiny_config

import aurank
from aurank.commands import evaluate_model
from aurank.embedding.from_config import build_encoder, with_preprocessing
from aurank.embedding.stored.checkpoint import load_checkpoint, resolve_checkpoint, save_checkpoint
from aurank.errors import UserError
from aurank.training import read_config
from aurank.training.state import Progress, random_state, restore_random_state


def content(**parts: Any) -> dict[str, Any]:
    """A checkpoint of a model, empty but for ``parts`` and a configuration."""
    empty = {"manifest": "", "data": None, "progress": {}, "encoder": {}, "average": None, "tokeniser": None}
    return {**empty, "config": tiny_config(), **parts}


def run_content(**parts: Any) -> dict[str, Any]:
    """A checkpoint that a run can be resumed from."""
    empty = {"loss": {}, "miner": {}, "scaler": None, "sampler": {}, "random": []}
    return {**content(), **empty, "optimiser": {"state": {}, "param_groups": []}, **parts}


def test_every_random_generator_continues_where_it_stood(tmp_path: Path) -> None:
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


def test_the_weights_are_read_by_safetensors_alone(tmp_path: Path) -> None:
    path, weight = tmp_path / "best.safetensors", torch.ones(2, 3, dtype=torch.bfloat16)
    save_checkpoint(path, content(encoder={"head.weight": weight}))
    assert load_file(path)["encoder/head.weight"].equal(weight)


def test_a_name_without_suffix_or_a_folder_finds_the_file(tmp_path: Path) -> None:
    assert resolve_checkpoint(tmp_path / "best") == tmp_path / "best.safetensors"
    assert resolve_checkpoint(str(tmp_path / "last.safetensors")) == tmp_path / "last.safetensors"
    assert resolve_checkpoint(tmp_path) == tmp_path / "best.safetensors"


@pytest.mark.parametrize(
    "change",
    [
        {"encoder": {"weight": 3}},
        {"average": {"updates": "x", "values": {}}},
        {"average": {"updates": 1, "values": {"w": []}}},
        {"config": {"seed": 1}},
        {"optimiser": {"state": {}}},
        {"manifest": None},
    ],
)
def test_a_part_of_another_type_is_refused_by_name(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, run_content() | change)
    with pytest.raises(UserError, match=rf"last\.safetensors: .*{next(iter(change))}") as caught:
        load_checkpoint(path, read_run=read_config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("written", [b"", b"not a checkpoint", b"\xff" * 8, b"pickle", None])
def test_another_file_or_none_is_refused_in_one_line(tmp_path: Path, written: bytes | None) -> None:
    path = tmp_path / "last.safetensors"
    if written == b"pickle":
        torch.save({"weights": 1}, path)
    elif written is not None:
        path.write_bytes(written)
    with pytest.raises(UserError, match=r"last\.safetensors") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_weights_is_measured_and_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    save_checkpoint(path, content())
    assert load_checkpoint(path)["manifest"] == ""
    with pytest.raises(UserError, match=r"best\.safetensors holds weights only"):
        load_checkpoint(path, read_run=read_config)


@pytest.mark.slow
def test_a_model_is_used_whose_loss_may_no_longer_be_configured_so(tmp_path: Path) -> None:
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
    assert aurank.load(path)[0].dim == 8
    with pytest.raises(UserError, match=r"cannot use its config \(.*; use the version that wrote it"):
        load_checkpoint(path, read_run=read_config)
