"""What to change, by what a profile measured: only keys that exist, and what was tried is said to have been."""

import contextlib
import math
import os
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from aurank.data import ImageDataset
from aurank.data.decode import decode
from aurank.errors import UserError
from aurank.training.profiling.report import GIB, TrainingProfile
from aurank.training.trainer import Trainer

NOTABLE = 0.1  # share of a step from which a part is spoken of
MOST_LINES = 3
_SAMPLED = 8  # images whose size tells that of all


def processors() -> int:
    """Return how many processors each of the processes on this machine may use."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, mine // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def workers_to_try(found: TrainingProfile) -> int | None:
    """Return the data.workers that should read as fast as the step goes alone; None where more are of no use."""
    if found.share("data") < NOTABLE:
        return None
    each = found.data_alone * max(1, found.workers)  # of one worker
    wanted = min(processors(), max(1, math.ceil(each / found.step_alone)))
    return wanted if wanted > found.workers else None


def advise(found: TrainingProfile, trainer: Trainer) -> list[str]:
    """Return one to three lines: what takes most of a step, and what would change it."""
    lines = list(_slowest(found))
    shares = {name: found.share(name) for name in ("data", "copy", "loss", "optimiser", "collectives", "rest")}
    shares["model"] = found.share("forward") + found.share("backward")
    by_share = sorted(shares, key=lambda name: shares[name], reverse=True)
    for name in by_share:
        if shares[name] >= NOTABLE or name == by_share[0]:
            lines += _LINES[name](found, trainer, f"{100 * shares[name]:.0f} % of a step is")
    return lines[:MOST_LINES]


def _slowest(found: TrainingProfile) -> Iterator[str]:
    usual = float(np.median(found.own_seconds))
    if found.own_seconds[found.rank] > 1.1 * usual:
        own = 1000 * found.own_seconds[found.rank]
        yield (
            f"processes: rank {found.rank} is the slowest, with {own:,.1f} ms a step of its own where the median is "
            f"{1000 * usual:,.1f}: the others wait for it"
        )


def _data(found: TrainingProfile, trainer: Trainer, share: str) -> Iterator[str]:
    start = f"data: {share} waiting for images"
    for workers, seconds in found.tried_workers.items():
        said, now = f"data.workers={workers} (now {found.workers})", found.tried_workers[found.workers]
        if workers == found.workers:
            continue
        if seconds < 0.95 * now:
            yield f"{start}; with {said} a step took {1000 * seconds:,.1f} ms in place of {1000 * now:,.1f}"
        else:
            yield f"{start}; {said} does not help: tried, {1000 * seconds:,.1f} ms a step and {1000 * now:,.1f} without"
    if not found.tried_workers:
        many = found.workers >= processors() and found.data_alone > found.step_alone
        why = f"more than the {processors()} processors of each process will not help" if many else (
            "reading alone would keep up, so both want the same processors"
        )  # fmt: skip
        yield f"{start} with data.workers={found.workers}: {why}"
    if min([found.step.mean, *found.tried_workers.values()]) < 1.2 * found.step_alone:
        return
    name = trainer.config.data.train_transform.name
    if trainer.train_data.cached_bytes:
        yield f"data: the images are held decoded: what takes time is data.train_transform={name} and making batches"
    elif trainer.config.data.prepared is None:
        size = _cache_that_holds(trainer.train_data)
        memory = "" if size is None else f", and data.cache={size}GiB would hold all of them in memory"
        yield f"data: each image is decoded whenever it is drawn; aurank data prepare does it once{memory}"


def _cache_that_holds(data: ImageDataset) -> int | None:
    """Return the GiB that all prepared images take, rounded up; None where half of the memory does not hold them."""
    sizes, manifest = [], data.manifest
    for row in np.linspace(0, len(manifest) - 1, _SAMPLED, dtype=np.int64).tolist():
        with contextlib.suppress(UserError):
            image = decode(manifest.source, manifest.paths[row], data.channels, max_pixels=data.max_pixels)
            sizes.append(data.pipeline.prepare(image).nbytes)
    if not sizes or not hasattr(os, "sysconf"):
        return None
    needed = float(np.mean(sizes)) * len(manifest)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return math.ceil(1.05 * needed / GIB) if needed < there / 2 else None


def _model(found: TrainingProfile, trainer: Trainer, share: str) -> Iterator[str]:
    config, device = trainer.config, trainer.accelerator.device
    threads, free = torch.get_num_threads(), max(1, processors() - found.workers)
    worth = []
    if device.type == "cuda" and config.train.mixed_precision == "no":
        worth.append("train.mixed_precision=bf16")
    if device.type == "cuda" and not config.train.compile and not config.train.sharded:
        worth.append("train.compile=true, whose first steps wait for a compiler")
    if device.type == "cpu" and threads < free:
        worth.append(f"OMP_NUM_THREADS={free} (now {threads}) where nothing else wants the processors")
    grouped = any(isinstance(one, nn.Conv2d) and one.groups > 1 for one in trainer.model.modules())
    if grouped and device.type == "cpu" and not config.model.channels_last:
        worth.append("model.channels_last=true")
    if trainer.cache is not None:
        worth.append(
            f"a larger train.micro_batch (now {config.train.micro_batch}), or null, which computes nothing twice"
        )
    if config.model.gradient_checkpointing:
        worth.append("model.gradient_checkpointing=false, which computes nothing twice")
    last = "a smaller model.backbone or data.image_size, or model.freeze"
    yield f"model: {share} forward and backward; what would change that: {', '.join([*worth, last])}"
    beside = found.step.mean - found.phases["data"].mean
    if found.workers and device.type == "cpu" and beside > 1.2 * found.step_alone:
        yield (
            f"model: the step takes {1000 * beside:,.1f} ms beside {found.workers} worker(s) and "
            f"{1000 * found.step_alone:,.1f} without: they share the processors"
        )


def _loss(found: TrainingProfile, trainer: Trainer, share: str) -> Iterator[str]:
    config = trainer.config
    names = " + ".join(term.name for term in config.terms)
    memory = "" if config.memory is None else f", a smaller memory.size (now {config.memory.size})"
    batch = f"a smaller sampler.batch (now {config.sampler.batch})"
    yield f"loss: {share} {names}, with its miner: {batch}{memory}, or another loss"


def _optimiser(found: TrainingProfile, trainer: Trainer, share: str) -> Iterator[str]:
    name = trainer.config.optim.name
    other = "" if name in ("adam", "adamw", "sgd") else "optim.name=adamw, which is fused, "
    fewer = "fewer trained weights (model.freeze, model.lora), or a larger sampler.batch"
    yield f"optimiser: {share} {name}: {other}{fewer}"


def _copy(found: TrainingProfile, trainer: Trainer, share: str) -> Iterator[str]:
    yield f"copy: {share} copying images to the device: a smaller data.image_size or fewer data.views"


def _collectives(found: TrainingProfile, trainer: Trainer, share: str) -> Iterator[str]:
    yield f"processes: {share} exchanging with other processes: a larger sampler.batch or train.accumulate"


def _rest(found: TrainingProfile, trainer: Trainer, share: str) -> Iterator[str]:
    every = trainer.config.train.log_every
    what = f"train.log_every=10 (now {every})" if every < 10 else "a larger sampler.batch, whose steps are fewer"
    yield f"rest: {share} Python and logging: {what}"


_LINES = {
    "data": _data,
    "model": _model,
    "loss": _loss,
    "optimiser": _optimiser,
    "copy": _copy,
    "collectives": _collectives,
    "rest": _rest,
}
