"""tune.html: what a search found, which settings mattered, and each trial's value over each setting."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from aurank.ranges import Range
from aurank.reporting.charts import COLOURS, svg
from aurank.reporting.page import render

_MANY = 10  # trials from which the worst fifth lies below the picture


def tune_page(
    lines: Sequence[dict[str, Any]],
    ranges: Mapping[str, Range],
    importance: Mapping[str, float],
    at_end: Sequence[str],
    title: str,
) -> str:
    done = sorted((line for line in lines if line["value"] is not None), key=lambda line: -line["value"])
    charts = {}
    for key in sorted(ranges, key=lambda key: -importance.get(key, 0.0)):
        points = [(line["settings"].get(key, "null"), line["value"]) for line in done]
        charts[key] = svg(partial(_slice, points=points, within=ranges[key]), f"value over {key}")
    return render(
        "tune.html",
        title=title,
        lines=lines,
        done=done,
        ranges={key: str(each) for key, each in ranges.items()},
        at_end=at_end,
        is_cut=done[-1]["value"] < _around([line["value"] for line in done])[0],
        importance=importance,
        course=svg(partial(_course, lines=lines), "mAUPRC of each trial, and the best so far"),
        charts=charts,
    )


def _course(axes: Axes, lines: Sequence[dict[str, Any]]) -> None:
    done = [line for line in lines if line["value"] is not None]
    numbers, values = [line["number"] for line in done], [line["value"] for line in done]
    axes.scatter(numbers, values, s=14, color=COLOURS[0], linewidths=0)
    axes.step(numbers, np.maximum.accumulate(values), where="post", color=COLOURS[4])
    axes.set(xlabel="trial", ylabel="mAUPRC, mean over folds", ylim=_around(values))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _around(values: Sequence[float]) -> tuple[float, float]:
    low, high = float(np.quantile(values, 0.2 if len(values) >= _MANY else 0.0)), max(values)
    room = max(high - low, 1e-3) * 0.15
    return low - room, high + room


def _slice(axes: Axes, points: Sequence[tuple[str, float]], within: Range) -> None:
    texts, ends = [json.dumps(choice) for choice in within.choices], (within.low, within.high)
    if texts:
        x: list[float] = [texts.index(text) for text, _ in points]
        axes.set_xticks(range(len(texts)), texts, fontsize=9, rotation=20 if len("".join(texts)) > 30 else 0)
        axes.set_xlim(-0.5, len(texts) - 0.5)
    else:
        x = [float(text) if text != "null" else np.nan for text, _ in points]
        axes.set(xlim=ends, xscale="log" if within.log else "linear")
        ticks = np.linspace(*ends, 4)
        if within.log:
            powers = 10.0 ** np.arange(np.ceil(np.log10(within.low) - 1e-9), np.log10(within.high) + 1e-9)
            ticks = powers[:: -(-len(powers) // 8)] if len(powers) > 1 else np.array(ends)
        axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axes.xaxis.set_minor_formatter("")
    values = [value for _, value in points]
    axes.scatter(x, values, color=COLOURS[0], s=18, linewidths=0, alpha=0.8)
    axes.scatter(x[:1], values[:1], color=COLOURS[4], s=90, marker="*")
    axes.set(ylabel="mAUPRC", ylim=_around(values))
