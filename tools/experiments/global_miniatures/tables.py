"""The Markdown tables, written between markers into the page."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from miniatures.results import Mean
from miniatures.tables import TO_RUN, markdown, replaced

from aurank.files import write_text
from global_miniatures import convergence, normalizers, start, steady, temperatures, training
from global_miniatures.store import Line, Store

TITLES = {
    "simclr": "SimCLR (InfoNCE)",
    "dcl": "decoupled (DCL)",
    "sogclr": "SogCLR",
    "sogclr plain": "SogCLR, plain",
    "isogclr": "iSogCLR",
    "isogclr plain": "iSogCLR, plain",
    "exact": "SogCLR with the exact normaliser",
    "emc2": "EMC²",
    "neuclip": "NeuCLIP",
    "soprc": "SOPRC",
    "smooth_ap": "SmoothAP",
}
BATCH_LOSSES = ("simclr", "dcl")  # what a loss with a memory is measured against, the better of them
GOAL = ("sogclr", "isogclr", "emc2", "neuclip")
BySeed = Mapping[int, Line]
SCORES = {"mAUPRC": "mauprc", "1-NN (Recall@1)": "recall@1", "probe top-1": "probe_top1"}


def write_tables(store: Store, page: Path) -> None:
    """Nothing; the marked blocks of the page hold what the runs say."""
    blocks = {
        "convergence": convergence_table(store),
        "representations": representations_table(store),
        "ablations": ablations_table(store),
        "temperatures": temperatures_table(store),
        "extremes": extremes_table(store),
        "normalizers": normalizers_table(store),
        "supervised": supervised_table(store),
        "start": start_table(store),
        "steady": steady_table(store),
        "goal": goal_table(store),
        "hardware": hardware_list(store),
    }
    text = page.read_text(encoding="utf-8")
    for name, block in blocks.items():
        text = replaced(text, f"miniatures: {name}", block, page)
    write_text(page, text)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The table, or that there is nothing yet."""
    held = list(rows)
    return markdown(header, held) if held else TO_RUN


def mean(lines: Sequence[Line], value: str, digits: int = 4) -> str:
    """The mean over seeds."""
    return Mean.of(line[value] for line in lines).text(digits)


def convergence_table(store: Store) -> str:
    """The exact loss and squared gradient norm at the end."""
    rows = []
    for name, title in convergence.TITLES.items():
        groups: dict[tuple[int, float | None], list[Line]] = {}
        for line in store.of("convergence", name):
            burn_in = line["settings"].get("burn_in", 0.5 if name == "emc2" else None)
            groups.setdefault((line["settings"]["batch"], burn_in), []).append(line)
        for (batch, burn_in), lines in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] or 0.0)):
            last = [line["course"][-1] for line in lines]
            norms = Mean.of(end["squared_gradient_norm"] for end in last)
            about = title if burn_in is None else f"{title}, P = {round(burn_in * (2 * batch - 2))}"
            rows.append((about, f"{batch}", mean(last, "loss"), f"{norms.value:.1e}", f"{len(lines)}"))
    return table(("estimator", "b", "exact loss", "squared gradient norm", "seeds"), rows)


def of_batch(store: Store, name: str, batch: int) -> BySeed:
    """By seed, the trainings without labels of a method at a batch."""
    lines = store.of("representations", name)
    return {line["seed"]: line for line in lines if line["settings"]["batch"] == batch}


def best_batch_loss(found: Mapping[str, BySeed]) -> str | None:
    """Which of SimCLR and DCL has the higher mean of mAUPRC; None without either."""
    there = [name for name in BATCH_LOSSES if found[name]]
    return max(there, key=lambda name: Mean.of(line["mauprc"] for line in found[name].values()).value, default=None)


def gained(lines: BySeed, best: BySeed) -> Mean | None:
    """The difference in mAUPRC, seed by seed; None without a seed in common."""
    both = sorted(lines.keys() & best.keys())
    return Mean.of(lines[seed]["mauprc"] - best[seed]["mauprc"] for seed in both) if both else None


def gained_text(found: Mapping[str, BySeed], name: str) -> str:
    """The difference of a method to the better of SimCLR and DCL, as it stands in a table."""
    best = best_batch_loss(found)
    difference = None if best in (None, name) else gained(found[name], found[best])
    return "" if difference is None else difference.text(4)


def representations_table(store: Store) -> str:
    """Test metrics of each method by batch, and the difference to the better of SimCLR and DCL."""
    rows = []
    for batch in training.BATCHES:
        found = {name: of_batch(store, name, batch) for name in training.UNLABELLED}
        for name, lines in found.items():
            if lines:
                cells = (mean(list(lines.values()), key) for key in SCORES.values())
                rows.append((f"{batch}", TITLES[name], *cells, gained_text(found, name), f"{len(lines)}"))
    return table(("batch", "", *SCORES, "less the better of SimCLR and DCL", "seeds"), rows)


def ablations_table(store: Store) -> str:
    """γ, and u before the batch."""
    rows = []
    for name in (*(f"gamma {gamma:g}" for gamma in training.GAMMAS), "u old"):
        if lines := store.of("representations", name):
            title = name.replace("gamma", "γ =").replace("u old", "γ = 0.9, u before the batch")
            rows.append((title, *(mean(lines, key) for key in SCORES.values()), f"{len(lines)}"))
    return table(("SogCLR, batch 64", *SCORES, "seeds"), rows)


def temperature_lines(store: Store) -> list[Line]:
    """The runs, those with the default average first."""
    return sorted(store.of("temperatures"), key=lambda line: line["name"].endswith(temperatures.PLAIN_TITLE))


def temperatures_table(store: Store) -> str:
    """Temperatures of the head and the tail."""
    rows = [
        (
            line["name"].replace("rho", "ρ =").replace("start", "τ₁ ="),
            f"{line['head']:.3f}",
            f"{line['tail']:.3f}",
            f"{line['deviation']:.3f}",
            f"{line['spearman']:+.2f} (p = {line['p']:.1g})",
            f"{line['mauprc']:.4f}",
            f"{line['recall@1']:.4f}",
        )
        for line in temperature_lines(store)
    ]
    header = ("", "mean τ, head", "mean τ, tail", "deviation of τ", "rank correlation with class size")
    return table((*header, "mAUPRC", "Recall@1"), rows)


def extremes_table(store: Store) -> str:
    """Whose temperatures are the least and the greatest, in the first of these runs."""
    lines = temperature_lines(store)[:1]

    def cell(entry: dict[str, Any]) -> str:
        return f"{entry['class']} ({entry['size']}): {entry['temperature']:.3f}"

    rows = [
        (cell(cold), cell(hot)) for line in lines for cold, hot in zip(line["coldest"], line["hottest"], strict=True)
    ]
    return table(("least τ", "greatest τ"), rows)


def normalizers_table(store: Store) -> str:
    """The mean squared error of the log-normaliser along the training."""
    rows = []
    for name in (*normalizers.ESTIMATORS, *normalizers.VARIANTS):
        groups: dict[tuple[int, int], list[Line]] = {}
        for line in store.of("normalizers", name):
            groups.setdefault((line["settings"]["batch"], line["settings"]["pairs"]), []).append(line)
        for (batch, pairs), lines in groups.items():
            checks = zip(*(line["course"] for line in lines), strict=True)
            errors = [f"{Mean.of(check['error'] for check in point).value:.3f}" for point in checks]
            whole = Mean.of(mean_error(line) for line in lines).text(3)
            rows.append((name, f"{batch}", f"{pairs:,}", *errors, whole, f"{len(lines)}"))
    points = (f"{part}/{normalizers.CHECKS}" for part in range(1, normalizers.CHECKS + 1))
    return table(("estimate", "B", "n", *points, "mean", "seeds"), rows)


def mean_error(line: Line) -> float:
    """The error of the normaliser, mean over the checkpoints of a run."""
    return Mean.of(check["error"] for check in line["course"]).value


def supervised_table(store: Store) -> str:
    """Test metrics at the learning rate that validation chose."""
    rows = []
    for name in training.SUPERVISED:
        by_rate: dict[float, list[Line]] = {}
        for line in store.of("supervised", name):
            by_rate.setdefault(line["settings"]["lr"], []).append(line)
        if by_rate:
            rate = max(by_rate, key=lambda each: by_rate[each][0]["val_mauprc"])
            lines = by_rate[rate]
            cells = (mean(lines, key) for key in ("mauprc", "recall@1", "recall@10"))
            rows.append((TITLES[name], *cells, f"{rate:g}", f"{len(lines)}"))
    return table(("", "mAUPRC", "Recall@1", "Recall@10", "learning rate", "seeds"), rows)


def at_chosen_rate(store: Store, name: str, batch: int) -> dict[int, Line]:
    """By seed, the runs at the rate that validation chose."""
    rate = start.chosen_rate(store, name, batch)
    wanted = {"batch": batch, "lr": rate}
    return {line["seed"]: line for line in store.of("start", name) if line["settings"] == wanted}


def start_table(store: Store) -> str:
    """Test metrics at the chosen rate, and the difference to the better of SimCLR and DCL, paired by seed."""
    rows = []
    for batch in start.BATCHES:
        found = {name: at_chosen_rate(store, name, batch) for name in start.METHODS}
        for name, lines in found.items():
            if lines:
                cells = (mean(list(lines.values()), key) for key in ("mauprc", "recall@1"))
                rate = f"{next(iter(lines.values()))['settings']['lr']:g}"
                rows.append((f"{batch}", TITLES[name], *cells, gained_text(found, name), rate, f"{len(lines)}"))
    header = ("batch", "", "mAUPRC", "Recall@1", "less the better of SimCLR and DCL", "learning rate", "seeds")
    return table(header, rows)


def goal_table(store: Store) -> str:
    """The differences of both experiments side by side."""
    rows = []
    for batch in training.BATCHES:
        small = {name: at_chosen_rate(store, name, batch) for name in (*BATCH_LOSSES, *GOAL)}
        large = {name: of_batch(store, name, batch) for name in (*BATCH_LOSSES, *GOAL)}
        for name in GOAL:
            if small[name] or large[name]:
                rows.append((f"{batch}", TITLES[name], gained_text(small, name), gained_text(large, name)))
    return table(("batch", "", "small network", "ResNet-18"), rows)


def steady_table(store: Store) -> str:
    """Bias and noise of the gradient; the cosine with the exact one after an epoch of batches, and after all."""
    rows = []
    for batch in steady.BATCHES:
        for name in steady.NAMES:
            lines = [line for line in store.of("steady", name) if line["settings"]["batch"] == batch]
            if lines:
                cells = (Mean.of(line[key] for line in lines).text(digits) for key, digits in steady.SHOWN.items())
                rows.append((f"{batch}", TITLES[name], *cells, f"{len(lines)}"))
    return table(("batch", "", "noise", "cosine, one batch", "400 batches", "without noise", "seeds"), rows)


def hardware_list(store: Store) -> str:
    """Where the runs were made, and how loaded the machine was."""
    by_place: dict[str, list[Line]] = {}
    for line in store.lines:
        place = f"{line['device']} ({line['cores']} cores, {line['threads']} threads, torch {line['torch']})"
        by_place.setdefault(place, []).append(line)
    return (
        "\n".join(
            f"- {len(lines)} runs on {place}, {min(line['seconds'] for line in lines):.0f} to "
            f"{max(line['seconds'] for line in lines):.0f} s each, load average before a run "
            f"{min(line['load'] for line in lines):.1f} to {max(line['load'] for line in lines):.1f}, commit "
            f"{', '.join(sorted({line['commit'] for line in lines}))}"
            for place, lines in by_place.items()
        )
        or TO_RUN
    )
