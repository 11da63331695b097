"""The experiments: which runs come when, what is chosen, and what is said of them."""

import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment import carry_out, frozen
from experiments.methods import EXPERIMENTS, grid, training_run
from experiments.report import FROZEN, Plan, cost, picture, rows, table, write_tables
from experiments.runs import Line, Run, Store, carry_out_all
from testing.galleries import rows as rows_of_classes
from testing.galleries import write_rows

from aurank.errors import UserError
from aurank.training import read_config

pytestmark = pytest.mark.slow
PLAN = Plan("grocery", ("soprc", "smooth_ap", "triplet"), seeds=4, choosing=2, rates=(1e-4, 1e-3))
GAINS = {"soprc": 0.02, "smooth_ap": 0.05, "triplet": 0.0}


def made_up(run: Run, work: Path) -> Line:
    """A line of a run: validation prefers 1e-3, test has 1e-4 ahead, and triplet diverges at 1e-3."""
    if run.name in FROZEN:
        return {"mauprc": 0.4, "recall@1": 0.9, "recall@10": 0.99}
    is_high = run.settings["lr"] == 1e-3
    if run.name == "triplet" and is_high:
        return {"error": "the loss is nan"}
    value = 0.4 + GAINS[run.name] + 0.001 * np.sin(7 * run.seed + len(run.name)) - 0.1 * is_high
    return {"val_mauprc": value + 0.2 * is_high, "mauprc": value, "recall@1": value, "recall@10": value}


def finished(path: Path, plan: Plan = PLAN, **limits: Any) -> Store:
    store = Store(path)
    given: dict[str, Any] = {"started": 0.0, "limit_minutes": float("inf"), **limits}
    carry_out_all(store, lambda: plan.runs(store), made_up, **given)
    return store


def test_rates_are_chosen_on_validation_and_the_other_seeds_run_at_these(tmp_path: Path) -> None:
    store = finished(tmp_path / "grocery.jsonl")
    assert [line["name"] for line in store.lines[:3]] == list(FROZEN)
    assert len(store.lines) == 3 + 3 * 2 * 2 + 3 * 2
    assert [PLAN.chosen_rate(store, name) for name in PLAN.methods] == [1e-3, 1e-3, 1e-4]
    assert {(line["name"], line["settings"]["lr"]) for line in store.lines[-6:]} == {
        *(("soprc", 1e-3), ("smooth_ap", 1e-3), ("triplet", 1e-4))
    }
    assert sorted(PLAN.chosen(store, "soprc")) == [0, 1, 2, 3]


def test_an_experiment_of_one_rate_chooses_nothing(tmp_path: Path) -> None:
    plan = Plan("grocery_tuned", ("soprc", "triplet"), rates=(1e-4,), seeds=2, choosing=0)
    store = finished(tmp_path / "tuned.jsonl", plan)
    assert len(store.lines) == 3 + 2 * 2
    assert [(row.name, row.rate) for row in rows(plan, store)] == [("soprc", 1e-4), ("triplet", 1e-4)]
    with pytest.raises(UserError, match="give its --weights"):
        carry_out(training_run("grocery_tuned", "soprc", 1e-3, 0), tmp_path, features=tmp_path)


def test_fine_tuning_chooses_with_classes_held_out_and_then_takes_all(tmp_path: Path) -> None:
    def without(run: Run, work: Path) -> Line:
        line = made_up(run, work)
        return line if "changed" in run.settings else {key: line[key] for key in line if key != "val_mauprc"}

    plan = Plan("grocery_tuned", ("soprc", "smooth_ap"), rates=(1e-4, 1e-3), seeds=3, choosing=2)
    store = Store(tmp_path / "tuned.jsonl")
    assert carry_out_all(store, lambda: plan.runs(store), without, started=0.0, limit_minutes=float("inf"))
    choosing, final = store.lines[3:11], store.lines[11:]
    for line in choosing:
        assert line["settings"]["overrides"][-2:] == list(EXPERIMENTS["grocery_tuned"].held_out)
    assert [(line["seed"], line["name"]) for line in final] == [
        (seed, name) for seed in range(3) for name in plan.methods
    ]
    assert {line["settings"]["lr"] for line in final} == {1e-3}
    assert not any("changed" in line["settings"] for line in final)
    found = {row.name: row for row in rows(plan, store)}
    for name, row in found.items():
        chosen = [line for line in choosing if line["name"] == name and line["settings"]["lr"] == 1e-3]
        assert row.standing == pytest.approx(np.mean([line["val_mauprc"] for line in chosen]))
    assert found["soprc"].gain is not None
    assert cost(plan, store).startswith("14 runs of ")


def test_a_benchmark_stopped_anywhere_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    whole, path = finished(tmp_path / "whole.jsonl"), tmp_path / "parts.jsonl"
    text = whole.path.read_text(encoding="utf-8").splitlines(keepends=True)
    for count in (0, 1, 9, 20):
        path.write_text("".join(text[:count]), encoding="utf-8")
        again = finished(path)
        assert [line["settings"] for line in again.lines] == [line["settings"] for line in whole.lines]
    path.unlink()
    assert finished(path, limit_minutes=0.0, started=-1.0).lines == []


def test_gains_are_paired_by_seed_beside_the_best_validated(tmp_path: Path) -> None:
    found = {row.name: row for row in rows(PLAN, finished(tmp_path / "grocery.jsonl"))}
    best, other = found["smooth_ap"], found["soprc"]
    assert best.gain is None
    assert other.gain is not None
    differences = [other.runs[seed]["mauprc"] - best.runs[seed]["mauprc"] for seed in range(4)]
    assert other.gain.value == pytest.approx(np.mean(differences))
    assert other.gain.count == 4
    assert other.p_value is not None
    assert other.p_value < 0.01
    assert [row.name for row in rows(PLAN, Store(tmp_path / "grocery.jsonl"))] == ["triplet", "smooth_ap", "soprc"]


def test_the_table_marks_rates_at_the_ends_and_is_written_between_markers(tmp_path: Path) -> None:
    store, page = finished(tmp_path / "grocery.jsonl"), tmp_path / "page.md"
    text = table(PLAN, store)
    assert "| SmoothAP | ranking | 0.349" in text
    assert "| 0.001* | 4 | reference |" in text
    assert "| the features | no training | 0.4000 | 0.9000 | 0.9900 |" in text
    assert "runs of 0.0 s" in cost(PLAN, store)
    names = [f"benchmark: grocery {name}" for name in ("table", "cost")]
    marks = [f"<!-- {name} -->\nold\n<!-- /{name} -->" for name in names]
    page.write_text("\n".join(marks), encoding="utf-8")
    write_tables(PLAN, store, page)
    assert text in page.read_text(encoding="utf-8")
    assert "old" not in page.read_text(encoding="utf-8")
    picture(PLAN, store).savefig(tmp_path / "grocery.png")
    assert (tmp_path / "grocery.png").stat().st_size > 5_000
    assert table(PLAN, Store(tmp_path / "none.jsonl")) == "*not run yet*"


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_method_is_a_configuration(experiment: str) -> None:
    found = set()
    for name in (methods := EXPERIMENTS[experiment].methods):
        run = training_run(experiment, name, 1e-3, 0)
        found.add(read_config(run.settings["config"], run.settings["overrides"]).model_dump_json())
    assert len(found) == len(methods) >= 10
    (run,) = grid(experiment, "soprc", rates=(1e-3,), choosing=1)
    assert read_config(run.settings["config"], run.settings["overrides"]).data.validation_fraction > 0


def test_a_run_trains_a_head_on_the_features_of_a_folder(tmp_path: Path) -> None:
    write_rows(tmp_path / EXPERIMENTS["grocery"].features)
    run = training_run("grocery", "smooth_ap", 1e-3, 1)
    short = ["train.steps=2", "train.validate_every=2", "optim.warmup_steps=0", "sampler.batch=8"]
    run = Run("grocery", run.name, {**run.settings, "overrides": [*run.settings["overrides"], *short]}, seed=1)
    line = carry_out(run, tmp_path / "work", features=tmp_path)
    assert line is not None
    assert set(line) == {"mauprc", "recall@1", "recall@10", "val_mauprc"}
    assert not (tmp_path / "work").exists()


def test_the_features_alone_are_measured_on_test_rows_behind_steps_of_training_rows(tmp_path: Path) -> None:
    noise = 4 * np.random.default_rng(1).normal(size=(72, 16))
    file = write_rows(tmp_path / "rows.npz", embeddings=rows_of_classes()["embeddings"] + noise + 2)
    plain, centred = frozen(file, ""), frozen(file, "center")
    assert plain.keys() == centred.keys() == {"mauprc", "recall@1", "recall@10"}
    assert plain != centred
    with pytest.raises(UserError, match="holds no array 'splits'"):
        frozen(write_rows(file, splits=None), "")


def test_the_command_prints_what_there_is(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    finished(tmp_path / "grocery.jsonl")
    script = Path(__file__).parents[2] / "tools" / "experiment.py"
    words = ["table", "grocery", "--out", str(tmp_path), "--seeds", "4", "--rates", "1e-4", "1e-3"]
    monkeypatch.setattr(sys, "argv", [str(script), *words, "--methods", *PLAN.methods])
    monkeypatch.setattr(sys, "path", list(sys.path))
    runpy.run_path(str(script), run_name="__main__")
    assert "| SmoothAP | ranking |" in capsys.readouterr().out


def test_the_tables_of_the_docs_are_those_of_the_stored_runs(tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs" / "benchmark"
    page = Path(shutil.copy(docs / "tables.txt", tmp_path))
    for name in ("grocery", "omniglot", "omniglot_200", "soprc_parts"):
        about = EXPERIMENTS[name]
        plan = Plan(name, list(about.methods), about.seeds, about.choosing)
        write_tables(plan, Store(docs / f"{name}.jsonl"), page)
    assert page.read_text(encoding="utf-8") == (docs / "tables.txt").read_text(encoding="utf-8")
