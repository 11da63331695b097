"""Runs, each carried out once: a finished one is a line of a JSON Lines file, found again by what was asked of it."""

import contextlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import aurank
from aurank.errors import AurankError, UserError
from aurank.files import write_text

Line = dict[str, Any]
_SHOWN = ("mauprc", "recall@", "val_mauprc")
_BEGUN = "what had begun starts anew next time"


@dataclass(frozen=True)
class Run:
    """One run: of which experiment, which row of it, with what settings and seed."""

    experiment: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __str__(self) -> str:
        settings = " ".join(f"{key}={value}" for key, value in self.settings.items() if key != "overrides")
        return f"{self.experiment}: {self.name} {settings} seed {self.seed}".replace("  ", " ")


CarryOut = Callable[[Run, Path], Line | None]
Result = Line | str | None  # a line; why the run was left out; None where it was interrupted


class Store:
    """The lines of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self.lines: list[Line] = [json.loads(line) for line in text.splitlines()]

    def find(self, run: Run) -> Line | None:
        wanted = json.loads(json.dumps(asdict(run)))
        return next((line for line in self.lines if all(line[key] == value for key, value in wanted.items())), None)

    def append(self, run: Run, line: Line) -> None:
        self.lines.append({**asdict(run), **line})
        write_text(self.path, "".join(json.dumps(each) + "\n" for each in self.lines))

    def of(self, name: str) -> list[Line]:
        return [line for line in self.lines if line["name"] == name and "error" not in line]


def train(run: Run, work: Path) -> Line | None:
    """Return the metrics of one training in a folder that is removed afterwards; None when a signal ended it."""
    folder = work / f"{run.experiment}-{run.name}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        result = aurank.train(
            run.settings["config"], folder, overrides=[*run.settings["overrides"], f"seed={run.seed}"]
        )
        if result.stopped_by is not None or result.report is None:
            return None
        line: Line = {name: result.report.metrics[name] for name in ("mauprc", "recall@1", "recall@10")}
        return line | ({"val_mauprc": result.best["mauprc"]} if result.best else {})
    except UserError:
        raise
    except AurankError as error:  # diverged: a result too, and not to be tried again
        return {"error": str(error).splitlines()[0]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            work.rmdir()


def carry_out_all(
    store: Store,
    runs: Callable[[], Iterable[Run]],
    carry_out: CarryOut,
    *,
    started: float,
    limit_minutes: float,
    workers: int = 1,
) -> bool:
    """Return whether every run is there now: none was left out, and no next one might end after the limit.

    Args:
        runs: gives them one by one, and is asked again at their end: later ones may depend on earlier ones.
        carry_out: one run; with workers, something that another process can import.
        started: when the limit began to count, by time.monotonic.
        workers: how many at a time, each in a process of its own; with 1, in this one.

    Raises:
        SystemExit: interrupted, or a worker was killed. What had ended has its lines.
    """
    tried: set[str] = set()
    left_out, work = False, store.path.parent / f"running-{store.path.stem}"

    def wanted() -> Iterator[Run]:
        for run in runs():
            if store.find(run) is None and repr(run) not in tried:
                tried.add(repr(run))
                longest = max((line["seconds"] for line in store.lines), default=0.0)
                if time.monotonic() - started + longest > limit_minutes * 60:
                    raise TimeoutError(f"stopped before {run}: {limit_minutes:g} minutes")
                yield run

    before = -1
    try:
        while len(tried) > before:
            before = len(tried)
            for run, result in _each(wanted(), partial(_measured, carry_out=carry_out, work=work), workers):
                if isinstance(result, str):
                    left_out = True
                    print(f"{run} left out: {result}", flush=True)
                else:
                    store.append(run, result)
                    metrics = {key: round(value, 4) for key, value in result.items() if key.startswith(_SHOWN)}
                    print(f"{run}  {result.get('error', metrics)}  {result['seconds']:.0f} s", flush=True)
    except TimeoutError as limit:
        print(limit, flush=True)
        return False
    except KeyboardInterrupt:
        raise SystemExit(f"interrupted; {_BEGUN}") from None
    except BrokenProcessPool:
        remedy = f"{_BEGUN}: run again, with fewer --workers if memory was short"
        raise SystemExit(f"a worker was killed; {remedy}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)  # what a killed worker left
    return not left_out


def _each(runs: Iterator[Run], one: Callable[[Run], Result], workers: int) -> Iterator[tuple[Run, Line | str]]:
    """Yield the runs and their results, as they end; raise what ends it early once those that had begun are in."""
    if workers == 1:
        for run in runs:
            if (result := one(run)) is None:
                raise KeyboardInterrupt
            yield run, result
        return
    early: BaseException | None = None
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        ahead: dict[Future[Result], Run] = {}
        while True:
            try:
                while early is None and len(ahead) < workers and (run := next(runs, None)) is not None:
                    ahead[pool.submit(one, run)] = run
                if not ahead:
                    break
                done = wait(ahead, return_when=FIRST_COMPLETED).done
            except (TimeoutError, KeyboardInterrupt, BrokenProcessPool) as reached:
                if isinstance(early, KeyboardInterrupt):
                    raise  # asked twice
                early = reached
                continue
            for future in done:
                run, error = ahead.pop(future), future.exception()
                result = None if error else future.result()
                if result is None:
                    early = early or error or KeyboardInterrupt()
                else:
                    yield run, result
    if early is not None:
        raise early


def _measured(run: Run, carry_out: CarryOut, work: Path) -> Result:
    load, begun, spent = os.getloadavg()[0], time.perf_counter(), time.process_time()
    try:
        line = carry_out(run, work / str(os.getpid()))
    except UserError as error:
        return str(error)
    if line is None:
        return None
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return {
        **line,
        "seconds": round(time.perf_counter() - begun, 1),
        "processor_seconds": round(time.process_time() - spent, 1),
        "load": round(load, 2),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "commit": done.stdout.strip() or "unknown",
    }
