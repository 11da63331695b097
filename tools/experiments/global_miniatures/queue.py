"""Runs carried out, each once: what has no line yet, one after the other or several at a time."""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from miniatures.surroundings import surroundings

from aurank.errors import UserError
from global_miniatures.store import Line, Run, Store

CarryOut = Callable[[Run, Path], Line | None]
Found = Line | str | None  # a line; why the run was left out; None where it was interrupted
_SURROUNDINGS = ("seconds", "processor_seconds", "load", "device", "torch", "commit")
_BEGUN = "what had begun starts anew next time"


def carry_out_all(
    store: Store,
    runs: Callable[[], Iterable[Run]],
    carry_out: CarryOut,
    *,
    started: float,
    limit_minutes: float,
    workers: int = 1,
) -> bool:
    """Whether every run is there now; False where one was left out, or the next one might end after the limit.

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
                longest = max((line["seconds"] for line in store.of(run.experiment)), default=0.0)
                if time.monotonic() - started + longest > limit_minutes * 60:
                    raise TimeoutError(f"stopped before {run}: {limit_minutes:g} minutes")
                yield run

    before = -1
    try:
        while len(tried) > before:
            before = len(tried)
            for run, found in _each(wanted(), partial(measured, carry_out=carry_out, work=work), workers):
                if isinstance(found, str):
                    left_out = True
                    print(f"{run} left out: {found}", flush=True)
                else:
                    store.append(run, found)
                    print(f"{run}  {_shown(found)}  {found['seconds']:.0f} s", flush=True)
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


def _shown(found: Line) -> Line:
    """The numbers and words of a line, without its surroundings."""
    said = {key: value for key, value in found.items() if isinstance(value, float | str) and key not in _SURROUNDINGS}
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in said.items()}


def _each(runs: Iterator[Run], one: Callable[[Run], Found], workers: int) -> Iterator[tuple[Run, Line | str]]:
    """The runs and what they came to, as they end; what ends it early is raised once those that had begun are in."""
    if workers == 1:
        for run in runs:
            if (found := one(run)) is None:
                raise KeyboardInterrupt
            yield run, found
        return
    early: BaseException | None = None
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        ahead: dict[Future[Found], Run] = {}
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
                found = None if error else future.result()
                if found is None:
                    early = early or error or KeyboardInterrupt()
                else:
                    yield run, found
    if early is not None:
        raise early


def measured(run: Run, carry_out: CarryOut, work: Path) -> Found:
    """What a run came to, with its time and surroundings; its files lie in a folder of this process."""
    load, begun, spent = os.getloadavg()[0], time.perf_counter(), time.process_time()
    try:
        found = carry_out(run, work / str(os.getpid()))
    except UserError as error:
        return str(error)
    if found is None:
        return None
    seconds, processor = time.perf_counter() - begun, time.process_time() - spent
    times = {"seconds": round(seconds, 1), "processor_seconds": round(processor, 1), "load": round(load, 2)}
    return {**found, **times, **surroundings()}
