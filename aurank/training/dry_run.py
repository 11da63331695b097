"""A rehearsal: everything is built, two batches run and a few images are measured, so that no long run fails late."""

import itertools
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aurank.config import Config
from aurank.data import ImageDataset, view_keys
from aurank.embedding.build import build_dataset
from aurank.losses import CrossBatchMemory
from aurank.training.loop import too_few_readable
from aurank.training.optim import set_learning_rate
from aurank.training.run import training_group
from aurank.training.trainer import Trainer, build_trainer

GIB = 2**30
BATCHES = 2
MEASURED = 8  # rows of each split that are embedded and measured


@dataclass(frozen=True)
class Rehearsal:
    """Sizes, counts and an estimate of memory (bytes) and time (seconds a step, data included); notices to read.

    Attributes:
        unit: what is counted as images: "images" or "pairs".
        parameters: how many the model has, and how many of them are trained.
        batch: the images drawn, each of which the encoder sees in ``views`` views.
    """

    unit: str
    images: dict[str, int]
    classes: dict[str, int]
    parameters: tuple[int, int]
    batch: int
    views: int
    batches_per_epoch: int
    seconds_per_step: float
    memory: dict[str, int]
    loss: float
    notices: list[str]

    def __str__(self) -> str:
        views = f" in {self.views} views each" if self.views > 1 else ""
        memory = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.memory.items())
        count, trained = self.parameters
        lines = [
            f"{name:<12}{size:>9} {self.unit} {self.classes[name]:>7} classes" for name, size in self.images.items()
        ]
        lines += [
            f"parameters  {count:>9} ({trained} trained)",
            f"batch       {self.batch:>9} {self.unit}{views}, {self.batches_per_epoch} batches an epoch",
            f"step        {self.seconds_per_step:>9.3f} s on this machine (second of {BATCHES} batches)",
            f"memory      {sum(self.memory.values()) / GIB:>9.2f} GiB a process, estimated: {memory}",
            f"loss        {self.loss:>9.4f} on the second batch",
        ]
        return "\n".join([*lines, *self.notices])


def rehearse(config: Config) -> Rehearsal:
    """Build the components of a run, train on two batches, measure a few images of each other split; write nothing.

    Raises:
        UserError: whatever a real run would raise before or in its first two steps, or in measuring its splits.

    Example:
        >>> from aurank.training import read_config
        >>> config = {
        ...     "data": {"name": "digits", "image_size": 16, "channels": 1},
        ...     "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8},
        ...     "sampler": {"batch": 16}, "loss": {"name": "smooth_ap"}, "optim": {"lr": 1e-3}, "train": {"steps": 2},
        ... }
        >>> rehearsal = rehearse(read_config(config))
        >>> rehearsal.batch, rehearsal.images["test"]
        (16, 899)
    """
    with training_group(config):
        trainer = build_trainer(config)
        config = trainer.config
        seconds, loss, batch, activations = _steps(trainer)
        data = {"train": trainer.train_data}
        if trainer.val_data is not None:
            data["validation"] = trainer.val_data
        if trainer.splits.test is not None:
            data["test"] = build_dataset(config.data, trainer.splits.test, train=False)
        for name in list(data)[1:]:
            _measure(trainer, data[name], name)
        parameters = list(trainer.model.parameters())
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        weights = sum(value.nbytes for value in trainer.model.state_dict().values())
        optimiser = [value for state in trainer.optimiser.state.values() for value in state.values()]
        return Rehearsal(
            unit=trainer.task.unit,
            images={name: len(images) for name, images in data.items()},
            classes={name: len(images.manifest.classes) for name, images in data.items()},
            parameters=(sum(value.numel() for value in parameters), sum(value.numel() for value in trained)),
            batch=batch,
            views=trainer.views,
            batches_per_epoch=len(trainer.sampler.epoch(0)),
            seconds_per_step=seconds,
            memory={
                "weights": weights,
                "gradients": sum(value.nbytes for value in trained),
                "optimiser": sum(value.nbytes for value in optimiser if isinstance(value, Tensor)),
                "activations": activations,
                "loss state": sum(value.nbytes for value in [*trainer.loss.buffers(), *trainer.loss.parameters()]),
                "moving average": 0 if trainer.average is None else weights,
                "images": sum(images.cached_bytes for images in data.values()),
            },
            loss=loss,
            notices=trainer.notices,
        )


def _steps(trainer: Trainer) -> tuple[float, float, int, int]:
    """Train on two batches; return the seconds, the loss, the size and the bytes of activations of the second."""
    if isinstance(trainer.loss, CrossBatchMemory):
        trainer.loss.start_at = min(trainer.loss.start_at, 1)  # the second batch must use the memory
    passes: list[dict[int, int]] = []  # bytes of each storage that autograd keeps for the backward pass

    def keep(tensor: Tensor) -> Tensor:
        passes[-1][tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    done, limit = 0, len(trainer.sampler.epoch(0)) + BATCHES
    for epoch, _, rows in itertools.islice(trainer.sampler.iterate(0, 0), limit):
        started = time.perf_counter()
        batch = trainer.train_data.__getitems__(view_keys(rows, epoch, trainer.views))
        if len(batch.id) < 2 * trainer.views:
            continue
        trainer.set_progress(done, epoch)
        passes.append({})
        chunks: AbstractContextManager[Any] = nullcontext()
        if trainer.cache is not None:  # the tensors kept for a chunk are freed before the next chunk
            chunks = trainer.encoder.register_forward_pre_hook(lambda *_: passes.append({}))
        with chunks, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            _, loss = trainer.forward(batch)
            trainer.backward(loss)
        value, done = float(loss.detach()), done + 1
        set_learning_rate(trainer.optimiser, 0.0)  # allocates the optimiser's state, and leaves the weights
        trainer.update()
        if done == BATCHES:
            return (
                time.perf_counter() - started,
                value,
                len(batch.id) // trainer.views,
                max(sum(storages.values()) for storages in passes),
            )
    raise too_few_readable(trainer.train_data)


def _measure(trainer: Trainer, data: ImageDataset, name: str) -> None:
    skipped = -1
    while len(data.skipped) > skipped:  # training skips an unreadable image: try others
        skipped = len(data.skipped)
        rows = trainer.task.sample(data, name, MEASURED)
        data.__getitems__(rows)
    few = build_dataset(trainer.config.data, data.manifest.select(rows), train=False)
    trainer.task.measure(trainer.model, few)
