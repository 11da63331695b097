"""From a configuration to the objects of a run."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from aurank.config import Component, Config, DataConfig, ModelConfig
from aurank.config.components import signature
from aurank.data import READERS, SAMPLERS, TRANSFORMS, ImageDataset, Manifest, Pipeline, Sampler
from aurank.data.checks.odd_classes import odd_classes
from aurank.data.checks.repeated import repeated_image
from aurank.data.dataset import with_own_labels
from aurank.embedding.image_text_pairs import each_image_once
from aurank.embedding.preprocessing import with_preprocessing
from aurank.errors import UserError, first_line
from aurank.evaluation.engine.positives import count_positives, require_room
from aurank.losses import LOSSES, MINERS, CrossBatchMemory
from aurank.models import Encoder, parameter_groups
from aurank.models.adapters.backbones import without_file
from aurank.training.checkpoint import load_checkpoint, resolve_checkpoint
from aurank.training.components import read_trained
from aurank.training.fitting import described
from aurank.training.optim import BATCH_RULES, OPTIMISERS, SCHEDULES, Schedule, loss_group


@dataclass(frozen=True, eq=False)
class Splits:
    """The data of a run: ``whole`` as read, and its parts; ``val`` is None when nothing is held out.

    ``test`` is None where data without labels, trained on with data.train_labels=image, have no such split.
    """

    whole: Manifest
    train: Manifest
    val: Manifest | None
    test: Manifest | None


def data_root(config: DataConfig) -> Path:
    """``data.root``, else ``$AURANK_DATA``, else ``./data``."""
    return Path(config.root or os.environ.get("AURANK_DATA") or "data").expanduser()


def build_manifest(config: DataConfig, *, seed: int) -> Manifest:
    """Every image of the data set with its split, validation (class-disjoint from training, seeded) included."""
    return hold_out(_read(config), config, seed=seed)


def _read(config: DataConfig) -> Manifest:
    return READERS[config.name](data_root(config), **config.params)


def hold_out(manifest: Manifest, config: DataConfig, *, seed: int) -> Manifest:
    """Return the data set with the validation split that the configuration holds out of training.

    From images that each are a class of their own none are held out: nothing could be measured with them.
    """
    if config.train_labels == "image" and np.bincount(manifest.labels[manifest.splits == "train"]).max(initial=0) < 2:
        return manifest
    return manifest.split_validation(config.validation_fraction, seed=seed)


def build_splits(config: DataConfig, *, seed: int, texts: bool = True) -> Splits:
    """The training, validation and test images.

    `texts=False`: none are read (model.text is null), so that each split has an image once, however many its texts are.
    """
    given = _read(config)
    if asks_about_classes(config, given):
        labelled = given if config.train_labels == "class" else given.select(given.splits != "train")
        counts = ", ".join(f"{count:,} {split}" for split, count in labelled.split_sizes.items())
        require_likely_classes(labelled, config, counts=counts)
    whole = hold_out(given, config, seed=seed)
    require_distinct(whole, config)

    def taken(name: str) -> Manifest:
        rows = split_of(whole, config, name)
        rows = rows if texts else each_image_once(rows)
        if name != "train":
            require_room_for(rows)
        return rows

    train = taken("train")
    val = taken("val") if "val" in whole.split_sizes else None
    if config.train_labels == "class":
        return Splits(whole, train, val, taken("test"))
    return Splits(whole, with_own_labels(train), val, taken("test") if "test" in whole.split_sizes else None)


def require_room_for(manifest: Manifest) -> None:
    """Nothing; UserError where measuring these images would take more memory than there is."""
    query, gallery = manifest.is_query, manifest.is_gallery
    own = int((query & gallery).sum())
    require_room(count_positives(manifest.labels[query], manifest.labels[gallery]) - own)


def require_distinct(manifest: Manifest, config: DataConfig) -> None:
    """Raise UserError where an image is listed more than once, unless the configuration keeps such."""
    if config.repeated == "refuse" and (repeated := repeated_image(manifest)):
        raise UserError(f"{repeated}; list each image once, or take them as different ones with data.repeated=keep")


_OWN_FILES = ("folder", "table")  # readers of people's own files, of which a folder too high can have been named


def asks_about_classes(config: DataConfig, manifest: Manifest) -> bool:
    """Return whether classes of what was read may be none; where images have texts, they can be the texts."""
    measured = config.train_labels == "class" or (manifest.splits != "train").any()
    return config.name in _OWN_FILES and config.odd_classes == "refuse" and manifest.texts is None and bool(measured)


def require_likely_classes(manifest: Manifest, config: DataConfig, *, counts: str) -> None:
    """Raise UserError where classes look like splits, or two hold everything, unless the configuration keeps such."""
    if config.odd_classes == "keep" or (odd := odd_classes(manifest.classes)) is None:
        return
    what, names = odd
    such_as = "such as " if "splits" in what else ""
    raise UserError(
        f"the {len(manifest):,} images of {manifest.name} ({counts}) are of {what}, {such_as}"
        f"{' and '.join(repr(name) for name in names[:2])}: name the folder that holds a folder for each class, or say "
        "with data.odd_classes=keep that these are the classes"
    )


def split_of(whole: Manifest, config: DataConfig, name: str) -> Manifest:
    """The images of one split; UserError where there are none, with what to do in the data set that was read."""
    try:
        return whole.split(name)
    except UserError as error:
        raise UserError(f"{error}{_split_remedy(config, name)}") from error


def _split_remedy(config: DataConfig, name: str) -> str:
    if config.name == "folder" and name in ("train", "test"):
        bound = "below 1 (such as 0.5)" if name == "train" else "above 0"
        return (
            f"; add {name}/CLASS/IMAGE, or, where the folder is CLASS/IMAGE, set data.params.test_fraction {bound}, "
            "the fraction of the classes that is for testing (default 1)"
        )
    if config.name == "table":
        return f"; write {name} into the column split of {config.params['file']} for some of its classes"
    if config.name == "unlabelled" and name == "test":
        return "; set data.train_labels=image, data.views=2 and sampler.name=shuffled to train without labels"
    return ""


def build_transform(config: DataConfig, *, train: bool) -> Pipeline:
    """The training or the evaluation pipeline; what the backbone wants has been filled in (`fill_preprocessing`)."""
    component = config.train_transform if train else config.test_transform
    assert config.normalise is not None
    assert config.interpolation is not None
    pipeline: Pipeline = TRANSFORMS[component.name](
        image_size=config.image_size,
        channels=config.channels,
        mean=config.normalise.mean,
        std=config.normalise.std,
        interpolation=config.interpolation,
        **component.params,
    )
    return pipeline


def fill_preprocessing(config: Config, state: dict[str, Any] | None = None) -> Config:
    """The configuration with the normalisation and interpolation of its backbone, unless it names its own.

    state: the checkpoint that a run resumes from, whose values it keeps; otherwise `model.init_from` may name one.
    """
    if state is None and config.model.init_from is not None:
        state = load_checkpoint(resolve_checkpoint(config.model.init_from))
    return with_preprocessing(config, None if state is None else read_trained(state["config"]))


def build_dataset(config: DataConfig, manifest: Manifest, *, train: bool, seed: int = 0) -> ImageDataset:
    """The images of a manifest under the training or the evaluation pipeline."""
    return ImageDataset(
        manifest,
        build_transform(config, train=train),
        channels=config.channels,
        seed=seed,
        on_error=config.on_error,
        cache_bytes=config.cache_bytes,
        max_pixels=config.max_pixels,
    )


def build_sampler(
    config: Config, train: Manifest, *, rank: int, world_size: int, neighbours: Callable[[int], Any]
) -> Sampler:
    """The batch sampler over the training rows; ``neighbours`` finds the nearest images, for one that asks for them."""
    component = config.sampler
    offered = {
        "labels": train.labels,
        "batch": component.batch,
        "seed": config.seed,
        "rank": rank,
        "world_size": world_size,
        "neighbours": neighbours,
    }
    sampler: Sampler = _call(SAMPLERS[component.name], offered, component.params)
    return sampler


def build_encoder(
    config: ModelConfig, *, channels: int, load: bool = True, say: Callable[[str], None] | None = None
) -> Encoder:
    """The encoder; with ``load``, its pretrained weights or those of ``model.init_from``.

    ``say`` is given a line where a checkpoint holds more than it takes.
    """
    encoder = Encoder(
        config.backbone,
        dim=config.dim,
        head_layers=config.head_layers,
        head_width=config.head_width,
        discard_head=config.discard_head,
        channels=channels,
        pretrained=config.pretrained and load and config.init_from is None,
        pooling=config.pooling,
        freeze_batch_norm=config.freeze_batch_norm,
        channels_last=config.channels_last,
        params=config.params if load and config.init_from is None else without_file(config.params),
    )
    if load and config.init_from is not None:
        _initialise(encoder, config.init_from, say)
    return encoder


def check_image_size(encoder: Encoder, config: Config, device: torch.device) -> None:
    """Nothing; UserError where the encoder cannot take images of every size that is trained on or measured.

    One image of each goes through it, of zeros and in evaluation mode: neither it nor a random generator changes.
    """
    augmented = build_transform(config.data, train=True)
    sizes = {augmented.of_view(view).image_size for view in range(config.data.views)} | {config.data.image_size}
    training = encoder.training
    encoder.eval()
    try:
        for size in sorted(sizes, reverse=True):
            _check_size(encoder, config, size, device, others=len(sizes) > 1)
    finally:
        encoder.train(training)


def _check_size(encoder: Encoder, config: Config, size: int, device: torch.device, *, others: bool) -> None:
    try:
        with torch.no_grad():
            encoder(torch.zeros(1, config.data.channels, size, size, device=device))
    except UserError:
        raise
    # A backbone refuses an image in its own way: by an assertion, a shape that does not fit, a missing attribute.
    except Exception as error:
        key = "data.image_size" if size == config.data.image_size else "data.train_transform.params.local_size"
        own = encoder.image_size
        sizes = f"a larger {key}" if own is None else f"{key}={own}, which it was made for"
        remedy = f"use {sizes}, or give model.params.img_size={size} to a transformer"
        if others:
            remedy = f"use {sizes}, or give model.params.dynamic_img_size=true to a transformer, for several sizes"
        raise UserError(
            f"model.backbone={config.model.backbone} fails on an image of {key}={size} ({first_line(error)}); {remedy}"
        ) from error


def _initialise(encoder: Encoder, source: str, say: Callable[[str], None] | None) -> None:
    """Copy a checkpoint's weights; a projection of another shape starts afresh, a backbone that differs is refused."""
    checkpoint = load_checkpoint(resolve_checkpoint(source))
    if say is not None and checkpoint["config"].get("model", {}).get("text") is not None:
        say(f"model.init_from: {source} is of images and texts; its image encoder is taken, its text encoder is not")
    saved = image_weights(checkpoint)
    own = encoder.state_dict()
    fits = {name: value for name, value in saved.items() if name in own and own[name].shape == value.shape}
    lacking = [name for name in own if name not in fits and not name.startswith("head.")]
    if lacking:
        came, expected = (described(held.get(lacking[0])) for held in (saved, own))
        raise UserError(
            f"model.init_from: {source} does not fit this backbone: {len(lacking)} tensors are missing or of another "
            f"shape, the first {lacking[0]!r} is {came}, expected {expected}; use the backbone, channels and pooling "
            "it was trained with"
        )
    if any(name not in fits for name in own):
        fits = {name: value for name, value in fits.items() if not name.startswith("head.")}  # all of it or nothing
        if say is not None:
            say(f"model.init_from: the projection of {source} has another shape; it begins anew, at random")
    encoder.load_state_dict(fits, strict=False)


def model_weights(checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights to evaluate: the moving average where there is one, else the encoder's own."""
    average = checkpoint["average"]
    weights: dict[str, torch.Tensor] = checkpoint["encoder"] if average is None else average["values"]
    return weights


def image_weights(checkpoint: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Those weights of the encoder of images: of two towers those of one."""
    weights, prefix = model_weights(checkpoint), "image."
    of_tower = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    return of_tower or weights


def build_loss(config: Config, train: Manifest) -> nn.Module:
    """The loss over all processes, its sizes filled in from the data and the encoder, with its memory if it has one.

    With texts it is of both directions.
    """
    dim, memory = config.model.dim, config.memory
    sizes = {"class_counts": train.class_counts, "num_samples": len(train), "embedding_dim": dim}
    # Who sees the whole batch gathers it: the memory, where there is one.
    offered = {**sizes, "distributed": "auto" if memory is None else None}
    # The configuration may say so too; anything else has been refused.
    two_way = {"two_way": config.model.text is not None} if "two_way" in signature(LOSSES[config.loss.name])[0] else {}
    params = {**config.loss.params, **two_way}
    loss: nn.Module = _call(LOSSES[config.loss.name], offered, params)
    if memory is None:
        return loss
    start_at = memory.start_at * config.train.accumulate  # counted in batches there
    return CrossBatchMemory(loss, dim, memory.size, start_at=start_at, distributed="auto")


def build_miner(component: Component | None, train: Manifest) -> nn.Module | None:
    """The miner, its sizes filled in from the data, or None."""
    if component is None:
        return None
    miner: nn.Module = _call(MINERS[component.name], {"num_samples": len(train)}, component.params)
    return miner


def learning_rate(config: Config) -> float:
    """The learning rate of the backbone after the warm-up, by the rule for the images of an update."""
    return config.optim.lr * BATCH_RULES[config.optim.batch_rule](config.sampler.batch * config.train.accumulate)


def build_optimiser(config: Config, model: nn.Module, loss: nn.Module) -> Optimizer:
    """The optimiser of the model's weights and of the loss's own parameters."""
    optim, rate = config.optim, learning_rate(config)
    groups = parameter_groups(model, weight_decay=optim.weight_decay, head_lr_multiplier=optim.head_lr_multiplier)
    groups += loss_group(loss, lr_multiplier=(optim.temperature_lr or optim.lr) / rate)
    return OPTIMISERS[optim.name](groups, lr=rate, **optim.params)


def build_schedule(config: Config) -> Schedule:
    """The learning-rate factor as a function of the step."""
    optim = config.optim
    return SCHEDULES[optim.schedule.name](
        steps=config.train.steps, warmup_steps=optim.warmup_steps, **optim.schedule.params
    )


def _call(factory: Callable[..., Any], offered: dict[str, Any], params: dict[str, Any]) -> Any:
    wanted, _ = signature(factory)
    return factory(**{name: value for name, value in offered.items() if name in wanted}, **params)
