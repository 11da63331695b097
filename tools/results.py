"""The tables and pictures of docs/benchmark/*.jsonl, each of which is the lines.jsonl of an `aurank benchmark`.

    python tools/results.py

writes docs/benchmark/tables.txt (all of them), the short tables of the pages between `<!-- table: NAME -->` and
`<!-- /table -->`, and the pictures that pages show. Columns and orders whose file is not there are left out.
tests/test_figures.py fails where a page is not what the lines give, or a line is on no page.
"""

import re
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from aurank.errors import UserError
from aurank.evaluation.significance import rank_correlation
from aurank.files import write_text
from aurank.reporting.benchmark_page import SettingTable, cells_of, draw_intervals, read_tables, to_markdown_tables
from aurank.reporting.tables import markdown_table

BENCHMARK = Path(__file__).resolve().parents[1] / "docs" / "benchmark"
FILES = {file.stem for file in BENCHMARK.glob("*.jsonl")}
PAGES = sorted(BENCHMARK.parent.glob("*.md"))
PICTURES = {"grocery_heads": ("grocery_heads",), "omniglot_heads": ("omniglot_heads", "omniglot_identity")}
# A cell is a mean, ± half the width of the interval over seeds, [the interval over classes and seeds], and (ranks).
CELL = re.compile(r"([-+]?\d\.\d+)(?: (± \d\.\d+))?(?: (\[.+\]))?(?: (\(.+\)))?")
MEAN, SEEDS, CLASSES, BOTH = (1,), (1, 2), (1, 3), (1, 2, 3)
RANKED = (1, 4)  # a mean and (its rank in the test/that of its choice in validation)
UNTRAINED = "the embeddings as they are"
BY = ("test", "validation")
PCA, IDENTITY = "PCA, 128 numbers", "identity, 1280 numbers"
HEADS = (
    *("SupCon", "SOPRC", "Multi-Similarity", "Circle", "SogCLR", "DCL", "SmoothAP", "list-wise AP"),
    *("ArcFace", UNTRAINED, "center", "whiten:dim=128"),
)
PARAMETERS = (
    *("SOPRC", "SOPRC, λ1 alone", "SOPRC, λ2 alone", "SOPRC, no semi-variance", "SOPRC, no semi-variance, π 0.5"),
    *("SOPRC, no semi-variance, π 0.5, τ1 0.05", "PNP", "PNP, D_s", "SupCon"),
)


def beside(head: str, file: str, setting: str) -> tuple[tuple[Any, ...], ...]:
    """Return the columns of mAUPRC with both ranks, and of the difference from SupCon."""
    return (head, file, setting, "mAUPRC", RANKED), ("minus SupCon", file, setting, "minus SupCon", CLASSES)


NETWORKS = ("grocery_heads", "grocery_heads_lite1", "grocery_heads_lite2")
OMNIGLOT = ("omniglot_heads", "omniglot_heads_lite1")
EMOJI = ("emoji_heads_lite0", "emoji_heads_lite1", "emoji_heads_lite2")
TRAINED = (("mAUPRC", SEEDS), ("Recall@1", MEAN), ("minus SupCon", BOTH))
# The short tables by name: head and methods of the first column, then head, file, setting, column and parts of others.
# () are all methods that the file of the first column has, None those without training.
TABLES: dict[str, Any] = {
    "heads": (
        ("loss", HEADS),
        ("groceries, PCA", "grocery_heads", PCA, "mAUPRC", RANKED),
        *beside("identity", "grocery_heads", IDENTITY),
        ("Omniglot, PCA", "omniglot_heads", PCA, "mAUPRC", RANKED),
        *beside("identity", "omniglot_identity", IDENTITY),
    ),
    "folds": (("loss", ()), *(column for start in (PCA, IDENTITY) for column in beside(start, "grocery_folds", start))),
    "trials": (
        ("loss", ()),
        *beside("PCA, 40 trials", "grocery_trials", PCA),
        ("25 trials", "grocery_heads", PCA, "mAUPRC", MEAN),
        *beside("identity, 40 trials", "grocery_trials", IDENTITY),
        ("25 trials", "grocery_heads", IDENTITY, "mAUPRC", MEAN),
    ),
    "width": (
        ("loss", ("SupCon", "SOPRC", "SmoothAP", "Multi-Similarity")),
        ("PCA, 128 numbers", "grocery_heads", PCA, "mAUPRC", RANKED),
        *((f"PCA, {name}", "grocery_width", f"PCA, {name} numbers", "mAUPRC", RANKED) for name in (512, 1280)),
        ("identity, 1280", "grocery_heads", IDENTITY, "mAUPRC", RANKED),
    ),
    "networks": (
        ("loss", ("SupCon", "SOPRC", "SmoothAP", "Multi-Similarity", "SogCLR", "DCL", UNTRAINED, "center")),
        *((f"groceries, Lite{number}", file, PCA, "mAUPRC", RANKED) for number, file in enumerate(NETWORKS)),
        *((f"Omniglot, Lite{number}", file, PCA, "mAUPRC", RANKED) for number, file in enumerate(OMNIGLOT)),
        *((f"emoji, Lite{number}", file, PCA, "mAUPRC", RANKED) for number, file in enumerate(EMOJI)),
    ),
    "parameters": (
        ("loss", PARAMETERS),
        *beside("groceries", "grocery_parameters", PCA),
        *beside("Omniglot", "omniglot_parameters", PCA),
    ),
    "Table 1": (
        ("loss", ()),
        ("mAUPRC", "omniglot_losses", "", "mAUPRC", (*SEEDS, 4)),
        ("minus SOPRC", "omniglot_losses", "", "minus SOPRC", BOTH),
    ),
    "Table 2": (
        ("parts", ()),
        ("mAUPRC", "soprc_parts", "", "mAUPRC", (*SEEDS, 4)),
        ("minus none", "soprc_parts", "", "minus none", BOTH),
    ),
    "batches": (
        ("loss", ()),
        *((size, "contrastive_batches", size, "mAUPRC", (*SEEDS, 4)) for size in ("batch 16", "batch 64", "batch 256")),
    ),
    "gamma": (
        ("loss", ()),
        *((size, "contrastive_gamma", size, "mAUPRC", (*SEEDS, 4)) for size in ("batch 16", "batch 64", "batch 128")),
    ),
    "texts": (
        ("loss", ()),
        ("mAUPRC", "text_losses", "", "mAUPRC", (*SEEDS, 4)),
        ("Recall@1", "text_losses", "", "Recall@1", SEEDS),
        ("minus CLIP", "text_losses", "", "minus CLIP", BOTH),
    ),
    "emoji": (("loss", ()), *((name, "emoji_finetuned", "", name, parts) for name, parts in TRAINED)),
    "fine-tuning": (("training", ()), *((name, "grocery_recipe", "", name, parts) for name, parts in TRAINED)),
    "teacher": (("training", ()), *((name, "grocery_teacher", "", name, parts) for name, parts in TRAINED)),
    "upgrade": (
        ("queries on gallery", ()),
        *((name, "grocery_upgrade", "", name, parts) for name, parts in TRAINED[:2]),
        ("minus new on new", "grocery_upgrade", "", "minus new on new", BOTH),
    ),
    "post-processing": (
        ("steps", None),
        ("mAUPRC", "grocery_heads", PCA, "mAUPRC", MEAN),
        ("Recall@1", "grocery_heads", PCA, "Recall@1", MEAN),
        ("minus SupCon's head", "grocery_heads", PCA, "minus SupCon", CLASSES),
    ),
}

# Where losses have an order (file and setting), and which orders are compared, beside those of validation and test.
PLACES = {
    "groceries, PCA": ("grocery_heads", PCA),
    "groceries, identity": ("grocery_heads", IDENTITY),
    "Omniglot, PCA": ("omniglot_heads", PCA),
    "Omniglot, identity": ("omniglot_identity", IDENTITY),
    **{f"groceries, PCA, Lite{number}": (NETWORKS[number], PCA) for number in (1, 2)},
    "Omniglot, PCA, Lite1": (OMNIGLOT[1], PCA),
    **{f"emoji, PCA, Lite{number}": (name, PCA) for number, name in enumerate(EMOJI)},
}
PAIRS = (
    *combinations(["groceries, PCA", "groceries, PCA, Lite1", "groceries, PCA, Lite2"], 2),
    ("Omniglot, PCA", "Omniglot, PCA, Lite1"),
    *combinations([f"emoji, PCA, Lite{number}" for number in range(3)], 2),
    *((place, f"emoji, PCA, Lite{number}") for place in ("groceries, PCA", "Omniglot, PCA") for number in range(3)),
    *(("groceries, PCA", place) for place in ("Omniglot, PCA", "groceries, identity")),
    ("groceries, identity", "Omniglot, identity"),
    ("Omniglot, PCA", "Omniglot, identity"),
)


@cache
def tables(name: str, reference: str | None = None) -> dict[str, SettingTable]:
    """Return the table of each setting of a benchmark, with differences from its reference or another."""
    return {block.setting: block for block in read_tables(BENCHMARK / f"{name}.jsonl", reference)}


def cell(name: str, setting: str, method: str, column: str) -> str:
    """Return one cell of the tables of a benchmark; the column "minus X" of any method X."""
    block = tables(name, column.removeprefix("minus ") if column.startswith("minus ") else None).get(setting)
    head, rows = cells_of(block) if block else ([], [])
    for row in rows:
        if row[0] == method and column in head:
            return row[head.index(column)]
    raise UserError(f"{name}.jsonl has no {column!r} of {method!r} in the setting {setting!r}")


def order_table() -> str:
    """Return Kendall's τ of orders of losses, with its interval over test classes and seeds."""
    blocks = {place: tables(name)[setting] for place, (name, setting) in PLACES.items() if name in FILES}
    rows = []
    for place, block in blocks.items():
        if agreement := re.search(r"Kendall's τ (.+?\])", block.remarks):
            rows.append([f"{place}: validation and test", agreement[1]])
    for left, right in PAIRS:
        if left in blocks and right in blocks:
            losses = sorted(blocks[left].draws.keys() & blocks[right].draws.keys())
            draws = (np.stack([blocks[place].draws[loss] for loss in losses]) for place in (left, right))
            rows.append([f"{left}; {right}", "{:.2f} [{:.2f}, {:.2f}]".format(*rank_correlation(*draws))])
    return markdown_table(["orders", "Kendall's τ"], rows)


def short_table(name: str) -> str:
    if name == "orders":
        return order_table()
    (title, methods), *columns = TABLES[name]
    columns = [column for column in columns if column[1] in FILES]
    if not columns:
        return ""
    _, file, setting, *_ = columns[0]
    rows = []
    for method in methods or [row.name for row in tables(file)[setting].rows if methods == () or not row.seeds]:
        row = [method]
        for _, file, setting, column, parts in columns:
            text = cell(file, setting, method, column)
            if RANKED[-1] in parts and all(ranks := [cell(file, setting, method, f"{by} rank") for by in BY]):
                text += f" ({'/'.join(ranks)})"
            number = CELL.fullmatch(text)
            row.append(" ".join(filter(None, number.group(*parts, 0)[:-1])) if number else text)
        rows.append(row)
    return markdown_table([title, *(column[0] for column in columns)], rows)


def fill(page: str) -> str:
    """Return a page with its short tables written anew."""
    marked = r"(<!-- table: (.+?) -->\n).*?(<!-- /table -->)"
    return re.sub(marked, lambda match: f"{match[1]}{short_table(match[2])}\n{match[3]}", page, flags=re.DOTALL)


def all_tables() -> str:
    """Return the text of tables.txt: every table of every benchmark."""
    parts = ["# All tables of the benchmarks\n\nWhat the columns mean, and what follows: docs/results.md."]
    for name in sorted(FILES):
        parts.append(f"## {name}.jsonl\n\n{to_markdown_tables([*tables(name).values()])}")
    return "\n\n".join(parts) + "\n"


def picture(name: str, files: tuple[str, ...]) -> Path:
    """Draw the intervals of benchmarks beside their lines: a row for each setting, mAUPRC and differences."""
    blocks = [block for file in files for block in tables(file).values()]
    heights = [1 + 0.24 * len(block.rows) for block in blocks]
    figure = Figure(figsize=(12, sum(heights)), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(heights), 2, squeeze=False, height_ratios=heights, sharex="col")
    for row, block in zip(grid, blocks, strict=True):
        for axes, beside in zip(row, (False, True), strict=True):
            draw_intervals(axes, block, beside=beside)
            axes.set_title(block.setting, loc="left", fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(labelsize=8, labelleft=not beside)
            axes.grid(alpha=0.2)
    target = BENCHMARK / f"{name}.png"
    figure.savefig(target)
    return target


def main() -> None:
    write_text(BENCHMARK / "tables.txt", all_tables())
    for page in PAGES:
        if (text := page.read_text(encoding="utf-8")) != (filled := fill(text)):
            write_text(page, filled)
    for name, files in PICTURES.items():
        print(picture(name, files))


if __name__ == "__main__":
    main()
