"""The tables of a benchmark: what stands in them, and what does not."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from matplotlib.figure import Figure
from scipy.stats import t as student_t

from aurank.errors import UserError
from aurank.evaluation.significance import SeedsAndClasses
from aurank.reporting.benchmark_page import (
    benchmark_page,
    blocks_of,
    cells_of,
    draw_intervals,
    read_tables,
    to_markdown_tables,
    verdict,
)

CLASSES = {"fold 1 of 2": [4, 6], "fold 2 of 2": [10]}


GAINS = {"A": 0.0, "B & C": 0.2, "late": 0.1}
VALIDATION = {"A": 0.9, "B & C": 0.6, "late": 0.5}


def made_up(seeds: int = 3) -> list[dict[str, Any]]:
    """Lines of three methods in two folds: B is 0.2 above A; the last seed of "late" diverged in one fold."""
    head: dict[str, Any] = {"kind": "benchmark", "config": "c", "overrides": [], "reference": "A", "seeds": seeds}
    head |= {"methods": {name: [] for name in GAINS}, "settings": {"one": [], "two": []}, "units": 99}
    lines = [head | {"without_training": ["", "center"], "trials": 2, "choose_by": {"folds": 2, "by": "class"}}]
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
            choice = {"chosen": chosen, "at_end": at_end, "val_mauprc": VALIDATION[name]}
            lines.append({"kind": "choice", **about, **choice})
            for seed in range(seeds):
                line = {"kind": "run", **about, "seed": seed}
                if (name, seed, split) == ("late", seeds - 1, "fold 2 of 2"):
                    lines.append(line | {"error": "the loss is nan"})
                    continue
                ap = [round(0.3 + gain + 0.01 * seed + 0.05 * place, 4) for place in range(len(queries))]
                lines.append(line | {"recall@1": 0.5 + gain, "ap_by_class": ap})
    return lines


def test_a_row_says_what_its_lines_say():
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
    assert [cells[name]["test rank"] for name in ("B & C", "late", "A", "center")] == ["1", "2", "3", ""]
    assert [cells[name]["validation rank"] for name in ("B & C", "late", "A", "center")] == ["2", "3", "1", ""]
    assert "order 3 methods with Kendall's τ -0.33 [-0.33, -0.33]" in block.remarks  # 1 pair agrees, 2 do not
    assert cells["center"]["mAUPRC"] == "0.4000 [0.4000, 0.4000]"
    assert (cells["center"]["seeds"], cells["center"]["p, seeds"]) == ("", "")
    assert cells["B & C"]["p, seeds"] == "n/a"  # all its seeds are 0.2 above
    assert cells["B & C"]["p, classes"] == "≤ 0.0004"  # 2 / 10,001 of two methods, the least there is


def test_a_seed_counts_where_every_fold_was_tested():
    lacking = {"kind": "run", "seed": 2, "split": "fold 1 of 2"}
    lines = [line for line in made_up() if {key: line.get(key) for key in lacking} != lacking]
    ((row, *_),) = (block.rows for block in blocks_of(lines))
    assert row.seeds == 2
    assert blocks_of(lines[:1]) == []
    assert to_markdown_tables([]) == "*not run yet*"


def test_a_table_is_escaped_and_names_what_tells_ranks_apart():
    blocks = blocks_of(made_up())
    markdown = to_markdown_tables(blocks)
    assert "| B &amp; C |" in markdown
    assert "Mean ranks over 3 classes that differ by less than 1.91 are not told apart (Nemenyi, 5 %)" in markdown
    for text in ("is the half width of the 95 %", "within 5 % of an end of its range", "Of so few classes as 3 "):
        assert text in markdown
    assert to_markdown_tables(blocks, "two") == "*not run yet*"


def test_the_page_has_tables_pictures_and_what_ended_early():
    lines = made_up()
    lines[0]["methods"]["B & C"] = ["loss.name=x<y"]
    page = benchmark_page(lines, blocks_of(lines))
    assert page.count("<svg") == 2
    assert str(escape(verdict(blocks_of(lines)[0], "3 classes of 2 splits")[0])) in page
    assert "<dd>B &amp; C; late</dd>" in page
    assert "<dt>B &amp; C</dt><dd><code>loss.name=x&lt;y</code> </dd>" in page
    assert "<dt>all in one</dt><dd>none</dd>" in page
    assert "late one, fold 2 of 2, seed 2: the loss is nan" in page
    assert "fold 1 of 2: 10 queries of 2 classes, fold 2 of 2: 10 queries of 1 classes" in page
    assert "28 of 99 choices, trainings and tests are done." in page
    assert "<dd>28 seconds</dd>" in page  # of a second each


def told_apart(differences: dict[str, np.ndarray], interval: Callable[..., tuple[float, float]]) -> set[str]:
    """Names whose interval excludes 0 at Holm's level: 5 % by how many are left, as long as some do."""
    apart: set[str] = set()
    while left := differences.keys() - apart:
        ends = {name: interval(differences[name], 0.05 / len(left) / 2) for name in left}
        if not (outside := {name for name, (low, high) in ends.items() if low > 0 or high < 0}):
            break
        apart |= outside
    return apart


def expected_verdict(differences: dict[str, np.ndarray], queries: np.ndarray) -> dict[str, set[str]]:
    def over_seeds(values: np.ndarray, tail: float) -> tuple[float, float]:
        means = values @ queries / queries.sum()
        half = student_t.ppf(1 - tail, len(means) - 1) * means.std(ddof=1) / len(means) ** 0.5
        return means.mean() - half, means.mean() + half

    def over_classes(values: np.ndarray, tail: float) -> tuple[float, float]:
        low, high = np.quantile(SeedsAndClasses(queries).draws(values), [tail, 1 - tail])
        return low, high

    of_seeds, of_classes = (told_apart(differences, each) for each in (over_seeds, over_classes))
    names: dict[str, set[str]] = {}
    for name, values in differences.items():
        over = ["other seeds"] * (name in of_seeds) + ["other classes"] * (name in of_classes)
        side = "better" if (values @ queries).mean() > 0 else "worse"
        alone = " alone" if len(over) == 1 else ""
        names.setdefault(f"{side} for {' and '.join(over)}{alone}" if over else "not told apart", set()).add(name)
    return names


def drawn(rng: np.random.Generator, methods: int, seeds: int) -> list[dict[str, Any]]:
    lines = [line for line in made_up() if line["kind"] in ("benchmark", "split")]
    names = ["A", *(f"m{number}" for number in range(methods))]
    lines[0] |= {"methods": {name: [f"loss.name={name}"] for name in names}}
    for line in lines[1:]:
        line["queries"] = rng.integers(2, 9, size=8).tolist()
    for name in names:
        gain, of_seed, of_class = rng.normal(0, 0.05), *rng.choice([0.002, 0.02, 0.1], size=2)
        seed_noise = rng.normal(0, of_seed, size=seeds)
        for split in CLASSES:
            class_noise = rng.normal(0, of_class, size=8)
            for seed in range(seeds):
                about = {"method": name, "setting": "one", "split": split, "seed": seed, "recall@1": 0.5}
                ap = (0.5 + gain + seed_noise[seed] + class_noise).tolist()
                lines.append({"kind": "run", **about, "ap_by_class": ap})
    return lines


def ap_of(lines: list[dict[str, Any]], name: str, split: str) -> list[list[float]]:
    return [line["ap_by_class"] for line in lines if line.get("method") == name and line["split"] == split]


def test_a_verdict_names_the_methods_whose_corrected_intervals_exclude_0():
    seen, rng = set[str](), np.random.default_rng(0)
    for _ in range(6):
        lines = drawn(rng, methods=6, seeds=4)
        (block,) = blocks_of(lines)
        queries = np.concatenate([line["queries"] for line in lines if line["kind"] == "split"]).astype(float)
        names = lines[0]["methods"]
        ap = {name: np.concatenate([ap_of(lines, name, split) for split in CLASSES], axis=1) for name in names}
        expected = expected_verdict({name: each - ap["A"] for name, each in ap.items() if name != "A"}, queries)
        text, names = verdict(block, "16 classes")
        assert {how: set(each) for how, each in names.items()} == expected
        assert all(f"{len(each)} {how}" in text for how, each in expected.items())
        assert text.endswith("; by 4 seeds and 16 classes (p < 0.05, corrected for the number of methods).")
        seen |= expected.keys()
    ends = {how.partition(" for ")[2] for how in seen if how != "not told apart"}
    assert ends == {"other seeds alone", "other classes alone", "other seeds and other classes"}
    assert "not told apart" in seen


def test_a_verdict_needs_a_reference_and_says_of_how_many_seeds():
    (block,) = blocks_of(made_up())
    text, names = verdict(block, "3 classes")  # "late" has a seed less
    assert names == {"better for other seeds and other classes": ["B & C", "late"]}
    assert "by 2 to 3 seeds and 3 classes (p" in text
    alone = [line for line in made_up(seeds=1) if line.get("method") != "late"]
    (block,) = blocks_of(alone)
    # One seed says nothing of others.
    assert verdict(block, "3 classes")[1] == {"better for other classes alone": ["B & C"]}
    assert "by 1 seed and" in verdict(block, "3 classes")[0]
    (block,) = blocks_of([line for line in alone if line["kind"] != "run" or line["method"] != "A"])
    assert verdict(block, "3 classes") == ("", {})


def test_the_thin_interval_is_drawn_opaque_above_the_thick_one():
    (block,) = blocks_of(made_up())
    axes = Figure().add_subplot()
    draw_intervals(axes, block, beside=False)
    bars = [line for line in axes.lines if line.get_marker() == "None" and line.get_ydata()[0] == len(block.rows) - 1]
    widths = [(line.get_linewidth(), line.get_alpha()) for line in bars]
    assert widths == sorted(widths, reverse=True)
    assert len(widths) == 2
    assert widths[1][1] == 1 > widths[0][1]


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
def test_lines_that_are_damaged_are_one_line(kind, changes, text, tmp_path):
    lines, file = made_up(), tmp_path / "lines.jsonl"
    line = next(line for line in lines if line["kind"] == kind)
    line |= changes
    for key in [key for key, value in changes.items() if value is ...]:
        del line[key]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match=rf"lines\.jsonl: cannot be read as the lines of a benchmark \(.*{text}"):
        read_tables(file)
