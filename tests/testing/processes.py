"""Processes of one run, as torchrun starts them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import aurank


def start(
    config: Path,
    out: Path,
    ranks: int,
    *options: Sequence[str],
    common: Sequence[str] = (),
    folders: Sequence[Path | None] = (),
) -> list[subprocess.Popen[str]]:
    """One process for each rank, as torchrun starts them, with options of their own and in common, and folders."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_WORLD_SIZE": str(ranks)}
    shared["PYTHONPATH"] = str(Path(aurank.__file__).parents[1])  # whatever the folder
    return [
        subprocess.Popen(
            [sys.executable, "-m", "aurank", "train", str(config), "--out", str(out), *common, *own],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        for rank, own, folder in zip(range(ranks), options or [()] * ranks, folders or [None] * ranks, strict=True)
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


def steps_done(out: Path, processes: list[subprocess.Popen[str]], steps: int) -> None:
    """Wait until so many steps are logged."""
    log, deadline = out / "metrics.jsonl", time.monotonic() + 240
    while not (log.exists() and log.read_bytes().count(b"\n") >= steps):
        assert all(process.poll() is None for process in processes), ended(processes)
        assert time.monotonic() < deadline
        time.sleep(0.01)
