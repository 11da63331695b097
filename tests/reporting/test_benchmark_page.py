"""The tables of a benchmark: what stands in them, and what does not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aurank.errors import UserError
from aurank.reporting.benchmark_page import benchmark_page, blocks_of, cells_of, read_tables, to_markdown_tables

CLASSES = {"fold 1 of 2": [4, 6], "fold 2 of 2": [10]}


GAINS = {"A": 0.0, "B & C": 0.2, "late": 0.1}


def made_up(seeds: int = 3) -> list[dict[str, Any]]:
    """Lines of three methods in two folds: B is 0.2 above A; the last seed of "late" diverged in one fold."""
    lines: list[dict[str, Any]] = [
        {
            "kind": "benchmark",
            "config": "c",
            "overrides": [],
            "methods": {name: [] for name in GAINS},
            "settings": {"one": [], "two": []},
            "without_training": ["", "center"],
            "reference": "A",
            "trials": 2,
            "choose_by": {"folds": 2, "by": "class"},
            "seeds": seeds,
            "units": 99,
        }
    ]
    cost = {"seconds": 1, "processor_seconds": 1, "commit": "c0", "torch": "2", "device": "x", "threads": 1}
    for split, queries in CLASSES.items():
        lines.append({"kind": "split", "split": split, "classes": ["x", "y"][: len(queries)], "queries": queries})
        for steps in ("", "center"):
            line = {"kind": "untrained", "method": steps, "setting": "", "split": split, "seed": 0, **cost}
            lines.append(line | {"recall@1": 0.9, "ap_by_class": [0.4] * len(queries)})
        for name, gain in GAINS.items():
            about: dict[str, Any] = {"method": name, "setting": "one", "split": split, **cost}
            rate = 0.001 if split.startswith("fold 1") else 0.03
            at_end = [] if rate < 0.01 else ["optim.lr"]
            chosen = [f"optim.lr={rate}", "loss.params.k=[1]"]
            lines.append({"kind": "choice", **about, "chosen": chosen, "at_end": at_end})
            for seed in range(seeds):
                line = {"kind": "run", **about, "seed": seed}
                if (name, seed, split) == ("late", seeds - 1, "fold 2 of 2"):
                    lines.append(line | {"error": "the loss is nan"})
                    continue
                ap = [round(0.3 + gain + 0.01 * seed + 0.05 * place, 4) for place in range(len(queries))]
                lines.append(line | {"recall@1": 0.5 + gain, "ap_by_class": ap})
    return lines


def test_a_row_says_what_its_lines_say() -> None:
    (block,) = blocks_of(made_up())  # of the other setting there is nothing
    head, rows = cells_of(block)
    cells = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert list(cells) == ["B & C", "late", "A", "the embeddings as they are", "center"]
    mean = np.mean([0.3 + 0.01 * seed for seed in range(3)]) + 0.05 * 6 / 20
    assert cells["A"]["mAUPRC"].startswith(f"{mean:.4f} ± 0.0248 [")
    assert cells["B & C"]["minus A"] == "+0.2000 ± 0.0000 [+0.2000, +0.2000]"
    assert cells["B & C"]["Recall@1"] == "0.7000 ± 0.0000"
    assert cells["late"]["seeds"] == "2 (1 diverged)"
    assert cells["late"]["minus A"].startswith("+0.1000 ± 0.0000")
    assert cells["A"]["minus A"] == "reference"
    assert [cells[name]["mean rank"] for name in ("B & C", "late", "A", "center")] == ["1.00", "2.00", "3.00", ""]
    assert cells["A"]["chosen"] == "lr 0.001 to 0.03*, k [1]"
    assert cells["center"]["mAUPRC"] == "0.4000 [0.4000, 0.4000]"
    assert (cells["center"]["seeds"], cells["center"]["p, seeds"]) == ("", "")
    assert cells["B & C"]["p, seeds"] == "n/a"  # all its seeds are 0.2 above
    assert cells["B & C"]["p, classes"] == "≤ 0.0004"  # 2 / 10,001 of two methods, the least there is


def test_a_seed_counts_where_every_fold_was_tested() -> None:
    lacking = {"kind": "run", "seed": 2, "split": "fold 1 of 2"}
    lines = [line for line in made_up() if {key: line.get(key) for key in lacking} != lacking]
    ((row, *_),) = (block.rows for block in blocks_of(lines))
    assert row.seeds == 2
    assert blocks_of(lines[:1]) == []
    assert to_markdown_tables([]) == "*not run yet*"


def test_a_table_is_escaped_and_names_what_tells_ranks_apart() -> None:
    blocks = blocks_of(made_up())
    markdown = to_markdown_tables(blocks)
    assert "| B &amp; C |" in markdown
    assert "Mean ranks over 3 classes that differ by less than 1.91 are not told apart (Nemenyi, 5 %)" in markdown
    for text in ("is the half width of the 95 %", "within 5 % of an end of its range"):
        assert text in markdown
    assert to_markdown_tables(blocks, "two") == "*not run yet*"


def test_the_page_has_tables_pictures_and_what_ended_early() -> None:
    lines = made_up()
    page = benchmark_page(lines, blocks_of(lines))
    assert page.count("<svg") == 2
    assert "late one, fold 2 of 2, seed 2: the loss is nan" in page
    assert "B &amp; C" in page
    assert "fold 1 of 2: 10 images of 2 classes, fold 2 of 2: 10 images of 1 classes" in page
    assert "28 of 99 choices, trainings and tests are done." in page
    assert "<dd>28 seconds</dd>" in page  # of a second each


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        ("benchmark", {"kind": None}, "first line is none of a benchmark"),
        ("split", {"queries": [4, "6"]}, "queries.1: .*valid integer"),
        ("choice", {"chosen": [["optim.lr=1"]]}, "chosen.0: .*valid string"),
        ("run", {"ap_by_class": ...}, "ap_by_class"),
        ("untrained", {"kind": []}, "unhashable"),
    ],
)
def test_lines_that_are_damaged_are_one_line(kind: str, changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    lines, file = made_up(), tmp_path / "lines.jsonl"
    line = next(line for line in lines if line["kind"] == kind)
    line |= changes
    for key in [key for key, value in changes.items() if value is ...]:
        del line[key]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=rf"lines\.jsonl: cannot be read as the lines of a benchmark \(.*{text}"):
        read_tables(file)
