"""report.html of a training: its course and settings, above what the best weights find in the test split."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from aurank.data.sources import ImageSource
from aurank.evaluation.report import Report
from aurank.files import reading
from aurank.reporting.charts import COLOURS, svg
from aurank.reporting.page import render
from aurank.reporting.report_page import report_page

_POINTS = 1000  # of a curve at most: each is the mean of neighbouring records


def training_page(
    run: Path,
    report: Report | None,
    *,
    settings: str,
    chosen_by: str,
    source: ImageSource | None = None,
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the page of a run's folder as HTML text; without a report the course of the training alone."""
    with reading(metrics := run / "metrics.jsonl", "the metrics of a run"):
        records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        steps, validations = ([record for record in records if record["split"] == split] for split in ("train", "val"))
    charts = {}
    if steps:
        caption = "Training loss."
        charts[caption] = svg(partial(_draw, records=steps, metric="loss", marker=""), caption)
    if validations:
        caption = f"Validation {chosen_by}; the star is the best; its weights were kept."
        charts[caption] = svg(partial(_draw, records=validations, metric=chosen_by, marker="o"), caption)
    course, title = {"charts": charts, "settings": settings}, f"Training: {run.resolve().name}"
    if report is None:
        return render("training.html", title=title, course=course, facts=facts)
    return report_page(report, source=source, course=course, facts=facts, title=title)


def _draw(axes: Axes, records: Sequence[dict[str, Any]], metric: str, marker: str) -> None:
    step, value = (np.array([record[name] for record in records], np.float64) for name in ("step", metric))
    every = -(-len(step) // _POINTS)
    starts = np.arange(0, len(step), every)
    step, value = (np.add.reduceat(each, starts) / np.diff([*starts, len(each)]) for each in (step, value))
    axes.plot(step, value, marker=marker, markersize=4)
    if marker:
        best = int(np.argmax(value))
        axes.plot(step[best], value[best], marker="*", markersize=13, color=COLOURS[4], linestyle="")
    axes.set(xlabel="step", ylabel=metric)
