"""The pictures of the miniatures, each a small PNG."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from miniatures.methods import TABLE_1, TABLE_2
from miniatures.results import Mean, Results
from miniatures.tables import read_json

INK, MUTED = "#1b1f24", "#8c959f"
COLOURS = ("#0550ae", "#bc4c00", "#1a7f37", "#8250df", "#9a6700", "#cf222e")


def draw_all(out: Path, *, seeds: Sequence[int], steps: int) -> Iterator[Path]:
    """The pictures drawn, of what there are results of."""
    bias, claims = read_json(out / "bias.json"), read_json(out / "claims.json")
    results = Results(out / "results.jsonl")
    if bias:
        yield save(estimators(bias), out / "bias.png")
        yield save(interpolation(bias), out / "interpolation.png")
    if claims:
        yield save(starts(claims), out / "starts.png")
        yield save(stability(claims), out / "stability.png")
    if any(results.chosen(name, seeds=seeds, steps=steps) for name in TABLE_1 | TABLE_2):
        yield save(trained(results, seeds=seeds, steps=steps), out / "trained.png")


def canvas(columns: int, *, rows: int = 1, height: float = 3.2, share_y: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure of its own, with plain axes side by side, row by row."""
    figure = Figure(figsize=(9.6, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=share_y).flat)
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.spines[["left", "bottom"]].set_color(MUTED)
        each.tick_params(colors=INK, labelsize=8)
        each.grid(color=MUTED, alpha=0.18, linewidth=0.6)
    return figure, axes


def save(figure: Figure, path: Path) -> Path:
    """The path, where the picture now is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def estimators(found: Mapping[str, Any]) -> Figure:
    """Estimates of 1 − AUPRC by sampling rate, with one standard deviation of a batch, and the truth."""
    figure, axes = canvas(3)
    for each, (name, part) in zip(axes, found["estimators"].items(), strict=True):
        rates = [float(rate) for rate in part["rates"]]
        for kind, colour in {"ap": COLOURS[1], "soprc": COLOURS[0]}.items():
            mean = [at[kind]["mean"] for at in part["rates"].values()]
            width = [at[kind]["deviation"] for at in part["rates"].values()]
            low, high = ([m + sign * w for m, w in zip(mean, width, strict=True)] for sign in (-1, 1))
            each.fill_between(rates, low, high, color=colour, alpha=0.15, linewidth=0)
            each.plot(rates, mean, color=colour, marker="o", markersize=4, label={"ap": "AP", "soprc": "SOPRC"}[kind])
        each.axhline(part["truth"]["auprc_loss"], color=INK, linestyle=(0, (4, 3)), linewidth=1, label="truth")
        each.axvline(found["settings"]["prior"], color=MUTED, linewidth=0.8, linestyle=":")
        each.set_xscale("log")
        each.set_xticks(rates, [f"{rate:g}" for rate in rates])
        each.minorticks_off()
        each.set_xlabel("π0, positives in a batch (dotted: in the data)", fontsize=8)
        each.set_title(name, loc="left", fontsize=10, color=INK)
    axes[0].set_ylabel("estimate of 1 − AUPRC", fontsize=9)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def interpolation(found: Mapping[str, Any]) -> Figure:
    """The error of interpolated scores by how many they come from."""
    figure, axes = canvas(3)
    for each, (name, kinds) in zip(axes, found["interpolation"].items(), strict=True):
        for (kind, by_count), colour in zip(kinds.items(), COLOURS, strict=False):
            counts = [int(count) for count in by_count]
            style = "--" if kind == "official" else "-"
            each.plot(counts, [at["bias"] for at in by_count.values()], style, color=colour, marker="o", markersize=3)
            each.plot(counts, [at["rms"] for at in by_count.values()], style, color=colour, alpha=0.3)
            each.plot([], [], style, color=colour, label=kind)
        each.set_xscale("log")
        each.set_yscale("log")
        each.set_xticks(counts, [str(count) for count in counts])
        each.minorticks_off()
        each.set_xlabel("scores that are interpolated", fontsize=8)
        each.set_title(name, loc="left", fontsize=10, color=INK)
    axes[0].set_ylabel("rms error: of the mean (dots), of a batch (pale)", fontsize=8)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def starts(found: Mapping[str, Any]) -> Figure:
    """How far v is from the scores by step, and the test mAUPRC, for both starts of v."""
    figure, (left, right) = canvas(2, height=3.8)
    runs = found["starts"]["runs"]
    ticks: list[str] = []
    for row, (start, by_beta) in enumerate(runs.items()):
        for (beta, each), colour in zip(by_beta.items(), COLOURS, strict=False):
            steps = [int(step) for step in each[0]["distance"]]
            mean = [fmean(run["distance"][str(step)] for run in each) for step in steps]
            left.plot(steps, mean, "-" if start == "copied" else "--", color=colour, label=f"{start}, β = {beta}")
            place = len(ticks)
            right.plot([run["mauprc"] for run in each], [place] * len(each), "o" if row == 0 else "s", color=colour)
            ticks.append(f"{start}, β = {beta}")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set(xlabel="step", ylabel="mean |v − scores|")
    left.legend(frameon=False, fontsize=7, loc="lower left")
    right.set_yticks(range(len(ticks)), ticks)
    right.invert_yaxis()
    right.set_xlabel("test mAUPRC, each seed")
    return figure


def stability(found: Mapping[str, Any]) -> Figure:
    """The change of the gradient for another positive and for another negative, by loss and size of the batch."""
    figure, axes = canvas(2, share_y=True)
    changes = found["stability"]["batches"]
    names = list(next(iter(changes.values())))
    for each, kind in zip(axes, ("positive", "negative"), strict=True):
        for row, (batch, by_loss) in enumerate(changes.items()):
            places = [place + 0.25 * (row - 1) for place in range(len(names))]
            values = [by_loss[name][kind] for name in names]
            each.barh(places, values, 0.22, color=COLOURS[0], alpha=0.35 + 0.3 * row, label=f"B = {batch}")
        each.set_xlabel(f"relative change of the gradient, one {kind} replaced", fontsize=9)
        each.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[1].margins(x=0.3)  # room for the legend
    axes[1].legend(frameon=False, fontsize=8, loc="center right")
    return figure


def trained(results: Results, *, seeds: Sequence[int], steps: int) -> Figure:
    """Test mAUPRC of Tables 1 and 2: each seed, their mean, and its interval where there are two or more."""
    figure, axes = canvas(2, height=4)
    for each, (title, methods) in zip(axes, {"Table 1": TABLE_1, "Table 2": TABLE_2}.items(), strict=True):
        found = {name: results.chosen(name, seeds=seeds, steps=steps) for name in methods}
        scores = {name: [line["mauprc"] for line in lines] for name, lines in found.items() if lines}
        order = sorted(scores, key=lambda name: fmean(scores[name])) if title == "Table 1" else list(reversed(scores))
        for place, name in enumerate(order):
            mean = Mean.of(scores[name])
            colour = COLOURS[1] if name == "soprc" else COLOURS[0]
            each.errorbar(mean.value, place, xerr=mean.half_width, fmt="D", color=colour, markersize=5, capsize=3)
            each.plot(scores[name], [place] * len(scores[name]), "|", color=INK, alpha=0.6)
        each.set_yticks(range(len(order)), [methods[name].title for name in order], fontsize=8)
        each.set_xlabel("test mAUPRC", fontsize=9)
        each.set_title(title, loc="left", fontsize=10, color=INK)
    return figure
