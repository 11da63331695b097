"""Models from checkpoints and from the folder of an index; a head on saved embeddings with its backbone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from typing_extensions import TypedDict

from aurank.config import Config
from aurank.config.schema import EMBEDDINGS, NO_BACKBONE
from aurank.data import Pipeline
from aurank.data.saved_embeddings import AsSaved, MadeBy
from aurank.embedding.cache import weights_sha256
from aurank.embedding.choices import read_trained
from aurank.embedding.from_config import (
    build_encoder,
    build_transform,
    describe_model,
    encoder_of,
    towers_of,
    with_preprocessing,
)
from aurank.embedding.named import resolve_checkpoint
from aurank.embedding.stored.checkpoint import is_head, load_checkpoint, save_checkpoint
from aurank.errors import UserError
from aurank.files import reading, replacing
from aurank.models import TwoTower
from aurank.models.adapters.by_name import check_model, load_model
from aurank.models.adapters.exported import PROGRAM_PREPROCESSING
from aurank.models.adapters.timm import NO_ARGUMENTS
from aurank.models.adapters.weights import fit_tensors
from aurank.models.encoder import network_of
from aurank.models.image_model import ImageModel, Tokenise, to_picture
from aurank.models.tuning import WHOLE

_BACKBONES = ("timm", "open_clip", "transformers")  # whose models a head can be put behind
_AS_ROWS = f"measure embeddings: --data {EMBEDDINGS}:FILE"
_TOLERANCE = 1e-4  # of features, by their largest
_LEVELS = 0.5  # of 255, of pixels on average: processors of transformers round otherwise than Pillow
_FILES = {  # by kind; models of other kinds are loaded by name again
    "aurank": "checkpoint.safetensors",
    "timm": "model.safetensors",
    "onnx": "model.onnx",
    "safetensors": "model.safetensors",
    "torchexport": "model.pt2",
}
_REBUILD = "build the index again"


def load(path: Path | str) -> tuple[nn.Module, Pipeline]:
    """Load the encoder of a checkpoint in evaluation mode, and the transform of its evaluation images.

    Of two towers it is that of the images. A head on saved embeddings comes with the backbone that made them.

    Args:
        path: ``DIR/best``, ``DIR/last`` (with or without ``.safetensors``), or ``DIR`` for its best.

    Example:
        >>> import tempfile
        >>> import aurank
        >>> from PIL import Image
        >>> config = {
        ...     "data": {"name": "digits", "image_size": 8, "channels": 1}, "sampler": {"batch": 16},
        ...     "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8}, "loss": {"name": "smooth_ap"},
        ...     "optim": {"lr": 1e-3}, "train": {"steps": 1},
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = aurank.train(config, f"{folder}/run")
        ...     model, transform = aurank.load(f"{folder}/run/best")
        >>> model(transform(Image.new("L", (20, 30)))[None]).shape  # or an array, uint8 [height, width, channel]
        torch.Size([1, 8])
    """
    checkpoint = with_backbone(load_checkpoint(resolve_checkpoint(path)), str(path))
    config = read_trained(checkpoint["config"])
    return encoder_of(checkpoint, config, str(path)).eval(), build_transform(config.data, train=False)


def load_pairs(path: Path | str) -> tuple[TwoTower, Tokenise, Pipeline]:
    """Load the towers of a checkpoint in evaluation mode, what makes tokens of texts, and the transform of images.

    Args:
        path: ``DIR/best``, ``DIR/last`` (with or without ``.safetensors``), or ``DIR`` for its best.

    Example:
        >>> load_pairs("runs/no_such_run")
        Traceback (most recent call last):
        aurank.errors.UserError: no checkpoint at runs/no_such_run.safetensors; ...
    """
    checkpoint = load_checkpoint(resolve_checkpoint(path))
    config = read_trained(checkpoint["config"])
    towers = towers_of(checkpoint, config, str(path)).eval()
    return towers, towers.tokenise, build_transform(config.data, train=False)


def trained_model(name: str, encoder: nn.Module, config: Config) -> ImageModel:
    """Return a model that was trained here, as those of other libraries are."""
    is_head = config.model.backbone == NO_BACKBONE
    transform = AsSaved(1, 1) if is_head else build_transform(config.data, train=False)
    return ImageModel(name, encoder, transform, describe_model(config), config.data.channels, config=config)


def made_by(model: ImageModel) -> MadeBy:
    """Return what a file of embeddings remembers of the model that made them: its name has whole paths."""
    kind, _, rest = model.name.partition(":")
    what, *options = rest.split(",")
    if kind not in ("timm", "open_clip", "python") and (kind == "aurank" or Path(what).exists()):
        what = str(Path(what).absolute() if kind == "aurank" else Path(what).resolve())
    option = {"timm": "weights=", "open_clip": "pretrained="}.get(kind, "=")
    for place, pair in enumerate(options):
        if pair.startswith(option) and Path(value := pair.removeprefix(option)).exists():
            options[place] = f"{option}{Path(value).resolve()}"
    return MadeBy(f"{kind}:{','.join([what, *options])}", weights_sha256(model.module), model.preprocessing)


def with_backbone(checkpoint: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a checkpoint of a head joined with the backbone that made its embeddings; any other as it is."""
    if not is_head(checkpoint):
        return checkpoint
    config = read_trained(checkpoint["config"])
    features = config.model.features
    if features is None or features.model is None or features.model.partition(":")[0] not in _BACKBONES:
        known = None if features is None else features.model
        raise UserError(
            f"{name} is a head on embeddings by {known or 'an unknown model'}; only one of timm, open_clip or "
            f"transformers takes images with its head behind it: embed them by that model, and {_AS_ROWS}"
        )
    where = f"{name}, a head on embeddings by {features.model}"
    with reading(where, "one", remedy=_AS_ROWS):
        base = load_model(features.model)
    _require_same(base, features.weights_sha256, features.preprocessing, where, "put its own back, or train anew")
    joined = _joined(config, base)
    weights = _backbone_weights(joined, base, name)

    def merged(head: dict[str, Any]) -> dict[str, Any]:
        return {**weights, **{key: value for key, value in head.items() if key.startswith("head.")}}

    content = {**checkpoint, "config": joined.model_dump(mode="json"), "encoder": merged(checkpoint["encoder"])}
    if (average := checkpoint["average"]) is not None:
        content["average"] = {**average, "values": merged(average["values"])}
    return content


def _joined(config: Config, base: ImageModel) -> Config:
    """Return the configuration of head and backbone; UserError unless its transform gives what the model is shown."""
    kind, what, options = check_model(base.name)
    file, params = options.get("weights"), {}
    if kind == "timm":
        pool: Any = getattr(base.module, "global_pool", "avg")
        pool = pool if isinstance(pool, str) else getattr(pool, "pool_type", "avg")
        params = {key: value for key, value in options.items() if key not in (*NO_ARGUMENTS, "in_chans")}
        params |= {} if pool == "avg" else {"global_pool": pool}
    else:
        what = base.name
    height, width = map(int, base.transform(to_picture(np.zeros((64, 64, base.channels), np.uint8))).shape[-2:])
    data: dict[str, Any] = {"name": "folder", "params": {}, "channels": base.channels}
    data["image_size"] = height if height == width else (height, width)
    data["resize"] = options.get("resize", "crop")
    data |= dict.fromkeys(("normalise", "interpolation", "test_transform"))  # the backbone's, as if it were trained
    network: dict[str, Any] = {
        "backbone": what,
        "params": params,
        "features": None,
        "init_from": None,
        "freeze": (WHOLE,),
    }
    network |= {"pretrained": True, "weights": file}
    update = {"data": config.data.model_copy(update=data), "model": config.model.model_copy(update=network)}
    joined = with_preprocessing(config.model_copy(update=update))
    is_fetched = file is None and options.get("pretrained", True) is not False
    joined = joined.model_copy(update={"model": joined.model.model_copy(update={"pretrained": is_fetched})})
    pipeline = build_transform(joined.data, train=False)
    chance, levels = np.random.default_rng(0), 255 * torch.tensor(pipeline.std).view(-1, 1, 1)
    for shape in ((height + 37, 2 * width), (2 * height + 1, width + 8), (height // 2 + 3, width // 2 + 6)):
        picture = to_picture(chance.integers(0, 256, (*shape, base.channels), dtype=np.uint8))
        expected, shown = base.transform(picture), pipeline(picture)
        if shown.shape != expected.shape or ((shown - expected).abs() * levels).mean() > _LEVELS:
            raise UserError(f"{base.name} is shown images as no transform of aurank does it; {_AS_ROWS}")
    return joined


def _backbone_weights(config: Config, base: ImageModel, name: str) -> dict[str, Tensor]:
    """Return the weights of the network of a configuration; UserError unless it gives what the model gives."""
    encoder = build_encoder(config.model, channels=config.data.channels, load=False).eval()
    network, module = network_of(encoder.backbone), base.module.eval()
    network.load_state_dict(fit_tensors(network.state_dict(), module.state_dict()).tensors, strict=False)
    shape = (2, config.data.channels, *build_transform(config.data, train=False).size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, features = module(images), encoder.backbone(images)
    is_same = features.shape == expected.shape
    if not is_same or (features - expected).abs().max() > _TOLERANCE * expected.abs().max():
        said = f"the network of aurank with backbone {config.model.backbone} is not the model that made its embeddings"
        raise UserError(f"{name}: {said}; {_AS_ROWS}")
    return {f"backbone.{key}": value.detach().clone() for key, value in encoder.backbone.state_dict().items()}


# -- models kept with an index, to be loaded again years later ---------------------------------------------------------


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
    with reading(folder, "a stored model", remedy=_REBUILD):
        if kind == "aurank" and file is not None:
            checkpoint = load_checkpoint(file)
            config = read_trained(checkpoint["config"])
            model = trained_model(name, encoder_of(checkpoint, config, str(file)).eval(), config)
        else:
            loaded = load_model(record["load"], allow_code=allow_code, file=None if kind == "timm" else file)
            model = replace(loaded, name=name)
            if kind == "timm" and file is not None:
                model.module.load_state_dict(load_tensors(file.read_bytes()))
    _require_same(model, record["weights_sha256"], record["preprocessing"], str(folder), _REBUILD)
    return model


def _require_same(model: ImageModel, weights: str | None, preprocessing: str | None, where: str, remedy: str) -> None:
    """Raise UserError unless a model that was loaded again has these weights and sees images like that."""
    for what, now, was in (
        ("has other weights", weights_sha256(model.module), weights),
        ("is shown images otherwise", model.preprocessing, preprocessing),
    ):
        if now != was:
            raise UserError(f"{where}: the model {model.name} {what} than when its embeddings were made; {remedy}")


def _save_encoder(file: Path, encoder: nn.Module, config: Config) -> None:
    """Write a checkpoint of an encoder of images alone, without what training goes on with; adapters are merged."""
    own = config.model_copy(update={"model": config.model.model_copy(update={"text": None, "lora": None})})
    content = {"config": own.model_dump(mode="json"), "manifest": "", "data": None, "progress": {}, "tokeniser": None}
    save_checkpoint(file, {**content, "encoder": encoder.state_dict(), "average": None})


def _write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)
