"""How the first methods of a table change with batch, images of a class, width, temperature, prior and memory."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from global_miniatures.store import Run, Store
from matplotlib.figure import Figure
from miniatures.plots import COLOURS, INK, canvas
from miniatures.results import Mean

from aurank.losses import LOSSES
from evidence.methods import EXPERIMENTS, METHODS, training_run
from evidence.report import rows
from evidence.runs import Plan

SEEDS = 3


@dataclass(frozen=True)
class Axis:
    """A key of the configuration, and the values that it is tried at."""

    title: str
    key: str
    values: tuple[float, ...]
    beside: tuple[str, ...] = ()  # what else is changed


AXES = (
    Axis("images of a batch", "sampler.batch", (28, 56, 112, 224, 448)),
    Axis("images of a class in a batch of 112", "sampler.params.per_class", (2, 4, 8, 16)),
    Axis("width of the embedding", "model.dim", (16, 32, 64, 128, 256, 512)),
    Axis("temperature τ (SOPRC: τ₁)", "loss.params.temperature", (0.01, 0.03, 0.1, 0.3, 1.0)),
    Axis("SOPRC's greatest prior π", "loss.params.prior_max", (0.003, 0.01, 0.03, 0.1, 0.3, 0.9)),
    Axis("references in memory", "memory.size", (128, 512, 2048, 8192), beside=("memory.start_at=75",)),
)


def first(plan: Plan, store: Store, count: int = 3) -> list[str]:
    """The methods with the highest validation mAUPRC, and SOPRC."""
    best = sorted(rows(plan, store), key=lambda row: -row.standing)[:count]
    return list(dict.fromkeys([*(row.name for row in best), "soprc"]))


def key_of(axis: Axis, method: str) -> str | None:
    """What is changed for a method; None where its loss has no such thing."""
    name = METHODS[method].changes[0].removeprefix("loss.name=")
    key = axis.key.replace("temperature", "tau1") if name == "soprc" else axis.key
    section, _, parameter = key.rpartition(".")
    return key if section != "loss.params" or parameter in inspect.signature(LOSSES[name]).parameters else None


def curve(plan: Plan, store: Store, method: str, axis: Axis) -> Iterator[tuple[float, list[Run]]]:
    """The runs of a method at each value, at the learning rate that was chosen for the table."""
    key, rate = key_of(axis, method), plan.chosen_rate(store, method)
    if key is None or rate is None:
        return
    for value in axis.values:
        further, seeds = [f"{key}={value:g}", *axis.beside], range(min(SEEDS, plan.seeds))
        runs = [training_run(plan.experiment, method, rate, seed, *further) for seed in seeds]
        yield value, runs


def all_runs(plan: Plan, store: Store, methods: Sequence[str]) -> Iterator[Run]:
    """Every run of the curves."""
    for axis in AXES:
        for method in methods:
            for _, runs in curve(plan, store, method, axis):
                yield from runs


def picture(plan: Plan, store: Store, methods: Sequence[str]) -> Figure:
    """A panel for each axis, a line for each method: means of test mAUPRC over seeds with their 95 % intervals."""
    figure, panels = canvas(3, rows=2, height=6.0, share_y=True)
    for panel, axis in zip(panels, AXES, strict=True):
        for method, colour in zip(methods, COLOURS, strict=False):
            found = {}
            for value, runs in curve(plan, store, method, axis):
                lines = [line for run in runs if (line := store.find(run)) is not None and "error" not in line]
                if lines:
                    found[value] = Mean.of(line["mauprc"] for line in lines)
            means, errors = [one.value for one in found.values()], [one.half_width or 0.0 for one in found.values()]
            panel.errorbar(list(found), means, yerr=errors, marker="o", markersize=3.5, capsize=2, color=colour)
        panel.set_xscale("log")
        panel.set_xticks(axis.values, [f"{value:g}" for value in axis.values])
        panel.minorticks_off()
        panel.set_xlabel(axis.title, fontsize=9, color=INK)
    for panel in panels[::3]:
        panel.set_ylabel("test mAUPRC", fontsize=9, color=INK)
    for method, colour in zip(methods, COLOURS, strict=False):
        panels[0].plot([], [], "o-", color=colour, label=METHODS[method].title, markersize=3.5)
    panels[0].legend(frameon=False, fontsize=8)
    figure.suptitle(EXPERIMENTS[plan.experiment].title, x=0.01, ha="left", fontsize=10, color=INK)
    return figure
