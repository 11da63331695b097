"""One run in a folder at a time."""

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from testing.processes import ended, run_aurank
from testing.tiny import tiny_config

import aurank
from aurank.errors import UserError
from aurank.files import LOCK, claimed

FORK = multiprocessing.get_context("fork")


def hold(out: Path, pids: Any) -> None:
    """Claim the folder, and start a worker that outlives this process."""
    with claimed(out):
        worker = FORK.Process(target=time.sleep, args=(60,))
        worker.start()
        pids.put((os.getpid(), worker.pid))
        time.sleep(60)


def test_a_second_run_is_refused_and_a_killed_owner_gives_way_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pids = FORK.SimpleQueue()
    process = FORK.Process(target=hold, args=(out, pids))
    process.start()
    pid, worker = pids.get()
    try:
        with pytest.raises(UserError, match=r"out is in use by another process; wait for"):
            aurank.train(tiny_config(), out)
        os.kill(pid, signal.SIGSTOP)  # stopped, it still owns the folder
        with pytest.raises(UserError, match="is in use"), claimed(out):
            pass
        process.kill()
        process.join()
        os.kill(worker, signal.SIGKILL)  # as loaders' workers end with their process
        with claimed(out):
            pass
    finally:
        process.kill()


def test_a_worker_that_ends_leaves_the_lock_alone(tmp_path: Path) -> None:
    with claimed(tmp_path / "out"):
        worker = FORK.Process(target=sys.exit)
        worker.start()
        worker.join()
        with pytest.raises(UserError, match="is in use"), claimed(tmp_path / "out"):
            pass


@pytest.mark.parametrize("resume", [False, True])
def test_a_refused_run_changes_nothing_in_a_folder_of_others(tmp_path: Path, resume: bool) -> None:
    """The folder above those of runs, named by mistake, while one of them writes a checkpoint."""
    half = [
        "a/.last.safetensors.0123456789abcdef0123456789abcdef.part",
        ".last.safetensors.0123456789abcdef0123456789abcdef.part",
        ".2024.part/photo.png",
        "b/.2024.part/c.png",
    ]
    with claimed(tmp_path / "a"):
        for name in [*half, LOCK]:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("kept", encoding="utf-8")
        with pytest.raises(UserError, match="holds no aurank run" if resume else "is not empty"):
            aurank.train(tiny_config(), tmp_path, resume)
        assert {(tmp_path / name).read_text(encoding="utf-8") for name in [*half, LOCK]} == {"kept"}


@pytest.mark.parametrize(
    "sections",
    [
        {"data": {"name": "folder", "params": {"path": "none"}}},
        {"model": {"init_from": "none.pt"}},
        {"train": {"trackers": ["tensorboard"], "early_stopping": 1}, "data": {"validation_fraction": 0}},
    ],
)
def test_a_refused_run_leaves_no_empty_folder(tmp_path: Path, sections: dict[str, dict[str, object]]) -> None:
    with pytest.raises(UserError):
        aurank.train(tiny_config(**sections), tmp_path / "runs" / "out")
    assert not list(tmp_path.iterdir())
    (tmp_path / "own").mkdir()  # somebody made it, who may want it
    with pytest.raises(UserError):
        aurank.train(tiny_config(**sections), tmp_path / "own")
    assert (tmp_path / "own").is_dir()


@pytest.mark.slow
def test_of_two_processes_started_on_one_folder_one_trains(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(tiny_config(train={"steps": 40})), encoding="utf-8")
    processes = [run_aurank("train", config, "--out", tmp_path / "out", "--resume") for _ in "ab"]
    codes, _, complaints = zip(*ended(processes), strict=True)
    assert sorted(codes) == [0, 2], complaints
    assert "is in use by another" in complaints[codes.index(2)]
    steps = [json.loads(line)["step"] for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert len([step for step in steps if step == 40]) == 2  # a line of training and one of validation
