"""What a training loop drives, and how a batch goes through it: forward to embeddings, back to gradients."""

from dataclasses import dataclass
from functools import cached_property

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from aurank.config import Config
from aurank.data import Batch, ImageDataset, Sampler
from aurank.losses.core.training_protocols import FollowsProgress
from aurank.training.gradient_cache import GradientCache
from aurank.training.optim import Schedule, WeightAverage
from aurank.training.tasks import Task


@dataclass(eq=False)
class Parts:
    """What the loop drives; built by ``aurank.training.run`` from a configuration. `notices`: what to say of that.

    `manifest_hash` and `data` say in checkpoints which images those are; `data` is left out where none are written.
    """

    config: Config
    accelerator: Accelerator
    task: Task
    encoder: nn.Module
    loss: nn.Module
    miner: nn.Module | None
    optimiser: Optimizer
    schedule: Schedule
    sampler: Sampler
    train_data: ImageDataset
    val_data: ImageDataset | None
    manifest_hash: str
    notices: list[str]
    data: dict[str, str] | None = None
    average: WeightAverage | None = None
    cache: GradientCache | None = None

    @property
    def module(self) -> nn.Module:
        """What is trained and saved, without the wrappers of distributed training and of mixed precision."""
        return self.task.model

    @property
    def views(self) -> int:
        """Images that the encoder sees for each that is drawn."""
        return self.config.data.views

    @cached_property
    def epochs(self) -> float:
        """How many epochs the whole run has, each as long as the first one, or as full batches would make it."""
        settings, sampler = self.config.train, self.sampler
        # What is mined changes the number of batches a little: a resumed run would count others.
        if sampler.refresh_every is not None:
            return settings.steps * settings.accumulate * sampler.largest_batch / len(sampler.labels)
        return settings.steps * settings.accumulate / max(1, len(sampler.epoch(0)))

    @cached_property
    def loss_modules(self) -> list[nn.Module]:
        """All modules of the loss and the miner."""
        return [*self.loss.modules(), *([] if self.miner is None else self.miner.modules())]

    def set_progress(self, step: int, epoch: int) -> None:
        """Tell every module of the loss and the miner that follows the progress where training stands."""
        for module in self.loss_modules:
            if isinstance(module, FollowsProgress):
                module.set_progress(step=step, steps=self.config.train.steps, epoch=epoch, epochs=self.epochs)

    def forward(self, batch: Batch) -> tuple[Float[Tensor, "row dim"], Tensor]:
        """The embeddings of a batch, and their loss."""
        embeddings = self.embed(self.task.inputs(batch))
        return embeddings, self.task.loss(self.loss, embeddings, batch, self.miner)

    def embed(self, images: Tensor | tuple[Tensor, ...]) -> Float[Tensor, "batch dim"]:
        """The embeddings of a batch, of all its sizes, or of images and of texts as tokens, for the loss."""
        sizes = images if isinstance(images, tuple) else (images,)
        if self.cache is not None:
            parts = [self.cache.embed(same) for same in sizes]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        # In one call: DistributedDataParallel writes to buffers before each, which must not happen between two.
        embeddings: Tensor = self.encoder(tuple(same.to(self.accelerator.device, non_blocking=True) for same in sizes))
        return embeddings

    def backward(self, loss: Tensor) -> None:
        """Nothing; adds the gradient of the weights, given the loss of the embeddings."""
        if self.cache is None:
            self.accelerator.backward(loss)
            return
        own = [parameter for parameter in self.loss.parameters() if parameter.requires_grad]
        before = [parameter.grad for parameter in own]
        for parameter in own:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        # Once more along its own gradient, as the cache does: only so is it scaled and averaged as the encoder's is.
        terms = [(parameter * parameter.grad).sum() for parameter in own if parameter.grad is not None]
        for parameter, gradient in zip(own, before, strict=True):
            parameter.grad = gradient
        for term in terms:
            self.accelerator.backward(term)
        self.cache.backward(self.accelerator.backward)
