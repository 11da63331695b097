"""The components of a run, and the way of a batch through them: to embeddings, to the loss, back to gradients."""

import os
from collections.abc import Callable, Iterable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import GradientAccumulationPlugin
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from aurank.config import Config
from aurank.data import Batch, MultiCrop, Sampler
from aurank.data.prepared import PreparedImages
from aurank.distributed import launched
from aurank.embedding.from_config import (
    build_dataset,
    build_encoder,
    build_towers,
    fill_preprocessing,
    open_prepared,
    with_features,
)
from aurank.embedding.image_text_pairs import require_pairs, texts_of
from aurank.errors import UserError
from aurank.losses import MultipleLosses
from aurank.losses.core.distributed import Gather, Shares
from aurank.losses.core.pair_loss import TakesInputs
from aurank.losses.core.training_protocols import FollowsProgress, Reencodes
from aurank.models.encoder import EachPart
from aurank.training.build import (
    Splits,
    build_loss,
    build_miner,
    build_optimiser,
    build_sampler,
    build_schedule,
    check_image_size,
    is_sum,
    losses_of_terms,
)
from aurank.training.checkpoints.state import stream
from aurank.training.gradient_cache import GradientCache
from aurank.training.mining import Reencode, nearest_images, offer_reencoding
from aurank.training.optim import weight_average
from aurank.training.processes import on_cpu
from aurank.training.sharding import ShardedCopy, require_shardable, settle_on_shards
from aurank.training.tasks import PairTask, Task
from aurank.training.watch import notice_of_waiting


class Trainer:
    """The components of a run, on the device that Accelerate chooses.

    Args:
        out: folder of the run; None where nothing is written.
        state: of the checkpoint to resume from, which is not restored here; the first weights are then at random.

    Attributes:
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
        if config.train.early_stopping is not None and splits.val is None:
            raise UserError(
                f"train.early_stopping={config.train.early_stopping} needs a validation split and {splits.whole.name} "
                "has none; set data.validation_fraction above 0, or train.early_stopping=null"
            )
        self.config = config = with_features(fill_preprocessing(config, state), splits.whole)
        self.accelerator = accelerator = _accelerator(config, out)
        self.notices: list[str] = []
        self.task = task = _task(config, splits, state, self.notices.append)
        self.loss = build_loss(config, splits.train).to(accelerator.device)
        for module in self.loss.modules():
            if isinstance(module, TakesInputs):
                module.gather.views = self.views
        miner = None if is_sum(config) else build_miner(config.miner, splits.train)  # a sum asks its own
        self.miner = None if miner is None else miner.to(accelerator.device)
        self.sharded = _sharded(config, task.model.to(accelerator.device), accelerator, self.stateful_modules)
        trained = task.model if self.sharded is None else self.sharded.module
        optimiser = build_optimiser(config, trained, self.loss)
        if self.sharded is not None:
            settle_on_shards(optimiser, config)
        self.schedule = build_schedule(config)
        build = partial(build_dataset, config.data, prepared=prepared or open_prepared(config.data))
        images = cache(partial(build, splits.train, train=False))
        nearest = partial(
            nearest_images, encoder=task.encoder, training_images=images, accelerator=accelerator, config=config
        )
        rank, processes = accelerator.process_index, accelerator.num_processes
        self.sampler = build_sampler(config, splits.train, rank=rank, world_size=processes, neighbours=nearest)
        self.train_data = build(splits.train, train=True, seed=config.seed)
        self.val_data = None if splits.val is None else build(splits.val, train=False)
        # Accelerate puts autocast into the forward of what it is given; the encoder inside stays as it is.
        # Torch's own: what Accelerate makes of it skips a call of step or zero_grad between two batches of a step.
        self.optimiser = optimiser
        if self.sharded is None:
            parts = EachPart(trained, compiled=config.train.compile)
            self.encoder, _ = accelerator.prepare(parts, optimiser)
        else:  # which exchanges gradients by itself
            self.encoder = accelerator.prepare_model(EachPart(trained), evaluation_mode=True)
            accelerator.prepare(optimiser)
        check_image_size(task.encoder, config, accelerator.device)
        self.average = None if config.train.ema is None else weight_average(task.model)
        self.cache = _gradient_cache(config, self.encoder, self.sampler, self.train_data.to_input)
        self.goes_on = False
        self._calls = (0, 0)  # of the loss: the step, and which of its batches
        self._offer_reencoding()
        waiting = notice_of_waiting(accelerator.device, optimiser, config.optim.name, sharded=self.sharded is not None)
        self.notices += [*task.notices(), *_without_effect(self, splits), *waiting]

    def _offer_reencoding(self) -> None:
        if isinstance(self.task, PairTask):  # their loss would need texts re-encoded too
            if any(isinstance(module, Reencodes) and module.wants_reencode for module in self.stateful_modules):
                raise UserError(
                    'out_of_batch=reencode embeds images alone, which model.text has no use for: set it to "stored"'
                )
            return
        plain = self.accelerator.unwrap_model(self.encoder)
        at_most = self.config.train.micro_batch or self.config.sampler.batch * self.views
        reencode = Reencode(plain, self.train_data, dim=self.task.encoder.dim, at_most=at_most)
        offer_reencoding(self.stateful_modules, reencode)

    @property
    def model(self) -> nn.Module:
        """What is trained and saved, without any wrapper."""
        return self.task.model

    def gather(self) -> None:
        """Give `model` the weights as they stand, where they are shared out; all processes call it."""
        if self.sharded is not None:
            self.sharded.gather()

    def optimiser_state(self) -> dict[str, Any]:
        """Return the state of the optimiser, whole in the main process; all processes call it."""
        if self.sharded is None:
            return dict(self.optimiser.state_dict())
        return self.sharded.optimiser_state(self.optimiser, keep=self.accelerator.is_main_process)

    @property
    def measured(self) -> nn.Module:
        """What is measured: the moving average of the weights where there is one."""
        return self.model if self.average is None else self.average.get_submodule("module")

    @property
    def views(self) -> int:
        """Images that the encoder sees for each that is drawn."""
        return self.config.data.views

    @cached_property
    def epochs(self) -> float:
        """Epochs of the whole run, each as long as the first one, or as full batches would make it."""
        settings, sampler = self.config.train, self.sampler
        # Mining changes the number of batches a little: a resumed run would count others.
        if sampler.refresh_every is not None:
            return settings.steps * settings.accumulate * sampler.largest_batch / len(sampler.labels)
        return settings.steps * settings.accumulate / max(1, len(sampler.epoch(0)))

    @cached_property
    def stateful_modules(self) -> list[nn.Module]:
        """Every module of the loss and of the miner."""
        return [*self.loss.modules(), *([] if self.miner is None else self.miner.modules())]

    @cached_property
    def _followers(self) -> list[FollowsProgress]:
        return [module for module in self.stateful_modules if isinstance(module, FollowsProgress)]

    def set_progress(self, step: int, epoch: int) -> None:
        """Tell every module that follows the progress, before a step, how far training is."""
        self._calls = (step, 0)
        for module in self._followers:
            module.set_progress(step=step, steps=self.config.train.steps, epoch=epoch, epochs=self.epochs)

    def loss_terms(self) -> dict[str, Tensor]:
        """Return the weighted losses of the last batch by name, on their device, where the loss is a sum."""
        return {} if self._sum is None else self._sum.last_terms

    @cached_property
    def _sum(self) -> MultipleLosses | None:
        return next((module for module in self.stateful_modules if isinstance(module, MultipleLosses)), None)

    @cached_property
    def _gathers(self) -> list[Gather]:
        return [module.gather for module in self.loss.modules() if isinstance(module, TakesInputs)]

    def forward(self, batch: Batch, shares: Shares | None = None) -> tuple[Float[Tensor, "image dim"], Tensor]:
        """Return the embeddings of a batch's images, and the loss of the batch.

        Args:
            shares: what all processes have of the batch, where that is known: less is then exchanged.
        """
        for gather in self._gathers:
            gather.known = shares
        others: dict[str, Tensor] = {}
        images = self.embed(self._inputs(batch))
        if self.task.tokens is not None:
            images, texts = torch.split(images, len(batch.id))
            others = {"ref_emb": texts, "ref_labels": batch.label, "ref_ids": batch.id}
        step, call = self._calls
        self._calls = (step, call + 1)
        # What a loss or a miner draws from the global generators is of the whole batch, alike in every process.
        with stream(self.config.seed, step, call):
            return images, self.loss(images, batch.label, self.miner, ids=batch.id, **others)

    def _inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the images of each size, and the tokens of their texts."""
        inputs = batch.image if isinstance(batch.image, tuple) else (batch.image,)
        return inputs if self.task.tokens is None else (*inputs, self.task.tokens[batch.id])

    def embed(self, inputs: tuple[Tensor, ...]) -> Float[Tensor, "row dim"]:
        """Return the embeddings of images of one or several sizes, or of images and of texts as tokens."""
        if self.cache is not None:
            return torch.cat([self.cache.embed(same) for same in inputs])
        # In one call: DistributedDataParallel writes to buffers before each, which must not happen between two.
        embeddings: Tensor = self.encoder(self._on_device(inputs))
        return embeddings

    def _on_device(self, inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Return what the encoder takes: a quarter of the bytes are copied, since pixels are normalised there."""
        there = (same.to(self.accelerator.device, non_blocking=True) for same in inputs)
        return tuple(self.train_data.to_input(same) for same in there)

    def restore_order(self, batch: Batch) -> None:
        """Let DistributedDataParallel see a backward pass, after the first of which it orders its sums anew.

        A run that goes on has seen one, and of more than two processes the order of a sum shows in the last digit. All
        processes call it before the first batch of a step, while gradients are exchanged and there are none yet.
        """
        if not self.goes_on:
            return
        self.goes_on = False
        has_order = isinstance(self.encoder, DistributedDataParallel)
        if has_order and self.accelerator.num_processes > 2:
            self.encoder.eval()  # neither batch norms nor random generators change
            self.encoder(self._on_device(same[:2] for same in self._inputs(batch))).sum().backward()
            self.encoder.train()
            self.optimiser.zero_grad()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of the weights, given the loss of `forward`."""
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

    def update(self) -> None:
        """Let the optimiser step along the gradient of all batches of a step, and forget it."""
        scaler = self.accelerator.scaler
        if scaler is None:
            self.optimiser.step()
        else:
            scaler.step(self.optimiser)
            scaler.update()
        self.optimiser.zero_grad()


def _sharded(
    config: Config, model: nn.Module, accelerator: Accelerator, stateful: list[nn.Module]
) -> ShardedCopy | None:
    """A copy of the model with its weights shared out, where that is asked for and there are several processes."""
    if not config.train.sharded or accelerator.num_processes == 1:
        return None
    require_shardable(config)
    if any(isinstance(module, Reencodes) and module.wants_reencode for module in stateful):
        raise UserError('train.sharded=true does not work with out_of_batch=reencode; set it to "stored"')
    return ShardedCopy(model)


def _task(config: Config, splits: Splits, state: dict[str, Any] | None, say: Callable[[str], None]) -> Task:
    """What the configuration trains, with its first weights."""
    load = state is None
    if config.model.text is None:
        return Task(config, build_encoder(config.model, channels=config.data.channels, load=load, say=say))
    texts, saved = texts_of(splits.train), None if state is None else state["tokeniser"]
    for split in (splits.val, splits.test):
        if split is not None:
            require_pairs(split)
    return PairTask(config, build_towers(config, texts, saved=saved, load=load, say=say), splits.train)


def _gradient_cache(
    config: Config, encoder: nn.Module, sampler: Sampler, prepare: Callable[[Tensor], Tensor]
) -> GradientCache | None:
    micro_batch = config.train.micro_batch
    if micro_batch is None or micro_batch * sampler.world_size >= sampler.largest_batch * config.data.views:
        return None
    if config.model.text is not None and sampler.world_size > 1:
        # A chunk is of one side, and processes that exchange gradients expect those of both.
        raise UserError(
            f"train.micro_batch={micro_batch} with model.text works in one process and there are {sampler.world_size}; "
            "set train.micro_batch=null"
        )
    return GradientCache(encoder, micro_batch, prepare=prepare)


def _without_effect(trainer: Trainer, splits: Splits) -> list[str]:
    """What to say of settings that have another effect, or less of one, than their values promise."""
    config, sampler, pipeline = trainer.config, trainer.sampler, trainer.train_data.pipeline
    possible, unit, found = sampler.largest_batch, trainer.task.unit, []
    if possible < config.sampler.batch:
        found.append(
            f"batches have {possible} {unit} in place of sampler.batch={config.sampler.batch}: that is all that the "
            f"sampler can draw from {len(splits.train):,} training {unit} of {len(splits.train.classes):,} classes"
        )
    if config.train.micro_batch is not None and trainer.cache is None:
        found.append(
            f"train.micro_batch={config.train.micro_batch} has no effect: batches of {possible * trainer.views} images "
            f"over {sampler.world_size} process(es) are no larger"
        )
    if isinstance(pipeline, MultiCrop) and trainer.views <= pipeline.global_views:
        found.append(
            f"there are no small crops: the first global_views={pipeline.global_views} views are large ones, and "
            f"data.views={trainer.views}"
        )
    if config.optim.temperature_lr is not None and not any(one.requires_grad for one in trainer.loss.parameters()):
        found.append(
            f"optim.temperature_lr={config.optim.temperature_lr:g} has no effect: the loss "
            f"{', '.join(term.name for term in config.terms)} has no parameters of its own"
        )
    for _, term, own in losses_of_terms(config, trainer.loss):
        learnt = [one for one in own.parameters() if one.requires_grad]
        if term.lr_multiplier is not None and not learnt:
            found.append(f"lr_multiplier={term.lr_multiplier:g} of {term.name} has no effect: it learns nothing itself")
        if term.weight_decay and not any(one.ndim > 1 for one in learnt):
            found.append(f"weight_decay={term.weight_decay:g} of {term.name} has no effect: it learns no vectors")
    if splits.test is None:
        best = "best is the newest checkpoint" if splits.val is None else "best is that of the validation split"
        found.append(f"{splits.whole.name} has no test split: nothing is measured at the end, {best}")
    return list(dict.fromkeys(found))  # what is so at several widths is said once


def _accelerator(config: Config, out: Path | None) -> Accelerator:
    available = {str(tracker) for tracker in get_available_trackers()}
    missing = [name for name in config.train.trackers if name not in available]
    if missing:
        packages = " ".join(name.replace("_", "-") for name in missing)
        raise UserError(
            f"train.trackers: {', '.join(missing)} cannot be used, its package is not installed; "
            f"pip install {packages}, or leave it out"
        )
    for option, variable in (("--use_fsdp", "ACCELERATE_USE_FSDP"), ("--use_deepspeed", "ACCELERATE_USE_DEEPSPEED")):
        if os.environ.get(variable, "").lower() == "true":
            raise UserError(
                f"accelerate launch {option} shares out a model in a way that is not known here: leave it out, and set "
                "train.sharded=true"
            )
    trackers = list(config.train.trackers) if out is not None else []
    try:
        accelerator = Accelerator(
            cpu=on_cpu(),
            mixed_precision=config.train.mixed_precision,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=config.train.accumulate),
            log_with=trackers or None,
            project_dir=None if out is None else str(out),
        )
    except (ValueError, ImportError) as error:
        raise UserError(
            f"train.mixed_precision={config.train.mixed_precision}, train.trackers={trackers}: {error}; "
            "fp16 needs a GPU, trackers need their package (pip install 'aurank[trackers]')"
        ) from error
    if accelerator.num_processes != launched():
        raise UserError(
            f"{launched()} processes were launched and Accelerate joins {accelerator.num_processes}: launch with "
            "torchrun or accelerate launch, one process for each GPU"
        )
    return accelerator
