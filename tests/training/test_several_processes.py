"""Several processes over gloo train one model."""

import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.processes import KILLED, ended, free_port, rank_environment, run_ranks, start, steps_done, succeeded
from testing.runs import EXACT, SUM, assert_same_run, records, tiny_config, write_config
from torch.profiler import ProfilerActivity, profile

import aurank
from aurank.commands import RunOptions, evaluate_model
from aurank.distributed import joined, launched
from aurank.embedding import ImageSelection
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.errors import AurankError
from aurank.training import read_config
from aurank.training.build import build_splits
from aurank.training.loop import Loop
from aurank.training.state import Progress, seed_everything, seed_stream, stream
from aurank.training.trainer import Trainer

ENDLESS = {"steps": 100_000, "validate_every": 100_000, "checkpoint_every": 100_000}


@pytest.mark.slow
def test_a_signal_to_one_process_ends_all_at_the_same_step_with_everything_saved(tmp_path):
    config = write_config(tmp_path, tiny_config(train={**ENDLESS, "ema": 0.9}))
    out = tmp_path / "out"
    processes = start(config, out, 2)
    try:
        log = out / "metrics.jsonl"
        steps_done(out, processes, 3)
        processes[0].send_signal(signal.SIGTERM)
    finally:
        results = ended(processes)
    assert [code for code, _, _ in results] == [128 + signal.SIGTERM] * 2, results
    state = load_checkpoint(out / "last.safetensors")
    assert state["progress"]["step"] == log.read_bytes().count(b"\n") >= 3
    assert len(state["random"]) == 2
    assert f"stopped by a signal after step {state['progress']['step']};" in results[0][2]
    assert "stopped" not in results[1][2]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "rank"), [(signal.SIGSTOP, 1), (signal.SIGKILL, 0)])
def test_where_a_process_ends_or_stops_the_others_end_with_one_line(tmp_path, number, rank):
    config = write_config(tmp_path, tiny_config(train=ENDLESS))
    timeout = "15s" if number == signal.SIGSTOP else "30min"  # an ended process is noticed without
    processes = start(config, tmp_path / "out", 2, common=[f"train.timeout={timeout}"])
    other = processes[1 - rank]
    try:
        steps_done(tmp_path / "out", processes, 3)
        processes[rank].send_signal(number)
        _, complaint = other.communicate(timeout=120)
    finally:
        for process in processes:
            process.kill()
    assert other.returncode == 1, complaint
    error = [line for line in complaint.splitlines() if not line.startswith("step ")]
    assert len(error) == 1, complaint
    assert error[0].startswith(f"error: rank {1 - rank} has stopped: another rank is gone (")
    remedy = "look at that rank's own message, then give the same command again, aurank train with --resume"
    assert error[0].endswith(f"; {remedy}")


@pytest.mark.slow
def test_an_option_that_differs_is_told_by_every_process(tmp_path):
    config = write_config(tmp_path, tiny_config(train={"steps": 3}))
    results = ended(start(config, tmp_path / "out", 2, ["sampler.batch=16"], ["sampler.batch=32", "data.workers=0"]))
    told = "rank 0 and rank 1 were started with different options (rank 0 != rank 1): sampler.batch: 16 != 32; start"
    for code, _, complaint in results:
        assert (code, complaint.count("\n")) == (2, 1), results
        assert told in complaint
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_only_the_main_process_prints_and_writes(tmp_path):
    train = {"steps": 3, "validate_every": 1, "ema": 0.5}
    settings = tiny_config(train=train, evaluate={"batch": 32})  # several batches, of each process some
    config = write_config(tmp_path, settings)
    results = succeeded(start(config, tmp_path / "out", 2))
    assert results[0][1].count("a random order has mauprc") == results[0][1].count("written to") == 1
    assert results[0][2].count("validation mAUPRC") == 3
    assert results[1][1] == ""
    assert "validation" not in results[1][2]
    assert load_checkpoint(tmp_path / "out" / "last.safetensors")["progress"]["step"] == 3
    # What both measured together, with statistics of batch norms that differ, is what one measures of what was saved.
    best = load_checkpoint(tmp_path / "out" / "best.safetensors")["progress"]["best"]
    test = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["metrics"]
    for split, found in (("val", best), ("test", test)):
        model = f"aurank:{tmp_path / 'out' / 'best'}"
        alone = evaluate_model(model, ImageSelection(split=split), running=RunOptions(device="cpu"))
        assert alone.metrics == {name: found[name] for name in alone.metrics}


@pytest.mark.slow
def test_three_processes_that_are_killed_while_gradients_add_up_go_on_bit_for_bit(tmp_path):
    """Of three numbers the order of the sum shows. Every part of a state is in it: proxies, dropout, batch norms."""
    config, whole, out = (tmp_path / name for name in ("config.yaml", "whole", "killed"))
    content = tiny_config(
        SUM,
        sampler={"name": "hard_negative", "params": {"per_class": 2, "refresh_every": 3, "num_neighbours": 5}},
        data={"views": 4, "train_transform": {"name": "simclr", "params": {"blur": 0}}},
        memory={"size": 100, "start_at": 2},
        optim={"clip_norm": 0.5},
        train={"micro_batch": 3, "accumulate": 2, "ema": 0.9},
    )
    config.write_text(json.dumps(content), encoding="utf-8")
    succeeded(start(config, whole, 3))
    killed = ended(start(config, out, 3, setup=KILLED))
    assert -signal.SIGKILL in [code for code, _, _ in killed], killed
    assert load_checkpoint(out / "last.safetensors")["progress"]["step"] == 3
    resumed = succeeded(start(config, out, 3, common=["--resume"]))
    assert "resumed from step 3 of 8" in resumed[0][2]
    assert_same_run(whole, out)


@pytest.mark.slow
def test_a_process_without_others_says_so(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert launched() == 1  # which may be of anything
    port = free_port()
    for name, value in rank_environment(0, 2, port).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(AurankError, match="rank 0 has stopped: another rank did not come"), joined("1s"):
        pass


@pytest.mark.slow
def test_two_then_one_then_four_processes_train_the_weights_of_one(tmp_path):
    """With every state that a loss keeps: tables by image, chains that draw, a memory that no batch fills evenly."""
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
    config, many = write_config(tmp_path, tiny_config(terms, **sections)), tmp_path / "many"
    aurank.train(config, tmp_path / "one")
    succeeded(start(config, many, 2, common=["train.steps=2"]))
    aurank.train(config, many, resume=True, overrides=["train.steps=4"])
    four = succeeded(start(config, many, 4, common=["train.steps=6", "--resume"]))
    assert "the run used 1 process(es) and goes on with 4: batches" in four[0][2]

    first, last = (load_checkpoint(tmp_path / name / "last.safetensors") for name in ("one", "many"))
    assert len(last["random"]) == 4
    torch.testing.assert_close(last["encoder"], first["encoder"], rtol=0, atol=1e-6)
    # The rows of a memory stand in the same order, too.
    torch.testing.assert_close(last["loss"], first["loss"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last["average"], first["average"], rtol=0, atol=1e-6)
    torch.testing.assert_close(last["optimiser"]["state"], first["optimiser"]["state"], rtol=1e-4, atol=1e-6)
    losses = [[record["loss"] for record in records(tmp_path / name, "train")] for name in ("one", "many")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_a_stream_is_named_by_its_numbers_and_leaves_the_generators_alone():
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


STEPS = 2
CASES: dict[str, tuple[dict[str, Any], int]] = {  # how many more than DistributedDataParallel's own are allowed
    "plain": ({}, 2),
    "all at once": ({"memory": {"size": 40}, "optim": {"clip_norm": 0.5}, "train": {"ema": 0.9, "accumulate": 2}}, 3),
    "unreadable images are skipped": ({"data": {"on_error": "skip"}}, 4),
    "a gradient cache": ({"train": {"micro_batch": 3}}, 2),
    "a miner": ({"miner": {"name": "multi_similarity"}}, 4),
}


def counted(work: Callable[[], object]) -> int:
    """Collectives that this process takes part in, those of C++ too."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    return Counter(event.name.partition(":")[0] for event in found.events())["gloo"]


def steps(loop: Loop, batches: Any) -> None:
    for _ in range(STEPS):
        loop.step(batches)


def bare(trainer: Trainer, images: torch.Tensor) -> None:
    for _ in range(STEPS):
        for part in range(accumulate := trainer.config.train.accumulate):
            with contextlib.nullcontext() if part == accumulate - 1 else trainer.encoder.no_sync():
                trainer.encoder((images,)).square().sum().backward()


def measure(rank: int, port: int, out: str) -> None:
    os.environ.update(rank_environment(rank, 2, port))
    torch.set_num_threads(1)
    with joined("5min"):
        for name, (sections, allowed) in CASES.items():
            train = {**ENDLESS, "log_every": 100_000, **sections.get("train", {})}
            plain = tiny_config("smooth_ap", **{**sections, "train": train})
            config = read_config(plain)
            seed_everything(0)
            trainer = Trainer(config, build_splits(config), Path(out))
            loop = Loop(trainer, Path(out), {}, progress=Progress())
            batches = loop.batches()

            steps(loop, batches)
            images = trainer.train_data.to_input(next(batches)[0].image)
            bare(trainer, images)
            own, of_ddp = counted(partial(steps, loop, batches)), counted(partial(bare, trainer, images))
            assert of_ddp >= STEPS, name
            assert own == of_ddp + allowed * STEPS, (name, own, of_ddp)


@pytest.mark.slow
def test_a_step_has_two_collectives_beside_those_of_data_parallel_training(tmp_path):
    run_ranks(measure, 2, free_port(), str(tmp_path))


@pytest.mark.slow
def test_two_processes_train_the_weights_of_one(tmp_path):
    large = {
        "sampler": {"name": "hard_negative", "params": {"per_class": 2, "refresh_every": 3, "num_neighbours": 5}},
        # Larger than all batches together: which rows stay in a smaller one depends on their order within a batch.
        "memory": {"size": 100, "start_at": 1},
        "miner": {"name": "multi_similarity"},
        "train": {"steps": 3, "validate_every": 100, "micro_batch": 3, "accumulate": 2},
    }
    config = write_config(tmp_path, tiny_config(SUM, **EXACT, **large))
    aurank.train(config, tmp_path / "1")
    succeeded(start(config, tmp_path / "2", 2))
    states = [load_checkpoint(tmp_path / name / "last.safetensors") for name in "12"]
    assert len(states[1]["random"]) == 2
    torch.testing.assert_close(states[1]["encoder"], states[0]["encoder"], rtol=1e-5, atol=1e-6)
    one, two = (state["loss"] for state in states)
    assert two["counters"].equal(one["counters"])
    for name in ("label_memory", "id_memory"):  # the rows of a batch stand in the order of the processes
        assert two[name].sort().values.equal(one[name].sort().values)
    for name, value in one.items():
        if name.startswith("loss."):  # what the losses keep of each class, proxies among it
            torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5, msg=name)
