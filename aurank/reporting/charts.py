"""Charts as SVG inside a page; their ink is the page's text colour, so that it follows dark and light."""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from aurank.evaluation.report import Report

_INK = "#0a0b0c"  # no other colour of a chart is this one: replaced by the page's text colour
# Of Okabe and Ito, told apart by the colour-blind; readable on white and on black.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), _INK),
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=COLOURS),
}
_SALT = count()
_MARGINS = ((0.8, 0.6), (0.15, 0.15))  # inches left and below, right and above: the axes of a row of charts align
_THIN: dict[str, Any] = {"color": "#808080", "linewidth": 1, "linestyle": (0, (4, 3))}
# The precisions of codes differ by their markers too, not by colour alone.
_MARKERS = {"float32": ("o", "#0072b2"), "int8": ("^", "#d55e00"), "binary": ("D", "#cc79a7")}


def svg(draw: Callable[[Axes], None], described: str, *, size: tuple[float, float] = (5.4, 3.8)) -> Markup:
    """Return a chart as SVG text for a page; `draw` gets its axes, screen readers read `described`."""
    # Names inside an SVG belong to the whole page: each chart needs its own.
    with mpl.rc_context(_STYLE | {"svg.hashsalt": f"chart {next(_SALT)}"}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.grid(color="#808080", alpha=0.2, linewidth=0.6)
        draw(axes)
        text = io.StringIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's own fonts draw it
            figure.draw_without_rendering()  # lays out what needs more room
            (left, bottom), (right, top) = axes.get_position(original=True).get_points()
            figure.set_layout_engine("none")
            before, behind = np.divide(_MARGINS, size)
            low, high = np.maximum((left, bottom), before), np.minimum((right, top), 1 - behind)
            axes.set_position((*low, *(high - low)))
            figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    body = text.getvalue()
    body = body[body.index("<svg") :].replace(_INK, "currentColor")
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    label = str(escape(described)).replace("\\", r"\\")
    return Markup(re.sub(r'(<svg[^>]*?) height="[^"]*" ', rf'\1 role="img" aria-label="{label}" ', body, count=1))


def curves(reports: Mapping[str, Report]) -> dict[str, Markup]:
    """Return charts of the precision, recall and average precision of reports, by their captions."""
    charts = {
        "Recall@k: queries with a positive among the first k.": _recall,
        "Average precision of the queries.": _histogram,
    }
    # If every query has one positive, the precision-recall curve is flat.
    if any(report.curve is not None and np.ptp(report.curve.precision) > 1e-9 for report in reports.values()):
        charts = {"Precision over recall, mean over queries.": _precision_over_recall, **charts}

    def draw(axes: Axes, *, chart: Callable[[Axes, Mapping[str, Report]], None]) -> None:
        chart(axes, {plain(name): report for name, report in reports.items()})
        if len(reports) > 1:
            axes.legend(frameon=False, fontsize=9)

    return {caption: svg(partial(draw, chart=chart), caption) for caption, chart in charts.items()}


def _precision_over_recall(axes: Axes, reports: Mapping[str, Report]) -> None:
    for name, report in reports.items():
        if report.curve is not None:
            axes.plot(report.curve.recall, report.curve.precision, label=name, clip_on=False)
    if len(reports) == 1:
        (report,) = reports.values()
        axes.axhline(report.random_order, **_THIN)
        axes.annotate("random order", (1, report.random_order), ha="right", va="bottom", fontsize=9)
    axes.set(xlim=(0, 1), ylim=(0, 1.005), xlabel="recall", ylabel="precision, mean over queries")


def _recall(axes: Axes, reports: Mapping[str, Report]) -> None:
    for name, report in reports.items():
        first = np.sort(report.per_query["first_rank"])
        k = np.unique(np.geomspace(1, max(2, report.num_gallery), 200).astype(np.int64))
        axes.plot(k, np.searchsorted(first, k, side="right") / len(first), label=name, clip_on=False)
    axes.set(xscale="log", ylim=(0, 1.005), xlabel="k", ylabel="recall@k")
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _histogram(axes: Axes, reports: Mapping[str, Report]) -> None:
    style: dict[str, Any] = {"histtype": "step", "linewidth": 1.8}
    if len(reports) == 1:
        style = {"histtype": "bar", "linewidth": 0.5}
    for name, report in reports.items():
        values = report.per_query["ap"]
        weights = np.full(len(values), 1 / len(values))
        axes.hist(values, np.linspace(0, 1, 26).tolist(), weights=weights, label=name, **style)
    axes.set(xlim=(0, 1), xlabel="average precision of a query", ylabel="part of the queries")


def ap_scatter(axes: Axes, names: tuple[str, str], reports: tuple[Report, Report]) -> None:
    a, b = (report.per_query["ap"] for report in reports)
    axes.plot([0, 1], [0, 1], **_THIN)
    size = max(2.0, min(16.0, 20_000 / len(a)))
    alpha = max(0.1, min(0.8, 1500 / len(a)))
    axes.scatter(a, b, s=size, linewidths=0, alpha=alpha, rasterized=True)
    axes.annotate(f"{int((b > a).sum()):,} better", (0.03, 0.97), va="top", fontsize=10)
    axes.annotate(f"{int((b < a).sum()):,} worse", (0.97, 0.03), ha="right", fontsize=10)
    first, second = map(plain, names)
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xlabel=f"AP, {first}", ylabel=f"AP, {second}", aspect="equal")


def plain(name: str) -> str:
    """Return a name as matplotlib draws it: no mathematics, and none that it keeps out of a legend."""
    shown = " ".join(name.replace("$", r"\$").split())
    return f" {shown}" if shown.startswith("_") else shown


def codes(axes: Axes, table: Sequence[dict[str, Any]]) -> None:
    """Draw the first metric of `Report.codes` against bytes an image; hollow markers are rescored."""
    metric = next(iter(table[0]["metrics"]))
    for precision, (marker, colour) in _MARKERS.items():
        for is_rescored in (False, True):
            of_precision = [code for code in table if code["precision"] == precision]
            line = [code for code in of_precision if (code["rescored"] is not None) == is_rescored]
            if line:
                axes.plot(
                    [code["bytes"] for code in line],
                    [code["metrics"][metric] for code in line],
                    color=colour,
                    marker=marker,
                    markerfacecolor="none" if is_rescored else colour,
                    linestyle=(0, (3, 2)) if is_rescored else "-",
                    linewidth=1.4,
                    label=f"{precision}, {line[0]['rescored']:,} rescored" if is_rescored else precision,
                    clip_on=False,
                )
    axes.set_xscale("log", base=2)
    sizes = sorted({code["bytes"] for code in table})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45 if len(sizes) > 6 else 0)
    axes.minorticks_off()
    axes.set(xlabel="bytes an image", ylabel="mAUPRC" if metric == "mauprc" else metric)
    axes.legend(frameon=False, fontsize=9)
