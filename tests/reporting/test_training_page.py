"""report.html of a run: its curves, settings and hardest queries; tune.html of a search."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from testing.cases import Elements
from testing.runs import tiny_config

import aurank
from aurank.ranges import Range
from aurank.reporting.training_page import training_page
from aurank.reporting.tune_page import _around, _slice, tune_page


@pytest.mark.slow
def test_the_page_of_a_run_has_its_curves_settings_and_hardest_queries(tmp_path):
    result = aurank.train(tiny_config(train={"steps": 4, "validate_every": 2}), tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    shown = Elements(page)
    texts = ("Training loss.", "Validation mauprc", "name: soprc", "Worst queries", "model", "manifest")
    for text in (*texts, f"{result.report.mauprc:.4f}"):
        assert text in shown.text
    assert f"AP <b>{result.report.per_query['ap'].min():.3f}</b>" in page
    assert page.count("data:image/") > 10  # the pictures of the queries and of what they find


def test_a_long_course_is_drawn_by_means_of_neighbouring_records(tmp_path, monkeypatch):
    curves: list[Any] = []

    def drawn(draw: Callable[[Axes], None], caption: str) -> Markup:
        axes = Figure().subplots()
        draw(axes)
        curves.extend(line.get_xydata() for line in axes.get_lines())
        return Markup(escape(caption))

    monkeypatch.setattr("aurank.reporting.training_page.svg", drawn)
    records: list[dict[str, Any]] = [{"split": "train", "step": step, "loss": 1 / step} for step in range(1, 2502)]
    records += [{"split": "val", "step": step, "mauprc": value} for step, value in ((9, 0.25), (18, 0.5), (27, 0.375))]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    assert "seed: 0" in training_page(tmp_path, None, settings="seed: 0", chosen_by="mauprc")
    losses, validations, star = curves
    assert len(losses) == 834  # of three records each, the last of two
    np.testing.assert_allclose(losses[[0, -1]], [[2, (1 + 1 / 2 + 1 / 3) / 3], [2500.5, (1 / 2500 + 1 / 2501) / 2]])
    assert validations.tolist() == [[9, 0.25], [18, 0.5], [27, 0.375]]
    assert star.tolist() == [[18, 0.5]]


def line(number: int, value: float) -> dict[str, object]:
    settings = {"optim.lr": f"{number * 1e-4}"}
    return {
        "number": number, "state": "complete", "value": value, "seconds": 12.0, "folds": [value], "settings": settings,
        "error": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "is_cut"),
    [
        (np.linspace(0.88, 0.9, 2), False),
        (np.linspace(0.88, 0.9, 40), True),
        (np.repeat([0.5, 0.9], [4, 8]), False),  # many, but the worst fifth are alike
        (np.full(12, 0.5), False),
    ],
)
def test_the_page_says_of_trials_below_the_picture_only_where_there_are_some(values, is_cut):
    assert (_around(values.tolist())[0] > min(values)) == is_cut
    lines = [line(number, value) for number, value in enumerate(values.tolist(), 1)]
    page = tune_page(lines, {"optim.lr": Range(1e-5, 1e-1, log=True)}, {}, [], "Search")
    assert ("the worst lie below the picture" in page) == is_cut
    assert "optim.lr" in page
    assert "seconds of training" in page or "minutes of training" in page


@pytest.mark.parametrize(
    ("within", "texts"),
    [
        (Range(1e-5, 0.03, log=True), ["1e-05", "0.0001", "0.001", "0.01"]),
        (Range(0.1, 10, log=True), ["0.1", "1", "10"]),
        (Range(2e-3, 500, log=True), ["0.01", "0.1", "1", "10", "100"]),
        (Range(1e-12, 1, log=True), ["1e-12", "1e-10", "1e-08", "1e-06", "0.0001", "0.01", "1"]),
        (Range(0.02, 0.5, log=True), ["0.02", "0.5"]),  # one power of ten alone says no scale
        (Range(0.05, 0.8), ["0.05", "0.3", "0.55", "0.8"]),
    ],
)
def test_ticks_of_a_logarithmic_range_are_powers_of_ten(within, texts):
    axes = Figure().add_subplot()
    _slice(axes, [(f"{within.low}", 0.5), (f"{within.high}", 0.6)], within)
    assert [label.get_text() for label in axes.get_xticklabels()] == texts
    assert not any(label.get_text() for label in axes.get_xticklabels(minor=True))
