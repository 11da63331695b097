"""From a configuration to the objects of a run."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from aurank.config import Component, Config, DataConfig, LossTerm
from aurank.config.components import build, signature
from aurank.config.schema import NO_BACKBONE
from aurank.data import SAMPLERS, Manifest, Sampler
from aurank.data.dataset import with_own_labels
from aurank.embedding.from_config import build_transform
from aurank.embedding.image_text_pairs import each_image_once
from aurank.embedding.manifest_from_config import (
    asks_about_classes,
    hold_out,
    read_whole,
    require_distinct,
    require_likely_classes,
    split_of,
)
from aurank.errors import AurankWarning, UserError, first_line
from aurank.losses import LOSSES, MINERS, CrossBatchMemory, MultipleLosses
from aurank.models import Encoder
from aurank.models.adapters.towers import is_tower
from aurank.models.encoder import parameter_groups
from aurank.models.tuning import layer_scales
from aurank.training.optim import BATCH_RULES, OPTIMISERS, SCHEDULES, Schedule, loss_groups


@dataclass(frozen=True, eq=False)
class Splits:
    """The data of a run: ``whole`` as read, and its parts; ``val`` is None when nothing is held out.

    ``test`` is None where data without labels, trained on with data.train_labels=image, have no such split.
    """

    whole: Manifest
    train: Manifest
    val: Manifest | None
    test: Manifest | None


def build_splits(config: DataConfig, *, seed: int, texts: bool = True) -> Splits:
    """The training, validation and test images.

    `texts=False`: none are read (model.text is null), so that each split has an image once, however many its texts are.
    """
    given = read_whole(config)
    if asks_about_classes(config, given):
        labelled = given if config.train_labels == "class" else given.select(given.splits != "train")
        counts = ", ".join(f"{count:,} {split}" for split, count in labelled.split_sizes.items())
        require_likely_classes(labelled, config, counts=counts)
    whole = hold_out(given, config, seed=seed)
    require_distinct(whole, config)

    def taken(name: str) -> Manifest:
        rows = split_of(whole, config, name)
        return rows if texts else each_image_once(rows)

    train = taken("train")
    val = taken("val") if "val" in whole.split_sizes else None
    if config.train_labels == "class":
        return Splits(whole, train, val, taken("test"))
    return Splits(whole, with_own_labels(train), val, taken("test") if "test" in whole.split_sizes else None)


def build_sampler(
    config: Config, train: Manifest, *, rank: int, world_size: int, neighbours: Callable[[int], Any]
) -> Sampler:
    """The batch sampler over the training rows; ``neighbours`` finds the nearest images, for one that asks for them."""
    component = config.sampler
    offered = {"labels": train.labels, "batch": component.batch, "seed": config.seed}
    offered |= {"rank": rank, "world_size": world_size, "neighbours": neighbours}
    offered["super_labels"] = train.super_labels
    sampler: Sampler = build("sampler.params", SAMPLERS[component.name], offered, component.params)
    return sampler


def check_image_size(encoder: Encoder, config: Config, device: torch.device) -> None:
    """Raise UserError where the encoder, unless it is a head alone, cannot take images of every size that is used.

    One image of each goes through it, of zeros and in evaluation mode: neither it nor a random generator changes.
    """
    if config.model.backbone == NO_BACKBONE:
        return
    augmented = build_transform(config.data, train=True)
    sizes = {augmented.of_view(view).image_size for view in range(config.data.views)} | {config.data.image_size}
    training = encoder.training
    encoder.eval()
    try:
        for size in sorted(sizes, reverse=True):
            with torch.no_grad():
                encoder(torch.zeros(1, config.data.channels, size, size, device=device))
    except UserError:
        raise
    # A backbone refuses an image in its own way: by an assertion, a shape that does not fit, a missing attribute.
    except Exception as error:
        key = "data.image_size" if size == config.data.image_size else "data.train_transform.params.local_size"
        own = encoder.image_size
        fitting = f"a larger {key}" if own is None else f"{key}={own}, which it was made for"
        given = f", or give model.params.img_size={size} to a transformer"
        if len(sizes) > 1:
            given = ", or give model.params.dynamic_img_size=true to a transformer, for several sizes"
        name = config.model.backbone
        if is_tower(name):
            given = f", or name it {name},force_image_size={size}" if name.startswith("open_clip:") else ""
        raise UserError(
            f"model.backbone={name} fails on an image of {key}={size} ({first_line(error)}); use {fitting}{given}"
        ) from error
    finally:
        encoder.train(training)


def build_loss(config: Config, train: Manifest) -> nn.Module:
    """The loss over all processes, its sizes filled in from the data and the encoder, with its memory if it has one.

    With texts it is of both directions. Several losses, or one of several widths, are a `MultipleLosses`.
    """
    memory = config.memory
    # Who sees the whole batch gathers it: the memory, where there is one.
    gathers = memory is None
    if not is_sum(config):
        loss = _build_term(config, config.terms[0], train, dim=config.model.dim, gathers=gathers)
    else:
        losses, weights, widths, miners = {}, {}, {}, {}
        for name, term, width, weight in _parts(config):
            losses[name] = _build_term(config, term, train, dim=width or config.model.dim, gathers=False)
            weights[name], widths[name] = weight, width
            miners[name] = build_miner(term.miner or config.miner, train)
        loss = MultipleLosses(losses, miners, weights, widths, distributed=gathers)
    if memory is None:
        return loss
    start_at = memory.start_at * config.train.accumulate  # counted in batches there
    return CrossBatchMemory(loss, config.model.dim, memory.size, start_at=start_at, distributed=True)


def is_sum(config: Config) -> bool:
    """Whether the loss is a sum, of several losses or of one over several widths, and asks miners by itself."""
    first = config.terms[0]
    return len(config.terms) > 1 or first.matryoshka is not None or first.miner is not None or first.weight != 1


def _parts(config: Config) -> Iterator[tuple[str, LossTerm, int | None, float]]:
    """Each loss of a sum by its name, with the width of the embeddings that it sees, None for all, and its weight."""
    for term in config.terms:
        if term.matryoshka is None:
            yield term.name, term, None, term.weight
            continue
        weights = term.matryoshka_weights or (1.0,) * len(term.matryoshka)
        for width, weight in zip(term.matryoshka, weights, strict=True):
            yield f"{term.name}@{width}", term, width, term.weight * weight


def losses_of_terms(config: Config, loss: nn.Module) -> Iterator[tuple[str, LossTerm, nn.Module]]:
    """Yield what `build_loss` built for each term, of several widths each, with its name and the term."""
    whole = loss.loss if isinstance(loss, CrossBatchMemory) else loss
    if not isinstance(whole, MultipleLosses):
        yield "loss", config.terms[0], loss
        return
    for name, term, _, _ in _parts(config):
        yield f"loss {name}", term, whole.losses[name]


def _build_term(config: Config, term: LossTerm, train: Manifest, *, dim: int, gathers: bool) -> nn.Module:
    sizes: dict[str, Any] = {"class_counts": train.class_counts, "num_classes": len(train.class_counts)}
    sizes |= {"num_samples": len(train), "embedding_size": dim}
    if "super_labels" in signature(LOSSES[term.name])[0]:
        sizes["super_labels"] = train.class_super_labels
        if sizes["super_labels"] is None:
            sizes["super_labels"] = np.full(len(train.class_counts), -1)
            text = f"loss {term.name}: {train.name} has no super-categories, so classes alone are ranked"
            warnings.warn(text, AurankWarning, stacklevel=2)
    # A configuration's own two_way is no other.
    offered = {**sizes, "distributed": gathers, "two_way": config.model.text is not None}
    given = {name: value for name, value in term.params.items() if name != "two_way"}
    loss: nn.Module = build(f"loss.params of {term.name}", LOSSES[term.name], offered, given)
    return loss


def build_miner(component: Component | None, train: Manifest) -> nn.Module | None:
    """The miner, its sizes filled in from the data, or None."""
    if component is None:
        return None
    miner: nn.Module = build("miner.params", MINERS[component.name], {"num_samples": len(train)}, component.params)
    return miner


def learning_rate(config: Config) -> float:
    """The learning rate of the backbone after the warm-up, by the rule for the images of an update."""
    return config.optim.lr * BATCH_RULES[config.optim.batch_rule](config.sampler.batch * config.train.accumulate)


def build_optimiser(config: Config, model: nn.Module, loss: nn.Module) -> Optimizer:
    """The optimiser of the model's weights and of the loss's own parameters."""
    optim, rate = config.optim, learning_rate(config)
    scales = None
    if optim.layer_decay is not None:
        image: Any = getattr(model, "image", model)  # of two towers
        scales = layer_scales(image, optim.layer_decay, config.model.backbone)
    groups = parameter_groups(
        model, weight_decay=optim.weight_decay, head_lr_multiplier=optim.head_lr_multiplier, scales=scales
    )
    usual = (optim.temperature_lr or optim.lr) / rate
    for name, term, own in losses_of_terms(config, loss):
        groups += loss_groups(name, own, term, usual=usual)
    optimiser: Optimizer = build("optim.params", OPTIMISERS[optim.name], {"params": groups, "lr": rate}, optim.params)
    return optimiser


def build_schedule(config: Config) -> Schedule:
    """The learning-rate factor as a function of the step."""
    optim = config.optim
    steps = {"steps": config.train.steps, "warmup_steps": optim.warmup_steps}
    key, factory = "optim.schedule.params", SCHEDULES[optim.schedule.name]
    schedule: Schedule = build(key, factory, steps, optim.schedule.params)
    return schedule
