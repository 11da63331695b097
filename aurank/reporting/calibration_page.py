"""calibrate.html, its table and its numbers: what each threshold makes of the pairs."""

import json
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from aurank.evaluation.calibration import Calibration, Rate, short_rate
from aurank.files import csv_text, write_text
from aurank.reporting.charts import svg
from aurank.reporting.page import render
from aurank.reporting.results import CALIBRATION

NUMBERS, TABLE, PAGE = CALIBRATION
FORMAT, VERSION = "aurank.calibration", 1
CAPTION = "Precision and recall of the matches, by threshold. The dashed vertical line is the threshold above."
ROWS = 21  # of the page's table, evenly spread over those of the file
_NAMES = {"precision": "precision", "false_match_rate": "false-match rate"}


def calibration_page(found: Calibration, *, of: str = "") -> str:
    curve = found.curve
    cards = [{"name": "threshold", "value": f"{found.threshold!r}", "beside": f"{found.distance}, or more"}]
    cards += [_card("precision", found.precision, "matches right"), _card("recall", found.recall, "positive pairs")]
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
        notes=found.notes,
        chart=svg(partial(_draw, found=found), CAPTION),
        caption=CAPTION,
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
    return {"name": name, "value": short_rate(rate.value), "beside": f"{rate.count:,} of {rate.total:,} {what}"}


def _cell(value: float) -> str:
    return "–" if np.isnan(value) else short_rate(value)


def _draw(axes: Axes, found: Calibration) -> None:
    for name, style in (("precision", "-"), ("recall", "--")):
        axes.plot(found.curve["threshold"], found.curve[name], label=name, linestyle=style)
    axes.axvline(found.threshold, color="#808080", linewidth=1, linestyle=(0, (4, 3)))
    axes.set(xlabel=f"threshold ({found.distance})", ylim=(0, 1.02), ylabel="part")
    axes.legend(frameon=False, fontsize=9)
