"""Runs carried out one after the other, each once: what has no line yet."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from miniatures.surroundings import surroundings

from aurank.errors import UserError
from global_miniatures.store import Line, Run, Store

CarryOut = Callable[[Run, Path], Line | None]


def carry_out_all(
    store: Store, runs: Iterable[Run], carry_out: CarryOut, *, started: float, limit_minutes: float
) -> bool:
    """Whether every run is there now; False where the next one might end after the limit.

    Args:
        runs: asked for one by one, so that a later one may depend on what earlier ones came to.
        started: when the limit began to count, by time.monotonic.
    """
    work = store.path.parent / f"running-{store.path.stem}"
    for run in runs:
        if store.find(run) is not None:
            continue
        longest = max((line["seconds"] for line in store.lines if line["experiment"] == run.experiment), default=0.0)
        if time.monotonic() - started + longest > limit_minutes * 60:
            print(f"stopped before {run}: {limit_minutes:g} minutes", flush=True)
            return False
        load, begun, spent = os.getloadavg()[0], time.perf_counter(), time.process_time()
        try:
            found = carry_out(run, work)
        except UserError as error:
            print(f"{run} left out: {error}", flush=True)
            continue
        if found is None:
            raise SystemExit("interrupted; the run starts anew next time")
        seconds = round(time.perf_counter() - begun, 1)
        times = {"seconds": seconds, "processor_seconds": round(time.process_time() - spent, 1)}
        store.append(run, {**found, **times, "load": round(load, 2), **surroundings()})
        said = {key: round(value, 4) if isinstance(value, float) else value for key, value in found.items()}
        shown = {key: value for key, value in said.items() if isinstance(value, float | str)}
        print(f"{run}  {shown}  {seconds:.0f} s", flush=True)
    return True
