"""Commands and processes that tests start."""

import importlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from aurank import cli
from aurank.cli import drawing
from aurank.data import READERS

LONG = 3600.0  # seconds between lines of progress, so that what is printed does not depend on a test's time


class Shell:
    """Runs a command in this process; returns its exit code, output and complaints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys
        monkeypatch.setattr(drawing, "QUIET", LONG)

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["aurank", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err

    def done(self, *arguments: object) -> tuple[str, str]:
        """Output and complaints of a command that succeeds."""
        code, output, complaints = self(*arguments)
        assert code == 0, complaints
        return output, complaints

    def refused(self, *arguments: object) -> str:
        """What is said of a mistake of the user: one line."""
        code, _, complaint = self(*arguments)
        assert (code, complaint[:7], complaint.count("\n")) == (2, "error: ", 1), complaint
        return complaint


CONTEXT = multiprocessing.get_context("forkserver")
# What a training imports in its course is here, too: each process would spend seconds on it.
CONTEXT.set_forkserver_preload(
    [
        *("aurank.cli", "aurank.training.run", "aurank.commands", "accelerate", "timm.optim", "albumentations"),
        *("matplotlib.pyplot", "numba", "optuna.importance", "pyarrow.parquet", "sklearn.datasets"),
    ]
)


def ending_at(step: int, number: int = signal.SIGKILL) -> str:
    """Lines to run before a command: its process sends itself a signal at that step, counted over its trainings."""
    return f"""
import os
from aurank.training.loop import Loop
count = 0
def counted(loop, batches, run=Loop.step):
    global count
    count += 1
    if count == {step}:
        os.kill(os.getpid(), {int(number)})
    return run(loop, batches)
globals().update(counted=counted)
Loop.step = counted
"""


KILLED = ending_at(6)


class Running:
    """A process that runs ``aurank``, as `subprocess.Popen` shows one; its output goes to files."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str], folder: Path | None, setup: str) -> None:
        self._files = [tempfile.NamedTemporaryFile("r", encoding="utf-8") for _ in ("output", "errors")]  # noqa: SIM115
        files = [file.name for file in self._files]
        reader = READERS["digits"]  # the whole set, or what a test puts in its place
        self._process = CONTEXT.Process(target=_work, args=(arguments, environment, folder, setup, reader, *files))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def wait(self, timeout: float = 120) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("aurank", timeout)
        return self._process.exitcode

    def communicate(self, timeout: float = 120) -> tuple[str, str]:
        self.wait(timeout)
        output, complaints = (Path(file.name).read_text(encoding="utf-8") for file in self._files)
        return output, complaints


def _work(
    arguments: Sequence[str],
    environment: dict[str, str],
    folder: Path | None,
    setup: str,
    reader: Callable[..., Any],
    output: str,
    errors: str,
) -> None:
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
    for number in (signal.SIGINT, signal.SIGHUP):  # which the server, or a nohup around the tests, may ignore
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    import torch

    from aurank import cli

    drawing.QUIET = LONG
    torch.set_num_threads(1)
    READERS["digits"] = reader
    if setup:
        exec(setup)
    sys.argv = ["aurank", *arguments]
    cli.main()


def run_ranks(work: Callable[..., None], ranks: int, *arguments: object) -> None:
    """Run ``work(rank, *arguments)`` in one process for each rank; what one raises is raised here."""
    processes: Any = importlib.import_module("torch.multiprocessing")
    processes.start_processes(work, args=arguments, nprocs=ranks, start_method="forkserver")


def run_group(work: Callable[..., Any], ranks: int, folder: Path, *arguments: object) -> list[Any]:
    """What ``work(rank, *arguments)`` returns in each process of a gloo group; `folder` is empty."""
    run_ranks(_in_group, ranks, work, ranks, str(folder), arguments)
    torch: Any = importlib.import_module("torch")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def _in_group(rank: int, work: Callable[..., Any], ranks: int, folder: str, arguments: tuple[object, ...]) -> None:
    torch: Any = importlib.import_module("torch")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    torch.save(work(rank, *arguments), Path(folder) / f"{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_aurank(*arguments: object, setup: str = "") -> Running:
    """One process that runs a command, after a few lines of Python if a test needs them."""
    return Running([str(one) for one in arguments], {}, None, setup)


def start(
    config: Path,
    out: Path,
    ranks: int,
    *options: Sequence[str],
    common: Sequence[str] = (),
    folders: Sequence[Path | None] = (),
    setup: str = "",
) -> list[Running]:
    """Train in one process for each rank, with options of their own and in common, and folders."""
    everyone = [["train", str(config), "--out", str(out), *common, *own] for own in options or [()] * ranks]
    return launch(everyone, folders=folders, setup=setup)


def launch(
    commands: Sequence[Sequence[object]], *, folders: Sequence[Path | None] = (), setup: str = ""
) -> list[Running]:
    """One process for each command, as torchrun starts the ranks of one run."""
    port, ranks = free_port(), len(commands)
    return [
        Running([str(one) for one in command], rank_environment(rank, ranks, port), folder, setup)
        for rank, command, folder in zip(range(ranks), commands, folders or [None] * ranks, strict=True)
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets for a process."""
    values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    return {name: str(value) for name, value in values.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def ended(processes: list[Running]) -> list[tuple[int, str, str]]:
    """Exit code, output and complaints of each; none is left running."""
    try:
        found = []
        for process in processes:
            output, complaints = process.communicate(timeout=240)
            found.append((process.wait(), output, complaints))
        return found
    finally:
        for process in processes:
            process.kill()


def succeeded(processes: list[Running]) -> list[tuple[int, str, str]]:
    """What `ended` returns, of processes that all end well."""
    results = ended(processes)
    assert [code for code, _, _ in results] == [0] * len(results), results
    return results


def steps_done(out: Path, processes: list[Running], steps: int) -> None:
    """Wait until so many steps are logged."""
    log, deadline = out / "metrics.jsonl", time.monotonic() + 240
    while not (log.exists() and log.read_bytes().count(b"\n") >= steps):
        assert all(process.poll() is None for process in processes), ended(processes)
        assert time.monotonic() < deadline
        time.sleep(0.01)
