"""Tables 1 and 2 in miniature: every method with the same budget on Omniglot, run by run, most valuable first."""

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aurank
from aurank.errors import AurankError, UserError
from aurank.training import read_config
from miniatures.methods import BATCHES, METHODS, TABLE_1, TABLE_2, Run, grid
from miniatures.results import Line, Results
from miniatures.surroundings import surroundings

KEPT = ("mauprc", "recall@1", "recall@10")


def plan(results: Results, names: Sequence[str], *, seeds: Sequence[int], steps: int) -> Iterator[Run]:
    """All runs in the order of their value, as far as the results let it be known.

    First the learning rates of every method of Table 1; then the other seeds of SOPRC, SmoothAP and the two others with
    the best validation mAUPRC, seed by seed; the ablation's learning rates; the rest.
    """

    def more_seeds(wanted: Sequence[str]) -> Iterator[Run]:
        for seed, name in itertools.product(seeds[1:], wanted):
            rate = results.best_rate(name, seeds=seeds, steps=steps)
            if rate is not None:
                yield Run(name, rate, seed, steps)

    def grids(wanted: Sequence[str]) -> Iterator[Run]:
        for name in wanted:
            yield from grid(name, seeds=seeds, steps=steps)

    first = [name for name in ("soprc", "smooth_ap") if name in names]
    others = [name for name in TABLE_1 if name in names and name not in first]
    ablation = [name for name in TABLE_2 if name in names and name not in first]
    batches = [name for name in BATCHES if name in names and name not in first]
    yield from grids([*first, *others])
    score = {
        name: lines[0]["val_mauprc"] for name in others if (lines := results.chosen(name, seeds=seeds[:1], steps=steps))
    }
    best = sorted(score, key=score.__getitem__, reverse=True)[:2]
    yield from more_seeds([*first, *best])
    yield from grids(ablation)
    yield from more_seeds([*ablation, *others])
    yield from grids(batches)
    yield from more_seeds(batches)


def next_run(
    results: Results, names: Sequence[str], *, seeds: Sequence[int], steps: int, passed: frozenset[str] = frozenset()
) -> Run | None:
    """The most valuable run without a line, of a method not in `passed`; None when all are there."""
    runs = plan(results, [name for name in names if name not in passed], seeds=seeds, steps=steps)
    return next((run for run in runs if results.find(run) is None), None)


def carry_out(run: Run, work: Path) -> Line | None:
    """The line of one training in a folder of its own, removed afterwards; None when a signal ended it."""
    folder = work / f"{run.method}-{run.rate:g}-{run.seed}"
    shutil.rmtree(folder, ignore_errors=True)  # what a killed run left: it starts anew
    load = os.getloadavg()[0]
    started = time.perf_counter()
    found: dict[str, Any]
    try:
        result = aurank.train(METHODS[run.method].config, folder, overrides=run.overrides)
        if result.stopped_by is not None or result.report is None:
            return None
        found = {"val_mauprc": result.best["mauprc"]} | {name: result.report.metrics[name] for name in KEPT}
    except UserError:
        raise
    except AurankError as error:  # diverged: a result too, and not to be tried again
        found = {"error": str(error).splitlines()[0]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            work.rmdir()
    return {
        "method": run.method,
        "config": METHODS[run.method].config,
        "overrides": run.overrides,
        "lr": run.rate,
        "seed": run.seed,
        "steps": run.steps,
        **found,
        "seconds": round(time.perf_counter() - started, 1),
        "load_before": round(load, 2),
        "load_after": round(os.getloadavg()[0], 2),
        **surroundings(),
    }


def train_all(
    results: Results, names: Sequence[str], *, seeds: Sequence[int], steps: int, limit_minutes: float
) -> None:
    """Nothing; carries out what has no line yet, and stops where the next run might end after the limit."""
    started, longest = time.monotonic(), 0.0
    passed: set[str] = set()
    while run := next_run(results, names, seeds=seeds, steps=steps, passed=frozenset(passed)):
        if time.monotonic() - started + longest > limit_minutes * 60:
            print(f"stopped before {run}: {limit_minutes:g} minutes", flush=True)
            return
        try:
            read_config(METHODS[run.method].config, run.overrides)
            line = carry_out(run, results.path.parent / "running")
        except UserError as error:
            passed.add(run.method)
            print(f"{run.method} left out: {error}", flush=True)
            continue
        if line is None:
            raise SystemExit("interrupted; the run starts anew next time")
        results.append(line)
        longest = max(longest, line["seconds"])
        said = line.get("error") or "  ".join(f"{name} {line[name]:.4f}" for name in ("val_mauprc", *KEPT))
        print(f"{run.method:22} lr {run.rate:<7g} seed {run.seed}  {said}  {line['seconds']:.0f} s", flush=True)
    print("every run is there", flush=True)
