"""A run that is killed and resumed ends with the weights, metrics and report of one that never stopped."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from testing.pages import blocks
from testing.processes import Running, run_aurank
from testing.runs import assert_same_run
from testing.tiny import STEPS, SUM, tiny_config

import aurank
from aurank.embedding.stored.checkpoint import load_checkpoint, save_checkpoint
from aurank.errors import UserError
from aurank.training import read_config
from aurank.training.build import build_splits


def kill_after(process: Running, log: Path, lines: int) -> None:
    """Kill a run with SIGKILL once its log has so many lines."""
    try:
        deadline = time.monotonic() + 240
        while not (log.exists() and log.read_bytes().count(b"\n") >= lines):
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL


LARGE = {
    "sampler": {"name": "hard_negative", "params": {"per_class": 2, "refresh_every": 7, "num_neighbours": 5}},
    "memory": {"size": 50, "start_at": 2},
    "train": {"micro_batch": 6, "checkpoint_every": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "sections", "before", "after"),
    [("soprc", {}, 2, 0), ("blackbox_ap", LARGE, 0, 2), (SUM, {"train": {"log_every": 2}}, 0, 0)],
    ids=["plain", "large", "sum"],
)
def test_a_killed_run_resumes_bit_for_bit_with_any_number_of_workers(
    tmp_path: Path, loss: Any, sections: dict[str, dict[str, Any]], before: int, after: int
) -> None:
    config, out = tmp_path / "config.yaml", tmp_path / "killed"
    config.write_text(json.dumps(tiny_config(loss, **sections)), encoding="utf-8")
    overrides = ["train.ema=0.9", f"data.workers={before}"]
    log_every = sections.get("train", {}).get("log_every", 1)
    lines = random.randint(1, STEPS // log_every - 1)
    print("killed after", lines, "lines")
    kill_after(run_aurank("train", config, *overrides, "--out", out), out / "metrics.jsonl", lines)
    overrides[1] = f"data.workers={after}"
    aurank.train(config, tmp_path / "whole", overrides=overrides)
    aurank.train(config, out, resume=True, overrides=overrides)
    # Checking types in this process draws from Python's own generator; nothing of the training does.
    assert_same_run(tmp_path / "whole", out, ignore=("python", "workers"), log_every=log_every)


@pytest.mark.slow
def test_signals_save_and_the_run_that_is_resumed_after_each_is_the_whole_one(tmp_path: Path) -> None:
    numbers = {1: signal.SIGINT, 3: signal.SIGTERM, 5: signal.SIGHUP, 7: signal.SIGUSR1}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # these tests run under nohup, which would stay in force
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config = tiny_config(train={"accumulate": 2, "checkpoint_every": 100})

    def interrupt(kind: str, values: dict[str, Any]) -> None:
        if kind == "step" and values["step"] in numbers:
            os.kill(os.getpid(), numbers[values["step"]])

    assert aurank.train(config, tmp_path / "whole").stopped_by is None
    for step, number in numbers.items():
        stopped = aurank.train(config, tmp_path / "stopped", step > 1, listener=interrupt)
        assert (stopped.stopped_by, stopped.steps, stopped.report) == (number, step, None)
    assert aurank.train(config, tmp_path / "stopped", resume=True).steps == STEPS
    # Checking types in this process draws from Python's own generator; nothing of the training does.
    assert_same_run(tmp_path / "whole", tmp_path / "stopped", ignore=("python",))


# Half of the first checkpoint is written.
HALF = """
import os, signal, sys
from aurank import files
def half(tensor, bytes_of=files._bytes_of):
    if sys._getframe(1).f_code.co_name == "write_bundle":
        os.kill(os.getpid(), signal.SIGKILL)
    return bytes_of(tensor)
files._bytes_of = half
"""
SLURM = {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "here"}
COMMANDS = {"scontrol": "echo localhost", "srun": 'shift; exec "$@"', "python": f'exec {sys.executable} "$@"'}


@pytest.mark.slow
def test_a_job_that_is_killed_in_its_first_checkpoint_is_submitted_again_as_it_is(tmp_path: Path) -> None:
    """The job is that of the pages; the commands of SLURM are of one process."""
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(tiny_config(train={"steps": 3})), encoding="utf-8")
    (job,) = [block.code for block in blocks("text") if "#SBATCH" in block.code]
    for name, script in COMMANDS.items():
        (tmp_path / "bin" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**os.environ, **SLURM, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    for name in ("whole", "killed"):
        out = tmp_path / name / "runs/soprc"
        out.parent.mkdir(parents=True)
        if name == "killed":
            assert run_aurank("train", config, "--out", out, "--resume", setup=HALF).wait() == -signal.SIGKILL
            assert list(out.glob(".last.safetensors.*.part"))
        text = job.replace("omniglot/soprc --", f"{config} --")
        done = subprocess.run(
            ["bash", "-c", text], cwd=tmp_path / name, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert not list(out.glob(".*"))
    whole, killed = (tmp_path / name / "runs/soprc" for name in ("whole", "killed"))
    for file in ("last.safetensors", "best.safetensors", "metrics.jsonl", "report.json", "config.yaml"):
        assert (whole / file).read_bytes() == (killed / file).read_bytes(), file


@pytest.mark.slow
def test_the_report_says_what_it_measured_and_resuming_nothing_is_told(tmp_path: Path) -> None:
    notices: list[str] = []

    def listen(kind: str, values: dict[str, object]) -> None:
        if kind == "notice":
            notices.append(str(values["text"]))

    config = read_config(tiny_config())
    result = aurank.train(config, tmp_path, True, overrides=["train.steps=3"], listener=listen)
    assert notices == [f"--resume: {tmp_path} holds no checkpoint yet; the run starts anew"]
    assert result.steps == 3
    assert result.report is not None
    test = build_splits(config).test
    assert result.report.notes == [
        f"best weights, of step 3; {len(test)} images of digits, split test, manifest {test.sha256[:16]}, "
        "0 of them skipped as unreadable"
    ]


@pytest.mark.slow
def test_a_finished_run_resumes_to_the_same_report_with_its_own_configuration_and_data_alone(tmp_path: Path) -> None:
    config = tiny_config(train={"steps": 3})
    first = aurank.train(config, tmp_path / "out")
    log = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    second = aurank.train(config, tmp_path / "out", resume=True)
    assert first.report is not None
    assert second.report is not None
    assert first.report.metrics == second.report.metrics
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == log
    with pytest.raises(UserError, match=r"another configuration .*optim\.lr: 0\.001 != 0\.002"):
        aurank.train(tiny_config(train={"steps": 3}, optim={"lr": 2e-3}), tmp_path / "out", resume=True)
    state = load_checkpoint(tmp_path / "out" / "last.safetensors")
    save_checkpoint(tmp_path / "out" / "last.safetensors", {**state, "manifest": "0" * 64})
    with pytest.raises(UserError, match=r"was trained on other images of .*: its manifest changed"):
        aurank.train(config, tmp_path / "out", resume=True)


def test_an_occupied_folder_is_refused_without_resume(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"is not empty; add --resume"):
        aurank.train(tiny_config(), tmp_path)
    with pytest.raises(UserError, match="holds no aurank run"):
        aurank.train(tiny_config(), tmp_path, resume=True)
    (tmp_path / "notes.txt").rename(tmp_path.parent / "file")
    with pytest.raises(UserError, match="is a file"):
        aurank.train(tiny_config(), tmp_path.parent / "file")
