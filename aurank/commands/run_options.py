"""How a model is run on images: its options, the model with the images as it wants them, and their embeddings."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt
from torch import nn

from aurank.config import DataConfig
from aurank.config.schema import EvaluateConfig
from aurank.data import ImageDataset, Manifest, Pipeline
from aurank.data.manifest import count_labels
from aurank.data.saved_embeddings import MadeBy
from aurank.distributed import ProcessGroup
from aurank.embedding.build import build_dataset, encoder_of, open_prepared, with_features, with_preprocessing
from aurank.embedding.cache import EmbeddingCache, Say, data_sha256, weights_sha256
from aurank.embedding.embed import embed
from aurank.embedding.embedded import Embedded, evaluation_options, options_of
from aurank.embedding.image_selection import ImageSelection
from aurank.embedding.image_text_pairs import each_image_once
from aurank.embedding.locations import is_stored, resolve_checkpoint, split_name
from aurank.embedding.protocols import Protocol
from aurank.embedding.select_images import describe_overlap, select
from aurank.embedding.settings import read_trained
from aurank.embedding.stored.checkpoint import describe_average, is_head, load_checkpoint
from aurank.embedding.stored.trained_model import fetched, load, made_by, trained_model, with_backbone
from aurank.errors import UserError
from aurank.evaluation.inputs import ProgressCallback
from aurank.files import reading
from aurank.models.adapters.by_name import check_model
from aurank.models.adapters.names import VIEWS
from aurank.models.image_model import ImageModel

# What a model from elsewhere brings along.
_BROUGHT = re.compile(r"data\.(image_size|resize|channels|normalise|interpolation|(test|train)_transform|cache)")


@dataclass(frozen=True)
class RunOptions:
    """How a model is run; none of it but `bf16` is meant to change more of a number than its rounding.

    Args:
        batch: images embedded at once; default: the configuration's, else what a trial on the CPU finds, 256 on GPUs.
        device: such as cuda:1 or cpu; default: cuda where there is one.
        cache: folder of the embedding cache; commands keep one in $AURANK_CACHE, else in ~/.cache/aurank/embeddings.
        bf16: embed in bfloat16, faster where the processor has it; embeddings change in the third digit.
        allow_code: trust the model: ``python:`` runs code, and so may options.
        group: processes that share the images; all of them make the same calls.
        listener: called with a stage, such as "embedding" or "ranking", how much of it is done and how much there is.
        say: given lines such as what was read from the cache; default: the logger "aurank".
        finished: given each result with its name, before what follows begins.
        command: what results name as the command that made them.

    Example:
        >>> RunOptions(batch=64, device="cpu").torch_device
        device(type='cpu')
    """

    batch: PositiveInt | None = None
    device: str | None = None
    cache: Path | None = None
    bf16: bool = False
    allow_code: bool = False
    group: ProcessGroup = field(default_factory=partial(ProcessGroup, False))
    listener: Callable[[str, int, int], None] | None = None
    say: Say = lambda line: logging.getLogger("aurank").info("%s", line)
    finished: Callable[[str, Any], None] = lambda name, result: None
    command: str | None = None

    def __post_init__(self) -> None:
        try:
            torch.empty(1, device=self.torch_device)
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            text = str(error).splitlines()[0]
            raise UserError(f"--device {self.device!r} cannot be used here ({text}); cpu always can") from error

    def tell(self, *lines: str) -> None:
        """Give `say` the lines."""
        for line in lines:
            self.say(line)

    def stage(self, name: str) -> ProgressCallback | None:
        """Return what reports the progress of a stage, None without a listener."""
        return None if self.listener is None else partial(self.listener, name)

    @property
    def torch_device(self) -> torch.device:
        """The device that the model runs on."""
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def open_cache(
        self, name: str, module: nn.Module, description: str, dataset: ImageDataset
    ) -> EmbeddingCache | None:
        """Return the cache of a model's embeddings of a data set, None where none is wanted.

        `description`: what decides the embeddings beside the weights and the images.
        """
        if self.cache is None:
            return None
        digest, manifest = "" if dataset.prepared is None else dataset.prepared.sha256, dataset.manifest
        description += dataset.made_of + digest + (" in bf16" if self.bf16 else "")
        keys = {"weights": weights_sha256(module), "transform": description, "data": data_sha256(manifest)}
        about = {"model": name, "images": len(set(manifest.paths)), "of": manifest.name}
        return EmbeddingCache(self.cache, **keys, about=about, say=self.say)


@dataclass(frozen=True, eq=False)
class PreparedModel:
    model: ImageModel
    dataset: ImageDataset
    data: DataConfig
    dataset_of: Callable[[Manifest], ImageDataset]  # other images for the same model
    run: RunOptions
    remarks: Sequence[str] = ()  # what was taken of a file of weights
    origin: Sequence[str] = ()  # of a model that is the average of others
    overlap: Sequence[str] = ()  # how many of the images it was trained on, for a measure's notes
    settings: Mapping[str, Any] = field(default_factory=dict)  # of measuring, by the configuration that names the data

    @property
    def sizes(self) -> dict[str, Any]:
        default = EvaluateConfig().batch
        trained = default if self.model.config is None else self.model.config.evaluate.batch
        batch = self.settings.get("batch", None if trained == default else trained)
        return {"batch": batch if self.run.batch is None else self.run.batch, "workers": self.data.workers}

    def evaluation_options(self, protocol: Protocol | None, options: dict[str, Any]) -> dict[str, Any]:
        configured = {} if self.model.config is None else evaluation_options(self.model.config)
        configured |= options_of(self.settings)
        if protocol is not None:
            configured.pop("recall_at", None)
        return {**configured, **options}

    @property
    def made_by(self) -> MadeBy:
        further = [self.dataset.made_of.strip(), "in bf16" if self.run.bf16 else ""]
        return replace(made_by(self.model), precision=", ".join(filter(None, further)))

    def embed(self, manifest: Manifest | None = None) -> tuple[Embedded, list[str]]:
        """Return the embeddings of the images chosen, or of others, and notes on them; what is cached is read."""
        dataset = self.dataset if manifest is None else self.dataset_of(manifest)
        how = {**self.embedding(dataset), **self.sizes, "progress": self.run.stage("embedding")}
        embedded = embed(**how)
        return embedded, self.notes(embedded, dataset.manifest)

    def embedding(self, dataset: ImageDataset) -> dict[str, Any]:
        """Return the arguments that all functions of embedding.embed take of a data set."""
        module = self.model.module.to(self.run.torch_device)
        cache = self.run.open_cache(self.model.name, module, self.model.description, dataset)
        how = {"device": self.run.torch_device, "bf16": self.run.bf16, "cache": cache, "group": self.run.group}
        return {"model": module, "dataset": dataset, **how}

    def notes(self, embedded: Embedded, manifest: Manifest) -> list[str]:
        paths = [manifest.paths[row] for row in np.setdiff1d(np.arange(len(manifest)), embedded.ids)]
        name = f"{manifest.name}, manifest {manifest.sha256[:16]}, {count_labels(manifest)}"
        precision = ", embedded in bf16" if self.run.bf16 else ""
        notes = [f"model {self.model.name}; {len(manifest):,} images of {name}{precision}", *self.origin]
        if self.dataset.made_of:
            notes.append(f"embeddings{self.dataset.made_of}")
        if paths:
            examples = "; ".join(paths[:3]) + (f", and {len(paths) - 3} more" if len(paths) > 3 else "")
            notes.append(f"skipped, unreadable: {len(paths):,} of {len(manifest):,} images ({examples})")
        return notes


def prepare_model(
    model: str, images: ImageSelection, running: RunOptions, *, labels: Path | None = None
) -> PreparedModel:
    name, model = model, fetched(model)
    kind, location = split_name(model)
    if kind == "embeddings":
        raise UserError(f"--model {model}: these are embeddings already; name a model")
    if labels is not None:
        raise UserError(f"--labels {labels} has no use with --model {model}: the labels come with the images")
    is_trained = kind == "aurank" and not is_stored(location)
    checkpoint = load_checkpoint(resolve_checkpoint(location)) if is_trained else None
    if checkpoint is None and kind != "aurank":
        check_model(model, allow_code=running.allow_code)
    elif checkpoint is not None and images.takes_images:
        checkpoint = with_backbone(checkpoint, location)
    if images.takes_embeddings and (checkpoint is None or not is_head(checkpoint)):
        raise UserError(
            f"--data {images.data} holds embeddings, which {model} does not take: measure them with --model "
            f"embeddings:FILE, or name images"
        )
    selected = select(images, checkpoint)
    data, remarks = selected.data, list[str]()
    dataset_of: Callable[[Manifest], ImageDataset]
    manifest = each_image_once(selected.images)  # of pairs with texts
    views = {option: value for option, value in images.settings.items() if option in VIEWS}
    if checkpoint is None:
        refuse_preprocessing(images, model)
        if views and kind == "aurank":
            raise UserError(f"{model} is a saved model, which keeps its views; name evaluate.flip where it is saved")
        if views:
            settings = EvaluateConfig(**views)
            name += f",flip={settings.flip},scales={'+'.join(map(str, settings.scales))}"
        loaded = load(name, allow_code=running.allow_code)
        remarks += loaded.notes
        how: dict[str, Any] = {"on_error": data.on_error, "max_pixels": data.max_pixels}
        dataset_of = partial(loaded.dataset, prepared=open_prepared(data), **how)
    else:
        saved = read_trained(checkpoint["config"])
        config = with_preprocessing(saved.model_copy(update={"data": data}), saved)  # where it was set to null
        config = with_features(config, manifest)
        config = config.model_copy(update={"evaluate": config.evaluate.model_copy(update=views)})
        encoder = encoder_of(checkpoint, config, location)
        path = resolve_checkpoint(location)
        loaded = trained_model(name if name.startswith("hf-hub:") else model, encoder, config, path)
        data = config.data
        if (size := data.image_size) != saved.data.image_size:
            assert isinstance(loaded.transform, Pipeline)
            remedy = f"it was trained with {saved.data.image_size}: leave it out, or name another size"
            with torch.inference_mode(), reading("the model", f"a network of data.image_size={size}", remedy=remedy):
                loaded.module.eval()(torch.zeros(1, loaded.channels, *loaded.transform.size))
        dataset_of = partial(build_dataset, data, train=False)
    notes = (remarks, describe_average(checkpoint or {}), describe_overlap(images, selected), images.settings)
    return PreparedModel(loaded, dataset_of(manifest), selected.data, dataset_of, running, *notes)


def refuse_preprocessing(images: ImageSelection, model: str) -> None:
    for override in images.overrides:
        if _BROUGHT.match(override):
            remedy = "; name its own, as in timm:NAME,input_size=256x128,resize=pad" * model.startswith("timm:")
            raise UserError(f"{override} has no use with --model {model}, which brings its own preprocessing{remedy}")
