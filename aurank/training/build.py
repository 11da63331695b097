"""From a configuration to the objects of a run."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from aurank.config import Component, Config, LossTerm
from aurank.config.components import build
from aurank.config.schema import NO_BACKBONE
from aurank.data import SAMPLERS, Manifest, Sampler
from aurank.data.dataset import with_own_labels
from aurank.data.readers.embeddings import read_embeddings, rows_of_images
from aurank.embedding.build import build_transform
from aurank.embedding.image_selection import read_whole
from aurank.embedding.image_text_pairs import each_image_once
from aurank.embedding.select_images import (
    asks_about_classes,
    hold_out,
    require_distinct,
    require_likely_classes,
    split_of,
)
from aurank.errors import AurankWarning, UserError
from aurank.files import reading
from aurank.losses import LOSSES, MINERS, CrossBatchMemory, MultipleLosses
from aurank.losses.in_batch.saved_rows import SavedRows
from aurank.models import Encoder
from aurank.models.adapters.names import is_tower
from aurank.models.encoder import parameter_groups
from aurank.models.tuning import layer_scales
from aurank.names import signature
from aurank.training.optim import BATCH_RULES, OPTIMISERS, loss_groups


@dataclass(frozen=True, eq=False)
class Splits:
    """The data of a run: all of it as read, and its splits; None where there is no such split."""

    manifest: Manifest
    train: Manifest
    val: Manifest | None
    test: Manifest | None


def build_splits(config: Config, dataset: Manifest | None = None) -> Splits:
    """Return the splits, with each image once, however many its texts are, without ``model.text``."""
    data, once = config.data, config.model.text is None
    listed = read_whole(data) if dataset is None else dataset
    if asks_about_classes(data, listed):
        labelled = listed if data.train_labels == "class" else listed.select(listed.splits != "train")
        counts = ", ".join(f"{count:,} {split}" for split, count in labelled.split_sizes.items())
        require_likely_classes(labelled, data, counts=counts)
    manifest = hold_out(listed, data, seed=config.seed)
    require_distinct(manifest, data)
    by_class, splits = data.train_labels == "class", {}
    for name in ("train", "val", "test"):
        tests = by_class and dataset is None and "val" not in listed.split_sizes
        is_needed = name == "train" or (name == "test" and tests)
        rows = split_of(manifest, data, name) if is_needed or name in manifest.split_sizes else None
        splits[name] = each_image_once(rows) if once and rows is not None else rows
    train = splits["train"]
    assert train is not None
    return Splits(manifest, train if by_class else with_own_labels(train), splits["val"], splits["test"])


def build_sampler(
    config: Config, train: Manifest, *, rank: int, world_size: int, neighbours: Callable[[int], Any]
) -> Sampler:
    """Return the batch sampler; ``neighbours`` finds the nearest images, for a sampler that asks for them."""
    component = config.sampler
    offered: dict[str, Any] = {"labels": train.labels, "super_labels": train.super_labels, "neighbours": neighbours}
    offered |= {"batch": component.batch, "seed": config.seed, "rank": rank, "world_size": world_size}
    offered |= {"paths": train.paths, "class_sets": train.class_sets}
    sampler: Sampler = build("sampler.params", SAMPLERS[component.name], offered, component.params)
    if sampler.refresh_every is None:
        next(sampler.iterate())  # raises UserError if an epoch has no batch
    return sampler


def check_image_size(encoder: Encoder, config: Config, device: torch.device) -> None:
    """Raise UserError where the encoder cannot take images of data.image_size; try an image of zeros."""
    name = config.model.backbone
    if name == NO_BACKBONE:
        return
    size = build_transform(config.data, train=True).size
    training = encoder.training
    encoder.eval()
    options = "force_image_size" if is_tower(name) else "model.params.img_size or dynamic_img_size=true"
    title = f"a network for {size[0] if size[0] == size[1] else list(size)} pixels (data.image_size)"
    remedy = f"use another data.image_size, or give it {options}"
    with torch.no_grad(), reading(f"model.backbone={name}", title, remedy=remedy):
        encoder(torch.zeros(1, config.data.channels, *size, device=device))
    encoder.train(training)


def build_loss(config: Config, train: Manifest) -> nn.Module:
    """Return the loss over all processes, its sizes filled in from the data and the encoder, with its memory."""
    memory = config.memory
    gathers = memory is None  # with a memory, the memory gathers
    first = config.terms[0]
    is_alone = len(config.terms) == 1 and first.matryoshka is None and first.miner is None and first.weight == 1
    if is_alone:
        loss = _build_term(config, first, train, dim=config.model.dim, gathers=gathers)
    else:
        losses, weights, widths, miners = {}, {}, {}, {}
        for name, term, width, weight in _parts(config):
            losses[name] = _build_term(config, term, train, dim=width or config.model.dim, gathers=False)
            weights[name], widths[name] = weight, width
            miners[name] = build_miner(term.miner or config.miner)
        loss = MultipleLosses(losses, miners, weights, widths, distributed=gathers)
    if memory is None:
        return loss
    start_at = memory.start_at * config.train.accumulate  # the memory counts batches, the configuration steps
    return CrossBatchMemory(loss, config.model.dim, memory.size, start_at=start_at, distributed=True)


def _parts(config: Config) -> Iterator[tuple[str, LossTerm, int | None, float]]:
    """Yield each loss of a sum: its name, its term, the width of its embeddings (None: all) and its weight."""
    for term in config.terms:
        if term.matryoshka is None:
            yield term.name, term, None, term.weight
            continue
        for width in term.matryoshka:
            yield f"{term.name}@{width}", term, width, term.weight


def read_saved_rows(term: LossTerm) -> dict[str, Manifest]:
    arguments = signature(LOSSES[term.name])[0]
    files = {name: file for name, file in term.params.items() if arguments[name].annotation == SavedRows}
    return {name: read_embeddings(Path(), file=file) for name, file in files.items()}


def _build_term(config: Config, term: LossTerm, train: Manifest, *, dim: int, gathers: bool) -> nn.Module:
    sizes: dict[str, Any] = {"class_counts": train.class_counts, "num_classes": len(train.class_counts)}
    sizes |= {"num_samples": len(train), "embedding_size": dim}
    if "super_labels" in signature(LOSSES[term.name])[0]:
        sizes["super_labels"] = train.class_super_labels
        if sizes["super_labels"] is None:
            sizes["super_labels"] = np.full(len(train.class_counts), -1)
            text = f"loss {term.name}: {train.name} has no super-categories, so classes alone are ranked"
            warnings.warn(text, AurankWarning, stacklevel=2)
    offered = {**sizes, "distributed": gathers, "two_way": config.model.text is not None}
    # The configuration was checked: its two_way is that of the model.
    params = {name: value for name, value in term.params.items() if name != "two_way"}
    for name, saved in read_saved_rows(term).items():
        params[name] = torch.from_numpy(rows_of_images(saved.source, train.regions))
    loss: nn.Module = build(f"loss.params of {term.name}", LOSSES[term.name], offered, params)
    if train.class_sets is not None and (reason := getattr(loss, "one_label", "")):
        raise UserError(f"loss {term.name} takes one label for each image, and {train.name} has several: {reason}")
    return loss


def build_miner(component: Component | None) -> nn.Module | None:
    if component is None:
        return None
    miner: nn.Module = build("miner.params", MINERS[component.name], {}, component.params)
    return miner


def learning_rate(config: Config) -> float:
    return config.optim.lr * BATCH_RULES[config.optim.batch_rule](config.sampler.batch * config.train.accumulate)


def build_optimiser(config: Config, model: nn.Module, loss: nn.Module) -> Optimizer:
    optim, rate = config.optim, learning_rate(config)
    scales = None
    if optim.layer_decay is not None:
        image: Any = getattr(model, "image", model)  # two towers have one for images
        scales = layer_scales(image, optim.layer_decay, config.model.backbone)
    groups = parameter_groups(
        model, weight_decay=optim.weight_decay, head_lr_multiplier=optim.head_lr_multiplier, scales=scales
    )
    usual = (optim.temperature_lr or optim.lr) / rate
    inner = loss.loss if isinstance(loss, CrossBatchMemory) else loss
    if isinstance(inner, MultipleLosses):
        for name, term, _, _ in _parts(config):
            groups += loss_groups(f"loss {name}", inner.losses[name], term, usual=usual)
    else:
        groups += loss_groups("loss", loss, config.terms[0], usual=usual)
    optimiser: Optimizer = build("optim.params", OPTIMISERS[optim.name], {"params": groups, "lr": rate}, optim.params)
    return optimiser
