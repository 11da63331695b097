"""What commands leave in their folders: whose result it is, baselines, probes of text labels."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from testing.shell import Shell

from aurank.cli.drawing import keep_baselines
from aurank.config import shipped_configs
from aurank.evaluation import ProbeResult


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save_rows(path: Path, labels: np.ndarray, seed: int = 0) -> None:
    path.parent.mkdir(exist_ok=True)
    np.savez(path, embeddings=np.random.default_rng(seed).normal(size=(len(labels), 3)), labels=labels)


@pytest.mark.slow
def test_the_same_words_in_another_folder_are_another_command(
    place: Path, aurank: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("evaluate", "--model", "embeddings:rows.npz", "--out", str(place / "out"))
    for seed, name in enumerate(("one", "two")):
        save_rows(place / name / "rows.npz", np.arange(8) % 2, seed)
    monkeypatch.chdir(place / "one")
    assert [aurank(*command)[0] for _ in range(2)] == [0, 0]
    monkeypatch.chdir(place / "two")
    code, _, complaint = aurank(*command)
    assert code == 2
    assert f"another command (cd {place / 'one'} && aurank evaluate" in complaint


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [({"mrr@2": 0.25}, ("mrr@2", "0.2500")), ({"ndcg": 0.5, "mauprc": 0.125}, ("mAUPRC", "0.1250"))],
)
def test_the_table_of_baselines_shows_numbers_whatever_the_metrics(
    metrics: dict[str, float], shown: tuple[str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_baselines({"model": metrics, "chance": {"mauprc": 0.1}}, place)
    table = capsys.readouterr().out
    assert all(text in table for text in shown)


def test_a_dry_run_measures_no_baselines_and_says_so(
    aurank: Shell,
) -> None:
    code, _, complaint = aurank("train", next(iter(shipped_configs())), "--dry-run", "--baselines")
    assert code == 2
    assert "--baselines has no use with --dry-run" in complaint


def test_training_without_a_report_says_that_baselines_are_left_out(
    place: Path, aurank: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_without = SimpleNamespace(skipped={}, is_main=True, stopped_by=None, two_way={}, report=None, out=place)
    monkeypatch.setattr("aurank.training.train", lambda *_, **__: run_without)
    code, _, said = aurank("train", "digits/soprc", "--baselines")
    assert code == 0
    assert "--baselines: left out, as no report" in said


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["knn", "linear_probe"])
def test_text_labels_are_probed_as_the_integers_they_stand_for(protocol: str, place: Path, aurank: Shell) -> None:
    numbers = np.arange(24) % 3
    save_rows(place / "numbers.npz", numbers)
    save_rows(place / "names.npz", np.array(["ape", "bee", "cat"])[numbers])
    found: list[Any] = []
    for name in ("numbers", "names"):
        command = ("probe", "--model", f"embeddings:{name}.npz", "--out", name, "--protocol", protocol)
        assert aurank(*command)[0] == 0
        found.append(ProbeResult.load(place / name / f"{protocol}.json").metrics)
    assert found[0] == found[1]
