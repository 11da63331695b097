"""calibrate.html, its table and its numbers: what each threshold makes of the pairs."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from aurank.evaluation.calibration import Calibration, Rate, short_rate
from aurank.files import csv_text, write_text
from aurank.reporting.charts import svg
from aurank.reporting.page import render
from aurank.reporting.results import CALIBRATION

NUMBERS, TABLE, PAGE = CALIBRATION
FORMAT, VERSION = "aurank.calibration", 1
ROWS = 21  # of the page's table, evenly spread over those of the file
_NAMES = {"precision": "precision", "false_match_rate": "false-match rate"}


def calibration_page(found: Calibration, *, of: str = "") -> str:
    curve = found.curve
    cards = [{"name": "threshold", "value": f"{found.threshold!r}", "beside": f"{found.distance}, or more"}]
    cards += [_card("precision", found.precision, "matches right"), _card("recall", found.recall, "positive pairs")]
    if found.false_match_rate is not None:
        cards.append(_card("false-match rate", found.false_match_rate, "negative pairs"))
    cards.append(_card("answered", found.answered, "queries"))
    some = np.unique(np.linspace(0, len(curve["threshold"]) - 1, ROWS).astype(np.int64))
    columns = [column[some] for column in curve.values()]
    rows = [[f"{row[0]:.4f}", *map(_cell, row[1:])] for row in zip(*columns, strict=True)]
    what = f"{of}: the" if of else "The"
    wanted = f"{_NAMES[found.aim]} {'of at least' if found.aim == 'precision' else 'of at most'} {found.wanted:g}"
    return render(
        "calibrate.html",
        title="Threshold",
        explained=f"{what} lowest score with a {wanted}. A pair that scores so much or more is a match.",
        cards=cards,
        unit={"class": "classes", "query": "queries"}[found.unit],
        notes=found.notes,
        charts=_charts(found),
        rows=rows,
    )


def calibration_csv(found: Calibration) -> str:
    rows = zip(*(column.tolist() for column in found.curve.values()), strict=True)
    return csv_text([found.curve, *(["" if np.isnan(value) else value for value in row] for row in rows)])


def write_calibration(found: Calibration, out: Path, *, of: str = "", command: str | None = None) -> None:
    content = {"format": FORMAT, "version": VERSION, "of": of, "command": command, **found.to_json()}
    write_text(out / NUMBERS, json.dumps(content, indent=1) + "\n")
    write_text(out / TABLE, calibration_csv(found))
    write_text(out / PAGE, calibration_page(found, of=of))


def _card(name: str, rate: Rate, what: str) -> dict[str, str]:
    between = f"{short_rate(rate.low)} to {short_rate(rate.high)}; {rate.count:,} of {rate.total:,} {what}"
    return {"name": name, "value": short_rate(rate.value), "beside": between}


def _cell(value: float) -> str:
    return "–" if np.isnan(value) else short_rate(value)


def _charts(found: Calibration) -> dict[str, Markup]:
    curve = found.curve

    def draw(axes: Axes, lines: dict[str, np.ndarray], **axis: Any) -> None:
        for (name, values), style in zip(lines.items(), ("-", "--"), strict=True):
            axes.plot(curve["threshold"], values, label=name, linestyle=style)
        axes.axvline(found.threshold, color="#808080", linewidth=1, linestyle=(0, (4, 3)))
        axes.set(xlabel=f"threshold ({found.distance})", **axis)
        axes.legend(frameon=False, fontsize=9)

    def positive(name: str) -> np.ndarray:
        return np.where(curve[name] > 0, curve[name], np.nan)

    matches = {name: curve[name] for name in ("precision", "recall")}
    errors = {
        "false matches of negatives": positive("false_match_rate"),
        "false non-matches of positives": positive("false_non_match_rate"),
    }
    drawn = {
        "Precision and recall of the matches, by threshold.": partial(
            draw, lines=matches, ylim=(0, 1.02), ylabel="part"
        ),
        "False-match and false-non-match rate, by threshold.": partial(
            draw, lines=errors, yscale="log", ylabel="rate, logarithmic"
        ),
    }
    return {caption: svg(chart, caption) for caption, chart in drawn.items()}
