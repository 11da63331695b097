"""Kill a process of a training on two simulated machines, in every phase: who says what, how soon, and what resumes.

    sudo python tools/kill_ranks.py [--only backward "a machine"] [--out FOLDER]

A machine is a namespace (`ip netns`, `unshare`, so as root) with torchrun's agent and two ranks; a veth pair is
between. In a case one rank kills itself (SIGKILL) in the middle of a phase; or a whole machine is killed; or the cable
is pulled. The table has the time until the other agents have ended, and what their ranks print. Resumed, all has to end
as if nobody had been killed, bit for bit. Not root: one machine.
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from aurank import cli
from aurank.embedding import embed as embedding
from aurank.embedding.embedded import Embedded
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.evaluation.engine.tiles import TileCounter
from aurank.reporting.results import PER_CLASS, PER_QUERY, REPORT
from aurank.training import run as training_run
from aurank.training.loop import Loop
from aurank.training.tasks import Task
from aurank.training.trainer import Trainer

RANKS = 4
ADDRESSES = ("10.77.0.1", "10.77.0.2")
SPACES = ("aurank-a", "aurank-b")
LIMIT = 200.0  # seconds after which a rank that is left is killed, as its exit code of -9 then tells
CONFIG: dict[str, Any] = {
    "data": {"name": "digits", "image_size": 16, "channels": 1, "validation_fraction": 0.2},
    "sampler": {"name": "pk", "batch": 32, "params": {"per_class": 4}},
    "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8, "params": {"drop_rate": 0.1}},
    "loss": {"name": "soprc"},
    "optim": {"lr": 1e-3},
    "train": {"steps": 6, "validate_every": 3, "checkpoint_every": 2, "log_every": 1},
    "evaluate": {"batch": 64},  # each rank has several of the test split
}
# Where a rank kills itself: the name of a phase, an object, its method, and in which of its calls.
PHASES: dict[str, tuple[Any, str, int]] = {
    "building": (Trainer, "__init__", 1),
    "reading a batch": (Loop, "step", 4),
    "forward": (Trainer, "embed", 4),
    "backward": (Trainer, "backward", 4),
    "optimiser": (Trainer, "update", 4),
    "validation": (Loop, "_validate", 1),
    "measuring": (Task, "measure", 1),
    "saving": (Loop, "save", 3),
    "replacing last.safetensors": (os, "replace", 4),
    "final test": (training_run, "_test", 1),
}
# The same of calls in the final test.
TEST_PHASES: dict[str, tuple[Any, str, int]] = {
    "test: embedding": (embedding, "as_embeddings", 2),
    "test: measuring": (Embedded, "evaluate", 1),
    "test: counting": (TileCounter, "count", 1),
    "test: measuring alone": (Embedded, "evaluate", 1),
    "test: writing": (training_run, "save_results", 1),
    "test: replacing its files": (os, "replace", 6),
}
OPTIONS = {"test: measuring alone": ["loss.matryoshka=[4]"]}  # also of the run that nobody kills
CASES = [(phase, victim) for phase in (*PHASES, *TEST_PHASES) for victim in (0, 3)]
OUTSIDE = ("a machine", "the machine of rank 0", "the cable")


def kill_in(phase: str, note: Path) -> None:
    if phase in PHASES:
        kill_at(*PHASES[phase], note)
        return
    test = training_run._test

    def begun(*arguments: Any) -> Any:
        kill_at(*TEST_PHASES[phase], note)
        return test(*arguments)

    training_run._test = begun


def kill_at(owner: Any, name: str, wanted: int, note: Path) -> None:
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == wanted:
            note.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    setattr(owner, name, wrapped)


def work(case: dict[str, Any]) -> None:
    folder, rank = Path(case["folder"]), int(os.environ["RANK"])
    descriptor = os.open(folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME=case["interface"])
    torch.set_num_threads(1)
    if case["victim"] == rank:
        kill_in(case["phase"], folder / "killed")
    if case["phase"] in OUTSIDE and rank == 0 and not case["resume"]:
        original = Trainer.backward

        def told(trainer: Trainer, loss: torch.Tensor) -> None:  # a long run, to be killed from outside
            (folder / "runs").touch()
            original(trainer, loss)

        Trainer.backward = told  # type: ignore[method-assign]
    sys.argv = ["aurank", "train", str(folder / "config.json"), "--out", str(folder / "run"), *case["options"]]
    cli.main()


def be_host() -> None:
    for line in sys.stdin:
        case = json.loads(line)
        config = LaunchConfig(
            min_nodes=len(SPACES),
            max_nodes=len(SPACES),
            nproc_per_node=RANKS // len(SPACES),
            rdzv_backend="static",
            rdzv_endpoint=f"{case['address']}:{case['port']}",
            rdzv_configs={"rank": case["number"], "timeout": LIMIT},
            run_id=str(case["port"]),
            max_restarts=0,
            monitor_interval=0.1,
            start_method="fork",
            local_addr=case["local"],
        )
        codes = [0]
        try:
            elastic_launch(config, work)(case)
        except ChildFailedError as error:
            codes = sorted({failure.exitcode for failure in error.failures.values()})
        except Exception:
            traceback.print_exc()
            codes = [1]
        print(json.dumps([time.time(), codes]), flush=True)


class Host:
    def __init__(self, number: int, isolated: bool) -> None:
        self.number, self.isolated = number, isolated
        self.start()

    def start(self) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--host"]
        if self.isolated:
            inside = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"]
            name = SPACES[self.number]
            command = ["ip", "netns", "exec", name, *inside, f'hostname {name}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, case: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        interface = f"aurank{self.number}" if self.isolated else "lo"
        local = ADDRESSES[self.number] if self.isolated else "127.0.0.1"
        own = {"number": self.number, "interface": interface, "local": local}
        self.process.stdin.write(json.dumps({**case, **own}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> tuple[float, list[int]] | None:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        if not ready:
            self.kill()
            return time.time(), [-signal.SIGKILL]
        line = self.process.stdout.readline()
        return tuple(json.loads(line)) if line else None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def shell(command: str, *, check: bool = True) -> None:
    subprocess.run(command.split(), check=check, capture_output=not check)


@contextlib.contextmanager
def network() -> Iterator[None]:
    for name in SPACES:
        shell(f"ip netns del {name}", check=False)
    try:
        for name in SPACES:
            shell(f"ip netns add {name}")
        shell(f"ip link add aurank0 netns {SPACES[0]} type veth peer name aurank1 netns {SPACES[1]}")
        for number, (name, address) in enumerate(zip(SPACES, ADDRESSES, strict=True)):
            shell(f"ip -n {name} addr add {address}/24 dev aurank{number}")
            shell(f"ip -n {name} link set lo up")
            shell(f"ip -n {name} link set aurank{number} up")
        yield
    finally:
        for name in SPACES:
            shell(f"ip netns del {name}", check=False)


class Cases:
    def __init__(self, folder: Path, isolated: bool) -> None:
        self.folder, self.isolated = folder, isolated
        self.hosts = [Host(number, isolated) for number in range(len(SPACES))]
        self.port = 29600
        self.wholes: dict[str, Path] = {}

    def launch(self, folder: Path, phase: str = "", victim: int = -1, *options: str, resume: bool = False) -> None:
        self.port += 1
        address = ADDRESSES[0] if self.isolated else "127.0.0.1"
        case = {"folder": str(folder), "phase": phase, "victim": victim, "port": self.port, "address": address}
        for host in self.hosts:
            host.ask({**case, "resume": resume, "options": [*options, *["--resume"] * resume]})

    def answers(self) -> list[tuple[float, list[int]]]:
        return [answer for host in self.hosts if (answer := host.answer()) is not None]

    def prepare(self, name: str) -> Path:
        folder = self.folder / name.replace(" ", "_")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        return folder

    def whole(self, phase: str) -> Path:
        options = OPTIONS.get(phase, [])
        name = " ".join(["whole", *options])
        if name not in self.wholes:
            folder = self.prepare(name)
            self.launch(folder, "", -1, *options)
            if any(any(codes) for _, codes in self.answers()):
                raise SystemExit("\n".join((folder / f"{rank}.txt").read_text() for rank in range(RANKS)))
            self.wholes[name] = folder / "run"
        return self.wholes[name]

    def try_case(self, phase: str, victim: int) -> list[str]:
        whole, folder, options = self.whole(phase), self.prepare(f"{phase} {victim}"), OPTIONS.get(phase, [])
        self.launch(folder, phase, victim, *options, "train.timeout=20s")
        if phase in OUTSIDE:
            killed = self.break_from_outside(folder, phase)
        answers = self.answers()
        if (folder / "killed").exists():
            killed = float((folder / "killed").read_text())
        elif phase not in OUTSIDE:
            return [phase, str(victim), "–", "has no part in it", "", ""]
        others = [rank for rank in range(RANKS) if rank != victim]
        if phase == "the cable":
            shell(f"ip -n {SPACES[1]} link set aurank1 up")
        for host in self.hosts:
            if host.process.poll() is not None:
                host.start()
        slowest = max(ended - killed for ended, _ in answers)
        codes = ", ".join(sorted({str(code) for _, found in answers for code in found}))
        said = {line for rank in others for line in errors_in(folder / f"{rank}.txt")}
        for rank in others:
            if (folder / f"{rank}.txt").exists():
                shutil.copy(folder / f"{rank}.txt", folder / f"{rank}.killed.txt")
        self.launch(folder, "", -1, *options, resume=True)
        if any(any(codes) for _, codes in self.answers()):
            went_on = "; ".join(line for rank in range(RANKS) for line in errors_in(folder / f"{rank}.txt"))
        else:
            went_on = same_run(folder / "run", whole)
        after = f"{slowest:.1f} s" if slowest > 0 else "before"
        return [phase, str(victim) if victim >= 0 else "", after, codes, " / ".join(sorted(said)), went_on]

    def break_from_outside(self, folder: Path, phase: str) -> float:
        while not (folder / "runs").exists():
            time.sleep(0.02)
        now = time.time()
        if phase == "the cable":
            shell(f"ip -n {SPACES[1]} link set aurank1 down")
        else:
            self.hosts[phase == "a machine"].kill()
        return now


def errors_in(path: Path) -> list[str]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        line for line in lines if line and not line.startswith(("step ", "validation ", "measuring ", "notice", "[W"))
    ]


def same_run(folder: Path, whole: Path) -> str:
    states = [load_checkpoint(run / "last.safetensors") for run in (folder, whole)]
    if not same(*({**state, "config": None} for state in states)):  # train.timeout is another
        return "other weights"
    names = (REPORT, PER_QUERY, PER_CLASS)
    other = [name for name in names if (folder / name).read_bytes() != (whole / name).read_bytes()]
    return f"another {', '.join(other)}" if other else "bit for bit"


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[*PHASES, *TEST_PHASES, *OUTSIDE], help="phases")
    parser.add_argument("--out", type=Path, help="a folder for the runs; default: a temporary one")
    parser.add_argument("--host", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.host:
        be_host()
        return
    isolated = os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("unshare") is not None
    cases = [*CASES, *((phase, -1) for phase in OUTSIDE if isolated)]
    cases = [case for case in cases if not arguments.only or case[0] in arguments.only]
    with contextlib.ExitStack() as held:
        folder = arguments.out or Path(held.enter_context(tempfile.TemporaryDirectory()))
        if isolated:
            held.enter_context(network())
        machines = Cases(folder, isolated)
        print(
            "| phase | rank killed | agents ended after | codes | saying | resumed |\n|---|---|---|---|---|---|",
            flush=True,
        )
        failed = False
        for phase, victim in cases:
            row = machines.try_case(phase, victim)
            failed |= row[-1] not in ("bit for bit", "")  # empty: the rank has no part in it
            print("| " + " | ".join(row) + " |", flush=True)
        for host in machines.hosts:
            host.kill()
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
