"""A rehearsal: everything is built and two batches run, so that a long run does not fail late."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from aurank.config import Config
from aurank.data import Batch, keys
from aurank.training.build import build_dataset, build_splits
from aurank.training.checkpoint import seed_everything
from aurank.training.loop import Parts
from aurank.training.run import build_parts

GIB = 2**30
_OPTIMISER_COPIES = {"sgd": 1, "adam": 2, "adamw": 2}
BATCHES = 2


@dataclass(frozen=True)
class Rehearsal:
    """Sizes, counts and an estimate of memory (bytes) and time (seconds a step, data included)."""

    images: dict[str, int]
    classes: dict[str, int]
    parameters: int
    trained_parameters: int
    batch: int
    batches_per_epoch: int
    seconds_per_step: float
    memory: dict[str, int]
    loss: float

    def __str__(self) -> str:
        rows = [f"{name:<12}{count:>9} images {self.classes[name]:>7} classes" for name, count in self.images.items()]
        memory = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.memory.items())
        return "\n".join(
            [
                *rows,
                f"parameters  {self.parameters:>9} ({self.trained_parameters} trained)",
                f"batch       {self.batch:>9} images, {self.batches_per_epoch} batches an epoch",
                f"step        {self.seconds_per_step:>9.3f} s on this machine (second of {BATCHES} batches)",
                f"memory      {sum(self.memory.values()) / GIB:>9.2f} GiB a process, estimated: {memory}",
                f"loss        {self.loss:>9.4f} on the second batch",
            ]
        )


def rehearse(config: Config) -> Rehearsal:
    """Build all parts of a run, train on two batches, evaluate one image of each other split; nothing is written.

    Raises:
        UserError: whatever a real run would raise before or in its first two steps.
    """
    seed_everything(config.seed)
    splits = build_splits(config.data, seed=config.seed)
    parts = build_parts(config, splits)
    saved = _SavedBytes()
    seconds, loss, batch = 0.0, 0.0, 0
    position = parts.sampler.iterate(0, 0)
    for _ in range(BATCHES):
        started = time.perf_counter()
        epoch, _, rows = next(position)
        loss, batch = _step(parts, parts.train_data.__getitems__(keys(rows, epoch)), saved), len(rows)
        seconds = time.perf_counter() - started
    build_dataset(config.data, splits.test.select([0]), train=False)[0]
    named = {"train": splits.train, "validation": splits.val, "test": splits.test}
    present = {name: manifest for name, manifest in named.items() if manifest is not None}
    trained = [parameter for parameter in parts.module.parameters() if parameter.requires_grad]
    weights = sum(_size(value) for value in parts.module.state_dict().values())
    return Rehearsal(
        images={name: len(manifest) for name, manifest in present.items()},
        classes={name: len(manifest.classes) for name, manifest in present.items()},
        parameters=sum(parameter.numel() for parameter in parts.module.parameters()),
        trained_parameters=sum(parameter.numel() for parameter in trained),
        batch=batch,
        batches_per_epoch=len(parts.sampler.epoch(0)),
        seconds_per_step=seconds,
        memory={
            "weights": weights,
            "gradients": sum(_size(parameter) for parameter in trained),
            "optimiser": _OPTIMISER_COPIES[config.optim.name] * sum(_size(parameter) for parameter in trained),
            "activations": saved.total,
            "loss state": sum(_size(value) for value in parts.loss.state_dict().values()),
            "images": parts.train_data.cached_bytes,
        },
        loss=loss,
    )


def _step(parts: Parts, batch: Batch, saved: "_SavedBytes") -> float:
    saved.reset()
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        embeddings = parts.encoder(batch.image.to(parts.accelerator.device))
        indices = None if parts.miner is None else parts.miner(embeddings, batch.label)
        loss = parts.loss(embeddings, batch.label, indices, ids=batch.id)
        parts.accelerator.backward(loss)
    parts.optimiser.zero_grad()
    return float(loss.detach())


class _SavedBytes:
    """Bytes that autograd keeps for the backward pass, each storage counted once."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._storages: dict[int, int] = {}

    @property
    def total(self) -> int:
        return sum(self._storages.values())

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    def unpack(self, tensor: Tensor) -> Tensor:
        return tensor


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
