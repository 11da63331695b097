"""The lines of a benchmark as tables, and as a page with pictures of their intervals."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, NotRequired

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes
from pydantic import Field
from typing_extensions import TypedDict

from aurank.evaluation.bootstrap import FEW
from aurank.evaluation.compare import holm
from aurank.evaluation.significance import Answer, SeedsAndClasses, over_seeds, rank_correlation, rank_over_classes
from aurank.files import checked, reading, require_ordinary
from aurank.reporting.charts import COLOURS, plain, svg
from aurank.reporting.page import duration, render
from aurank.reporting.tables import markdown_table

Line = dict[str, Any]
LINES, _LINES = "lines.jsonl", "the lines of a benchmark"
Rate = Annotated[float, Field(ge=0, le=1)]
_OPEN: Any = {"extra": "allow", "allow_inf_nan": False}  # other versions write other entries too
_HEAD = (
    *("mAUPRC", "test rank", "validation rank", "Recall@1"),
    *("minus {}", "p, seeds", "p, classes", "mean rank", "chosen", "seeds"),
)
ALPHA = 0.05
_NOTE = (
    "± is the half width of the 95 % interval over seeds (Student's t), in brackets is the 95 % interval of a "
    "bootstrap over classes and seeds; p by either, corrected for the number of methods (Holm), ≤ where no resample is "
    "on the other side; intervals are not corrected. Test rank: by mAUPRC; validation rank: by that of the folds that "
    "chose the settings. *: within 5 % of an end of its range."
)


_Recall = TypedDict("_Recall", {"recall@1": NotRequired[Rate]})


class UnitLine(_Recall):
    """A choice, a training with its test, or a test without training."""

    __pydantic_config__ = _OPEN  # type: ignore[misc]

    method: str
    setting: str
    split: str
    seed: NotRequired[int]
    chosen: NotRequired[list[str]]
    at_end: NotRequired[list[str]]
    val_mauprc: NotRequired[Rate]
    ap_by_class: NotRequired[list[Rate]]
    error: NotRequired[str]


class SplitLine(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]

    split: str
    classes: list[str]
    queries: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]


class BenchmarkLine(TypedDict):
    __pydantic_config__ = _OPEN  # type: ignore[misc]

    methods: dict[str, Any]
    settings: dict[str, Any]
    without_training: list[str]
    reference: str


_KINDS: dict[str, Any] = {"benchmark": BenchmarkLine, "split": SplitLine}
_KINDS |= dict.fromkeys(("choice", "run", "untrained"), UnitLine)


@dataclass(frozen=True)
class MethodRow:
    name: str
    mauprc: Answer
    recall: tuple[float, float | None]  # mean, and half width over seeds
    seeds: int  # 0 for what is not trained
    diverged: int
    chosen: str
    difference: Answer | None = None  # its p-values corrected for the number of methods
    mean_rank: float | None = None  # over classes
    ranks: tuple[int, int] | None = None  # by test and by validation, among the methods with a choice


@dataclass(frozen=True, eq=False)
class SettingTable:
    setting: str
    reference: str
    rows: Sequence[MethodRow]
    remarks: str
    draws: Mapping[str, Float64[np.ndarray, " draw"]]  # mAUPRC of the trained methods, then resampled


@dataclass(frozen=True, eq=False)
class _Tests:
    """The tests of a method, for each seed those of all splits one after the other."""

    seeds: list[int]
    ap: Float64[np.ndarray, "seed class"]
    recall: Float64[np.ndarray, " seed"]
    diverged: int
    is_trained: bool

    @classmethod
    def of(cls, lines: Sequence[Line], queries: Mapping[str, Sequence[int]]) -> "_Tests":
        by_seed: dict[int, dict[str, Line]] = defaultdict(dict)
        for line in lines:
            by_seed[line["seed"]][line["split"]] = line
        failed = [seed for seed, each in by_seed.items() if any("error" in line for line in each.values())]
        seeds = sorted(seed for seed, each in by_seed.items() if seed not in failed and len(each) == len(queries))
        ap: list[list[float]] = []
        for seed in seeds:
            tests = [by_seed[seed][split] for split in queries]
            ap.append([value for line in tests for value in line["ap_by_class"]])
        weights = [sum(each) for each in queries.values()]
        recall = [
            np.average([by_seed[seed][split]["recall@1"] for split in queries], weights=weights) for seed in seeds
        ]
        shaped = np.array(ap, np.float64).reshape(len(seeds), sum(map(len, queries.values())))
        return cls(seeds, shaped, np.array(recall), len(failed), any(line["kind"] == "run" for line in lines))

    def minus(self, reference: "_Tests") -> Float64[np.ndarray, "seed class"]:
        """Return the differences at the seeds of both; a method without training has the same values at every seed."""
        if not self.is_trained:
            return np.asarray(self.ap[:1] - reference.ap)
        both = [seed for seed in self.seeds if seed in reference.seeds]
        left, right = (tests.ap[[tests.seeds.index(seed) for seed in both]] for tests in (self, reference))
        return np.asarray(left - right)


def checked_line(line: Line) -> Line:
    return dict(checked(line, _KINDS.get(line["kind"], Line)))


def read_tables(path: Path, reference: str | None = None) -> list[SettingTable]:
    require_ordinary(path)
    with reading(path, _LINES):
        lines = [checked_line(json.loads(text)) for text in path.read_text(encoding="utf-8").splitlines()]
        if not lines or lines[0]["kind"] != "benchmark":
            raise ValueError("its first line is none of a benchmark")
        return blocks_of(lines if reference is None else [lines[0] | {"reference": reference}, *lines[1:]])


def blocks_of(lines: Sequence[Line]) -> list[SettingTable]:
    """Return the table of each setting in which a method was trained and tested."""
    about, queries = lines[0], {line["split"]: line["queries"] for line in lines if line["kind"] == "split"}
    if not queries:
        return []
    chances = SeedsAndClasses(np.concatenate([np.array(each, np.float64) for each in queries.values()]))
    blocks = []
    for setting in about["settings"]:
        by_method: dict[str, list[Line]] = {name: [] for name in [*about["methods"], *about["without_training"]]}
        for line in lines:
            if line["kind"] == "untrained" or (line["kind"] == "run" and line["setting"] == setting):
                by_method[line["method"]].append(line)
        tests = {name: each for name, tested in by_method.items() if (each := _Tests.of(tested, queries)).seeds}
        if any(each.is_trained for each in tests.values()):
            choices: dict[str, list[Line]] = {name: [] for name in tests}
            for line in lines:
                if line["kind"] == "choice" and line["setting"] == setting and line["method"] in tests:
                    choices[line["method"]].append(line)
            blocks.append(_block(about["reference"], setting, tests, chances, choices))
    return blocks


def _block(
    reference: str,
    setting: str,
    tests: Mapping[str, _Tests],
    chances: SeedsAndClasses,
    choices: Mapping[str, Sequence[Line]],
) -> SettingTable:
    trained = {name: each.ap.mean(axis=0) for name, each in tests.items() if each.is_trained}
    mean_ranks: dict[str, float] = {}
    remarks = []
    if reference not in tests:  # all its seeds may have diverged
        remarks.append(f"The reference {reference} has no result here, so there are no differences from it.")
    if (num_classes := len(chances.queries)) < FEW:
        remarks.append(f"Of so few classes as {num_classes} the intervals come out too narrow.")
    if len(trained) > 1 and num_classes > 1:
        means, critical, p_value = rank_over_classes(np.stack([*trained.values()]))
        mean_ranks = dict(zip(trained, means, strict=True))
        friedman = "" if p_value is None else f"; Friedman's test: p = {p_value:.2g}"
        least = f"that differ by less than {critical:.2f} are not told apart (Nemenyi, 5 %)"
        remarks.append(f"Mean ranks over {num_classes:,} classes {least}{friedman}.")
    draws = {
        name: np.append(chances.means(each.ap).mean(), chances.draws(each.ap)[:1000])
        for name, each in tests.items()
        if each.is_trained
    }
    in_validation = {name: [line.get("val_mauprc", np.nan) for line in choices[name]] for name in draws}
    validation = {name: np.mean(each) for name, each in in_validation.items() if each and not np.isnan(each).any()}
    ranks: dict[str, tuple[int, int]] = {}
    if len(validation) > 1:
        by_test = np.stack([draws[name] for name in validation])
        by_validation = np.array([*validation.values()])
        for name, tested, validated in zip(validation, by_test[:, 0], by_validation, strict=True):
            ranks[name] = (1 + int((by_test[:, 0] > tested).sum()), 1 + int((by_validation > validated).sum()))
    if len(validation) > 2:
        tau, low, high = rank_correlation(np.broadcast_to(by_validation[:, None], by_test.shape), by_test)
        orders = f"Validation and test order {len(validation)} methods with Kendall's τ"
        remarks.append(f"{orders} {tau:.2f} [{low:.2f}, {high:.2f}], the interval over classes and seeds of the test.")
    differences = {}
    for name, each in tests.items():
        if name != reference and reference in tests:
            difference = each.minus(tests[reference])
            if len(difference):
                differences[name] = chances.answer(difference)
    for key in ("p_seeds", "p_classes"):
        p_values = {name: getattr(answer, key) for name, answer in differences.items() if tests[name].is_trained}
        p_values = {name: p_value for name, p_value in p_values.items() if p_value is not None}
        corrected = dict(zip(p_values, holm([*p_values.values()]).tolist(), strict=True))
        changes: dict[str, Any] = {name: {key: corrected.get(name)} for name in differences}
        differences = {name: replace(answer, **changes[name]) for name, answer in differences.items()}
    rows = [
        MethodRow(
            name=name or "the embeddings as they are",
            mauprc=chances.answer(each.ap),
            recall=over_seeds(each.recall)[:2],
            seeds=len(each.seeds) * each.is_trained,
            diverged=each.diverged,
            chosen=_chosen(choices[name]),
            difference=differences.get(name),
            mean_rank=mean_ranks.get(name),
            ranks=ranks.get(name),
        )
        for name, each in tests.items()
    ]
    rows.sort(key=lambda row: (not row.seeds, -row.mauprc.mean))
    return SettingTable(setting, reference, rows, " ".join(remarks), draws)


def _chosen(choices: Sequence[Line]) -> str:
    """Return the values that a method's choices have: "lr 0.001 to 0.03*, k [1]"."""
    values: dict[str, list[str]] = defaultdict(list)
    for key, _, value in (override.partition("=") for line in choices for override in line.get("chosen", ())):
        values[key].append(value)
    at_end = {key for line in choices for key in line.get("at_end", ())}
    parts = []
    for key, each in values.items():
        try:
            ends = sorted(map(float, each))
            text = " to ".join(dict.fromkeys(f"{end:.2g}" for end in (ends[0], ends[-1])))
        except ValueError:  # not numbers
            text = " or ".join(dict.fromkeys(each))
        parts.append(f"{key.rpartition('.')[2]} {text}{'*' * (key in at_end)}")
    return ", ".join(parts)


# -- tables -----------------------------------------------------------------------------------------------------------


def cells_of(block: SettingTable) -> tuple[list[str], list[list[str]]]:
    rows = []
    for row in block.rows:
        beside, p_values = "reference" if row.name == block.reference else "", ["", ""]
        if row.difference is not None:
            beside = _number(row.difference, "+")
            p_values = ["" if p is None else f"{p:.2g}" for p in (row.difference.p_seeds, row.difference.p_classes)]
            if row.difference.p_seeds is None and row.seeds and row.difference.half_width is not None:
                p_values[0] = "n/a"  # all seeds differ alike
            p_values[1] = f"≤ {p_values[1]}" if row.difference.is_least and p_values[1] else p_values[1]
        mean_rank = "" if row.mean_rank is None else f"{row.mean_rank:.2f}"
        ranks = ("", "") if row.ranks is None else map(str, row.ranks)
        seeds = f"{row.seeds or ''}{f' ({row.diverged} diverged)' if row.diverged else ''}"
        recall = Answer(*row.recall, None, None, None)
        cells = [row.name, _number(row.mauprc), *ranks, _number(recall), beside, *p_values, mean_rank, row.chosen]
        rows.append([*cells, seeds])
    head = [block.setting or "method", *(name.format(block.reference) for name in _HEAD)]
    shown = [column for column in range(len(head)) if any(row[column] for row in rows)]
    return [head[column] for column in shown], [[row[column] for column in shown] for row in rows]


def _number(answer: Answer, sign: str = "") -> str:
    text = f"{answer.mean:{sign}.4f}" + ("" if answer.half_width is None else f" ± {answer.half_width:.4f}")
    if answer.interval is not None:
        text += " [{0:{2}.4f}, {1:{2}.4f}]".format(*answer.interval, sign)
    return text


def to_markdown_tables(blocks: Sequence[SettingTable], setting: str | None = None) -> str:
    chosen = [block for block in blocks if setting in (None, block.setting)]
    parts = [part for block in chosen for part in (markdown_table(*cells_of(block)), block.remarks) if part]
    return "\n\n".join([*parts, _NOTE]) if parts else "*not run yet*"


def verdict(block: SettingTable, tested: str) -> tuple[str, dict[str, list[str]]]:
    """Return how many trained methods are told apart from the reference and over what, and their names."""
    names: dict[str, list[str]] = {}
    compared = [(row, row.difference) for row in block.rows if row.seeds and row.difference is not None]
    for row, answer in compared:
        # All seeds may differ alike: then there is no p, and their interval is the mean.
        of_seeds = answer.half_width is not None and (answer.p_seeds is None or answer.p_seeds < ALPHA)
        of_classes = answer.p_classes is not None and answer.p_classes < ALPHA
        over = ["other seeds"] * of_seeds + ["other classes"] * of_classes
        side = f"{'better' if answer.mean > 0 else 'worse'} for {' and '.join(over)}{' alone' * (len(over) == 1)}"
        names.setdefault(side if over else "not told apart", []).append(row.name)
    if not compared:
        return "", {}
    counts = ", ".join(f"{len(each)} {how}" for how, each in names.items())
    seeds = " to ".join(dict.fromkeys(str(end(row.seeds for row, _ in compared)) for end in (min, max)))
    by = f"by {seeds} seed{'s' * (seeds != '1')} and {tested} (p < {ALPHA}, corrected for the number of methods)"
    return f"Compared with {block.reference}: {counts}; {by}.", names


# -- the page ---------------------------------------------------------------------------------------------------------


def benchmark_page(lines: Sequence[Line], blocks: Sequence[SettingTable]) -> str:
    about, done = lines[0], [line for line in lines if line["kind"] in ("choice", "run", "untrained")]
    splits = {line["split"]: line for line in lines if line["kind"] == "split"}
    classes = sum(len(line["queries"]) for line in splits.values())
    tested = f"{classes:,} class{'es' * (classes > 1)} of {len(splits)} split{'s' * (len(splits) > 1)}"
    sizes = {name: (sum(each["queries"]), len(each["classes"])) for name, each in splits.items()}
    chosen = f"{about['trials']} trials, validated on {about['choose_by']['folds']} folds of the training classes"
    facts = {
        "configuration": " ".join([about["config"], *about["overrides"]]),
        "test": ", ".join(f"{name}: {q:,} queries of {c:,} classes" for name, (q, c) in sizes.items()),
        "choice of each method": f"{chosen}, by {about['choose_by']['by']}" if about["trials"] else "none",
        "processor time": duration(sum((line["processor_seconds"] for line in done), 0.0)),
    }
    for key in ("commit", "torch", "device", "threads"):
        facts[key] = ", ".join(sorted({str(line[key]) for line in done}))
    sections = []
    for block in blocks:
        size, charts = (5.4, 1.1 + 0.28 * len(block.rows)), []
        for beside, value in ((False, "mAUPRC"), (True, "its difference from the reference")):
            if not beside or any(row.difference for row in block.rows):
                described = f"{value} with both intervals of each method, {block.setting}"
                charts.append(svg(partial(draw_intervals, block=block, beside=beside), described, size=size))
        sections.append((block.setting or "Methods", *cells_of(block), block.remarks, charts, *verdict(block, tested)))
    return render(
        "benchmark.html",
        title="Benchmark",
        counted=f"{len(done):,} of {about['units']:,} choices, trainings and tests are done.",
        blocks=sections,
        overrides={**about["methods"], **{f"all in {name}": each for name, each in about["settings"].items() if name}},
        note=_NOTE,
        facts=facts,
        failed=[line for line in done if "error" in line],
    )


def draw_intervals(axes: Axes, block: SettingTable, *, beside: bool) -> None:
    """Draw mAUPRC of each method, or `beside` the reference its difference, with both intervals."""
    for height, row in enumerate(reversed(block.rows)):
        answer, colour = row.difference if beside else row.mauprc, COLOURS[0] if row.seeds else "#808080"
        if answer is None:
            continue
        half = answer.half_width or 0.0
        for ends, width, alpha in (((answer.mean - half, answer.mean + half), 6, 0.4), (answer.interval, 1.2, 1.0)):
            if ends is not None:
                axes.plot(ends, [height, height], color=colour, linewidth=width, alpha=alpha, solid_capstyle="butt")
        axes.plot([answer.mean], [height], "o", color=colour, markersize=4)
    if beside:
        axes.axvline(0, color="#808080", linewidth=1)
    names = [fill(plain(row.name), 40, max_lines=2, placeholder="…") for row in reversed(block.rows)]
    axes.set_yticks(range(len(block.rows)), names, fontsize=9, linespacing=1.1)
    label = f"mAUPRC{f' minus {plain(block.reference)}' if beside else ''}\nthick: seeds, thin: classes"
    axes.set(xlabel=label, ylim=(-0.7, len(block.rows) - 0.3))
    axes.locator_params(axis="x", nbins=5)
