"""Which runs there are, in their order, and one of them carried out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from global_miniatures import training
from global_miniatures.store import Line, Run, Store

import aurank
from aurank.embedding.embed import Embedded
from aurank.errors import UserError
from aurank.evaluation import PostProcessing
from evidence.methods import EXPERIMENTS, grid, training_run

FROZEN = {"frozen": "", "frozen_centred": "center", "frozen_whitened": "whiten:dim=128"}
"""The features themselves, and behind steps that are fitted on the training classes."""


@dataclass(frozen=True)
class Plan:
    """How much of an experiment is run: methods, their rates, so many seeds, and how many of these choose the rate."""

    experiment: str
    methods: Sequence[str]
    rates: Sequence[float]
    seeds: int
    choosing: int

    def runs(self, store: Store) -> Iterator[Run]:
        """The features alone; then seed by seed what chooses the rates; then the other seeds at these.

        Where what chooses has classes held out for that alone, all seeds come at these.
        """
        for name, steps in FROZEN.items() if EXPERIMENTS[self.experiment].features else ():
            yield Run(self.experiment, name, {"config": EXPERIMENTS[self.experiment].config, "steps": steps})
        for seed in range(self.choosing):
            for name in self.methods:
                for run in grid(self.experiment, name, rates=self.rates, choosing=self.choosing):
                    if run.seed == seed:
                        yield run
        for seed in range(0 if EXPERIMENTS[self.experiment].held_out else self.choosing, self.seeds):
            for name in self.methods:
                if (rate := self.chosen_rate(store, name)) is not None:
                    yield training_run(self.experiment, name, rate, seed)

    def chosen_rate(self, store: Store, name: str) -> float | None:
        """The rate with the highest mean validation mAUPRC; None before the grid is complete, or where all diverged."""
        if not self.choosing:
            return self.rates[0]
        best, score = max(self.validated(store, name).items(), key=lambda one: one[1], default=(None, -np.inf))
        return best if np.isfinite(score) else None

    def validated(self, store: Store, name: str) -> dict[float, float]:
        """The mean validation mAUPRC at each rate, -inf where a run diverged; empty before the grid is complete."""
        scores: dict[float, list[float]] = {rate: [] for rate in self.rates}
        for run in grid(self.experiment, name, rates=self.rates, choosing=self.choosing):
            if (line := store.find(run)) is None:
                return {}
            scores[run.settings["lr"]].append(line.get("val_mauprc", -np.inf))
        return {rate: fmean(values) for rate, values in scores.items() if values}

    def chosen(self, store: Store, name: str) -> dict[int, Line]:
        """The finished runs of a method at its rate, by seed."""
        rate = self.chosen_rate(store, name)
        if rate is None:
            return {}
        found = {seed: store.find(training_run(self.experiment, name, rate, seed)) for seed in range(self.seeds)}
        return {seed: line for seed, line in found.items() if line is not None and "error" not in line}


def carry_out(run: Run, work: Path, *, features: Path, weights: Path | None = None) -> Line | None:
    """What one run came to; where embeddings (a folder) and weights lie is no part of what a run is."""
    about = EXPERIMENTS[run.experiment]
    if run.name in FROZEN and about.features is not None:
        return frozen(features / about.features, run.settings["steps"])
    if about.weights and weights is None:
        raise UserError(f"{run.experiment} trains a published network: give its --weights")
    places = [f"model.weights={weights}"] if about.weights else [f"data.root={features}"] if about.features else []
    overrides = [*run.settings["overrides"], *places]
    return training.carry_out(replace(run, settings={**run.settings, "overrides": overrides}), work)


def frozen(file: Path, steps: str) -> Line:
    """The metrics of the test rows of a file, behind steps fitted on its training rows."""
    held = Embedded.load(file)
    if held.splits is None:
        raise UserError(f"{file} holds no array 'splits'; write it with aurank embed --split all")
    train, test = (held.splits == split for split in ("train", "test"))
    given = {"postprocess": PostProcessing.parse(steps).fit(held.embeddings[train])} if steps else {}
    report = aurank.evaluate(held.embeddings[test], held.labels[test], recall_at=(1, 10), **given)
    return {name: report.metrics[name] for name in ("mauprc", "recall@1", "recall@10")}
