"""A rehearsal: everything is built, two batches run and a few images are measured: a long run does not fail late."""

import itertools
import time
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from aurank.config import Config
from aurank.data import Batch, ImageDataset, view_keys
from aurank.embedding.from_config import build_dataset
from aurank.losses import CrossBatchMemory
from aurank.training.build import Splits, build_splits
from aurank.training.loop import too_few_readable
from aurank.training.parts import Parts
from aurank.training.processes import joined
from aurank.training.random_state import seed_everything
from aurank.training.run import build_parts, remarks

GIB = 2**30
_OPTIMISER_COPIES = {"sgd": 1, "adam": 2, "adamw": 2, "lars": 1}
BATCHES = 2
MEASURED = 8
"""Rows of each split that are embedded and measured."""


@dataclass(frozen=True)
class Rehearsal:
    """Sizes, counts and an estimate of memory (bytes) and time (seconds a step, data included); notices to read.

    ``batch`` counts the images drawn, each of which the encoder sees in ``views`` views. ``unit``: what is counted as
    images, which with texts are pairs.
    """

    unit: str
    images: dict[str, int]
    classes: dict[str, int]
    parameters: int
    trained_parameters: int
    batch: int
    views: int
    batches_per_epoch: int
    seconds_per_step: float
    memory: dict[str, int]
    loss: float
    notices: list[str]

    def __str__(self) -> str:
        rows = [
            f"{name:<12}{count:>9} {self.unit} {self.classes[name]:>7} classes" for name, count in self.images.items()
        ]
        views = f" in {self.views} views each" if self.views > 1 else ""
        memory = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.memory.items())
        return "\n".join(
            [
                *rows,
                f"parameters  {self.parameters:>9} ({self.trained_parameters} trained)",
                f"batch       {self.batch:>9} {self.unit}{views}, {self.batches_per_epoch} batches an epoch",
                f"step        {self.seconds_per_step:>9.3f} s on this machine (second of {BATCHES} batches)",
                f"memory      {sum(self.memory.values()) / GIB:>9.2f} GiB a process, estimated: {memory}",
                f"loss        {self.loss:>9.4f} on the second batch",
                *self.notices,
            ]
        )


def rehearse(config: Config) -> Rehearsal:
    """Build all parts of a run, train on two batches, measure a few images of each other split; nothing is written.

    Raises:
        UserError: whatever a real run would raise before or in its first two steps, or in measuring its splits.
    """
    with joined(config.train.timeout):
        seed_everything(config.seed)
        splits = build_splits(config.data, seed=config.seed, texts=config.model.text is not None)
        return _rehearse(splits, build_parts(config, splits))


def _rehearse(splits: Splits, parts: Parts) -> Rehearsal:
    config = parts.config
    saved = _SavedBytes()
    if isinstance(parts.loss, CrossBatchMemory):
        parts.loss.start_at = min(parts.loss.start_at, 1)  # so that the second batch meets the memory
    seconds, loss, batch, done = 0.0, 0.0, 0, 0
    batches_per_epoch = len(parts.sampler.epoch(0))
    for epoch, _, rows in itertools.islice(parts.sampler.iterate(0, 0), batches_per_epoch + BATCHES):
        started = time.perf_counter()
        images = parts.train_data.__getitems__(view_keys(rows, epoch, parts.views))
        if len(images.id) < 2 * parts.views:
            continue
        parts.set_progress(done, epoch)
        loss, batch, done = _step(parts, images, saved), len(images.id) // parts.views, done + 1
        seconds = time.perf_counter() - started
        if done == BATCHES:
            break
    else:
        raise too_few_readable(parts.train_data)
    data = {
        "train": parts.train_data,
        "validation": parts.val_data,
        "test": None if splits.test is None else build_dataset(config.data, splits.test, train=False),
    }
    present = {name: images for name, images in data.items() if images is not None}
    for name in present:
        if name != "train":
            _measure(config, parts, present[name], name)
    trained = [parameter for parameter in parts.module.parameters() if parameter.requires_grad]
    weights = sum(_size(value) for value in parts.module.state_dict().values())
    return Rehearsal(
        unit=parts.task.unit,
        images={name: len(images) for name, images in present.items()},
        classes={name: len(images.manifest.classes) for name, images in present.items()},
        parameters=sum(parameter.numel() for parameter in parts.module.parameters()),
        trained_parameters=sum(parameter.numel() for parameter in trained),
        batch=batch,
        views=parts.views,
        batches_per_epoch=batches_per_epoch,
        seconds_per_step=seconds,
        memory={
            "weights": weights,
            "gradients": sum(_size(parameter) for parameter in trained),
            "optimiser": _OPTIMISER_COPIES[config.optim.name] * sum(_size(parameter) for parameter in trained),
            "activations": saved.total,
            "loss state": sum(_size(value) for value in [*parts.loss.buffers(), *parts.loss.parameters()]),
            "moving average": 0 if parts.average is None else weights,
            "images": sum(images.cached_bytes for images in present.values()),
        },
        loss=loss,
        notices=remarks(parts, splits),
    )


def _step(parts: Parts, batch: Batch, saved: "_SavedBytes") -> float:
    saved.reset()
    chunks = nullcontext() if parts.cache is None else parts.encoder.register_forward_pre_hook(saved.next_pass)
    with chunks, torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        _, loss = parts.forward(batch)
        parts.backward(loss)
    parts.optimiser.zero_grad()
    return float(loss.detach())


def _measure(config: Config, parts: Parts, data: ImageDataset, name: str) -> None:
    """Embed and measure a few images of a split; UserError where the whole split could not be measured."""
    while True:
        rows = parts.task.sample(data, name, MEASURED)
        before = len(data.skipped)
        data.__getitems__(rows)
        # An image that turns out to be unreadable is skipped in the run, so others stand in for it.
        if len(data.skipped) == before:
            break
    few = build_dataset(config.data, data.manifest.select(rows), train=False)
    parts.task.measure(few)


class _SavedBytes:
    """Bytes that autograd keeps for the backward pass, each storage counted once, in the largest pass of a step."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._storages: dict[int, int] = {}
        self._before = 0

    def next_pass(self, *_: object) -> None:
        """Nothing; with cached gradients, what was kept for a chunk is gone when the next one comes."""
        self._before = self.total
        self._storages.clear()

    @property
    def total(self) -> int:
        return max(self._before, sum(self._storages.values()))

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    def unpack(self, tensor: Tensor) -> Tensor:
        return tensor


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
