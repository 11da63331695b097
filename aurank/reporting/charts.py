"""Charts inside a page: SVG whose ink is the page's text colour, so that it follows dark and light."""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from jaxtyping import Float64, Shaped
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from aurank.evaluation.report import Report

_INK = "#0a0b0c"  # no other colour of a chart is this one: replaced by the page's text colour
# Of Okabe and Ito, told apart by the colour-blind; readable on white and on black.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
# From low to high: all seen on white and on black, so not viridis, whose low end is as dark as a dark page.
SCALE = LinearSegmentedColormap.from_list("scale", ("#d55e00", "#cc79a7", "#0072b2"))
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


def svg(draw: Callable[[Axes], None], *, described: str, size: tuple[float, float] = (5.4, 3.6)) -> str:
    """Return a chart as SVG text to be put into a page; `draw` gets its axes, `described` is read to who cannot see."""
    # Names inside an SVG belong to the whole page: each chart needs others.
    with mpl.rc_context(_STYLE | {"svg.hashsalt": f"chart {next(_SALT)}"}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        axes.grid(color="#808080", alpha=0.2, linewidth=0.6)
        draw(axes)
        text = io.StringIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # of a name: the reader's own fonts draw it
            figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    body = text.getvalue()
    body = body[body.index("<svg") :].replace(_INK, "currentColor")
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    label = described.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return re.sub(r'(<svg[^>]*?) height="[^"]*" ', rf'\1 role="img" aria-label="{label}" ', body, count=1)


def precision_recall_chart(reports: Mapping[str, Report]) -> str:
    """Return the mean precision-recall curves of reports by their names, and the random order's height for one."""

    def draw(axes: Axes) -> None:
        for name, report in reports.items():
            if report.curve is not None:
                axes.plot(report.curve.recall, report.curve.precision, label=_plain(name), clip_on=False)
        (report, *others) = reports.values()
        if not others and "num_negatives" in report.per_query:
            axes.axhline(report.random_order, color="#808080", linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate("random order", (1, report.random_order), ha="right", va="bottom", fontsize=9)
        axes.set(xlim=(0, 1), ylim=(0, 1.005), xlabel="recall", ylabel="precision, mean over queries")
        _legend(axes, reports)

    return svg(draw, described="Mean interpolated precision over recall")


def recall_chart(reports: Mapping[str, Report]) -> str:
    """Return recall@k over k, from 1 to the number of gallery rows, of reports by their names."""

    def draw(axes: Axes) -> None:
        for name, report in reports.items():
            first = np.sort(report.per_query["first_rank"])
            k = np.unique(np.geomspace(1, max(2, report.num_gallery), 200).astype(np.int64))
            axes.plot(k, np.searchsorted(first, k, side="right") / len(first), label=_plain(name), clip_on=False)
        axes.set(xscale="log", ylim=(0, 1.005), xlabel="k", ylabel="recall@k")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        _legend(axes, reports)

    return svg(draw, described="Recall at k, over k")


def ap_histogram(reports: Mapping[str, Report]) -> str:
    """Return the histogram of average precision over queries, of reports by their names."""

    def draw(axes: Axes) -> None:
        bins = np.linspace(0, 1, 26).tolist()
        for name, report in reports.items():
            values = report.per_query["ap"]
            weights = np.full(len(values), 1 / len(values))
            one = len(reports) == 1
            axes.hist(
                values,
                bins,
                weights=weights,
                label=_plain(name),
                histtype="bar" if one else "step",
                linewidth=0.5 if one else 1.8,
            )
        axes.set(xlim=(0, 1), xlabel="average precision of a query", ylabel="part of the queries")
        _legend(axes, reports)

    return svg(draw, described="Histogram of average precision over queries")


def ap_scatter(names: tuple[str, str], reports: tuple[Report, Report]) -> str:
    """Return average precision of each query in one report over that in another, of the same queries."""
    a, b = (report.per_query["ap"] for report in reports)

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color="#808080", linewidth=1, linestyle=(0, (4, 3)))
        size = max(2.0, min(16.0, 20_000 / len(a)))
        alpha = max(0.1, min(0.8, 1500 / len(a)))
        axes.scatter(a, b, s=size, linewidths=0, alpha=alpha, rasterized=True)
        axes.annotate(f"{int((b > a).sum()):,} better", (0.03, 0.97), va="top", fontsize=10)
        axes.annotate(f"{int((b < a).sum()):,} worse", (0.97, 0.03), ha="right", fontsize=10)
        first, second = map(_plain, names)
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xlabel=f"AP, {first}", ylabel=f"AP, {second}", aspect="equal")

    return svg(draw, described=f"Average precision of each query: {names[1]} over {names[0]}", size=(4.6, 4.6))


def frequency_chart(report: Report) -> str:
    """Return mean average precision by the number of a query's positives, in buckets that double."""
    most = int(report.per_query["num_positives"].max())
    table = report.frequency_table([2**power for power in range(1, max(2, most.bit_length() + 1))])

    def draw(axes: Axes) -> None:
        place = np.arange(len(table["bucket"]))
        values = table["mauprc"]
        axes.bar(place, values, width=0.7)
        for x, value, number in zip(place, values, table["num_queries"], strict=True):
            axes.annotate(f"{number:,}", (x, value), ha="center", va="bottom", fontsize=9)
        axes.set_xticks(place, [str(name) for name in table["bucket"]], rotation=30 if len(place) > 6 else 0)
        axes.set(ylim=(0, 1.08), xlabel="positives of a query (number of queries on the bars)", ylabel="mAUPRC")

    return svg(draw, described="mAUPRC by the number of positives of a query")


def embedding_map(
    points: Float64[np.ndarray, "point 2"],
    values: Float64[np.ndarray, " point"] | None,
    *,
    classes: Shaped[np.ndarray, " point"] | None = None,
    axis_names: Sequence[str],
    described: str,
) -> str:
    """Return a map of embeddings, one dot a row: a colour for each of at most ten classes, else one by `values`."""

    def draw(axes: Axes) -> None:
        size = max(2.0, min(14.0, 12_000 / len(points)))
        style: dict[str, Any] = {"s": size, "linewidths": 0, "alpha": 0.75, "rasterized": True}
        if classes is not None:
            for index, name in enumerate(np.unique(classes)):
                some = points[classes == name]
                axes.scatter(some[:, 0], some[:, 1], color=mpl.colormaps["tab10"](index), label=str(name), **style)
            axes.legend(frameon=False, fontsize=9, markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))
        else:
            dots = axes.scatter(
                points[:, 0], points[:, 1], c=values, cmap=SCALE, vmin=0, vmax=1, **style | {"alpha": 0.9}
            )
            axes.figure.colorbar(dots, ax=axes, label="average precision")
        axes.set(xlabel=axis_names[0], ylabel=axis_names[1])

    return svg(draw, described=described, size=(5.4, 4.6))


def _legend(axes: Axes, reports: Mapping[str, Report]) -> None:
    if len(reports) > 1:
        axes.legend(frameon=False, fontsize=9)


def _plain(name: str) -> str:
    """Return a name as matplotlib draws it: no mathematics, and none that it keeps out of a legend."""
    shown = " ".join(name.replace("$", r"\$").split())
    return f" {shown}" if shown.startswith("_") else shown
