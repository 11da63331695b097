"""A run that goes on with another number of processes comes to the weights of one that never stopped."""

import json
from pathlib import Path

import pytest
import torch
from testing.processes import ended, start
from testing.runs import EXACT, records
from testing.tiny import tiny_config

import aurank
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.training.state import seed_stream, stream


@pytest.mark.slow
def test_two_then_one_then_four_processes_train_the_weights_of_one(tmp_path: Path) -> None:
    """With every state that a loss keeps: tables by image, chains that draw, a memory that no batch fills evenly.

    The four share out weights, gradients and the state of the optimiser, and write what one process reads.
    """
    sections = {
        **EXACT,
        "data": {"views": 2, "train_labels": "image", "validation_fraction": 0},
        "sampler": {"name": "shuffled", "batch": 22, "params": {}},
        "memory": {"size": 51, "start_at": 1},
        "optim": {**EXACT["optim"], "params": {"momentum": 0.9}, "schedule": {"name": "constant"}},
        # steps are added
        "train": {"steps": 6, "validate_every": 100, "checkpoint_every": 100, "ema": 0.9},
    }
    terms = [{"name": "soprc"}, {"name": "sogclr"}, {"name": "emc2"}]
    config, many = tmp_path / "config.yaml", tmp_path / "many"
    config.write_text(json.dumps(tiny_config(terms, **sections)), encoding="utf-8")
    aurank.train(config, tmp_path / "one")
    two = ended(start(config, many, 2, common=["train.steps=2"]))
    aurank.train(config, many, resume=True, overrides=["train.steps=4"])
    four = ended(start(config, many, 4, common=["train.steps=6", "train.sharded=true", "--resume"]))
    assert [code for code, _, _ in (*two, *four)] == [0] * 6, (two, four)
    assert "the run used 1 process(es) and goes on with 4: batches" in four[0][2]

    first, last = (load_checkpoint(tmp_path / name / "last.safetensors") for name in ("one", "many"))
    assert len(last["random"]) == 4
    for name, value in first["encoder"].items():
        torch.testing.assert_close(last["encoder"][name], value, rtol=0, atol=1e-6, msg=name)
    for name, value in first["loss"].items():  # the rows of a memory stand in the same order, too
        torch.testing.assert_close(last["loss"][name], value, rtol=1e-4, atol=1e-5, msg=name)
    torch.testing.assert_close(last["average"], first["average"], rtol=0, atol=1e-6)
    torch.testing.assert_close(last["optimiser"]["state"], first["optimiser"]["state"], rtol=1e-4, atol=1e-6)
    losses = [[record["loss"] for record in records(tmp_path / name, "train")] for name in ("one", "many")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_a_stream_is_named_by_its_numbers_and_leaves_the_generators_alone() -> None:
    seed_stream(3, 0, 0, 1)
    first = torch.rand(3)
    seed_stream(3, 0, 0, 1)
    with stream(7, 5):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), first)
    with stream(7, 5):
        assert torch.equal(torch.rand(3), inside)
    with stream(7, 6):
        assert not torch.equal(torch.rand(3), inside)
