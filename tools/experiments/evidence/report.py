"""What the runs say: a table and a picture for each experiment, intervals paired by seed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from global_miniatures.store import Line, Store
from matplotlib.figure import Figure
from miniatures.plots import COLOURS, INK, MUTED, canvas
from miniatures.results import Mean
from miniatures.tables import TO_RUN, markdown, replaced
from scipy.stats import ttest_rel  # type: ignore[import-untyped]  # scikit-learn brings it

from aurank.evaluation.compare import holm
from aurank.files import write_text
from evidence.methods import EXPERIMENTS, METHODS
from evidence.runs import FROZEN, Plan

METRICS = {"mAUPRC": "mauprc", "Recall@1": "recall@1", "Recall@10": "recall@10"}
_TITLES = {"frozen": "the features", "frozen_centred": "centred", "frozen_whitened": "whitened to 128"}


@dataclass(frozen=True)
class Row:
    """A method at its learning rate: its runs by seed, and beside the reference, over the seeds of both, the gain."""

    name: str
    rate: float
    runs: Mapping[int, Line]
    standing: float  # mean validation mAUPRC, which chooses the reference; that of the test where nothing was validated
    gain: Mean | None = None
    p_value: float | None = None

    def mean(self, metric: str = "mauprc") -> Mean:
        """Over seeds."""
        return Mean.of(line[metric] for line in self.runs.values())


def rows(plan: Plan, store: Store) -> list[Row]:
    """The methods by falling mean, each beside the one with the best validation, with Holm's correction over all."""
    found = {name: (plan.chosen_rate(store, name), plan.chosen(store, name)) for name in plan.methods}
    held = [
        Row(name, rate, runs, _standing(plan.validated(store, name).get(rate), runs))
        for name, (rate, runs) in found.items()
        if rate is not None and runs
    ]
    if not held:
        return []
    reference = reference_of(held)
    compared = [_beside(row, reference) for row in held]
    tested = [row for row in compared if row.p_value is not None]
    corrected = holm([row.p_value for row in tested if row.p_value is not None]).tolist() if tested else []
    by_name = dict(zip((row.name for row in tested), corrected, strict=True))
    done = [replace(row, p_value=by_name.get(row.name)) for row in compared]
    return sorted(done, key=lambda row: -row.mean().value)


def _standing(validated: float | None, runs: Mapping[int, Line]) -> float:
    held = [line["val_mauprc"] for line in runs.values() if "val_mauprc" in line]
    tested = fmean(line["mauprc"] for line in runs.values())
    return fmean(held) if held else tested if validated is None else validated


def reference_of(held: Sequence[Row]) -> Row:
    """The row that the others are compared with."""
    return max(held, key=lambda row: row.standing)


def _beside(row: Row, reference: Row) -> Row:
    seeds = sorted(set(row.runs) & set(reference.runs))
    if row.name == reference.name or len(seeds) < 2:
        return row
    own, other = ([runs[seed]["mauprc"] for seed in seeds] for runs in (row.runs, reference.runs))
    gain = Mean.of(a - b for a, b in zip(own, other, strict=True))
    return replace(row, gain=gain, p_value=float(ttest_rel(own, other).pvalue))


def table(plan: Plan, store: Store) -> str:
    """One row a method; a rate at an end of the grid is marked, for a better one may lie beyond."""
    cells = []
    held = rows(plan, store)
    for row in held:
        mark = "*" if row.rate in (min(plan.rates), max(plan.rates)) and len(plan.rates) > 1 else ""
        gain = "reference" if row is reference_of(held) else "" if row.gain is None else row.gain.text()
        p_value = "" if row.p_value is None else f"{row.p_value:.2g}"
        metrics = [row.mean(metric).text() for metric in METRICS.values()]
        method = METHODS[row.name]
        cells.append((method.title, method.family, *metrics, f"{row.rate:g}{mark}", str(len(row.runs)), gain, p_value))
    for name, title in _TITLES.items():
        for line in store.of(plan.experiment, name):
            cells.append((title, "no training", *(f"{line[metric]:.4f}" for metric in METRICS.values()), *[""] * 4))
    header = ("", "family", *METRICS, "learning rate", "seeds", "mAUPRC beside the reference", "p")
    return markdown(header, cells) if cells else TO_RUN


def cost(plan: Plan, store: Store) -> str:
    """How long the trainings of the table took, with those that chose its rates."""
    lines = [line for run in plan.runs(store) if run.name not in FROZEN and (line := store.find(run)) is not None]
    if not lines:
        return TO_RUN
    spent = [line["processor_seconds"] for line in lines]
    places = Counter(f"{line['device']}, {line['threads']} thread(s), torch {line['torch']}" for line in lines)
    about = "; ".join(f"{count} on {place}" for place, count in places.items())
    about += f"; commit {', '.join(sorted({line['commit'] for line in lines}))}"
    return (
        f"{len(lines)} runs of {fmean(spent):.1f} s of processor time on average, {max(spent):.1f} at most, "
        f"{sum(spent) / 60:.0f} min in all; by the clock {sum(line['seconds'] for line in lines) / 60:.0f} min at a "
        f"load of {min(line['load'] for line in lines):.1f} to {max(line['load'] for line in lines):.1f} ({about})"
    )


def write_tables(plan: Plan, store: Store, page: Path) -> None:
    """Nothing; the marked blocks of the page hold what the results say."""
    text = page.read_text(encoding="utf-8")
    for name, block in {"table": table(plan, store), "cost": cost(plan, store)}.items():
        text = replaced(text, f"benchmark: {plan.experiment} {name}", block, page)
    write_text(page, text)


def picture(plan: Plan, store: Store) -> Figure:
    """Test mAUPRC of every method: each seed, the mean and its interval, by family; lines for the features alone."""
    held = rows(plan, store)[::-1]
    figure, (axes,) = canvas(1, height=1.6 + 0.26 * len(held))
    colours = dict(zip(("ranking", "pair", "proxy", "margin", "global"), COLOURS, strict=False))
    for place, row in enumerate(held):
        mean, colour = row.mean(), colours[METHODS[row.name].family]
        axes.errorbar(mean.value, place, xerr=mean.half_width, fmt="D", color=colour, markersize=5, capsize=3)
        axes.plot([line["mauprc"] for line in row.runs.values()], [place] * len(row.runs), "|", color=INK, alpha=0.5)
    for (name, title), style in zip(_TITLES.items(), ("-", "--", ":"), strict=True):
        for line in store.of(plan.experiment, name):
            axes.axvline(line["mauprc"], color=MUTED, linestyle=style, linewidth=1, label=title)
    for family in dict.fromkeys(METHODS[row.name].family for row in held[::-1]):
        axes.plot([], [], "D", color=colours[family], label=family, markersize=5)
    axes.set_yticks(range(len(held)), [METHODS[row.name].title for row in held], fontsize=8)
    axes.set_ylim(-0.7, len(held) - 0.3)
    axes.set_xlabel("test mAUPRC; diamonds: mean over seeds and its 95 % interval, ticks: seeds", fontsize=9)
    axes.set_title(EXPERIMENTS[plan.experiment].title, loc="left", fontsize=10, color=INK)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
