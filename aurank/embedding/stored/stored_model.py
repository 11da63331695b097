"""A model kept in a folder, to be loaded again years later: the same weights, shown images in the same way."""

from dataclasses import replace
from pathlib import Path

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn
from typing_extensions import TypedDict

from aurank.config import Config
from aurank.embedding.cache import weights_sha256
from aurank.embedding.choices import read_trained
from aurank.embedding.stored.checkpoint import load_checkpoint, save_checkpoint
from aurank.embedding.stored.trained_model import encoder_of, trained_model
from aurank.errors import UserError
from aurank.files import reading, replacing
from aurank.models.adapters.by_name import load_model
from aurank.models.adapters.exported import PROGRAM_PREPROCESSING
from aurank.models.image_model import ImageModel

_FILES = {  # by kind; models of other kinds are loaded by name again
    "aurank": "checkpoint.safetensors",
    "timm": "model.safetensors",
    "onnx": "model.onnx",
    "safetensors": "model.safetensors",
    "torchexport": "model.pt2",
}
_REMEDY = "build the index again"


class StoredRecord(TypedDict):
    """What `load_stored` loads a model by; `file` lies below the folder of the record, where there is one."""

    name: str
    weights_sha256: str
    preprocessing: str
    load: str
    file: str | None


def store_model(folder: Path, model: ImageModel) -> StoredRecord:
    """Write what is needed to load the model again into a new folder; return the record that `load_stored` takes."""
    kind, _, what = model.name.partition(":")
    load, file = model.name, folder / _FILES.get(kind, "")
    if kind == "aurank":
        _save_encoder(file, model.module, model.config)
    elif kind == "timm":
        tensors = {name: value.detach().cpu().contiguous() for name, value in model.module.state_dict().items()}
        _write_bytes(file, save_tensors({name: value.clone() for name, value in tensors.items()}))
        backbone, *options = what.split(",")
        kept = [option for option in options if option.partition("=")[0] not in ("weights", "pretrained")]
        load = ",".join([f"timm:{backbone}", *kept, "pretrained=false"])
    elif kind in _FILES:
        given = Path(what.split(",")[0])
        _write_bytes(file, given.read_bytes())
        if kind == "torchexport":
            _write_bytes(file.with_name(PROGRAM_PREPROCESSING), given.with_name(PROGRAM_PREPROCESSING).read_bytes())
    return {
        "name": model.name,
        "weights_sha256": weights_sha256(model.module),
        "preprocessing": model.preprocessing,
        "load": load,
        "file": f"{folder.name}/{file.name}" if kind in _FILES else None,
    }


def load_stored(folder: Path, record: StoredRecord, *, allow_code: bool = False) -> ImageModel:
    """Return the model of a record; UserError unless its weights and its preprocessing are what they were."""
    name, file = record["name"], None if record["file"] is None else folder / record["file"]
    kind = name.partition(":")[0]
    with reading(folder, "a stored model", remedy=_REMEDY):
        if kind == "aurank" and file is not None:
            checkpoint = load_checkpoint(file)
            config = read_trained(checkpoint["config"])
            model = trained_model(name, encoder_of(checkpoint, config, str(file)).eval(), config)
        else:
            loaded = load_model(record["load"], allow_code=allow_code, file=None if kind == "timm" else file)
            model = replace(loaded, name=name)
            if kind == "timm" and file is not None:
                model.module.load_state_dict(load_tensors(file.read_bytes()))
    if (found := weights_sha256(model.module)) != record["weights_sha256"]:
        raise UserError(
            f"the model of {folder} has other weights than its images were embedded with: {name} has the digest "
            f"{found[:12]}…, expected {record['weights_sha256'][:12]}…; {_REMEDY}"
        )
    if model.preprocessing != record["preprocessing"]:
        raise UserError(
            f"the model {name} of {folder} is shown images otherwise than when they were embedded, by another version "
            f"of its library: use the version that the index was built with, or {_REMEDY}"
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
