"""What the runs say: which learning rate is chosen, and a table and a picture for each experiment."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.stats import t as student_t  # type: ignore[import-untyped]  # scikit-learn brings it
from scipy.stats import ttest_rel

from aurank.errors import UserError
from aurank.evaluation.compare import holm
from aurank.files import write_text
from experiments.methods import EXPERIMENTS, grid, training_run
from experiments.runs import Line, Run, Store

METRICS = {"mAUPRC": "mauprc", "Recall@1": "recall@1", "Recall@10": "recall@10"}
FROZEN = {"frozen": "", "frozen_centred": "center", "frozen_whitened": "whiten:dim=128"}
"""The features themselves, and behind steps that are fitted on the training classes."""
_FROZEN_TITLES = {"frozen": "the features", "frozen_centred": "centred", "frozen_whitened": "whitened to 128"}
TO_RUN = "*not run yet*"
INK, MUTED = "#1b1f24", "#8c959f"
COLOURS = ("#0550ae", "#bc4c00", "#1a7f37", "#8250df", "#9a6700", "#cf222e")


@dataclass(frozen=True)
class Plan:
    """How much of an experiment is run: methods, so many seeds, how many of these choose the rate; rates if given."""

    experiment: str
    methods: Sequence[str]
    seeds: int
    choosing: int
    rates: Sequence[float] | None = None

    def rates_of(self, name: str) -> Sequence[float]:
        about = EXPERIMENTS[self.experiment]
        return self.rates or about.methods[name].rates or about.rates

    def runs(self, store: Store) -> Iterator[Run]:
        """Yield the features alone; then seed by seed what chooses the rates; then the other seeds at these.

        Where classes are held out for choosing alone, all seeds come at the chosen rates.
        """
        about = EXPERIMENTS[self.experiment]
        for name, steps in FROZEN.items() if about.features else ():
            yield Run(self.experiment, name, {"config": about.config, "steps": steps})
        for seed in range(self.choosing):
            for name in self.methods:
                yield from (run for run in self._grid(name) if run.seed == seed)
        for seed in range(0 if about.held_out else self.choosing, self.seeds):
            for name in self.methods:
                if (rate := self.chosen_rate(store, name)) is not None:
                    yield training_run(self.experiment, name, rate, seed)

    def _grid(self, name: str) -> Iterator[Run]:
        return grid(self.experiment, name, rates=self.rates_of(name), choosing=self.choosing)

    def chosen_rate(self, store: Store, name: str) -> float | None:
        """Return the rate with the highest mean validation mAUPRC; None before the grid is complete."""
        if not self.choosing:
            return self.rates_of(name)[0]
        best, score = max(self.validated(store, name).items(), key=lambda one: one[1], default=(None, -np.inf))
        return best if np.isfinite(score) else None

    def validated(self, store: Store, name: str) -> dict[float, float]:
        """Return the mean validation mAUPRC at each rate, -inf where a run diverged; empty before all are there."""
        scores: dict[float, list[float]] = {rate: [] for rate in self.rates_of(name)}
        for run in self._grid(name):
            if (line := store.find(run)) is None:
                return {}
            scores[run.settings["lr"]].append(line.get("val_mauprc", -np.inf))
        return {rate: fmean(values) for rate, values in scores.items() if values}

    def chosen(self, store: Store, name: str) -> dict[int, Line]:
        if (rate := self.chosen_rate(store, name)) is None:
            return {}
        lines = {seed: store.find(training_run(self.experiment, name, rate, seed)) for seed in range(self.seeds)}
        return {seed: line for seed, line in lines.items() if line is not None and "error" not in line}


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, and the half width of its 95 % interval by Student's t; None for a single seed."""

    value: float
    half_width: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Mean":
        values = list(values)
        half = None
        if len(values) >= 2:
            half = float(student_t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
        return cls(fmean(values), half, len(values))

    def __str__(self) -> str:
        return f"{self.value:.4f}" + ("" if self.half_width is None else f" ± {self.half_width:.4f}")


@dataclass(frozen=True)
class Row:
    """A method at its learning rate: its runs by seed, and the gain over the reference, over the seeds of both.

    `standing` is the mean validation mAUPRC, which chooses the reference; that of the test where nothing was validated.
    """

    name: str
    rate: float
    runs: Mapping[int, Line]
    standing: float
    gain: Mean | None = None
    p_value: float | None = None

    def mean(self, metric: str = "mauprc") -> Mean:
        return Mean.of(line[metric] for line in self.runs.values())


def rows(plan: Plan, store: Store) -> list[Row]:
    """Return the methods by falling mean, each beside the best validated one, with Holm's correction over all."""
    held = []
    for name in plan.methods:
        rate, runs = plan.chosen_rate(store, name), plan.chosen(store, name)
        if rate is not None and runs:
            validated = [line["val_mauprc"] for line in runs.values() if "val_mauprc" in line]
            other = plan.validated(store, name).get(rate, fmean(line["mauprc"] for line in runs.values()))
            held.append(Row(name, rate, runs, fmean(validated) if validated else other))
    if not held:
        return []
    reference = reference_of(held)
    compared = [_beside(row, reference) for row in held]
    tested = [row for row in compared if row.p_value is not None]
    corrected = holm([row.p_value for row in tested if row.p_value is not None]).tolist() if tested else []
    by_name = dict(zip((row.name for row in tested), corrected, strict=True))
    done = [replace(row, p_value=by_name.get(row.name)) for row in compared]
    return sorted(done, key=lambda row: -row.mean().value)


def reference_of(held: Sequence[Row]) -> Row:
    """Return the row that the others are compared with: one of several seeds if there is any."""
    return max(held, key=lambda row: (len(row.runs) > 1, row.standing))


def _beside(row: Row, reference: Row) -> Row:
    seeds = sorted(set(row.runs) & set(reference.runs))
    if row.name == reference.name or len(seeds) < 2:
        return row
    own, other = ([runs[seed]["mauprc"] for seed in seeds] for runs in (row.runs, reference.runs))
    gain = Mean.of(a - b for a, b in zip(own, other, strict=True))
    return replace(row, gain=gain, p_value=float(ttest_rel(own, other).pvalue))


def table(plan: Plan, store: Store) -> str:
    """Return a row a method; a rate at an end of the grid is marked, for a better one may lie beyond."""
    cells = []
    held = rows(plan, store)
    for row in held:
        rates, method = plan.rates_of(row.name), EXPERIMENTS[plan.experiment].methods[row.name]
        mark = "*" if len(rates) > 1 and row.rate in (min(rates), max(rates)) else ""
        gain = "reference" if row is reference_of(held) else "" if row.gain is None else str(row.gain)
        p_value = "" if row.p_value is None else f"{row.p_value:.2g}"
        metrics = [str(row.mean(metric)) for metric in METRICS.values()]
        cells.append((method.title, method.family, *metrics, f"{row.rate:g}{mark}", str(len(row.runs)), gain, p_value))
    for name, title in _FROZEN_TITLES.items():
        for line in store.of(name):
            cells.append((title, "no training", *(f"{line[metric]:.4f}" for metric in METRICS.values()), *[""] * 4))
    if not cells:
        return TO_RUN
    header = ("", "family", *METRICS, "learning rate", "seeds", "mAUPRC beside the reference", "p")
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *cells))


def cost(plan: Plan, store: Store) -> str:
    """Return how long the trainings of the table took, with those that chose its rates."""
    lines = [line for run in plan.runs(store) if run.name not in FROZEN and (line := store.find(run)) is not None]
    if not lines:
        return TO_RUN
    spent = [line["processor_seconds"] for line in lines if "processor_seconds" in line]
    of_processor = (
        f" of {fmean(spent):.1f} s of processor time on average, {max(spent):.1f} at most, " if spent else "; "
    )
    of_processor += f"{sum(spent) / 60:.0f} min in all; " if spent else ""
    places = Counter(f"{line['device']}, {line['threads']} thread(s), torch {line['torch']}" for line in lines)
    about = "; ".join(f"{count} on {place}" for place, count in places.items())
    about += f"; commit {', '.join(sorted({line['commit'] for line in lines}))}"
    return (
        f"{len(lines)} runs{of_processor}by the clock {sum(line['seconds'] for line in lines) / 60:.0f} min at a "
        f"load of {min(line['load'] for line in lines):.1f} to {max(line['load'] for line in lines):.1f} ({about})"
    )


def write_tables(plan: Plan, store: Store, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name, block in {"table": table(plan, store), "cost": cost(plan, store)}.items():
        first, last = (f"<!-- {mark}benchmark: {plan.experiment} {name} -->" for mark in ("", "/"))
        if text.count(first) != 1 or text.count(last) != 1 or text.index(last) < text.index(first):
            raise UserError(f"{page} must hold the markers {first} and {last} once each, in this order; put them in")
        text = f"{text.split(first)[0]}{first}\n{block}\n{last}{text.split(last)[1]}"
    write_text(page, text)


def picture(plan: Plan, store: Store) -> Figure:
    """Draw the test mAUPRC of every method: each seed, the mean and its interval, by family; lines for the features."""
    held, methods = rows(plan, store)[::-1], EXPERIMENTS[plan.experiment].methods
    figure = Figure(figsize=(9.6, 1.6 + 0.26 * len(held)), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=INK, labelsize=8)
    axes.grid(color=MUTED, alpha=0.18, linewidth=0.6)
    colours = dict(zip(dict.fromkeys(method.family for method in methods.values()), COLOURS, strict=False))
    for place, row in enumerate(held):
        mean, colour = row.mean(), colours[methods[row.name].family]
        axes.errorbar(mean.value, place, xerr=mean.half_width, fmt="D", color=colour, markersize=5, capsize=3)
        axes.plot([line["mauprc"] for line in row.runs.values()], [place] * len(row.runs), "|", color=INK, alpha=0.5)
    for (name, title), style in zip(_FROZEN_TITLES.items(), ("-", "--", ":"), strict=True):
        for line in store.of(name):
            axes.axvline(line["mauprc"], color=MUTED, linestyle=style, linewidth=1, label=title)
    for family in dict.fromkeys(methods[row.name].family for row in held[::-1]):
        axes.plot([], [], "D", color=colours[family], label=family, markersize=5)
    axes.set_yticks(range(len(held)), [methods[row.name].title for row in held], fontsize=8)
    axes.set_ylim(-0.7, len(held) - 0.3)
    axes.set_xlabel("test mAUPRC; diamonds: mean over seeds and its 95 % interval, ticks: seeds", fontsize=9)
    axes.set_title(EXPERIMENTS[plan.experiment].title, loc="left", fontsize=10, color=INK)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
