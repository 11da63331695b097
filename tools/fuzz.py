"""Damage files of every kind, case after case, and run the commands that read them: each ends in a result or one line.

    python tools/fuzz.py --seconds 600                      # all kinds, in equal time, from seed 0
    python tools/fuzz.py --only index --case 1234           # one case again, with its traceback

Of each kind the table counts how cases ended:

    fine        a result: of files with checksums the same as of whole ones
    one line    an error of one clear line
    traceback   anything else: another exception, a dead process, an error without a line, or advice on memory
    hang        more than 5 s of processor time beyond what whole files take, or no end at all
    wrong       another result than of whole files, without a word
"""

import contextlib
import io
import multiprocessing
import os
import pickle
import random
import resource
import shlex
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fuzzing.damage import damage_file
from fuzzing.kinds import KINDS, Command, seal
from measuring import parser_of, resident_megabytes

OUTCOMES = ("fine", "one line", "traceback", "hang", "wrong")
SECONDS = 5.0
BYTES = 2 * 2**30
PATIENCE = 90.0  # of the clock, for a case that never ends: other programs may hold the processor


@dataclass(frozen=True)
class Ended:
    outcome: str
    said: str
    seconds: float = 0.0


def run_command(command: Command, part: str = "", further: tuple[str, ...] = ()) -> Ended:
    from aurank import cli
    from aurank.errors import AurankError

    if not isinstance(command, str):
        try:
            return Ended("fine", repr(command()))
        except AurankError as error:
            return Ended("one line", str(error))
        except BaseException:
            return Ended("traceback", traceback.format_exc())
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    words = [word.replace("{part}", part) for word in shlex.split(command.removeprefix("="))]
    before, sys.argv = sys.argv, ["aurank", *words, *further]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cli.main()
    except SystemExit:
        pass
    except BaseException:
        return Ended("traceback", f"aurank {shlex.join(words)}\n{traceback.format_exc()}")
    finally:
        sys.argv = before
    printed, said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if "not enough memory" in said or "Traceback" in said:
        return Ended("traceback", f"aurank {shlex.join(words)}\n{said}")
    return Ended("one line", errors[-1]) if errors else Ended("fine", printed)


def run_case(name: str, case: int, *, seed: int, root: Path) -> Ended:
    kind, chance = KINDS[name], random.Random(f"{seed} {name} {case}")
    place, whole, expected = root / name, root / f"{name} whole", root / f"{name} expected"
    if not expected.exists():
        _make(name, place, whole, expected)
    results, seconds = pickle.loads(expected.read_bytes())
    _restore(whole, place)
    os.chdir(place)
    damaged = Path(kind.damaged)
    files = sorted(path for path in [damaged, *damaged.rglob("*")] if path.is_file() and path.name != ".lock")
    path = chance.choice(files)
    inside = path.relative_to(damaged)
    part = inside.parts[0] if inside.parts else path.name
    is_rewritten = damage_file(path, files, chance) and path.suffix == ".parquet"  # with the checksums of its pages
    is_sealed = kind.is_sealed and (is_rewritten or chance.random() < 0.5)
    if is_sealed:
        seal(damaged)
    started, worst = time.process_time(), Ended("fine", "")
    for number, command in enumerate(kind.commands):
        if worst.outcome != "fine" and not isinstance(command, str):
            break  # what a refused command would have written
        ended = run_command(command, part, tuple(kind.further(chance)) if not number else ())
        is_same = command.startswith("=") if isinstance(command, str) else kind.is_sealed
        if ended.outcome == "fine" and is_same and not is_sealed and ended.said != results[number]:
            ended = Ended("wrong", f"{command}\nprints {ended.said[:2000]}\nof whole files {results[number][:2000]}")
        worst = max(worst, ended, key=lambda one: OUTCOMES.index(one.outcome))
    spent = time.process_time() - started
    if spent > seconds + SECONDS and worst.outcome in OUTCOMES[:2]:
        worst = Ended("hang", f"took {spent:.1f} s of the processor, whole files {seconds:.1f} s")
    return Ended(worst.outcome, f"{path}: {worst.said}", spent)


def _make(name: str, place: Path, whole: Path, expected: Path) -> None:
    place.mkdir()
    os.chdir(place)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        KINDS[name].make()
    shutil.copytree(place, whole, symlinks=True)
    results, seconds = [], 0.0
    part = min((path.name for path in Path(KINDS[name].damaged).glob("*")), default="")
    for _ in range(2):  # once more: what a first call compiles is not the input's fault
        _restore(whole, place)
        os.chdir(place)
        started, results = time.process_time(), []
        for command in KINDS[name].commands:
            results.append(run_command(command, part))
            if results[-1].outcome != "fine":
                raise RuntimeError(f"whole files of the kind {name} fail: {results[-1].said}")
        seconds = time.process_time() - started
    expected.write_bytes(pickle.dumps(([ended.said for ended in results], seconds)))


def _restore(whole: Path, place: Path) -> None:
    os.chdir(place.parent)
    shutil.rmtree(place)
    shutil.copytree(whole, place, symlinks=True)


def _work(connection: Connection, seed: int, root: Path) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ["AURANK_CACHE"] = str(root / "cache of the worker")
    for name in connection.recv():  # made once, outside of any case's time and memory
        if not (root / f"{name} expected").exists():
            _make(name, root / name, root / f"{name} whole", root / f"{name} expected")
    most = int(resident_megabytes("VmData") * 2**20) + BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))
    connection.send(None)
    while True:
        name, case = connection.recv()
        connection.send(run_case(name, case, seed=seed, root=root))


class Worker:
    def __init__(self, seed: int, root: Path, kinds: tuple[str, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, seed, root), daemon=True)
        self.process.start()
        theirs.close()
        self.connection.send(kinds)
        self.connection.recv()

    def run(self, name: str, case: int) -> tuple[Ended, bool]:
        self.connection.send((name, case))
        if not self.connection.poll(PATIENCE):
            self.close()
            return Ended("hang", f"did not end within {PATIENCE:.0f} s", PATIENCE), False
        try:
            return self.connection.recv(), True
        except EOFError:
            self.process.join()
            return Ended("traceback", f"the process died with exit code {self.process.exitcode}", SECONDS), False

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def fuzz(
    seconds: float, *, seed: int = 0, kinds: tuple[str, ...] = tuple(KINDS), start: int = 0
) -> tuple[dict[str, Counter[str]], list[str]]:
    counts, spent = {name: Counter[str]() for name in kinds}, dict.fromkeys(kinds, 0.0)
    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(seed, Path(folder), kinds)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            name = min(spent, key=lambda one: spent[one])
            case, before = start + counts[name].total(), time.monotonic()
            ended, alive = worker.run(name, case)
            spent[name] += time.monotonic() - before
            counts[name][ended.outcome] += 1
            if ended.outcome not in OUTCOMES[:2]:
                found.append(f"{ended.outcome}: {name} {case}: {ended.said}\n  again: --only {name} --case {case}")
            if not alive:
                worker = Worker(seed, Path(folder), kinds)
        worker.close()
    return counts, found


def main() -> None:
    parser = parser_of(__doc__, seconds=60.0, seed=0)
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--case", type=int, help="run this one case, in this process")
    arguments = parser.parse_args()
    if arguments.case is not None:
        with tempfile.TemporaryDirectory() as folder:
            ended: Any = run_case(arguments.only[0], arguments.case, seed=arguments.seed, root=Path(folder))
            os.chdir("/")
        print(f"{ended.outcome}: {ended.said}")
        raise SystemExit(ended.outcome not in OUTCOMES[:2])
    counts, found = fuzz(arguments.seconds, seed=arguments.seed, kinds=tuple(arguments.only))
    print("\n".join(found))
    print(f"{'':14}" + "".join(f"{outcome:>11}" for outcome in OUTCOMES))
    total = sum(counts.values(), Counter[str]())
    for name, row in {**counts, "all": total}.items():
        print(f"{name:14}" + "".join(f"{row[outcome]:11,}" for outcome in OUTCOMES))
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
