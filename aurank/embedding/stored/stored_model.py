"""A model kept in a folder, to be loaded again years later: the same weights, shown images in the same way."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn
from typing_extensions import TypedDict

from aurank.config import Config
from aurank.data import ArraySource, ImageDataset, Manifest
from aurank.data.decode import MAX_PIXELS
from aurank.data.manifest import build_manifest
from aurank.embedding.cache import weights_sha256
from aurank.embedding.choices import read_trained
from aurank.embedding.embed import ModelImages, embed
from aurank.embedding.from_config import build_dataset, build_transform, describe_model
from aurank.embedding.stored.checkpoint import load_checkpoint, save_checkpoint
from aurank.embedding.stored.trained_model import encoder_of
from aurank.errors import UserError
from aurank.files import reading, replacing
from aurank.models.adapters.by_name import load_model
from aurank.models.adapters.exported import PROGRAM_PREPROCESSING
from aurank.models.adapters.loading import ImageModel
from aurank.models.adapters.timm import FILE_OPTIONS

_SAVED = {  # by kind; other kinds are loaded by their name again
    "aurank": "checkpoint.safetensors",
    "timm": "model.safetensors",
    "onnx": "model.onnx",
    "safetensors": "model.safetensors",
    "torchexport": "model.pt2",
}
_REMEDY = "build the index again"
_LEFT_OUT = (*FILE_OPTIONS, "pretrained")  # of timm's options, where the weights are at hand


class StoredRecord(TypedDict):
    """What `load_stored` loads a model again by; `file` lies below the folder of the record, where there is one."""

    name: str
    weights_sha256: str
    preprocessing: str
    load: str
    file: str | None


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
            return describe_model(self.config)
        assert self.loaded is not None
        return self.loaded.description

    @property
    def preprocessing(self) -> str:
        """How images are shown to it, in words that another version of a library changes only if it does otherwise."""
        if self.config is not None:
            return repr(build_transform(self.config.data, train=False))
        assert self.loaded is not None
        return self.loaded.preprocessing

    def dataset(
        self, manifest: Manifest, *, on_error: str = "raise", max_pixels: int = MAX_PIXELS, cache_bytes: int = 0
    ) -> ImageDataset:
        """Return the images of a manifest as the model wants them."""
        if self.config is None:
            assert self.loaded is not None
            return ModelImages(manifest, self.loaded, on_error=on_error, max_pixels=max_pixels)
        how = {"on_error": on_error, "max_pixels": max_pixels, "cache_bytes": cache_bytes, "prepared": None}
        return build_dataset(self.config.data.model_copy(update=how), manifest, train=False)

    def embed(
        self, images: Sequence[np.ndarray], *, device: torch.device | None = None, batch: int = 64
    ) -> Float32[np.ndarray, "image dim"]:
        """Return the embeddings of decoded images, uint8 [height, width, channel], in their order."""
        names = [f"{place:09d}" for place in range(len(images))]
        source = ArraySource(dict(zip(names, images, strict=True)))
        manifest = build_manifest("images", source, paths=names, labels=names, splits=["test"] * len(names))
        return np.asarray(embed(self.module, self.dataset(manifest), batch=batch, device=device).embeddings)


def store_model(folder: Path, model: StoredModel) -> StoredRecord:
    """Write what is needed to load the model again into a new folder; return the record that `load_stored` takes.

    A model that was trained here is kept as a checkpoint of its weights, one of timm by its tensors, one that is a file
    as that file. Models of other libraries are loaded by name again, and held against the digest of their weights.
    """
    kind, _, what = model.name.partition(":")
    record: StoredRecord = {
        "name": model.name,
        "weights_sha256": weights_sha256(model.module),
        "preprocessing": model.preprocessing,
        "load": model.name,
        "file": None,
    }
    if kind not in _SAVED:
        return record
    file = folder / _SAVED[kind]
    record["file"] = f"{folder.name}/{file.name}"
    if kind == "aurank":
        assert model.config is not None
        _save_encoder(file, model.module, model.config)
    elif kind == "timm":
        tensors = {name: value.detach().cpu().contiguous() for name, value in model.module.state_dict().items()}
        _write_bytes(file, save_tensors({name: value.clone() for name, value in tensors.items()}))
        kept = [part for part in what.split(",")[1:] if part.partition("=")[0] not in _LEFT_OUT]
        record["load"] = ",".join([f"timm:{what.split(',')[0]}", *kept, "pretrained=false"])
    else:
        given = Path(what.split(",")[0])
        _write_bytes(file, given.read_bytes())
        if kind == "torchexport":
            _write_bytes(file.with_name(PROGRAM_PREPROCESSING), given.with_name(PROGRAM_PREPROCESSING).read_bytes())
    return record


def load_stored(folder: Path, record: StoredRecord, *, allow_code: bool = False) -> StoredModel:
    """Return the model of a record; UserError unless its weights and its preprocessing are what they were.

    Args:
        folder: where the folder that `store_model` filled lies in.
    """
    name, file = record["name"], None if record["file"] is None else folder / record["file"]
    kind = name.partition(":")[0]
    with reading(folder, "a stored model", remedy=_REMEDY):
        if (file is not None) != (kind in _SAVED):
            raise ValueError(f"{name} with the file {file}")
        if kind == "aurank" and file is not None:
            checkpoint = load_checkpoint(file)
            config = read_trained(checkpoint["config"])
            model = StoredModel(name, encoder_of(checkpoint, config, str(file)).eval(), config, None)
        else:
            loaded = load_model(record["load"], allow_code=allow_code, file=None if kind == "timm" else file)
            if kind == "timm" and file is not None:
                loaded.module.load_state_dict(load_tensors(file.read_bytes()))
            model = StoredModel(name, loaded.module, None, loaded)
    if (found := weights_sha256(model.module)) != record["weights_sha256"]:
        raise UserError(
            f"the model of {folder} has other weights than its images were embedded with: {name} has the digest "
            f"{found[:12]}…, expected {record['weights_sha256'][:12]}…; {_REMEDY}"
        )
    if model.preprocessing != record["preprocessing"]:
        raise UserError(
            f"the model {name} of {folder} is shown images otherwise than when they were embedded, by another version "
            "of its library: use the version that the index was built with, or build the index again"
        )
    return model


def _save_encoder(file: Path, encoder: nn.Module, config: Config) -> None:
    """Write a checkpoint of an encoder of images alone, without what training goes on with; adapters are merged."""
    own = config.model_copy(update={"model": config.model.model_copy(update={"text": None, "lora": None})})
    content = {"config": own.model_dump(mode="json"), "manifest": "", "data": None, "progress": {}, "tokeniser": None}
    save_checkpoint(file, {**content, "encoder": encoder.state_dict(), "average": None})


def _write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)
