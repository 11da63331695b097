"""Try damaged and hostile input, case after case; each must end in a result or in one clear error.

    python tools/fuzz.py --seconds 1800                     # all kinds, from seed 0
    python tools/fuzz.py --only table --case 1234           # one case again, with its traceback

A find is any other exception, a dead process, more than 5 s of processor time, or 2 GiB beyond what the imports take.
Cases run in a process of their own, which is replaced where one kills it. Exits with 1 where anything was found.
"""

import argparse
import multiprocessing
import random
import resource
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

KINDS = ("config", "table", "lists", "benchmark", "image", "archive", "embeddings", "report", "probe", "trec", "index")
KINDS += ("checkpoint",)
SECONDS = 5.0
BYTES = 2 * 2**30
PATIENCE = 60.0  # of the clock, for a case that never ends: other programs may hold the processor


@dataclass(frozen=True)
class Find:
    """A case that did not end as it should."""

    kind: str
    case: int
    what: str

    def __str__(self) -> str:
        return f"{self.what}\n  again: python tools/fuzz.py --only {self.kind} --case {self.case}"


def run_case(kind: str, case: int, *, seed: int) -> str | None:
    """Run one case in this process; return None where it ended in a result or a refusal, else what happened."""
    from fuzzing.subjects import SUBJECTS

    from aurank.errors import AurankError

    chance = random.Random(f"{seed} {kind} {case}")
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            SUBJECTS[kind](Path(folder), chance)
        except AurankError:
            pass
        except BaseException:
            return f"{kind} {case}: {traceback.format_exc()}"
    spent = time.process_time() - started
    return f"{kind} {case}: took {spent:.1f} s" if spent > SECONDS else None


def _work(connection: Connection, seed: int) -> None:
    """Run the cases that come through the connection, and answer each."""
    import torch
    from fuzzing import subjects

    torch.set_num_threads(1)
    subjects._run(), subjects._report_text()  # made once, outside of any case's time
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + BYTES, resource.RLIM_INFINITY))
    connection.send(None)
    while True:
        kind, case = connection.recv()
        connection.send(run_case(kind, case, seed=seed))


def _data_bytes() -> int:
    """Return the private memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmData in /proc/self/status")


class Worker:
    """A process that runs cases."""

    def __init__(self, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, seed), daemon=True)
        self.process.start()
        theirs.close()
        self.connection.recv()

    def run(self, kind: str, case: int) -> tuple[str | None, bool]:
        """Return what happened in a case, and whether the worker can go on."""
        self.connection.send((kind, case))
        if not self.connection.poll(PATIENCE):
            self.close()
            return f"{kind} {case}: did not end within {PATIENCE:.0f} s", False
        try:
            return self.connection.recv(), True
        except EOFError:
            self.process.join()
            return f"{kind} {case}: the process died with exit code {self.process.exitcode}", False

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()


def fuzz(seconds: float, *, seed: int = 0, kinds: tuple[str, ...] = KINDS, start: int = 0) -> tuple[int, list[Find]]:
    """Try cases of each kind in turn for so long; return how many were tried and what was found."""
    finds, case = [], start
    worker = Worker(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        kind = kinds[case % len(kinds)]
        what, alive = worker.run(kind, case)
        if what is not None and alive:
            what, alive = worker.run(kind, case)  # once more: what a first call compiles is not the input's fault
        if what is not None:
            finds.append(Find(kind, case, what))
        if not alive:
            worker = Worker(seed)
        case += 1
    worker.close()
    return case - start, finds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--case", type=int, help="run this one case, in this process")
    arguments = parser.parse_args()
    if arguments.case is not None:
        print(run_case(arguments.only[0], arguments.case, seed=arguments.seed) or "a result, or a clear error")
        return
    tried, finds = fuzz(arguments.seconds, seed=arguments.seed, kinds=tuple(arguments.only))
    for find in finds:
        print(find)
    print(f"{tried:,} cases, {len(finds)} finds")
    raise SystemExit(bool(finds))


if __name__ == "__main__":
    main()
