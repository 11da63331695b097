"""One run in a folder at a time."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from testing.processes import ended, run_aurank
from testing.tiny import tiny_config

import aurank
from aurank import claim
from aurank.claim import LOCK, claimed
from aurank.errors import UserError
from aurank.training.checkpoints.claim import is_passing, remove_temporaries

FORK = multiprocessing.get_context("fork")
BEATING = "import os, sys, time\nfor _ in range(600): os.utime(sys.argv[1]), time.sleep(0.05)"


def hold(out: Path, pids: Any) -> None:
    """Claim the folder, and start a worker that outlives this process."""
    with claimed(out):
        worker = FORK.Process(target=time.sleep, args=(60,))
        worker.start()
        pids.put((os.getpid(), worker.pid))
        time.sleep(60)


def test_a_second_run_is_told_who_trains_there_and_a_killed_owner_gives_way_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pids = FORK.SimpleQueue()
    process = FORK.Process(target=hold, args=(out, pids))
    process.start()
    pid, worker = pids.get()
    try:
        with pytest.raises(UserError, match=rf"out is in use: process {pid} on .*, trains into it; wait for"):
            aurank.train(tiny_config(), out)
        os.kill(pid, signal.SIGSTOP)  # stopped, it still owns the folder
        with pytest.raises(UserError, match="is in use"), claimed(out):
            pass
        process.kill()
        process.join()
        assert (out / LOCK).exists()
        started = time.monotonic()
        with claimed(out):
            assert time.monotonic() - started < claim.BEAT
        assert not (out / LOCK).exists()
    finally:
        process.kill()
        os.kill(worker, signal.SIGKILL)


def test_two_runs_of_one_process_do_not_meet_either(tmp_path: Path) -> None:
    with claimed(tmp_path / "out"):
        with pytest.raises(UserError, match=f"process {os.getpid()} on"), claimed(tmp_path / "out"):
            pass
        assert (tmp_path / "out" / LOCK).exists()
    assert not (tmp_path / "out").exists()


def test_a_worker_that_ends_leaves_the_lock_alone(tmp_path: Path) -> None:
    with claimed(tmp_path / "out"):
        worker = FORK.Process(target=sys.exit)
        worker.start()
        worker.join()
        with pytest.raises(UserError, match="is in use"), claimed(tmp_path / "out"):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("locks", [True, False])
def test_a_lock_of_another_machine_is_its_own_while_it_shows_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """A network folder that keeps locks from other machines, or has none: this process may lock what is locked."""
    monkeypatch.setattr(claim, "BEAT", 0.1)
    if not locks:
        monkeypatch.setattr(claim, "fcntl", None)
    other = {"host": "b", "pid": 7, "since": "2026-01-01 00:00:00", "machine": "another"}
    (tmp_path / LOCK).write_text(json.dumps(other), encoding="utf-8")
    beating = subprocess.Popen([sys.executable, "-c", BEATING, str(tmp_path / LOCK)])
    try:
        with pytest.raises(UserError, match=r"in use: process 7 on b, since 2026"), claimed(tmp_path):
            pass
    finally:
        beating.kill()
        beating.wait()
    with claimed(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text(encoding="utf-8"))["pid"] == os.getpid()
        first = (tmp_path / LOCK).stat().st_mtime_ns
        time.sleep(0.5)
        assert (tmp_path / LOCK).stat().st_mtime_ns > first  # it shows that it lives


def test_what_killed_runs_left_half_written_goes_and_nothing_else(tmp_path: Path) -> None:
    left = [
        ".last.pt.0123456789ab.part",
        ".report.json.0123456789ab0123456789ab.part",
        "two_way/all/.report.json.0123456789ab.part",
    ]
    others = [".mine.part", ".rows.npz.0123456789ab.part", "deeper/.last.pt.0123456789ab.part", ".2024.part/a"]
    for name in [*left, *others]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"half")
    staging = tmp_path / ".report.json.fedcba987654.part"  # a folder, in which the files of a report were made
    staging.mkdir()
    (staging / "report.json").write_bytes(b"half")
    remove_temporaries(tmp_path)
    assert not any((tmp_path / name).exists() for name in [*left, staging.name])
    assert is_passing(tmp_path / left[0])  # another process of the run has just seen it
    assert all((tmp_path / name).exists() for name in others)


@pytest.mark.parametrize("resume", [False, True])
def test_a_refused_run_changes_nothing_in_a_folder_of_others(tmp_path: Path, resume: bool) -> None:
    """The folder above those of runs, named by mistake, while one of them writes a checkpoint."""
    half = ["a/.last.pt.0123456789ab.part", ".last.pt.0123456789ab.part", ".2024.part/photo.png", "b/.2024.part/c.png"]
    with claimed(tmp_path / "a"):
        for name in [*half, LOCK]:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("kept", encoding="utf-8")
        with pytest.raises(UserError, match="holds no aurank run" if resume else "is not empty"):
            aurank.train(tiny_config(), tmp_path, resume)
        assert {(tmp_path / name).read_text(encoding="utf-8") for name in [*half, LOCK]} == {"kept"}


@pytest.mark.parametrize("content", ["mine", "3", '{"mine": 1}', "link", "broken link"])
def test_a_file_of_the_name_of_the_lock_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    path, target = tmp_path / "out" / LOCK, tmp_path / "target"
    path.parent.mkdir()
    if content == "link":
        target.write_text("", encoding="utf-8")
    if "link" in content:
        path.symlink_to(target)
    else:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"\.lock is not the lock of an aurank run; move it away"), claimed(path.parent):
        pass
    if "link" in content:
        assert path.is_symlink()
        assert not target.exists() or target.read_bytes() == b""
    else:
        assert path.read_text(encoding="utf-8") == content


@pytest.mark.slow
def test_a_run_goes_where_a_killed_one_left_half_a_file(tmp_path: Path) -> None:
    (tmp_path / ".config.yaml.0123456789ab.part").write_bytes(b"half")
    aurank.train(tiny_config(train={"steps": 3}), tmp_path)
    assert not list(tmp_path.glob(".*"))


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
    assert "is in use: process" in complaints[codes.index(2)]
    steps = [json.loads(line)["step"] for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert len([step for step in steps if step == 40]) == 2  # a line of training and one of validation
