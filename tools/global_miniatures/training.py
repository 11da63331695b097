"""Experiments that are trainings of a configuration: what each compares, and one run of it."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aurank
from aurank.errors import AurankError, UserError
from aurank.evaluation import linear_probe
from aurank.evaluation.embed import Embedded, embed
from aurank.training import build_manifest, read_config
from aurank.training.build import build_dataset
from global_miniatures.store import Line, Run

UNLABELLED = ("simclr", "dcl", "sogclr", "isogclr", "emc2", "neuclip")
SUPERVISED = ("sogclr", "emc2", "neuclip", "soprc", "smooth_ap")
BATCHES = (32, 64, 256)
IMAGES = 12_800  # drawings seen in a training without labels, equal for all batch sizes
GAMMAS = (1.0, 0.99, 0.9, 0.8, 0.6)
PROBED = 100  # classes of the test split that the linear probe tells apart
STEPS = 200  # of a training with labels, as in the miniatures of SOPRC


def budget(steps: int) -> list[str]:
    """Overrides for so many steps, measured at the end."""
    return [*(f"train.{key}={steps}" for key in ("steps", "validate_every", "checkpoint_every"))]


def unlabelled(name: str, batch: int, *overrides: str, title: str | None = None, seed: int = 0) -> Run:
    """A training on Omniglot without labels."""
    steps = IMAGES // batch
    changes = [f"sampler.batch={batch}", *budget(steps), f"optim.warmup_steps={steps // 10}", *overrides]
    settings = {"config": f"omniglot_unlabelled/{name}", "overrides": changes, "batch": batch}
    return Run("representations", title or name, settings, seed)


def representations(seeds: int) -> Iterator[Run]:
    """SogCLR, Table 2, and its ablations: all methods at batch 64, then the other batches, γ, and the old u."""
    for seed in range(seeds):
        for batch in (64, 32, 256):
            for name in UNLABELLED:
                yield unlabelled(name, batch, seed=seed)
        for gamma in GAMMAS:
            yield unlabelled("sogclr", 64, f"loss.params.gamma={gamma}", title=f"gamma {gamma:g}", seed=seed)
        yield unlabelled("sogclr", 64, "loss.params.previous_normalizer=true", title="u old", seed=seed)


def supervised(seeds: int) -> Iterator[Run]:
    """With class labels on Omniglot, the budget of the SOPRC miniatures; the rate chosen on validation at seed 0."""
    for seed in range(seeds):
        for name in SUPERVISED:
            for rate in (1e-3, 3e-4):
                changes = [*budget(STEPS), f"optim.warmup_steps={STEPS // 20}", f"optim.lr={rate:g}"]
                settings = {"config": f"omniglot/{name}", "overrides": changes, "lr": rate}
                yield Run("supervised", name, settings, seed)


def carry_out(run: Run, work: Path) -> Line | None:
    """What one training came to, in a folder of its own that is removed afterwards; None when a signal ended it."""
    folder = work / "-".join([run.experiment, run.name.replace(" ", "_"), str(os.getpid())])
    shutil.rmtree(folder, ignore_errors=True)
    overrides = [*run.settings["overrides"], f"seed={run.seed}"]
    try:
        result = aurank.train(run.settings["config"], folder, overrides=overrides)
        if result.stopped_by is not None or result.report is None:
            return None
        found: Line = {name: result.report.metrics[name] for name in ("mauprc", "recall@1", "recall@10")}
        found["val_mauprc"] = result.best["mauprc"]
        if run.experiment == "representations":
            found |= looked_at(run, folder)
        return found
    except UserError:
        raise
    except AurankError as error:  # diverged: a result too, and not to be tried again
        return {"error": str(error).splitlines()[0]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            work.rmdir()


def looked_at(run: Run, folder: Path) -> dict[str, Any]:
    """The linear probe of some test classes, and how homogeneous the features are (SogCLR, Fig. 2)."""
    config = read_config(run.settings["config"], run.settings["overrides"])
    model, _ = aurank.load(folder / "best")
    manifest = build_manifest(config.data, seed=run.seed)
    test = manifest.split("test")
    some = test.select(test.labels < PROBED)
    embedded = embed(model, build_dataset(config.data, some, train=False))
    probe = linear_probe(embedded.embeddings, embedded.labels, ids=embedded.ids)
    train = manifest.split("train")
    rows = np.random.default_rng(0).choice(len(train), size=min(2000, len(train)), replace=False)
    features = embed(model, build_dataset(config.data, train.select(np.sort(rows)), train=False))
    return {"probe_top1": probe.metrics["top1"], "probe_top5": probe.metrics["top5"], "homogeneity": spread(features)}


def spread(features: Embedded, *, temperature: float = 0.1) -> list[float]:
    """Percentiles 0, 5 … 100 over images of log E exp(s/τ) against the others, less the mean over all images."""
    rows = torch.nn.functional.normalize(torch.from_numpy(features.embeddings).double())
    similarity = (rows @ rows.T / temperature).fill_diagonal_(-torch.inf)
    values = torch.logsumexp(similarity, dim=1)
    percentiles = np.percentile((values - values.mean()).numpy(), np.arange(0, 101, 5))
    return [round(float(value), 4) for value in percentiles]
