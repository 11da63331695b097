"""Charts: SVG inside a page, whose ink is the page's text colour so that it follows dark and light, and PNG files."""

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
from jaxtyping import Float, Float64, Shaped
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from aurank.arrays import Rows
from aurank.errors import UserError
from aurank.evaluation.report import Report
from aurank.reporting.grids import SEED, query_names

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
POINTS = 4000  # drawn at most
MOST_COLOURS = 10  # classes beyond which average precision is coloured
INK, _MUTED, _LINE = "#1b1f24", "#8c959f", "#0550ae"  # of files
_THIN: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 3))}


def svg(draw: Callable[[Axes], None], described: str, *, size: tuple[float, float] = (5.4, 3.8)) -> Markup:
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
    label = str(escape(described)).replace("\\", r"\\")
    return Markup(re.sub(r'(<svg[^>]*?) height="[^"]*" ', rf'\1 role="img" aria-label="{label}" ', body, count=1))


def png(draw: Callable[[Axes], None]) -> bytes:
    # A figure of its own: pyplot would keep it alive, and choose a backend that may want a screen.
    figure = Figure(figsize=(6.4, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_MUTED)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(color=_MUTED, alpha=0.18, linewidth=0.6)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def curves(reports: Mapping[str, Report]) -> dict[str, Markup]:
    drawn = {
        "Precision over recall, mean over queries.": _precision_over_recall,
        "Recall@k: queries with a positive among the first k.": _recall,
        "Average precision of the queries.": _histogram,
    }
    if not any(report.curve is not None and np.ptp(report.curve.precision) > 1e-9 for report in reports.values()):
        del drawn[next(iter(drawn))]  # no curve, or a flat one: every query has one positive

    def draw(axes: Axes, *, chart: Callable[[Axes, Mapping[str, Report]], None]) -> None:
        chart(axes, {plain(name): report for name, report in reports.items()})
        if len(reports) > 1:
            axes.legend(frameon=False, fontsize=9)

    return {caption: svg(partial(draw, chart=chart), caption) for caption, chart in drawn.items()}


def _precision_over_recall(axes: Axes, reports: Mapping[str, Report]) -> None:
    for name, report in reports.items():
        if report.curve is not None:
            axes.plot(report.curve.recall, report.curve.precision, label=name, clip_on=False)
    (report, *others) = reports.values()
    if not others:
        axes.axhline(report.random_order, color="#808080", **_THIN)
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
    axes.plot([0, 1], [0, 1], color="#808080", **_THIN)
    size = max(2.0, min(16.0, 20_000 / len(a)))
    alpha = max(0.1, min(0.8, 1500 / len(a)))
    axes.scatter(a, b, s=size, linewidths=0, alpha=alpha, rasterized=True)
    axes.annotate(f"{int((b > a).sum()):,} better", (0.03, 0.97), va="top", fontsize=10)
    axes.annotate(f"{int((b < a).sum()):,} worse", (0.97, 0.03), ha="right", fontsize=10)
    first, second = map(plain, names)
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xlabel=f"AP, {first}", ylabel=f"AP, {second}", aspect="equal")


def frequencies(axes: Axes, report: Report) -> None:
    most = int(report.per_query["num_positives"].max())
    table = report.frequency_table([2**power for power in range(1, max(2, most.bit_length() + 1))])
    place, values = np.arange(len(table["bucket"])), table["mauprc"]
    axes.bar(place, values, width=0.7)
    for x, value, number in zip(place, values, table["num_queries"], strict=True):
        axes.annotate(f"{number:,}", (x, value), ha="center", va="bottom", fontsize=9)
    axes.set_xticks(place, [str(name) for name in table["bucket"]], rotation=30 if len(place) > 6 else 0)
    axes.set(ylim=(0, 1.08), xlabel="positives of a query (number of queries on the bars)", ylabel="mAUPRC")


def dots(
    axes: Axes,
    points: Float64[np.ndarray, "point 2"],
    values: Float64[np.ndarray, " point"],
    *,
    classes: Shaped[np.ndarray, " point"] | None = None,
    axis_names: Sequence[str],
) -> None:
    size = max(2.0, min(14.0, 12_000 / len(points)))
    style: dict[str, Any] = {"s": size, "linewidths": 0, "alpha": 0.75, "rasterized": True}
    if classes is not None:
        for index, name in enumerate(np.unique(classes)):
            some = points[classes == name]
            axes.scatter(some[:, 0], some[:, 1], color=mpl.colormaps["tab10"](index), label=str(name), **style)
        axes.legend(frameon=False, fontsize=9, markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))
    else:
        style |= {"alpha": 0.9, "cmap": SCALE, "vmin": 0, "vmax": 1}
        axes.figure.colorbar(
            axes.scatter(points[:, 0], points[:, 1], c=values, **style), ax=axes, label="average precision"
        )
    axes.set(xlabel=axis_names[0], ylabel=axis_names[1])


def draw_maps(report: Report, embeddings: Float[Rows, "query dim"]) -> dict[str, Markup]:
    count = len(report.per_query["query"])
    some = np.sort(np.random.default_rng(SEED).permutation(count)[:POINTS])
    rows = np.asarray(embeddings[report.per_query["query"][some]], np.float64)
    if report.distance == "cosine":
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    points, part = principal(rows)
    axis_names = [f"component {place} ({share:.0%} of the variance)" for place, share in enumerate(part.tolist(), 1)]
    names = query_names(report)[some]
    by_class = 1 < len(set(names.tolist())) <= MOST_COLOURS
    of = f"{len(some):,} of {count:,}" if len(some) < count else f"{count:,}"
    by = "classes" if by_class else "average precision"
    caption = f"{of} queries on their first two principal components (PCA), {by} by colour."
    values, classes = report.per_query["ap"][some], names if by_class else None
    draw = partial(dots, points=points, values=values, classes=classes, axis_names=axis_names)
    return {caption: svg(draw, caption)}


def principal(
    rows: Float64[np.ndarray, "point dim"],
) -> tuple[Float64[np.ndarray, "point 2"], Float64[np.ndarray, " 2"]]:
    rows = rows - rows.mean(axis=0)
    values, axes = np.linalg.eigh(rows.T @ rows)
    part = values[::-1][:2].clip(0) / max(values.sum(), np.finfo(float).tiny)
    points = rows @ axes[:, ::-1][:, :2]
    if points.shape[1] < 2:  # embeddings of one number
        points, part = np.pad(points, ((0, 0), (0, 1))), np.pad(part, (0, 1))
    return points, part


def plain(name: str) -> str:
    """Return a name as matplotlib draws it: no mathematics, and none that it keeps out of a legend."""
    shown = " ".join(name.replace("$", r"\$").split())
    return f" {shown}" if shown.startswith("_") else shown


def draw_curve(report: Report) -> bytes:
    """Return a PNG of the mean interpolated precision-recall curve, and the expected AP of a random order.

    Example:
        >>> from aurank.evaluation import evaluate
        >>> draw_curve(evaluate(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6]))[1:4]
        b'PNG'
    """
    if report.curve is None:
        raise UserError("the report holds no precision-recall curve; make it by aurank evaluate")
    return png(lambda axes: _curve(axes, report))


def _curve(axes: Axes, report: Report) -> None:
    assert report.curve is not None
    axes.fill_between(report.curve.recall, report.curve.precision, color=_LINE, alpha=0.08, linewidth=0)
    axes.plot(report.curve.recall, report.curve.precision, color=_LINE, linewidth=1.8, clip_on=False)
    chance = report.random_order
    axes.axhline(chance, color=_MUTED, **_THIN)
    # At the left, where even a poor model's curve is far above the line.
    place: dict[str, Any] = {"xytext": (5, 3), "va": "bottom"} if chance < 0.9 else {"xytext": (5, -3), "va": "top"}
    text: dict[str, Any] = {"textcoords": "offset points", "color": _MUTED, "fontsize": 9}
    axes.annotate(f"random order: mAUPRC {chance:.3g}", (0, chance), **place, **text)
    axes.set(xlim=(0, 1), ylim=(0, 1.005), xlabel="recall", ylabel="interpolated precision, mean over queries")
    counted = f"{len(report.per_query['query']):,} queries, {report.num_gallery:,} gallery rows"
    name = f"{report.protocol['name']}: " if report.protocol else ""
    axes.set_title(f"{name}mAUPRC {report.mauprc:.4f}", loc="left", color=INK, fontsize=12)
    axes.set_title(counted, loc="right", color=_MUTED, fontsize=9)


# A mark of its own for each precision, so that they differ by more than colour.
_MARKS = {
    "float32": ("o", "#0072b2"),
    "int8": ("^", "#d55e00"),
    "binary": ("D", "#cc79a7"),
}


def draw_codes(table: Sequence[dict[str, Any]]) -> bytes:
    """Return a PNG of the first metric of `Report.codes` against bytes per image; hollow marks were scored again.

    Example:
        >>> code = {"dim": 64, "precision": "int8", "bytes": 64, "rescored": None, "metrics": {"mauprc": 0.5}}
        >>> draw_codes([code])[1:4]
        b'PNG'
    """

    def draw(axes: Axes) -> None:
        codes(axes, table)
        axes.set_title("quality by size", loc="left", color=INK, fontsize=12)

    return png(draw)


def codes(axes: Axes, table: Sequence[dict[str, Any]]) -> None:
    metric = next(iter(table[0]["metrics"]))
    for precision, (marker, colour) in _MARKS.items():
        for is_again in (False, True):
            own = [one for one in table if one["precision"] == precision and (one["rescored"] is not None) == is_again]
            if not own:
                continue
            axes.plot(
                [one["bytes"] for one in own],
                [one["metrics"][metric] for one in own],
                color=colour,
                marker=marker,
                markerfacecolor="none" if is_again else colour,
                linestyle=(0, (3, 2)) if is_again else "-",
                linewidth=1.4,
                label=f"{precision}, {own[0]['rescored']:,} rescored" if is_again else precision,
                clip_on=False,
            )
    axes.set_xscale("log", base=2)
    sizes = sorted({one["bytes"] for one in table})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45 if len(sizes) > 6 else 0)
    axes.minorticks_off()
    axes.set(xlabel="bytes an image", ylabel="mAUPRC" if metric == "mauprc" else metric)
    axes.legend(frameon=False, fontsize=9)
