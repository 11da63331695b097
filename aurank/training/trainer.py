"""The components of a run, and the way of a batch through them: to embeddings, to the loss, back to gradients."""

from collections.abc import Callable, Iterable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import GradientAccumulationPlugin
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from aurank.config import Config
from aurank.config.components import build
from aurank.config.schema import NO_BACKBONE
from aurank.data import Batch, ImageDataset, Manifest
from aurank.data.prepared import PreparedImages
from aurank.distributed import ProcessGroup, launched
from aurank.embedding.build import (
    build_dataset,
    build_encoder,
    build_towers,
    embed_by_views,
    fill_preprocessing,
    open_prepared,
    with_features,
)
from aurank.embedding.embed import embed
from aurank.embedding.image_text_pairs import texts_of
from aurank.errors import UserError
from aurank.evaluation.index.neighbours import neighbours
from aurank.losses import MultipleLosses
from aurank.losses.core.distributed import Shares
from aurank.losses.core.pair_loss import TakesInputs
from aurank.models.encoder import EachPart, Encoder, Pooled, start_at_pca
from aurank.training.build import (
    Splits,
    build_loss,
    build_miner,
    build_optimiser,
    build_sampler,
    build_splits,
    check_image_size,
)
from aurank.training.gradient_cache import GradientCache, split_into_chunks
from aurank.training.optim import SCHEDULES, Schedule, weight_average
from aurank.training.state import random_state, restore_random_state, seed_everything, stream
from aurank.training.tasks import PairTask, Task

PCA_ROWS = 20_000


class Trainer:
    """The components of a run, on the device that Accelerate chooses.

    Args:
        out: folder of the run; None where nothing is written.
        state: of the checkpoint to resume from, which is restored later; the first weights are then at random.

    Attributes:
        model: what is trained and saved, without any wrapper.
        views: images that the encoder sees for each that is drawn.
        encoder: embeds all that a step embeds in one call, wrapped for several processes and mixed precision.
        average: moving average of the weights, None without train.ema.
        goes_on: whether the next batch is the first after those of a checkpoint.
        notices: to be shown before the run.
    """

    def __init__(
        self,
        config: Config,
        splits: Splits,
        out: Path | None = None,
        *,
        state: dict[str, Any] | None = None,
        prepared: PreparedImages | None = None,
    ) -> None:
        _require_fitting(config, splits)
        self.config = config = with_features(fill_preprocessing(config, state), splits.manifest)
        self.splits = splits
        self.views = config.data.views
        self.accelerator = accelerator = _accelerator(config, out)
        device, rank, processes = accelerator.device, accelerator.process_index, accelerator.num_processes
        self.notices: list[str] = []
        self.task = task = _task(config, splits, state, self.notices.append)
        self.model: nn.Module = task.model
        self.loss = build_loss(config, splits.train).to(device)
        self.sum = next((module for module in self.loss.modules() if isinstance(module, MultipleLosses)), None)
        miner = build_miner(config.miner) if self.sum is None else None  # a sum of losses has a miner for each term
        self.miner = None if miner is None else miner.to(device)
        modules: list[Any] = [*self.loss.modules(), *([] if self.miner is None else self.miner.modules())]
        self._followers = [module for module in modules if hasattr(module, "set_progress")]
        self._gathers = [module.gather for module in self.loss.modules() if isinstance(module, TakesInputs)]
        for gather in self._gathers:
            gather.views = self.views

        trained = task.model.to(device)
        dataset = partial(build_dataset, config.data, prepared=prepared or open_prepared(config.data))
        images = cache(partial(dataset, splits.train, train=False))
        if state is None:
            start_projection(task.encoder, config, images)
        # torch's own optimiser: Accelerate's wrapper skips step and zero_grad while gradients accumulate.
        self.optimiser = optimiser = build_optimiser(config, trained, self.loss)
        schedule, steps = (
            config.optim.schedule,
            {"steps": config.train.steps, "warmup_steps": config.optim.warmup_steps},
        )
        self.schedule: Schedule = build("optim.schedule.params", SCHEDULES[schedule.name], steps, schedule.params)

        nearest = partial(
            nearest_images, encoder=task.encoder, training_images=images, accelerator=accelerator, config=config
        )
        self.sampler = build_sampler(config, splits.train, rank=rank, world_size=processes, neighbours=nearest)
        self.train_data = dataset(splits.train, train=True, seed=config.seed)
        self.val_data = None if splits.val is None else dataset(splits.val, train=False)
        # Accelerate wraps the module's forward in autocast; the encoder inside stays unwrapped.
        self.encoder, _ = accelerator.prepare(EachPart(trained, compiled=config.train.compile), optimiser)
        check_image_size(task.encoder, config, device)
        self.average = None if config.train.ema is None else weight_average(task.model)
        self.cache: GradientCache | None = None
        micro_batch = config.train.micro_batch
        if micro_batch is not None and micro_batch * processes < self.sampler.largest_batch * self.views:
            self.cache = GradientCache(self.encoder, micro_batch, prepare=self.train_data.to_input)
        self.goes_on = False
        self._calls = (0, 0)  # the last call of the loss: its step, and which batch of the step

        plain, at_most = accelerator.unwrap_model(self.encoder), micro_batch or config.sampler.batch * self.views
        for module in modules:
            if getattr(module, "wants_reencode", False) and module.reencode is None:
                module.reencode = partial(
                    reencode, encoder=plain, data=self.train_data, dim=task.encoder.dim, at_most=at_most
                )
        self.notices += _notices(self)

    @property
    def measured(self) -> nn.Module:
        return self.model if self.average is None else self.average.get_submodule("module")

    @cached_property
    def epochs(self) -> float:
        """Epochs of the whole run, each as long as the first one, or as full batches would make it."""
        batches, sampler = self.config.train.steps * self.config.train.accumulate, self.sampler
        # Mining changes the number of batches a little, so a resumed run would count differently.
        if sampler.refresh_every is not None:
            return batches * sampler.largest_batch / len(sampler.labels)
        return batches / max(1, len(sampler.epoch(0)))

    def set_progress(self, step: int, epoch: int) -> None:
        self._calls = (step, 0)
        for module in self._followers:
            module.set_progress(step=step, steps=self.config.train.steps, epoch=epoch, epochs=self.epochs)

    def forward(self, batch: Batch, shares: Shares | None = None) -> tuple[Float[Tensor, "image dim"], Tensor]:
        """Return the embeddings of a batch's images, and its loss; `shares` spare processes an exchange."""
        for gather in self._gathers:
            gather.announced = shares
        references: dict[str, Tensor] = {}
        images = self.embed(self._inputs(batch))
        if self.task.tokens is not None:
            images, texts = torch.split(images, len(batch.id))
            references = {"ref_emb": texts, "ref_labels": batch.label, "ref_ids": batch.id}
        step, call = self._calls
        self._calls = (step, call + 1)
        # Losses and miners draw for the whole batch, so every process must draw the same numbers.
        with stream(self.config.seed, step, call):
            return images, self.loss(images, batch.label, self.miner, ids=batch.id, **references)

    def _inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch.image,) if self.task.tokens is None else (batch.image, self.task.tokens[batch.id])

    def embed(self, inputs: tuple[Tensor, ...]) -> Float[Tensor, "row dim"]:
        if self.cache is not None:
            return torch.cat([self.cache.embed(same) for same in inputs])
        # One call for all views: DistributedDataParallel writes buffers before each call, which would break the graph.
        embeddings: Tensor = self.encoder(self._on_device(inputs))
        return embeddings

    def _on_device(self, inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Return what the encoder takes: a quarter of the bytes are copied, since pixels are normalised there."""
        copies = (pixels.to(self.accelerator.device, non_blocking=True) for pixels in inputs)
        return tuple(self.train_data.to_input(pixels) for pixels in copies)

    def restore_order(self, batch: Batch) -> None:
        """Let DistributedDataParallel see a backward pass, after the first of which it orders its sums anew.

        A run that goes on has seen one, and of more than two processes the order of a sum shows in the last digit. All
        processes call it before the first batch of a step.
        """
        goes_on, self.goes_on = self.goes_on, False
        has_order = isinstance(self.encoder, DistributedDataParallel) and self.accelerator.num_processes > 2
        if goes_on and has_order:
            self.encoder.eval()  # batch norms and random generators must not change
            self.encoder(self._on_device(same[:2] for same in self._inputs(batch))).sum().backward()
            self.encoder.train()
            self.optimiser.zero_grad()

    def backward(self, loss: Tensor) -> None:
        if self.cache is None:
            self.accelerator.backward(loss)
            return
        of_loss = [parameter for parameter in self.loss.parameters() if parameter.requires_grad]
        before = [parameter.grad for parameter in of_loss]
        for parameter in of_loss:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        # Backward once more along their own gradient, so that DDP averages and scales them like the encoder's.
        terms = [(parameter * parameter.grad).sum() for parameter in of_loss if parameter.grad is not None]
        for parameter, gradient in zip(of_loss, before, strict=True):
            parameter.grad = gradient
        for term in terms:
            self.accelerator.backward(term)
        self.cache.backward(self.accelerator.backward)

    def update(self) -> None:
        scaler = self.accelerator.scaler
        if scaler is None:
            self.optimiser.step()
        else:
            scaler.step(self.optimiser)
            scaler.update()
        self.optimiser.zero_grad()


def build_trainer(config: Config, dataset: Manifest | None = None) -> Trainer:
    seed_everything(config.seed)
    return Trainer(config, build_splits(config, dataset))


@torch.no_grad()
def reencode(
    ids: Int64[Tensor, " image"], *, encoder: nn.Module, data: ImageDataset, dim: int, at_most: int
) -> Float[Tensor, "image dim"]:
    """Return the embeddings of training images by their rows, not augmented, with the current weights.

    The encoder keeps its mode and buffers, random generators their state; a batch norm gets a single image twice.
    """
    device = next(encoder.parameters()).device
    if not len(ids):
        return torch.empty(0, dim, device=device)
    batch = data.__getitems__(ids.tolist())
    if len(batch.id) < len(ids):
        lost = next(row for row in ids.tolist() if row not in batch.id)
        raise UserError(f"image {data.manifest.paths[lost]!r} was read before and cannot be read any more")
    images = batch.image if len(ids) > 1 else torch.cat([batch.image, batch.image])
    random, parts = random_state(), []
    try:
        for chunk in split_into_chunks(images, at_most):
            # On copies: writing the old values back would spoil a backward pass that is still to come.
            buffers = {name: value.clone() for name, value in encoder.named_buffers()}
            inputs = (data.to_input(chunk.to(device)),)
            parts.append(torch.func.functional_call(encoder, buffers, inputs).float())
        return torch.cat(parts)[: len(ids)]
    finally:
        restore_random_state(random)


def nearest_images(
    count: int,
    *,
    encoder: nn.Module,
    training_images: Callable[[], ImageDataset],
    accelerator: Accelerator,
    config: Config,
) -> Int64[np.ndarray, "image count"]:
    """Return the rows nearest to each training image, as the evaluation shows it, the nearest first, then −1."""
    data, device = training_images(), accelerator.device
    table = torch.full((len(data), count), -1)
    group = ProcessGroup(None)
    group.broadcast(encoder.buffers())
    embedded = embed(encoder, data, batch=config.evaluate.batch, workers=config.data.workers, group=group)
    if accelerator.is_main_process:
        nearest = neighbours(embedded.embeddings, count, device=device if device.type == "cuda" else "cpu").row
        # Where a search found fewer, its entry takes the appended last row: -1.
        table.numpy()[embedded.ids, : nearest.shape[1]] = np.append(embedded.ids, -1)[nearest]
    group.broadcast([table])
    return table.numpy()


def _task(config: Config, splits: Splits, state: dict[str, Any] | None, say: Callable[[str], None]) -> Task:
    load = state is None
    if config.model.text is None:
        encoder = build_encoder(config.model, channels=config.data.channels, load=load, say=say)
        embed_by_views(encoder, config)
        return Task(config, encoder)
    texts, saved = texts_of(splits.train), None if state is None else state["tokeniser"]
    for split in (splits.val, splits.test):
        if split is not None:
            texts_of(split)
    return PairTask(config, build_towers(config, texts, saved=saved, load=load, say=say), splits.train)


def start_projection(encoder: Encoder, config: Config, training_images: Callable[[], ImageDataset]) -> None:
    """Give a linear projection the first weights that model.head_start names; all processes call it."""
    head, start = encoder.head, config.model.head_start
    if not isinstance(head, nn.Linear) or config.model.init_from is not None:
        return
    width, dim = head.in_features, head.out_features
    if start is None and config.model.backbone == NO_BACKBONE and dim <= width:
        start = "identity" if dim == width else "pca"
    if (start == "identity" and dim != width) or (start == "pca" and dim > width):
        size = "" if start == "identity" else "at most "
        raise UserError(
            f"model.head_start={start} needs model.dim of {size}{width}, the width of the backbone, got {dim}"
        )
    if start == "identity":
        nn.init.eye_(head.weight)
        nn.init.zeros_(head.bias)
    elif start == "pca":
        data, group = training_images(), ProcessGroup(None)
        rows = np.sort(np.random.default_rng(config.seed).permutation(len(data))[:PCA_ROWS])
        embedded = embed(
            Pooled(encoder), data, rows=rows, batch=config.evaluate.batch, workers=config.data.workers, group=group
        )
        start_at_pca(head, torch.from_numpy(np.asarray(embedded.embeddings)))
        group.broadcast(head.parameters())


def _notices(trainer: Trainer) -> list[str]:
    config, splits, unit = trainer.config, trainer.splits, trainer.task.unit
    possible, notices = trainer.sampler.largest_batch, trainer.task.notices()
    if possible < config.sampler.batch:
        notices.append(
            f"batches have {possible} {unit} in place of sampler.batch={config.sampler.batch}: that is all that the "
            f"sampler can draw from {len(splits.train):,} training {unit} of {len(splits.train.classes):,} classes"
        )
    if splits.test is None:
        best = "best is the newest checkpoint" if splits.val is None else "best is that of the validation split"
        notices.append(f"{splits.manifest.name} has no test split: nothing is measured at the end, {best}")
    return notices


def _require_fitting(config: Config, splits: Splits) -> None:
    train = config.train
    if train.early_stopping and splits.val is None:
        raise UserError(
            f"train.early_stopping={train.early_stopping} needs a validation split and {splits.manifest.name} has "
            "none; set data.validation_fraction above 0, or train.early_stopping=null"
        )
    if missing := set(train.trackers) - {str(tracker) for tracker in get_available_trackers()}:
        packages = " ".join(sorted(missing)).replace("_", "-")
        raise UserError(f"train.trackers: pip install {packages}, which cannot be imported, or leave it out")
    # A chunk has images or texts alone, but DDP expects gradients of both encoders.
    if train.micro_batch and config.model.text is not None and launched() > 1:
        raise UserError(
            f"train.micro_batch={train.micro_batch} with model.text works in one process and there are {launched()}; "
            "set train.micro_batch=null"
        )


def _accelerator(config: Config, out: Path | None) -> Accelerator:
    return Accelerator(
        # Accelerate joins processes without GPUs only if told to use the CPU.
        cpu=launched() > 1 and not torch.cuda.is_available(),
        mixed_precision=config.train.mixed_precision,
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=config.train.accumulate),
        log_with=list(config.train.trackers) if out is not None and config.train.trackers else None,
        project_dir=None if out is None else str(out),
    )
