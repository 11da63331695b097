"""Runs carried out, each once: what has no line yet, one after the other or several at a time."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from miniatures.surroundings import surroundings

from aurank.errors import UserError
from global_miniatures.store import Line, Run, Store

CarryOut = Callable[[Run, Path], Line | None]
Found = Line | str | None  # a line; why the run was left out; None where it was interrupted


def carry_out_all(
    store: Store,
    runs: Callable[[], Iterable[Run]],
    carry_out: CarryOut,
    *,
    started: float,
    limit_minutes: float,
    workers: int = 1,
) -> bool:
    """Whether every run is there now; False where the next one might end after the limit.

    Args:
        runs: gives them one by one, and is asked again at their end: later ones may depend on earlier ones.
        carry_out: one run; with workers, something that another process can import.
        started: when the limit began to count, by time.monotonic.
        workers: how many at a time, each in a process of its own; with 1, in this one.
    """
    tried: set[str] = set()
    one = partial(measured, carry_out=carry_out, work=store.path.parent / f"running-{store.path.stem}")

    def wanted() -> Iterator[Run]:
        for run in runs():
            if store.find(run) is None and repr(run) not in tried:
                tried.add(repr(run))
                longest = max((line["seconds"] for line in store.lines if _is_like(line, run)), default=0.0)
                if time.monotonic() - started + longest > limit_minutes * 60:
                    raise TimeoutError(f"stopped before {run}: {limit_minutes:g} minutes")
                yield run

    before = -1
    try:
        while len(tried) > before:
            before = len(tried)
            for run, found in _each(wanted(), one, workers):
                if found is None:
                    raise SystemExit("interrupted; the run starts anew next time")
                if isinstance(found, str):
                    print(f"{run} left out: {found}", flush=True)
                    continue
                store.append(run, found)
                shown = {key: value for key, value in found.items() if key.endswith(("mauprc", "error", "recall@1"))}
                said = {key: round(value, 4) if isinstance(value, float) else value for key, value in shown.items()}
                print(f"{run}  {said}  {found['seconds']:.0f} s", flush=True)
    except TimeoutError as limit:
        print(limit, flush=True)
        return False
    return True


def _is_like(line: Line, run: Run) -> bool:
    return bool(line["experiment"] == run.experiment)


def _each(runs: Iterator[Run], one: Callable[[Run], Found], workers: int) -> Iterator[tuple[Run, Found]]:
    """The runs and what they came to, as they end; the limit is told once those that had begun are in."""
    if workers == 1:
        yield from ((run, one(run)) for run in runs)
        return
    limit: TimeoutError | None = None
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        ahead: dict[Future[Found], Run] = {}
        while True:
            try:
                while limit is None and len(ahead) < workers and (run := next(runs, None)) is not None:
                    ahead[pool.submit(one, run)] = run
            except TimeoutError as reached:
                limit = reached
            if not ahead:
                break
            for done in wait(ahead, return_when=FIRST_COMPLETED).done:
                yield ahead.pop(done), done.result()
    if limit is not None:
        raise limit


def measured(run: Run, carry_out: CarryOut, work: Path) -> Found:
    """What a run came to, with its time and surroundings."""
    load, begun, spent = os.getloadavg()[0], time.perf_counter(), time.process_time()
    try:
        found = carry_out(run, work)
    except UserError as error:
        return str(error)
    if found is None:
        return None
    seconds, processor = time.perf_counter() - begun, time.process_time() - spent
    times = {"seconds": round(seconds, 1), "processor_seconds": round(processor, 1), "load": round(load, 2)}
    return {**found, **times, **surroundings()}
