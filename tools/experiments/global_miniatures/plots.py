"""The pictures, each a small PNG."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from miniatures.plots import COLOURS, INK, MUTED, canvas, save
from miniatures.results import Mean

from global_miniatures import convergence, training
from global_miniatures.normalizers import BATCH, ESTIMATORS, FEWER, PAIRS, VARIANTS
from global_miniatures.store import Line, Store
from global_miniatures.tables import TITLES, best_batch_loss, gained, mean_error, of_batch
from global_miniatures.temperatures import PLAIN_TITLE as PLAIN


def draw_all(store: Store, out: Path) -> Iterator[Path]:
    """The pictures drawn, of what there are results of."""
    pictures = {
        "convergence": courses,
        "representations": batches,
        "homogeneity": homogeneity,
        "temperatures": temperatures,
        "normalizers": normalizers,
        "choices": choices,
    }
    of = {"homogeneity": "representations", "choices": "normalizers"}
    for name, draw in pictures.items():
        if store.of(of.get(name, name)):
            yield save(draw(store), out / f"{name}.png")


def courses(store: Store) -> Figure:
    """The exact loss and squared gradient norm by images drawn, seed 0; SimCLR by batch; EMC² by burn-in."""
    figure, (left, middle, right) = canvas(3, height=3.8)
    lines = [line for line in store.of("convergence") if line["seed"] == 0]

    def draw(axes: object, line: Line, label: str, colour: str, style: str = "-") -> None:
        images = [check["images"] for check in line["course"]]
        norms = [check["squared_gradient_norm"] for check in line["course"]]
        axes.plot(images, norms, style, color=colour, label=label, linewidth=1.2)  # type: ignore[attr-defined]

    plain = [line for line in lines if line["settings"] == {"batch": 4}]
    colours = dict(zip(convergence.TITLES, (*COLOURS, MUTED, INK), strict=False))
    for line in plain:
        style = "--" if line["name"] in ("emc2_stored", "sogclr_v2") else "-"
        draw(left, line, convergence.TITLES[line["name"]], colours[line["name"]], style)
    sizes = [line for line in lines if line["name"] == "simclr"]
    for line, colour in zip(sorted(sizes, key=lambda each: each["settings"]["batch"]), COLOURS, strict=False):
        draw(middle, line, f"SimCLR, b = {line['settings']['batch']}", colour)
    burnt = [line for line in lines if line["name"] == "emc2" and line["settings"]["batch"] == 4]
    for line, colour in zip(
        sorted(burnt, key=lambda each: each["settings"].get("burn_in", 0.5)), COLOURS, strict=False
    ):
        draw(right, line, f"EMC², P = {round(6 * line['settings'].get('burn_in', 0.5))}", colour)
    for axes in (left, middle, right):
        axes.set_yscale("log")
        axes.set_xlabel("images drawn", fontsize=9)
        if axes.lines:
            axes.legend(frameon=False, fontsize=7)
    left.set_ylabel("squared norm of the exact gradient", fontsize=9)
    return figure


def batches(store: Store) -> Figure:
    """By method and batch: mAUPRC of each seed, and the difference to the better of SimCLR and DCL, paired by seed."""
    figure, (left, right) = canvas(2, height=3.8)
    names = training.UNLABELLED
    for place, batch in enumerate(training.BATCHES):
        found = {name: of_batch(store, name, batch) for name in names}
        best = best_batch_loss(found)
        for number, (name, colour) in enumerate(zip(names, (*COLOURS, MUTED, INK), strict=False)):
            x, lines = place + (number - len(names) / 2) * 0.09, found[name]
            scores, label = [line["mauprc"] for line in lines.values()], TITLES[name] if place == 0 else None
            left.plot([x] * len(lines), scores, "o", color=colour, markersize=3.5, label=label)
            difference = gained(lines, found[best]) if best else None
            if difference is not None:
                half = (difference.half_width or 0.0) if difference.count > 2 else 0.0  # of two seeds it says nothing
                right.errorbar(x, difference.value, half, fmt="o", color=colour, markersize=4, capsize=2)
    for axes in (left, right):
        axes.set_xticks(range(len(training.BATCHES)), [str(batch) for batch in training.BATCHES])
        axes.set_xlabel("batch", fontsize=9)
    right.axhline(0, color=INK, linewidth=0.8)
    left.set_ylabel("test mAUPRC, each seed", fontsize=9)
    right.set_ylabel("less the better of SimCLR and DCL, 95 %", fontsize=9)
    left.legend(frameon=False, fontsize=7, loc="upper right")
    return figure


def homogeneity(store: Store) -> Figure:
    """How much two views of an image differ in their similarity to the others (000, Fig. 2), at batch 64."""
    figure, (axes,) = canvas(1, height=3.2)
    for name, colour in zip(training.UNLABELLED, (*COLOURS, MUTED, INK), strict=False):
        for line in store.of("representations", name):
            if line["settings"]["batch"] == 64 and line["seed"] == 0:
                counts, edges = (np.asarray(line["homogeneity"][part]) for part in ("counts", "edges"))
                density = counts / counts.sum() / np.diff(edges)
                axes.stairs(density, edges, color=colour, label=TITLES[name])
    axes.set(xlabel="E |A(x)ᵀz − A'(x)ᵀz|² over other images z", ylabel="density of images", xlim=(0, 0.15))
    axes.legend(frameon=False, fontsize=8)
    return figure


def temperatures(store: Store) -> Figure:
    """The mean temperature of each class by its size, a panel for each setting, with either average of ḡ; seed 0."""
    lines = {line["name"]: line for line in store.of("temperatures") if line["seed"] == 0}
    titles = list(dict.fromkeys(name.removesuffix(PLAIN) for name in lines))
    figure, axes = canvas(len(titles), height=3.2, share_y=True)
    for each, title in zip(axes, titles, strict=True):
        for name, colour in {f"{title}{PLAIN}": MUTED, title: COLOURS[0]}.items():
            if line := lines.get(name):
                label = "plain" if name != title else "default"
                sizes = [entry["size"] for entry in line["classes"]]
                values = [entry["temperature"] for entry in line["classes"]]
                each.plot(sizes, values, "o", color=colour, markersize=3.5, label=label)
        each.set_xscale("log")
        each.set_title(title.replace("rho", "ρ").replace("start", "τ₁"), loc="left", fontsize=9, color=INK)
        each.set_xlabel("images of the class", fontsize=8)
    axes[0].set_ylabel("mean τ of the class")
    axes[0].legend(frameon=False, fontsize=7)
    return figure


def normalizers(store: Store) -> Figure:
    """The error of the estimates along the training, by batch and size of the data."""
    figure, axes = canvas(3, height=3.4, share_y=True)
    panels = [(128, 2560), (64, 2560), (128, 256)]
    for each, (batch, pairs) in zip(axes, panels, strict=True):
        for name, colour in zip((*ESTIMATORS, FEWER), COLOURS, strict=False):
            for line in store.of("normalizers", name):
                if line["settings"] == {"batch": batch, "pairs": pairs} and line["seed"] == 0:
                    samples = [check["samples"] for check in line["course"]]
                    errors = [check["error"] for check in line["course"]]
                    each.plot(samples, errors, "o-", color=colour, label=name, markersize=3)
        each.set_title(f"B = {batch}, n = {pairs:,}", loc="left", fontsize=9, color=INK)
        each.set_xlabel("pairs seen", fontsize=8)
        if each.lines:
            each.legend(frameon=False, fontsize=7)
    axes[0].set_yscale("log")
    axes[0].set_ylabel("mean squared error of the log-normaliser", fontsize=8)
    return figure


def choices(store: Store) -> Figure:
    """NeuCLIP's choices beside the estimators they improve on: the error, mean over the checkpoints."""
    figure, (axes,) = canvas(1, height=3.8)
    names = [*ESTIMATORS, *(name for name in VARIANTS if name != FEWER)][::-1]
    held: dict[str, float] = {}
    for name in names:
        lines = [line for line in store.of("normalizers", name) if line["settings"] == {"batch": BATCH, "pairs": PAIRS}]
        if lines:
            held[name] = Mean.of(mean_error(line) for line in lines).value
    colours = [COLOURS[1] if name in ESTIMATORS else COLOURS[0] for name in held]
    bars = axes.barh(list(held), list(held.values()), color=colours, height=0.7)
    axes.bar_label(bars, fmt="%.3f", fontsize=8, padding=3)
    axes.margins(x=0.1)
    axes.set_xlabel(f"mean squared error of the log-normaliser, B = {BATCH}, n = {PAIRS:,}", fontsize=9)
    return figure
