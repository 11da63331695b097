"""The demonstration: three embeddings beside each other, also after an interrupt."""

import json
import os
import signal
from typing import Any

import pytest
from testing.runs import tiny_config

from aurank.commands.demo import demo
from aurank.training import read_config

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aurank.training.read_config", lambda _: read_config(tiny_config(train={"steps": 3})))


def test_the_demo_compares_three_embeddings_and_can_be_called_again(tmp_path):
    results, stopped_by = demo(tmp_path / "demo")
    assert stopped_by is None
    assert list(results) == ["untrained", "raw_pixels", "trained"]
    assert json.loads((tmp_path / "demo" / "demo.json").read_text(encoding="utf-8")) == results
    # Digits look alike within a class: pixels alone are known to score well above the prevalence of a tenth.
    assert 0.5 < results["raw_pixels"]["mauprc"] < 0.9
    assert demo(tmp_path / "demo") == (results, None)


def test_a_demo_that_is_interrupted_goes_on(tmp_path):
    def interrupt(kind: str, values: dict[str, Any]) -> None:
        if kind == "step" and values["step"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    results, stopped_by = demo(tmp_path, listener=interrupt)
    assert stopped_by == signal.SIGTERM
    assert not results
    results, stopped_by = demo(tmp_path)
    assert stopped_by is None
    assert "trained" in results
