"""tune.html: what a search found, which settings mattered, and each trial's value over each setting."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes

from aurank.ranges import Range
from aurank.reporting.charts import COLOURS, svg
from aurank.reporting.page import render

Line = dict[str, Any]
MOST_LISTED = 15  # trials in the table, the best first


def tune_page(
    lines: Sequence[Line],
    ranges: Mapping[str, Range],
    importance: Mapping[str, float],
    at_end: Sequence[str],
    *,
    name: str,
) -> str:
    """Return the page of a search as HTML text.

    Args:
        lines: of each trial its number, state, value, folds, seconds, overrides and error.
        importance: the share of each setting, by its key.
        at_end: settings whose best value lies near an end of their range.
    """
    done = sorted((line for line in lines if line["value"] is not None), key=lambda line: -line["value"])
    settings = {line["number"]: dict(one.split("=", 1) for one in line["overrides"]) for line in lines}
    order = sorted(ranges, key=lambda key: -importance.get(key, 0.0))
    caption = "Mean validation mAUPRC of each trial, and the best so far."
    charts = {caption: svg(partial(_course, lines=lines), caption)}
    if importance:
        drawn = {key: importance[key] for key in order if key in importance}
        caption = "Share of the variance of the values that each setting explains (fANOVA, of whole trials)."
        charts[caption] = svg(partial(_shares, shares=drawn), caption)
    slices: dict[str, Markup] = {}
    for key in order:
        points = [(settings[line["number"]].get(key, "null"), line["value"]) for line in done]
        slices[key] = svg(partial(_slice, points=points, within=ranges[key]), f"value over {key}")
    return render(
        "tune.html",
        title=f"Search: {name}",
        best=done[0],
        first=next((line for line in done if line["number"] == 1), None),
        listed=done[:MOST_LISTED],
        settings=settings,
        keys=order,
        ranges={key: str(each) for key, each in ranges.items()},
        at_end=at_end,
        charts=charts,
        slices=slices,
        counts={state: sum(line["state"] == state for line in lines) for state in ("complete", "pruned", "failed")},
        errors=sorted({line["error"] for line in lines if line["error"]}),
        hours=sum(line["seconds"] or 0 for line in lines) / 3600,
    )


def _course(axes: Axes, lines: Sequence[Line]) -> None:
    done = [line for line in lines if line["value"] is not None]
    numbers, values = [line["number"] for line in done], [line["value"] for line in done]
    axes.scatter(numbers, values, s=14, color=COLOURS[0], linewidths=0, label="a trial")
    axes.step(numbers, np.maximum.accumulate(values), where="post", color=COLOURS[4], label="best so far")
    axes.set(xlabel="trial", ylabel="mAUPRC, mean over folds", ylim=_around(values))
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Return limits of an axis that show the better half well, whatever the worst values are."""
    low, high = float(np.quantile(values, 0.2)), max(values)
    room = max(high - low, 1e-3) * 0.15
    return low - room, high + room


def _shares(axes: Axes, shares: Mapping[str, float]) -> None:
    keys = list(shares)[::-1]
    axes.barh(range(len(keys)), [shares[key] for key in keys], height=0.6)
    axes.set_yticks(range(len(keys)), [key.replace(".params", "") for key in keys], fontsize=9)
    axes.set(xlabel="share", xlim=(0, 1))


def _slice(axes: Axes, points: Sequence[tuple[str, float]], within: Range) -> None:
    values = [value for _, value in points]

    if within.choices:
        texts = [json.dumps(choice) for choice in within.choices]
        places: list[float] = [texts.index(text) for text, _ in points]
        axes.set_xticks(range(len(texts)), texts, fontsize=9, rotation=20 if len("".join(texts)) > 30 else 0)
        axes.set_xlim(-0.5, len(texts) - 0.5)
    else:
        places = [float(text) if text != "null" else np.nan for text, _ in points]
        ends = (within.low, within.high)
        axes.set(xlim=ends, xscale="log" if within.log else "linear")
        ticks = np.geomspace(*ends, 4) if within.log else np.linspace(*ends, 4)
        axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        axes.minorticks_off()
    axes.scatter(places, values, color=COLOURS[0], s=18, linewidths=0, alpha=0.8)
    axes.scatter(places[:1], values[:1], color=COLOURS[4], s=90, marker="*")
    axes.set(ylabel="mAUPRC", ylim=_around(values))
