import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from miniatures import bias, methods, propositions, stability, starts, train
from miniatures.methods import METHODS, TABLE_1, Method, Run
from miniatures.plots import draw_all
from miniatures.results import Mean, Results
from miniatures.tables import replaced, write_tables

from aurank.errors import AurankError, UserError

DOCS = Path(__file__).parents[2] / "docs"
SEEDS, STEPS = (0, 1, 2), methods.STEPS


def line(run: Run, mauprc: float, **more: Any) -> dict[str, Any]:
    """A finished run, scored alike on validation and test."""
    scores = {"val_mauprc": mauprc, "mauprc": mauprc, "recall@1": mauprc, "recall@10": mauprc}
    place = {"device": "CPU", "cores": 2, "threads": 2, "torch": "2", "commit": "0", "seconds": 1.0, "load_after": 0.1}
    names = {"method": run.method, "config": METHODS[run.method].config, "overrides": run.overrides}
    return {**names, "lr": run.rate, "seed": run.seed, "steps": run.steps, **scores, **place, **more}


def carried_out(results: Results, names: list[str], score: Any, count: int) -> list[Run]:
    """The next runs, each finished with its score."""
    done = []
    for _ in range(count):
        run = train.next_run(results, names, seeds=SEEDS, steps=STEPS)
        assert run is not None
        results.append(line(run, score(run)))
        done.append(run)
    return done


def test_the_most_valuable_runs_come_first(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    score = {"triplet": 0.5, "auroc": 0.6, "xbm": 0.4}

    def of(run: Run) -> float:
        return score.get(run.method, 0.3) + (0.01 if run.rate == 3e-4 else 0)

    grids = carried_out(results, list(METHODS), of, 2 * len(TABLE_1))
    assert [run.method for run in grids[:4]] == ["soprc", "soprc", "smooth_ap", "smooth_ap"]
    assert {run.method for run in grids} == set(TABLE_1)
    more = carried_out(results, list(METHODS), of, 8)
    assert [run.method for run in more] == ["soprc", "smooth_ap", "auroc", "triplet"] * 2
    assert {run.rate for run in more} == {3e-4}
    assert [run.seed for run in more] == [1] * 4 + [2] * 4
    assert train.next_run(results, list(METHODS), seeds=SEEDS, steps=STEPS) == Run("ablation_1", 1.0, 0, STEPS)


def test_a_queue_stopped_anywhere_ends_with_each_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, path, calls = ["soprc", "smooth_ap"], tmp_path / "results.jsonl", []

    def fake(run: Run, work: Path) -> dict[str, Any] | None:
        calls.append(run)
        return None if len(calls) == 4 else line(run, 0.1)

    monkeypatch.setattr(train, "carry_out", fake)
    with pytest.raises(SystemExit):
        train.train_all(Results(path), names, seeds=SEEDS, steps=STEPS, limit_minutes=math.inf)
    assert len(Results(path).lines) == 3
    train.train_all(Results(path), names, seeds=SEEDS, steps=STEPS, limit_minutes=math.inf)
    assert len(Results(path).lines) == 2 * (2 + 2)
    assert calls[4] == calls[3]
    assert len(set(calls)) == 8
    train.train_all(Results(path), names, seeds=SEEDS, steps=STEPS, limit_minutes=math.inf)
    assert len(calls) == 9


def test_a_run_that_could_end_after_the_limit_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "carry_out", lambda run, work: line(run, 0.1, seconds=50.0))
    results = Results(tmp_path / "results.jsonl")
    train.train_all(results, ["soprc"], seeds=SEEDS, steps=STEPS, limit_minutes=0.5)
    assert len(results.lines) == 1


def test_a_method_without_configuration_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(METHODS, "triplet", replace(METHODS["triplet"], config="omniglot/none_such"))
    monkeypatch.setattr(train, "carry_out", lambda run, work: line(run, 0.1))
    results = Results(tmp_path / "results.jsonl")
    train.train_all(results, ["triplet", "soprc"], seeds=(0,), steps=STEPS, limit_minutes=math.inf)
    assert {each["method"] for each in results.lines} == {"soprc"}
    assert "triplet left out" in capsys.readouterr().out


@pytest.mark.slow
def test_a_training_starts_anew_over_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = ("sampler.batch=16", "sampler.params.per_class=4", "data.image_size=16", "data.validation_fraction=0.2")
    monkeypatch.setitem(METHODS, "soprc", Method("tiny", "digits/soprc", changes))
    run = Run("soprc", 1e-3, 0, 2)
    left = tmp_path / "running" / "soprc-0.001-0"
    left.mkdir(parents=True)
    (left / "last.safetensors").write_bytes(b"half a checkpoint")
    found = train.carry_out(run, tmp_path / "running")
    assert found is not None
    assert 0 < found["mauprc"] < found["recall@10"] <= 1
    assert 0 < found["val_mauprc"] <= 1
    assert not (tmp_path / "running").exists()
    json.dumps(found)


def test_a_diverged_training_is_a_result_that_no_table_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*given: Any, **more: Any) -> None:
        raise AurankError("the loss is nan at step 7")

    monkeypatch.setattr("aurank.train", diverge)
    results = Results(tmp_path / "results.jsonl")
    high, low = methods.grid("soprc", seeds=SEEDS, steps=STEPS)
    found = train.carry_out(high, tmp_path)
    assert found is not None
    assert found["error"] == "the loss is nan at step 7"
    results.append(found)
    results.append(line(low, 0.2))
    assert results.best_rate("soprc", seeds=SEEDS, steps=STEPS) == low.rate
    assert [each["lr"] for each in results.chosen("soprc", seeds=SEEDS, steps=STEPS)] == [low.rate]


def test_an_interval_is_that_of_students_t() -> None:
    mean = Mean.of([0.1, 0.2])
    assert mean.half_width == pytest.approx(12.706 * 0.05, rel=1e-4)  # t of 1 degree of freedom; s/√2 = 0.05
    assert mean.text(2) == "0.15 ± 0.64"
    assert Mean.of([0.1]).text(2) == "0.10"


def test_tables_say_what_the_results_say_and_leave_the_rest_of_the_page(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    for name, score in {"soprc": 0.4, "triplet": 0.3}.items():
        for run in [*methods.grid(name, seeds=SEEDS, steps=STEPS), Run(name, 1e-3, 1, STEPS)]:
            results.append(line(run, score + 0.02 * run.seed + (0.05 if run.rate == 1e-3 else 0)))
    page, results_page = tmp_path / "miniatures.md", tmp_path / "results.md"
    names = ("claims", "table 1", "table 2", "batches", "bias", "interpolation", "hardware")
    page.write_text("\n".join(f"about {n}\n<!-- miniatures: {n} -->\nold\n<!-- /miniatures: {n} -->" for n in names))
    results_page.write_text("before\n<!-- miniatures -->\n<!-- /miniatures -->\nafter\n")
    for _ in range(2):
        write_tables(tmp_path, page=page, results_page=results_page, seeds=SEEDS, steps=STEPS)
    text = page.read_text()
    assert "old" not in text
    assert all(f"about {name}" in text for name in names)
    assert "| SOPRC | 0.4600 ± 0.1271 | 0.4600 ± 0.1271 | 0.4600 ± 0.1271 | 0.001 | 2 |" in text
    assert "| AUROC | *not run yet* |" in text
    assert "6 runs on CPU" in text
    short = results_page.read_text()
    assert short.startswith("before\n")
    assert short.endswith("after\n")
    assert short.index("SOPRC") < short.index("Triplet")


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must hold the markers <!-- here -->"):
        replaced("no markers", "here", "block", tmp_path)


@pytest.mark.slow
def test_the_committed_pages_and_pictures_follow_from_the_committed_results(tmp_path: Path) -> None:
    copies = {name: tmp_path / name for name in ("tables.txt", "results.md")}
    shutil.copy(DOCS / "miniatures" / "tables.txt", tmp_path)
    shutil.copy(DOCS / "results.md", tmp_path)
    given = {"seeds": Results(DOCS / "miniatures" / "results.jsonl").seeds, "steps": STEPS}
    write_tables(DOCS / "miniatures", page=copies["tables.txt"], results_page=copies["results.md"], **given)
    assert copies["tables.txt"].read_text() == (DOCS / "miniatures" / "tables.txt").read_text()
    assert copies["results.md"].read_text() == (DOCS / "results.md").read_text()
    for path in (DOCS / "miniatures").glob("*.json*"):
        shutil.copy(path, tmp_path)
    drawn = list(draw_all(tmp_path, **given))
    assert {path.name for path in drawn} >= {"bias.png", "interpolation.png", "starts.png", "stability.png"}
    assert all(1_000 < path.stat().st_size < 100_000 for path in drawn)


@pytest.mark.slow
def test_soprcs_estimate_does_not_drift_with_the_sampling_rate_and_aps_does() -> None:
    found = bias.estimator_bias("binormal", repeats=60, size=20_000, batch=1_000)
    mean = {kind: [at[kind]["mean"] for at in found["rates"].values()] for kind in ("ap", "soprc")}
    truth = found["truth"]["auprc_loss"]
    assert truth == pytest.approx(0.70, abs=0.02)
    assert all(abs(value - truth) < 0.04 for value in mean["soprc"])
    assert mean["ap"] == sorted(mean["ap"], reverse=True)
    assert mean["ap"][0] > truth + 0.15
    assert mean["ap"][-1] < truth - 0.1


def test_the_exact_losses_equal_double_loops() -> None:
    chance = np.random.default_rng(0)
    positives, negatives = chance.normal(1, 1, 30) / 5, chance.normal(0, 1, 70) / 5
    auprc = surrogate = 0.0
    for p in positives:
        above = sum(float(n > p) for n in negatives) / 70
        x = [(p - n) / bias.TAU1 for n in negatives]
        huber = sum(1 - 2 * each if each < 0 else max(0, 1 - each) ** 2 for each in x) / 70
        true_positive = bias.PRIOR * sum(float(q >= p) for q in positives) / 30
        auprc += 0.9 * above / (0.9 * above + true_positive) / 30
        surrogate += 0.9 * huber / (0.9 * huber + true_positive) / 30
    found = bias.exact_losses(torch.from_numpy(positives), torch.from_numpy(negatives))
    assert found["auprc_loss"] == pytest.approx(auprc, rel=1e-10)
    assert found["surrogate"] == pytest.approx(surrogate, rel=1e-8)


def test_straight_lines_through_true_quantiles_err_by_one_over_n_squared() -> None:
    found = propositions.interpolation_slopes()
    assert found["slopes"]["linear"] == pytest.approx(-2, abs=0.15)
    assert all(error <= bound for error, bound in zip(found["errors"]["linear"], found["bound"], strict=True))


@pytest.mark.slow
def test_the_mean_and_variance_of_v_are_those_of_the_proposition() -> None:
    found = propositions.moving_average(rows=300, steps=40)["starts"]["arange"]["0.1"]
    assert found["mean_error"] < 4.5
    assert found["variance"] == pytest.approx(1, abs=0.1)


def test_the_ap_of_the_stability_miniature_is_eq_5() -> None:
    chance = torch.Generator().manual_seed(0)
    embeddings = torch.nn.functional.normalize(torch.randn(12, 5, generator=chance, dtype=torch.float64))
    labels = torch.arange(12) // 4
    total = 0.0
    for query in range(12):
        score = embeddings @ embeddings[query]
        positives = [score[i] for i in range(12) if labels[i] == labels[query] and i != query]
        negatives = [score[i] for i in range(12) if labels[i] != labels[query]]
        for s in positives:
            x = [float(s - n) / stability.TAU1 for n in negatives]
            above = sum(1 - 2 * each if each < 0 else max(0, 1 - each) ** 2 for each in x)
            ahead = 1 + sum(math.tanh(max(0, float(p - s)) / (2 * stability.TAU2)) for p in positives)
            total += above / (above + ahead) / len(positives) / 12
    assert float(stability.APLoss()(embeddings, labels)) == pytest.approx(total, rel=1e-10)


@pytest.mark.slow
def test_replacing_a_positive_changes_a_gradient_more_than_replacing_a_negative() -> None:
    found = stability.change(32, seed=0, trials=5)
    assert set(found) >= {"ap", "smooth_ap", "soprc", "soprc_without_v"}
    assert all(0 <= each["negative"] < each["positive"] for each in found.values())


def test_a_copied_start_is_nearer_the_scores_than_evenly_spaced_numbers() -> None:
    copied, arange = (starts.train(start, 0.01, 0, steps=1) for start in ("copied", "arange"))
    assert copied["distance"]["1"] < 0.2 * arange["distance"]["1"]
