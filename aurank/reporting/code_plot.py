"""The picture of what shorter and coarser embeddings cost: quality against bytes per image."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from aurank.errors import UserError
from aurank.reporting.charts import svg
from aurank.reporting.plots import INK, png

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
