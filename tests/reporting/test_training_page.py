"""report.html of a run: its curves, settings and hardest queries, with a test split and without."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from testing.cases import Elements
from testing.runs import tiny_config

import aurank
from aurank.reporting.training_page import training_page


@pytest.mark.slow
def test_the_page_of_a_run_has_its_curves_settings_and_hardest_queries(tmp_path: Path) -> None:
    result = aurank.train(tiny_config(train={"steps": 4, "validate_every": 2}), tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    shown = Elements(page)
    for text in (
        "Training loss.",
        "Validation mauprc",
        f"{result.report.mauprc:.4f}",
        "name: soprc",
        "Worst queries",
        "model",
        "manifest",
    ):
        assert text in shown.text
    worst = result.report.per_query["ap"].min()
    assert f"AP <b>{worst:.3f}</b>" in page
    assert page.count("data:image/") > 10  # the pictures of the queries and of what they find


def test_a_long_course_is_drawn_by_means_of_neighbouring_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    page = training_page(tmp_path, None, settings="seed: 0", chosen_by="mauprc")
    assert "seed: 0" in page
    losses, validations, star = curves
    assert len(losses) == 834  # of three records each, the last of two
    np.testing.assert_allclose(losses[[0, -1]], [[2, (1 + 1 / 2 + 1 / 3) / 3], [2500.5, (1 / 2500 + 1 / 2501) / 2]])
    assert validations.tolist() == [[9, 0.25], [18, 0.5], [27, 0.375]]
    assert star.tolist() == [[18, 0.5]]
