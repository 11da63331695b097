"""The figures of docs/results.md and README.md that come from benchmarks, written anew from their lines.

    python tools/results.py     # all figures between markers, and docs/benchmark/NAME.png

docs/benchmark/NAME.jsonl is the lines.jsonl of an `aurank benchmark`. A page has its tables, or one setting's, between

    <!-- table: NAME --> … <!-- /table -->        <!-- table: NAME / SETTING --> … <!-- /table -->

and one of their cells, or its beginning (0.4645, or 0.4645 ± 0.0074), between

    <!-- value: NAME / SETTING / METHOD / COLUMN -->0.4645<!-- /value -->

tests/test_figures.py fails where a figure is not what the lines give.
"""

import re
from functools import cache
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from aurank.errors import UserError
from aurank.files import write_text
from aurank.reporting.benchmark_page import (
    cells_of,
    draw_intervals,
    read_tables,
    to_markdown_tables,
)

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = (DOCS / "results.md", DOCS / "benchmark" / "heads.txt", DOCS.parent / "README.md")
_MARKED = re.compile(r"(<!-- (table|value): (.+?) -->)(.*?)(<!-- /\2 -->)", re.DOTALL)
_PART = re.compile(r" (?=± |\[)")  # between a mean, ± half a width and [an interval]


def fill(page: str, folder: Path) -> str:
    """Return a page with the figures between its markers as the lines in a folder give them."""

    def figure(found: re.Match[str]) -> str:
        first, kind, about, before, last = found.groups()
        name, *others = about.split(" / ")
        file = folder / f"{name}.jsonl"
        if kind == "table":
            text = f"\n{to_markdown_tables(tables(folder / f'{name}.jsonl'), *others)}\n"
        else:
            parts = _PART.split(cell(file, *others))
            text = " ".join(parts[: len(_PART.split(before)) if before.strip() else None])
        return f"{first}{text}{last}"

    return _MARKED.sub(figure, page)


tables = cache(read_tables)


def cell(file: Path, setting: str, method: str, column: str) -> str:
    """Return one cell of a benchmark's tables."""
    for block in tables(file):
        head, rows = cells_of(block)
        for row in rows:
            if (block.setting, row[0]) == (setting, method) and column in head:
                return row[head.index(column)]
    raise UserError(f"{file} has no {column!r} of {method!r} in the setting {setting!r}")


def picture(file: Path) -> Path:
    """Draw the intervals of a benchmark beside its lines: a row for each setting, mAUPRC and differences."""
    heights = [1 + 0.24 * len(block.rows) for block in tables(file)]
    figure = Figure(figsize=(12, sum(heights)), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(heights), 2, squeeze=False, height_ratios=heights, sharex="col")
    for row, block in zip(grid, tables(file), strict=True):
        for axes, beside in zip(row, (False, True), strict=True):
            draw_intervals(axes, block, beside=beside)
            axes.set_title(block.setting, loc="left", fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8, labelleft=not beside)
            axes.grid(alpha=0.2)
    target = file.with_suffix(".png")
    figure.savefig(target)
    return target


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        write_text(page, fill(text, DOCS / "benchmark"))
        for name in sorted({found[3].partition(" / ")[0] for found in _MARKED.finditer(text) if found[2] == "table"}):
            print(picture(DOCS / "benchmark" / f"{name}.jsonl"))


if __name__ == "__main__":
    main()
