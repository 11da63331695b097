"""calibrate.html and its numbers: the rates of the pairs at each threshold."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from pydantic_core import to_json

from aurank.evaluation.calibration import Calibration, short_rate
from aurank.files import write_text
from aurank.reporting.charts import svg
from aurank.reporting.page import render
from aurank.reporting.results import CALIBRATION

CAPTION = "Precision and recall of the matches, by threshold. The dashed vertical line is the threshold above."
ROWS = 21  # of the page's table, evenly spread over those of the file
_AIMS = {"precision": "precision of at least", "false_match_rate": "false-match rate of at most"}


def calibration_page(calibration: Calibration, *, of: str = "") -> str:
    curve = calibration.curve
    beside = f"{calibration.distance}, or more"
    cards = [{"name": "threshold", "value": f"{calibration.threshold!r}", "beside": beside}]
    for name, rate, counted in (
        ("precision", calibration.precision, "matches right"),
        ("recall", calibration.recall, "positive pairs"),
        ("false-match rate", calibration.false_match_rate, "negative pairs"),
        ("answered", calibration.answered, "queries"),
    ):
        beside = f"{rate.count:,} of {rate.total:,} {counted}"
        cards.append({"name": name, "value": short_rate(rate.value), "beside": beside})
    shown = np.unique(np.linspace(0, len(curve["threshold"]) - 1, ROWS).astype(np.int64))
    rows = []
    for threshold, *rates in zip(*(column[shown] for column in curve.values()), strict=True):
        rows.append([f"{threshold:.4f}", *("–" if np.isnan(rate) else short_rate(rate) for rate in rates)])

    def draw(axes: Axes) -> None:
        for name, style in (("precision", "-"), ("recall", "--")):
            axes.plot(curve["threshold"], curve[name], label=name, linestyle=style)
        axes.axvline(calibration.threshold, color="#808080", linewidth=1, linestyle=(0, (4, 3)))
        axes.set(xlabel=f"threshold ({calibration.distance})", ylim=(0, 1.02), ylabel="part")
        axes.legend(frameon=False, fontsize=9)

    aim = f"{_AIMS[calibration.aim]} {calibration.rate:g}"
    return render(
        "calibrate.html",
        title="Threshold",
        explained=f"{f'{of}: the' if of else 'The'} lowest score with a {aim}. "
        "A pair that scores so much or more is a match.",
        cards=cards,
        notes=calibration.notes,
        chart=svg(draw, CAPTION),
        caption=CAPTION,
        rows=rows,
    )


def write_calibration(calibration: Calibration, out: Path, *, of: str = "", command: str | None = None) -> None:
    content = {"format": "aurank.calibration", "version": 1, "of": of, "command": command, **calibration.to_json()}
    content["curve"] = {name: column.tolist() for name, column in calibration.curve.items()}
    numbers, page = CALIBRATION
    write_text(out / numbers, to_json(content, indent=1, inf_nan_mode="null").decode() + "\n")
    write_text(out / page, calibration_page(calibration, of=of))
