import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.runs import tiny_config

from aurank import Report
from aurank.commands import RunOptions, measure_baselines
from aurank.commands.demo import demo
from aurank.embedding.build import build_dataset, build_encoder, fill_preprocessing
from aurank.embedding.embed import embed
from aurank.embedding.embedded import evaluation_options
from aurank.embedding.select_images import read_manifest
from aurank.training import read_config

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(tiny_config(train={"steps": 3}))
    monkeypatch.setattr("aurank.training.read_config", lambda _: config)


def test_the_demo_compares_three_embeddings_and_can_be_called_again(tmp_path: Path) -> None:
    results, stopped_by = demo(tmp_path / "demo")
    assert stopped_by is None
    assert list(results) == ["untrained", "raw_pixels", "trained"]
    assert json.loads((tmp_path / "demo" / "demo.json").read_text(encoding="utf-8")) == results
    # Digits look alike within a class: pixels alone are known to score well above the prevalence of a tenth.
    assert 0.5 < results["raw_pixels"]["mauprc"] < 0.9
    assert demo(tmp_path / "demo") == (results, None)


def test_a_demo_that_is_interrupted_goes_on(tmp_path: Path) -> None:
    def interrupt(kind: str, values: dict[str, Any]) -> None:
        if kind == "step" and values["step"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    results, stopped_by = demo(tmp_path, listener=interrupt)
    assert stopped_by == signal.SIGTERM
    assert not results
    results, stopped_by = demo(tmp_path)
    assert stopped_by is None
    assert "trained" in results


def test_chance_pixels_and_the_untrained_network_stand_beside_any_model(tiny_run: Path) -> None:
    config = fill_preprocessing(read_config(tiny_config(train={"steps": 3})))
    report = Report.load(tiny_run / "report.json")
    found = measure_baselines(f"aurank:{tiny_run / 'best'}", report)
    torch.manual_seed(config.seed)
    data = build_dataset(config.data, read_manifest(config.data, seed=config.seed).split("test"), train=False)
    untrained = embed(build_encoder(config.model, channels=1), data).evaluate(**evaluation_options(config)).metrics
    assert list(found) == ["model", "untrained", "raw_pixels", "chance"]
    assert (found["model"], found["untrained"]) == (report.metrics, untrained)
    assert 0.1 < report.random_order < found["raw_pixels"]["mauprc"]


def test_what_cannot_be_had_is_left_out_and_said(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aurank.commands.baselines.MOST_PIXELS", 100)
    monkeypatch.setattr("aurank.commands.baselines._untrained", lambda *_: None)
    report = Report.load(tiny_run / "report.json")
    said: list[str] = []
    found = measure_baselines(f"aurank:{tiny_run / 'best'}", report, running=RunOptions(say=said.append))
    assert list(found) == ["model", "chance"]
    assert [line.split(",")[0] for line in said] == [
        f"--baselines: the untrained network of aurank:{tiny_run / 'best'} cannot be had",
        "--baselines: raw pixels are left out",
    ]
