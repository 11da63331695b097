"""A model kept in a folder, to be loaded again years later: the same weights, shown images in the same way."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from aurank.config import Config
from aurank.data import ArraySource, ImageDataset, Manifest
from aurank.data.decode import MAX_PIXELS
from aurank.data.manifest import build_manifest
from aurank.embedding.cache import weights_sha256
from aurank.embedding.checkpoint import load_checkpoint, save_checkpoint
from aurank.embedding.choices import read_trained
from aurank.embedding.embed import ModelImages, embed
from aurank.embedding.from_config import build_dataset, build_transform
from aurank.embedding.trained_model import encoder_of
from aurank.errors import UserError, first_line
from aurank.files import replacing
from aurank.models.adapters.by_name import load_model
from aurank.models.adapters.loading import ImageModel, parse_options
from aurank.models.adapters.onnx import onnx_model
from aurank.models.adapters.timm import FILE_OPTIONS

_SAVED = {"aurank": ".pt", "timm": ".safetensors", "onnx": ".onnx"}  # other kinds are loaded by their name again
_LEFT_OUT = (*FILE_OPTIONS, "pretrained")  # of timm's options, where the weights are at hand


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A model with its own preprocessing: of a run's configuration, or of another library."""

    name: str
    module: nn.Module
    config: Config | None
    loaded: ImageModel | None

    @property
    def channels(self) -> int:
        """Channels of the images that it sees."""
        if self.config is not None:
            return self.config.data.channels
        assert self.loaded is not None
        return self.loaded.channels

    @property
    def description(self) -> str:
        """All that decides an embedding beside the weights and the image."""
        if self.config is not None:
            return f"{self.config.model!r} {build_transform(self.config.data, train=False)!r}"
        assert self.loaded is not None
        return self.loaded.description

    @property
    def preprocessing(self) -> str:
        """How images are shown to it, in words that another version of a library changes only if it does otherwise."""
        if self.config is not None:
            return repr(build_transform(self.config.data, train=False))
        assert self.loaded is not None
        if self.name.startswith(("timm:", "onnx:")):
            return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self.loaded.transform))
        return " ".join([*self.description.split(" ")[:1], *self.description.split(" ")[2:]])  # without the version

    def dataset(
        self, manifest: Manifest, *, on_error: str = "raise", max_pixels: int = MAX_PIXELS, cache_bytes: int = 0
    ) -> ImageDataset:
        """Return the images of a manifest as the model wants them."""
        if self.config is None:
            assert self.loaded is not None
            return ModelImages(manifest, self.loaded, on_error=on_error, max_pixels=max_pixels)
        how = {"on_error": on_error, "max_pixels": max_pixels, "cache_bytes": cache_bytes}
        return build_dataset(self.config.data.model_copy(update=how), manifest, train=False)

    def embed(
        self, images: Sequence[np.ndarray], *, device: torch.device | None = None, batch: int = 64
    ) -> Float32[np.ndarray, "image dim"]:
        """Return the embeddings of decoded images, uint8 [height, width, channel], in their order."""
        names = [f"{place:09d}" for place in range(len(images))]
        source = ArraySource(dict(zip(names, images, strict=True)))
        manifest = build_manifest("images", source, paths=names, labels=names, splits=["test"] * len(names))
        return embed(self.module, self.dataset(manifest), batch=batch, device=device).embeddings


def store_model(folder: Path, model: StoredModel) -> dict[str, Any]:
    """Write what is needed to load the model again into the folder; return the record that `load_stored` takes.

    A model that was trained here is kept as a checkpoint of its weights, one of timm by its tensors, an ONNX graph as
    it is. Models of other libraries are loaded by their name again, and held against the digest of their weights.
    """
    kind, _, what = model.name.partition(":")
    digest = weights_sha256(model.module)
    record: dict[str, Any] = {"name": model.name, "weights_sha256": digest, "preprocessing": model.preprocessing}
    record |= {"channels": model.channels, "load": model.name, "file": None}
    if kind not in _SAVED:
        return record
    record["file"] = file = f"model-{digest[:12]}{_SAVED[kind]}"
    if kind == "aurank":
        assert model.config is not None
        own = model.config.model_copy(update={"model": model.config.model.model_copy(update={"text": None})})
        content = {
            "config": own.model_dump(mode="json"),
            "manifest": "",
            "data": None,
            "progress": {},
            "tokeniser": None,
        }
        save_checkpoint(folder / file, {**content, "encoder": model.module.state_dict(), "average": None})
        record["load"] = f"aurank:{file}"
    elif kind == "timm":
        tensors = {name: value.detach().cpu().contiguous() for name, value in model.module.state_dict().items()}
        with replacing(folder / file) as out:
            out.write(save_tensors({name: value.clone() for name, value in tensors.items()}))
        kept = [part for part in what.split(",")[1:] if part.partition("=")[0] not in _LEFT_OUT]
        record["load"] = ",".join([f"timm:{what.split(',')[0]}", *kept, "pretrained=false"])
    else:
        graph, *options = what.split(",")
        with replacing(folder / file) as out:
            out.write(Path(graph).read_bytes())
        record["load"] = ",".join([f"onnx:{file}", *options])
    return record


def load_stored(folder: Path, record: dict[str, Any], *, allow_code: bool = False) -> StoredModel:
    """Return the model of a record; UserError unless its weights and its preprocessing are what they were."""
    kind, _, what = record["load"].partition(":")
    name, file = record["name"], None if record["file"] is None else folder / record["file"]
    if kind == "aurank":
        assert file is not None
        checkpoint = load_checkpoint(file)
        config = read_trained(checkpoint["config"])
        model = StoredModel(name, encoder_of(checkpoint, config, str(file)).eval(), config, None)
    else:
        if kind == "onnx":  # by its path, which may hold commas
            loaded = onnx_model(name, str(file), parse_options(name, what)[1], allow_code)
        else:
            loaded = load_model(record["load"], allow_code=allow_code)
        if kind == "timm":
            assert file is not None
            _load_tensors(loaded.module, file)
        model = StoredModel(name, loaded.module, None, loaded)
    if (found := weights_sha256(model.module)) != record["weights_sha256"]:
        raise UserError(
            f"the model of {folder} has other weights than its images were embedded with: {name} has the digest "
            f"{found[:12]}…, expected {record['weights_sha256'][:12]}…; build the index again"
        )
    if model.preprocessing != record["preprocessing"]:
        raise UserError(
            f"the model {name} of {folder} is shown images otherwise than when they were embedded, by another version "
            "of its library: use the version that the index was built with, or build the index again"
        )
    return model


def _load_tensors(module: nn.Module, file: Path) -> None:
    try:
        module.load_state_dict(load_tensors(file.read_bytes()))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(
            f"the weights in {file} do not fit the model: {first_line(error)}; build the index again"
        ) from error
