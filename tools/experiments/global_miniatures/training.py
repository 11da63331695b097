"""Experiments that are trainings of a configuration: what each compares, and one run of it."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import aurank
from aurank.config import Config, shipped_configs
from aurank.data import ImageDataset, Manifest
from aurank.embedding.embed import embed
from aurank.embedding.from_config import build_dataset, fill_preprocessing
from aurank.embedding.manifest_from_config import read_manifest
from aurank.errors import AurankError, UserError
from aurank.evaluation import linear_probe
from aurank.training import read_config
from global_miniatures.store import Line, Run
from global_miniatures.subsets import write_table

UNLABELLED = ("simclr", "dcl", "sogclr", "sogclr plain", "isogclr", "isogclr plain", "emc2", "neuclip")
SUPERVISED = ("sogclr", "sogclr plain", "emc2", "neuclip", "soprc", "smooth_ap")
BATCHES = (32, 64, 256)
DRAWINGS, EPOCHS = 1_280, 8  # of a training without labels: a memory of each drawing needs that it comes again
GAMMAS = (1.0, 0.99, 0.9, 0.8, 0.6)
_NEUCLIP = ("num_prototypes=1024", "restart_every=50", "inner_lr=0.01", "two_way=false", "learn_temperature=false")
PLAIN = "params.average=plain"  # the paper's average of ḡ
# What makes a method of a shipped configuration of its data set, unless it has one of its own.
_LOSSES = {
    "simclr": ("name=info_nce", "params.temperature=0.1"),
    "dcl": ("name=dcl", "params.temperature=0.1"),
    "sogclr": ("name=sogclr", "params.temperature=0.1", "params.gamma=0.9"),
    "sogclr plain": ("name=sogclr", "params.temperature=0.1", "params.gamma=0.9", PLAIN),
    "isogclr": ("name=isogclr", "params.temperature=0.1", "params.rho=2.0", "params.gamma=0.9"),
    "isogclr plain": ("name=isogclr", "params.temperature=0.1", "params.rho=2.0", "params.gamma=0.9", PLAIN),
    "emc2": ("name=emc2", "params.temperature=0.1"),
    "neuclip": ("name=neuclip", "params.temperature=0.1", *(f"params.{one}" for one in _NEUCLIP)),
}
PROBED = 100  # classes of the test split that the linear probe tells apart
STEPS = 200  # of a training with labels, as in the miniatures of SOPRC


def budget(steps: int) -> list[str]:
    """Overrides for so many steps, measured at the end."""
    return [*(f"train.{key}={steps}" for key in ("steps", "validate_every", "checkpoint_every"))]


def shipped(folder: str, name: str) -> tuple[str, list[str]]:
    """The shipped configuration that a method starts from, and what it changes in it."""
    if f"{folder}/{name}" in shipped_configs():
        return f"{folder}/{name}", []
    base = "omniglot/soprc" if folder == "omniglot" else f"{folder}/sogclr"
    return base, [f"loss.{change}" for change in _LOSSES[name]]


def unlabelled(name: str, batch: int, *overrides: str, title: str | None = None, seed: int = 0) -> Run:
    """A training on a part of Omniglot without labels: as many drawings seen, and so fewer steps of larger batches."""
    steps = DRAWINGS * EPOCHS // batch
    config, changes = shipped("omniglot_unlabelled", name)
    changes += [f"sampler.batch={batch}", *budget(steps), f"optim.warmup_steps={steps // 10}", *overrides]
    if name == "neuclip":
        changes.append(f"loss.params.restart_every={steps // EPOCHS}")
    settings = {"config": config, "overrides": changes, "batch": batch, "drawings": DRAWINGS}
    return Run("representations", title or name, settings, seed)


def representations(seeds: int) -> Iterator[Run]:
    """SogCLR, Table 2, and its ablations: all methods at batch 64, then the other batches, γ, and the old u."""
    for seed in range(seeds):
        for batch in (64, 32, 256):
            for name in UNLABELLED:
                yield unlabelled(name, batch, seed=seed)
        for gamma in GAMMAS:
            plain = [f"loss.{PLAIN}", f"loss.params.gamma={gamma}"]
            yield unlabelled("sogclr", 64, *plain, title=f"gamma {gamma:g}", seed=seed)
        plain = [f"loss.{PLAIN}", "loss.params.previous_normalizer=true"]
        yield unlabelled("sogclr", 64, *plain, title="u old", seed=seed)


def supervised(seeds: int) -> Iterator[Run]:
    """With class labels on Omniglot, the budget of the SOPRC miniatures; the rate chosen on validation at seed 0."""
    for seed in range(seeds):
        for name in SUPERVISED:
            for rate in (1e-3, 3e-4):
                config, changes = shipped("omniglot", name)
                changes += [*budget(STEPS), f"optim.warmup_steps={STEPS // 20}", f"optim.lr={rate:g}"]
                settings = {"config": config, "overrides": changes, "lr": rate}
                yield Run("supervised", name, settings, seed)


def part_of(whole: Manifest, drawings: int) -> Manifest:
    """So many of the training images, evenly from all classes, and the others."""
    train = np.flatnonzero(whole.splits == "train")
    kept = train[np.linspace(0, len(train) - 1, drawings).round().astype(np.int64)]
    return whole.select(np.concatenate([kept, np.flatnonzero(whole.splits != "train")]))


def carry_out(run: Run, work: Path) -> Line | None:
    """What one training came to, in a folder of its own that is removed afterwards; None when a signal ended it."""
    folder = work / "-".join([run.experiment, run.name.replace(" ", "_"), str(os.getpid())])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    overrides = [*run.settings["overrides"], f"seed={run.seed}"]
    try:
        if "drawings" in run.settings:
            whole = read_config(run.settings["config"], overrides).data
            file = write_table(part_of(read_manifest(whole, seed=0), run.settings["drawings"]), folder / "part.csv")
            place = {"file": file, "path": "omniglot_full.zip", "images": "omniglot"}
            overrides += ["data.name=table", *(f"data.params.{key}={value}" for key, value in place.items())]
        result = aurank.train(run.settings["config"], folder / "run", overrides=overrides)
        if result.stopped_by is not None or result.report is None:
            return None
        found: Line = {name: result.report.metrics[name] for name in ("mauprc", "recall@1", "recall@10")}
        found |= {"val_mauprc": result.best["mauprc"]} if result.best else {}
        if run.experiment == "representations":
            found |= looked_at(folder / "run" / "best", read_config(run.settings["config"], overrides))
        return found
    except UserError:
        raise
    except AurankError as error:  # diverged: a result too, and not to be tried again
        return {"error": str(error).splitlines()[0]}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            work.rmdir()


def looked_at(checkpoint: Path, config: Config) -> dict[str, Any]:
    """The linear probe of some test classes, and how much two views of a training image differ (SogCLR, Fig. 2)."""
    model, _ = aurank.load(checkpoint)
    config = fill_preprocessing(config)
    manifest = read_manifest(config.data, seed=config.seed)
    test = manifest.split("test")
    embedded = embed(model, build_dataset(config.data, test.select(test.labels < PROBED), train=False))
    probe = linear_probe(embedded.embeddings, embedded.labels, ids=embedded.ids)
    views = build_dataset(config.data, manifest.split("train"), train=True, seed=config.seed)
    counts, edges = np.histogram(differences(*(embed_view(model, views, view) for view in (0, 1))), bins=30)
    histogram = {"counts": counts.tolist(), "edges": [float(f"{edge:.4g}") for edge in edges]}
    return {"probe_top1": probe.metrics["top1"], "probe_top5": probe.metrics["top5"], "homogeneity": histogram}


@torch.inference_mode()
def embed_view(model: nn.Module, data: ImageDataset, view: int) -> Tensor:
    """Embeddings of unit length [image, dim] of one augmentation of each image."""
    found = []
    for rows in torch.split(torch.arange(len(data)), 256):
        images = data.__getitems__([(row, 0, view) for row in rows.tolist()]).image
        assert isinstance(images, Tensor)
        found.append(normalize(model(data.to_input(images))))
    return torch.cat(found)


def differences(first: Tensor, second: Tensor) -> np.ndarray:
    """For each image E |A(x)ᵀz − A'(x)ᵀz|² over the other images z, by one view each: the X axis of SogCLR's Fig. 2."""
    squares = ((first - second) @ first.T).square().fill_diagonal_(0)
    return (squares.sum(dim=1) / (len(first) - 1)).numpy()
