"""Two processes over gloo train one model."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tiny import tiny_config

from aurank.training.checkpoint import load_checkpoint


def start(config: Path, out: Path, ranks: int) -> list[subprocess.Popen[str]]:
    """One process for each rank, as torchrun starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    shared |= {"ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo", "LOCAL_WORLD_SIZE": str(ranks)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "aurank", "train", str(config), "--out", str(out)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, output and complaints of each; none is left running."""
    try:
        found = []
        for process in processes:
            output, complaints = process.communicate(timeout=120)
            found.append((process.returncode, output, complaints))
        return found
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow
def test_a_signal_to_one_process_ends_all_at_the_same_step_with_everything_saved(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    sections = {"train": {"steps": 100_000, "validate_every": 100_000, "checkpoint_every": 100_000, "ema": 0.9}}
    config.write_text(yaml.safe_dump(tiny_config(**sections)), encoding="utf-8")
    out = tmp_path / "out"
    processes = start(config, out, 2)
    try:
        log, deadline = out / "metrics.jsonl", time.monotonic() + 120
        while not (log.exists() and log.read_bytes().count(b"\n") >= 3):
            assert all(process.poll() is None for process in processes), ended(processes)
            assert time.monotonic() < deadline
            time.sleep(0.01)
        processes[0].send_signal(signal.SIGTERM)
    finally:
        results = ended(processes)
    assert [code for code, _, _ in results] == [128 + signal.SIGTERM] * 2, results
    state = load_checkpoint(out / "last.pt")
    assert state["progress"]["step"] == log.read_bytes().count(b"\n") >= 3
    assert len(state["random"]) == 2
    assert f"stopped by a signal after step {state['progress']['step']};" in results[0][2]
    assert "stopped" not in results[1][2]


@pytest.mark.slow
def test_only_the_main_process_prints_and_writes(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tiny_config(train={"steps": 3, "validate_every": 1})), encoding="utf-8")
    results = ended(start(config, tmp_path / "out", 2))
    assert [code for code, _, _ in results] == [0, 0], results
    assert results[0][1].count("mauprc") == results[0][1].count("written to") == 1
    assert results[0][2].count("validation mAUPRC") == 3
    assert results[1][1] == ""
    assert "validation" not in results[1][2]
    assert load_checkpoint(tmp_path / "out" / "last.pt")["progress"]["step"] == 3
