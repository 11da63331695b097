"""The pictures of a report as PNG: the precision-recall curve, and quality against bytes an image."""

import io
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from aurank.errors import UserError
from aurank.evaluation.report import Report
from aurank.reporting.charts import svg

INK, _MUTED, _LINE = "#1b1f24", "#8c959f", "#0550ae"


def png(draw: Callable[[Axes], None]) -> bytes:
    """Return a picture of 960 x 720 pixels; `draw` gets its axes."""
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


def draw_curve(report: Report) -> bytes:
    """Return a PNG of the mean interpolated precision-recall curve, and the expected AP of a random order.

    Example:
        >>> import numpy as np
        >>> from aurank.evaluation import evaluate
        >>> draw_curve(evaluate(np.eye(2)[[0, 0, 1, 1]], [5, 5, 6, 6]))[1:4]
        b'PNG'
    """
    if report.curve is None:
        raise UserError("the report holds no precision-recall curve; evaluate again with this version")
    return png(lambda axes: _curve(axes, report))


def _curve(axes: Axes, report: Report) -> None:
    assert report.curve is not None
    axes.fill_between(report.curve.recall, report.curve.precision, color=_LINE, alpha=0.08, linewidth=0)
    axes.plot(report.curve.recall, report.curve.precision, color=_LINE, linewidth=1.8, clip_on=False)
    chance = report.random_order
    axes.axhline(chance, color=_MUTED, linewidth=1, linestyle=(0, (4, 3)))
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
    "float16": ("s", "#009e73"),
    "int8": ("^", "#d55e00"),
    "binary": ("D", "#cc79a7"),
}


def draw_codes(codes: Sequence[dict[str, Any]]) -> bytes:
    """Return a PNG of the first metric of `Report.codes` against bytes per image; hollow marks were scored again.

    Raises:
        UserError: there is no code.

    Example:
        >>> code = {"dim": 64, "precision": "int8", "bytes": 64, "rescored": None, "metrics": {"mauprc": 0.5}}
        >>> draw_codes([code])[1:4]
        b'PNG'
    """
    if not codes:
        raise UserError("the report holds no codes: evaluate with codes, or with --dims or --precision")

    def draw(axes: Axes) -> None:
        _plot(axes, codes)
        axes.set_title("quality by size", loc="left", color=INK, fontsize=12)

    return png(draw)


def codes_chart(codes: Sequence[dict[str, Any]]) -> str:
    """Return the same as SVG text, for a page."""
    return svg(lambda axes: _plot(axes, codes), described="Quality by bytes an image")


def _plot(axes: Axes, codes: Sequence[dict[str, Any]]) -> None:
    metric = next(iter(codes[0]["metrics"]))
    for precision, (marker, colour) in _MARKS.items():
        for is_again in (False, True):
            own = [one for one in codes if one["precision"] == precision and (one["rescored"] is not None) == is_again]
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
    sizes = sorted({one["bytes"] for one in codes})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45 if len(sizes) > 6 else 0)
    axes.minorticks_off()
    axes.set(xlabel="bytes an image", ylabel="mAUPRC" if metric == "mauprc" else metric)
    axes.legend(frameon=False, fontsize=9)
