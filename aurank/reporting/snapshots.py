"""Pictures of an evaluation as pixels, for trackers: the grid of queries with their lists, and the curve."""

import io
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from aurank.data.decode import decode
from aurank.data.sources import ImageSource
from aurank.errors import UserError
from aurank.evaluation.report import Report
from aurank.reporting.charts import draw_curve
from aurank.reporting.grids import GridRow, Item, make_grids
from aurank.reporting.pictures import Pictures, thumbnail

SIDE, GAP, LINE = 84, 8, 14  # pixels of a picture, between two, and of a line of text
_INK, _MUTED, _RIGHT, _WRONG = "#1b1f24", "#59636e", "#0a7d43", "#b42318"
_BELOW = "below each its AP and the rank of its first right item, which stands last where the list has none"
Pixels = UInt8[np.ndarray, "height width 3"]


def grid_snapshot(report: Report, source: ImageSource, *, queries: int = 5) -> Pixels:
    """Return the worst and some random queries, each with the top of its list, right and wrong marked."""
    worst, _, random = make_grids(report, Pictures(None), queries=queries)
    rows: list[str | GridRow] = []
    for grid in (worst, random):
        rows += [f"{grid.title}: {grid.explained}; {_BELOW}", *grid.rows]
    columns = 1 + max(len(row.found) for row in (*worst.rows, *random.rows))
    heights = [LINE + GAP if isinstance(row, str) else SIDE + 3 * LINE for row in rows]
    canvas = Image.new("RGB", (columns * (SIDE + GAP), sum(heights)), "white")
    top = 0
    for row, height in zip(rows, heights, strict=True):
        if isinstance(row, str):
            _write(canvas, (0, top), row, _INK, canvas.width)
        else:
            named = f"AP {row.ap:.3f}, {row.first_rank:,}"
            _place(canvas, (0, top), row.query, source, named, _MUTED)
            for column, one in enumerate(row.found, 1):
                mark = f"{f'{one.place:,}: ' if one.is_apart else '✓ ' if one.is_right else '✗ '}{one.score:.3f}"
                _place(canvas, (column * (SIDE + GAP), top), one, source, mark, _RIGHT if one.is_right else _WRONG)
        top += height
    return np.asarray(canvas)


def curve_snapshot(report: Report) -> Pixels:
    """Return the picture of the mean precision-recall curve as pixels."""
    with Image.open(io.BytesIO(draw_curve(report))) as image:
        return np.asarray(image.convert("RGB"))


def _place(
    canvas: Image.Image, corner: tuple[int, int], item: Item, source: ImageSource, text: str, colour: str
) -> None:
    """Draw an image in its frame, below it a line of text and its class."""
    left, top = corner
    try:
        _, content = thumbnail(decode(source, item.path, None, on_white=True), SIDE - 8)
    except UserError:
        _write(canvas, (left + 4, top + SIDE // 2 - LINE // 2), item.path or "no picture", _MUTED, SIDE - 8)
    else:
        with Image.open(io.BytesIO(content)) as image:
            canvas.paste(image, (left + (SIDE - image.width) // 2, top + (SIDE - image.height) // 2))
    pen, box = ImageDraw.Draw(canvas), (left, top, left + SIDE - 1, top + SIDE - 1)
    pen.rectangle(box, outline=colour, width=2)
    if colour == _WRONG:  # told apart without colour too: crossed out at a corner
        pen.line((left + SIDE - 16, top + 4, left + SIDE - 4, top + 16), fill=colour, width=3)
        pen.line((left + SIDE - 16, top + 16, left + SIDE - 4, top + 4), fill=colour, width=3)
    _write(canvas, (left, top + SIDE), text, colour, SIDE + GAP)
    _write(canvas, (left, top + SIDE + LINE), item.label, _INK, SIDE)


def _write(canvas: Image.Image, corner: tuple[int, int], text: str, colour: str, width: int) -> None:
    """Write one line of text, cut where it is wider than `width`."""
    shown = "".join(sign if sign.isprintable() else " " for sign in text[:200])
    while shown and _font().getlength(shown) > width:
        shown = shown[:-2] + "…" if len(shown) > 2 else ""
    ImageDraw.Draw(canvas).text(corner, shown, fill=colour, font=_font())


@cache
def _font() -> ImageFont.FreeTypeFont:
    """The font that matplotlib brings along, which has the marks."""
    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 11)
