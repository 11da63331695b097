"""The tables and pictures of docs/benchmark/*.jsonl, each of which is the lines.jsonl of an `aurank benchmark`.

    python tools/results.py

writes docs/benchmark/tables.txt (all of them), the short tables of docs/results.md between `<!-- table: NAME -->` and
`<!-- /table -->`, and the pictures that pages show. tests/test_figures.py fails where one is not what the lines give.
"""

import re
from functools import cache
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from aurank.errors import UserError
from aurank.files import write_text
from aurank.reporting.benchmark_page import cells_of, draw_intervals, read_tables, to_markdown_tables
from aurank.reporting.tables import markdown_table

BENCHMARK = Path(__file__).resolve().parents[1] / "docs" / "benchmark"
PAGE = BENCHMARK.parent / "results.md"
PICTURES = ("grocery_heads", "omniglot_heads", "omniglot_200", "soprc_parts")
# A cell is a mean, ± half the width of the interval over seeds, and [the interval over classes and seeds].
CELL = re.compile(r"([-+]?\d\.\d+)(?: (± \d\.\d+))?(?: (\[.+\]))?")
MEAN, SEEDS, CLASSES, BOTH = (1,), (1, 2), (1, 3), (1, 2, 3)
UNTRAINED = "the embeddings as they are"
PCA, IDENTITY = "PCA, 128 numbers", "identity, 1280 numbers"
HEADS = (
    *("SupCon", "list-wise AP", "SOPRC", "PNP", "SmoothAP", "Circle", "Recall@k surrogate", "FastAP"),
    *("Multi-Similarity", "SogCLR", "Triplet", "ArcFace"),
)
PARAMETERS = (
    *("SOPRC", "SOPRC, λ1 alone", "SOPRC, λ2 alone", "SOPRC, no semi-variance", "SOPRC, no semi-variance, π 0.5"),
    *("PNP", "PNP, D_s", "SupCon"),
)
STEPS = ("center", "whiten:dim=128", "whiten:dim=256")
TRANSDUCTIVE = (
    *("query_expansion", "database_augmentation", "k_reciprocal", "center, query_expansion, k_reciprocal"),
    "whiten:dim=256, database_augmentation, query_expansion, k_reciprocal",
)
RECIPE = (
    *("SupCon, 160 pixels, projection from PCA", "SupCon, 160 pixels", "Multi-Similarity, projection from PCA"),
    *("SupCon, projection from PCA", "SupCon, 240 steps", "SOPRC, projection from PCA", "SupCon"),
    *("SOPRC, no semi-variance, π 0.5, 240 steps", "SupCon, no warm-up", "SupCon, weight decay 0.05"),
    *("SupCon, 8 photos a class", "SupCon, head rate × 10", "SupCon, rate 1e-3"),
)
UPGRADE = (
    *("new on new", "new on old, mapped", "old on old"),
    *("compatible, new on new", "compatible, new on old"),
)
# The short tables by name: head and methods of the first column, then head, file, setting, column and parts of others.
TABLES = {
    "heads": (
        ("loss", {name: name for name in HEADS} | {"no training": UNTRAINED, "no training, centred": "center"}),
        ("groceries, PCA", "grocery_heads", PCA, "mAUPRC", MEAN),
        ("identity", "grocery_heads", IDENTITY, "mAUPRC", MEAN),
        ("minus SupCon", "grocery_heads", IDENTITY, "minus SupCon", CLASSES),
        ("Omniglot, PCA", "omniglot_heads", PCA, "mAUPRC", MEAN),
        ("identity", "omniglot_heads", IDENTITY, "mAUPRC", MEAN),
        ("minus SupCon", "omniglot_heads", IDENTITY, "minus SupCon", CLASSES),
    ),
    "parameters": (
        ("loss", {name: name for name in PARAMETERS}),
        ("groceries", "grocery_parameters", PCA, "mAUPRC", SEEDS),
        ("minus SupCon", "grocery_parameters", PCA, "minus SupCon", CLASSES),
        ("Omniglot", "omniglot_parameters", PCA, "mAUPRC", SEEDS),
        ("minus SupCon", "omniglot_parameters", PCA, "minus SupCon", CLASSES),
    ),
    "fine-tuning": (
        ("training", {name: name for name in RECIPE}),
        ("mAUPRC", "grocery_recipe", "", "mAUPRC", SEEDS),
        ("Recall@1", "grocery_recipe", "", "Recall@1", MEAN),
        ("minus SupCon", "grocery_recipe", "", "minus SupCon", BOTH),
    ),
    "teacher": (
        ("training", {name: name for name in ("SupCon and distilled", "distilled", "SupCon")}),
        ("mAUPRC", "grocery_teacher", "", "mAUPRC", SEEDS),
        ("Recall@1", "grocery_teacher", "", "Recall@1", MEAN),
        ("minus SupCon", "grocery_teacher", "", "minus SupCon", BOTH),
    ),
    "upgrade": (
        ("queries on gallery", {name: name for name in UPGRADE}),
        ("mAUPRC", "grocery_upgrade", "", "mAUPRC", SEEDS),
        ("Recall@1", "grocery_upgrade", "", "Recall@1", MEAN),
        ("minus new on new", "grocery_upgrade", "", "minus new on new", BOTH),
    ),
    "post-processing": (
        ("steps", {"none": UNTRAINED} | {name: name for name in STEPS} | {f"{name} †": name for name in TRANSDUCTIVE}),
        ("mAUPRC", "grocery_heads", PCA, "mAUPRC", MEAN),
        ("Recall@1", "grocery_heads", PCA, "Recall@1", MEAN),
        ("minus SupCon's head", "grocery_heads", PCA, "minus SupCon", CLASSES),
    ),
}

tables = cache(read_tables)


def cell(name: str, setting: str, method: str, column: str) -> str:
    """Return one cell of the tables of a benchmark."""
    for block in tables(BENCHMARK / f"{name}.jsonl"):
        head, rows = cells_of(block)
        for row in rows:
            if (block.setting, row[0]) == (setting, method) and column in head:
                return row[head.index(column)]
    raise UserError(f"{name}.jsonl has no {column!r} of {method!r} in the setting {setting!r}")


def short_table(name: str) -> str:
    (title, methods), *columns = TABLES[name]
    rows = []
    for label, method in methods.items():
        row = [label]
        for _, file, setting, column, parts in columns:
            text = cell(file, setting, method, column)
            number = CELL.fullmatch(text)
            row.append(" ".join(filter(None, number.group(*parts, 0)[:-1])) if number else text)
        rows.append(row)
    return markdown_table([title, *(column[0] for column in columns)], rows)


def fill(page: str) -> str:
    """Return a page with its short tables written anew."""
    marked = r"(<!-- table: (.+?) -->\n).*?(<!-- /table -->)"
    return re.sub(marked, lambda found: f"{found[1]}{short_table(found[2])}\n{found[3]}", page, flags=re.DOTALL)


def all_tables() -> str:
    """Return the text of tables.txt: every table of every benchmark."""
    parts = ["# All tables of the benchmarks\n\nWhat the columns mean, and what follows: docs/results.md."]
    for file in sorted(BENCHMARK.glob("*.jsonl")):
        parts.append(f"## {file.name}\n\n{to_markdown_tables(tables(file))}")
    return "\n\n".join(parts) + "\n"


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
    write_text(BENCHMARK / "tables.txt", all_tables())
    write_text(PAGE, fill(PAGE.read_text(encoding="utf-8")))
    for name in PICTURES:
        print(picture(BENCHMARK / f"{name}.jsonl"))


if __name__ == "__main__":
    main()
