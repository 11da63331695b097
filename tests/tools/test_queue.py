"""Runs carried out one after the other or several at a time: what has a line, what is left out, what ends early."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from experiments.runs import Line, Run, Store, carry_out_all

from aurank.errors import UserError


def carry_out(run: Run, work: Path) -> Line | None:
    """Do what a run is named for; `work` is below the folder of the lines, and each process has its own."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "half").write_text("written")
    if run.name == "refused":
        raise UserError("give its --weights")
    if run.name == "interrupted":
        return None
    marker = work.parents[1] / "was killed"
    if run.name == "killed" and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    (work / "half").unlink()
    work.rmdir()
    return {"mauprc": run.seed / 3, "course": [1.0]}


def plan(store: Store, *names: str) -> Iterator[Run]:
    """Two runs, those, and a last one that depends on the first two."""
    first = [Run("any", "well", seed=seed) for seed in (0, 1)]
    yield from first
    yield from (Run("any", name, seed=2) for name in names)
    if all(store.find(run) is not None for run in first):
        yield Run("any", "last", seed=3)


def finish(folder: Path, *names: str, workers: int = 1, **limits: Any) -> bool:
    folder.mkdir(exist_ok=True)
    store = Store(folder / "any.jsonl")
    given: dict[str, Any] = {"started": 0.0, "limit_minutes": float("inf"), "workers": workers, **limits}
    return carry_out_all(store, lambda: plan(store, *names), carry_out, **given)


def done(folder: Path) -> list[str]:
    assert not list(folder.glob("running-*"))
    return sorted(f"{line['name']} {line['seed']}" for line in Store(folder / "any.jsonl").lines)


WHOLE = ["last 3", "well 0", "well 1"]


def test_what_is_left_out_is_told_and_not_called_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not finish(tmp_path, "refused")
    assert done(tmp_path) == WHOLE
    said = capsys.readouterr().out.splitlines()
    assert said[2] == "any: refused seed 2 left out: give its --weights"
    assert said[3] == "any: last seed 3  {'mauprc': 1.0}  0 s"
    assert finish(tmp_path)
    assert capsys.readouterr().out == ""


def test_an_interrupt_is_one_line_and_starts_anew(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^interrupted; what had begun starts anew next time$"):
        finish(tmp_path, "interrupted")
    assert done(tmp_path) == WHOLE[1:]
    assert finish(tmp_path)


@pytest.mark.slow
def test_several_at_a_time_all_end_before_an_interrupt_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not finish(tmp_path, workers=2, limit_minutes=0.0, started=-1.0)
    with pytest.raises(SystemExit, match=r"^interrupted; what had begun starts anew"):
        finish(tmp_path, "refused", "interrupted", workers=2)
    assert {*WHOLE[1:]} <= {*done(tmp_path)}  # the last one may have begun before the interrupt
    assert "any: refused seed 2 left out: give its --weights" in capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_a_killed_worker_is_one_line_and_the_next_time_goes_on(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^a worker was killed; what had begun starts anew next time: run again, "):
        finish(tmp_path, "killed", workers=2)
    assert {*done(tmp_path)} <= {*WHOLE}  # whatever had ended by then
    assert finish(tmp_path, "killed", workers=2)
    assert done(tmp_path) == ["killed 2", *WHOLE]
