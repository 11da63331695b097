"""Which samples get which temperature: iSogCLR, Fig. 5, in miniature.

A long-tailed part of Grocery: the images of its training classes fall off exponentially, from the largest class down to
few, as far as the class sizes allow. iSogCLR trains on it without labels; the labels only sort the temperatures.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr  # type: ignore[import-untyped]  # scikit-learn brings it

import aurank
from aurank.data import Manifest
from aurank.embedding.manifest_from_config import read_manifest
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.losses import ISogCLRLoss
from aurank.training import read_config
from aurank.training.build import build_loss
from global_miniatures.store import Line, Run
from global_miniatures.subsets import write_table
from global_miniatures.training import PLAIN, budget

RATIO, STEPS = 100, 240
BASE = "grocery_unlabelled/isogclr"
STARTS, RHOS = (0.3, 0.7, 1.0), (0.1, 0.3, 0.5)
PLAIN_TITLE = ", plain"  # the end of a run's name
EXTREMES = 8  # images named at either end


def runs(seeds: int) -> Iterator[Run]:
    """The defaults, then another first temperature, then another ρ; then all with the paper's average of ḡ."""
    others = [(0.3, start) for start in STARTS if start != 0.7] + [(rho, 0.7) for rho in RHOS if rho != 0.3]
    for seed in range(seeds):
        for title, plain in (("", []), (PLAIN_TITLE, [f"loss.{PLAIN}"])):
            yield make(f"rho 0.3, start 0.7{title}", seed, *plain)
            for rho, start in others:
                change = f"loss.params.rho={rho:g}" if rho != 0.3 else f"loss.params.temperature={start:g}"
                yield make(f"rho {rho:g}, start {start:g}{title}", seed, change, *plain)


def make(name: str, seed: int, *overrides: str) -> Run:
    """A run of the base configuration on the long tail."""
    return Run("temperatures", name, {"config": BASE, "overrides": [*budget(STEPS), *overrides], "ratio": RATIO}, seed)


def long_tail(whole: Manifest) -> Manifest:
    """All test images and the training images that are left of each class; classes by size."""
    train = whole.split("train")
    counts, order = train.class_counts, np.argsort(-train.class_counts, kind="stable")
    kept: list[np.ndarray] = []
    for place, label in enumerate(order.tolist()):
        wanted = counts.max() * RATIO ** (-place / (len(order) - 1))
        rows = np.flatnonzero((whole.splits == "train") & (whole.labels == whole.classes.index(train.classes[label])))
        kept.append(rows[: max(1, round(min(wanted, counts[label])))])
    return whole.select(np.concatenate([*kept, np.flatnonzero(whole.splits == "test")]))


def carry_out(run: Run, work: Path) -> Line | None:
    """Temperatures by class size, and the images at either end; None when a signal ended the training."""
    folder = work / f"temperatures-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        source = read_config("grocery/soprc", ["data.validation_fraction=0"])
        file = write_table(long_tail(read_manifest(source.data, seed=0)), folder / "long_tail.csv")
        overrides = [*run.settings["overrides"], f"seed={run.seed}", f"data.params.file={file}"]
        result = aurank.train(run.settings["config"], folder / "run", overrides=overrides)
        if result.stopped_by is not None or result.report is None:
            return None
        found = by_size(run, folder / "run" / "last.safetensors", overrides)
        return {**found, "mauprc": result.report.mauprc, "recall@1": result.report.recall[1]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def by_size(run: Run, checkpoint: Path, overrides: list[str]) -> dict[str, Any]:
    """What the temperatures of the last checkpoint say."""
    config = read_config(run.settings["config"], overrides)
    train = read_manifest(config.data, seed=run.seed).split("train")
    loss = build_loss(config, train)
    assert isinstance(loss, ISogCLRLoss)
    loss.load_state_dict(load_checkpoint(checkpoint)["loss"])
    values = loss.temperatures.detach().numpy().reshape(-1)
    sizes = train.class_counts[train.labels]
    correlation = spearmanr(sizes, values)
    order = np.argsort(values)

    def named(rows: np.ndarray) -> list[dict[str, Any]]:
        return [
            {"class": train.classes[train.labels[row]], "size": int(sizes[row]), "temperature": float(values[row])}
            for row in rows.tolist()
        ]

    classes = [
        {"class": name, "size": int(size), "temperature": float(values[train.labels == label].mean())}
        for label, (name, size) in enumerate(zip(train.classes, train.class_counts, strict=True))
    ]
    low, high = np.quantile(sizes, (1 / 3, 2 / 3))
    return {
        "images": len(train),
        "classes": classes,
        "head": float(values[sizes >= high].mean()),
        "tail": float(values[sizes <= low].mean()),
        "deviation": float(torch.from_numpy(values).std()),
        "spearman": float(correlation.statistic),
        "p": float(correlation.pvalue),
        "coldest": named(order[:EXTREMES]),
        "hottest": named(order[::-1][:EXTREMES]),
    }
