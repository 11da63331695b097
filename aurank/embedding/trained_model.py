"""Trained models from their checkpoints; a head on saved embeddings with the backbone that made them."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aurank.config import Config, DataConfig, ModelConfig
from aurank.config.cross_checks import EMBEDDINGS, NO_BACKBONE
from aurank.config.schema import Component, NormaliseConfig, SavedFeatures
from aurank.data import Pipeline
from aurank.data.saved_embeddings import MadeBy
from aurank.embedding.cache import weights_sha256
from aurank.embedding.checkpoint import image_weights, load_checkpoint, load_weights, model_weights, resolve_checkpoint
from aurank.embedding.choices import read_trained
from aurank.embedding.from_config import (
    OWN_TEXTS,
    Towers,
    build_encoder,
    build_towers,
    build_transform,
    trained_encoder,
)
from aurank.embedding.image_text_pairs import Tokenise
from aurank.errors import UserError
from aurank.models import Encoder, TwoTower
from aurank.models.adapters.by_name import check_model, load_model
from aurank.models.adapters.timm import FILE_OPTIONS, evaluation_settings
from aurank.models.tuning import merge_lora

_OWN = (*FILE_OPTIONS, "pretrained", "input_size", "in_chans")  # options that are no arguments of the network
_TOLERANCE = 1e-4  # of features, by their largest


def load(path: Path | str) -> tuple[nn.Module, Pipeline]:
    """The encoder of a checkpoint in evaluation mode, and the transform of its evaluation images.

    Of two towers it is that of the images; `load_pairs` gives both. A head that was trained on saved embeddings comes
    with the backbone that made them.

    Args:
        path: ``DIR/best``, ``DIR/last`` (with or without ``.pt``), or ``DIR`` for its best.

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
    """The towers of a checkpoint in evaluation mode, what makes tokens of texts, and the transform of images.

    Args:
        path: ``DIR/best``, ``DIR/last`` (with or without ``.pt``), or ``DIR`` for its best.

    Example:
        >>> import tempfile
        >>> import aurank
        >>> from PIL import Image
        >>> rows = ["path,text,split"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for colour in ("red", "blue"):
        ...         Image.new("RGB", (8, 8), colour).save(f"{folder}/{colour}.png")
        ...         rows += [f"{colour}.png,a {colour} square,{split}" for split in ("train", "test")]
        ...     _ = Path(folder, "pairs.csv").write_text("\\n".join(rows))
        ...     data = {"name": "table", "root": folder, "params": {"file": "pairs.csv"}, "validation_fraction": 0}
        ...     config = {
        ...         "data": {**data, "image_size": 8}, "sampler": {"name": "shuffled", "batch": 2},
        ...         "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8, "text": {"layers": 1}},
        ...         "loss": {"name": "clip"}, "optim": {"lr": 1e-3}, "train": {"steps": 1},
        ...     }
        ...     _ = aurank.train(config, f"{folder}/run")
        ...     model, tokenise, transform = aurank.load_pairs(f"{folder}/run/best")
        >>> image, text = transform(Image.new("RGB", (20, 30), "red"))[None], tokenise(["a red square", "red"])
        >>> (model.encode_image(image) @ model.encode_text(text).T).shape
        torch.Size([1, 2])
    """
    checkpoint = load_checkpoint(resolve_checkpoint(path))
    config = read_trained(checkpoint["config"])
    towers = towers_of(checkpoint, config, str(path))
    return towers.module.eval(), towers.tokenise, build_transform(config.data, train=False)


def encoder_of(checkpoint: dict[str, Any], config: Config, name: str) -> Encoder:
    """The encoder of images of a checkpoint that was read, with the weights to evaluate."""
    return trained_encoder(config.model, image_weights(checkpoint), name, channels=config.data.channels)


def require_texts(config: Config, name: str) -> None:
    """Raise UserError where the run of that name has no text tower."""
    if config.model.text is None:
        remedy = "measure it with aurank evaluate, or train a model of both by setting model.text"
        raise UserError(f"{name} was trained on images alone: model.text is null in its configuration; {remedy}")


def towers_of(checkpoint: dict[str, Any], config: Config, name: str) -> Towers:
    """The towers of a checkpoint that was read, with the weights to evaluate; UserError where it has none."""
    require_texts(config, name)
    assert config.model.text is not None
    if checkpoint["tokeniser"] is None and config.model.text.name == OWN_TEXTS:
        raise UserError(f"{name} lacks the tokeniser of its texts; use last.pt or best.pt of a run")
    towers = build_towers(config, saved=checkpoint["tokeniser"], load=False)
    load_weights(towers.module, model_weights(checkpoint), name)
    if config.model.lora is not None:
        merge_lora(towers.module)
    return towers


def made_by(name: str, module: nn.Module, preprocessing: str) -> MadeBy:
    """Return what a file of embeddings remembers of the model that made them."""
    return MadeBy(_whole_paths(name), weights_sha256(module), preprocessing)


def _whole_paths(name: str) -> str:
    """Return the name of a model with whole paths, which means the same from another folder."""
    kind, _, rest = name.partition(":")
    what, *pairs = rest.split(",")
    if kind not in ("timm", "open_clip", "python") and Path(what).exists():
        what = str(Path(what).resolve())
    elif kind == "aurank":
        what = str(Path(what).absolute())
    options = [pair.partition("=") for pair in pairs]
    files = {value for key, _, value in options if key in FILE_OPTIONS and (kind == "timm" or Path(value).exists())}
    whole = [f"{key}={Path(value).resolve() if value in files else value}" for key, _, value in options]
    return f"{kind}:{','.join([what, *whole])}"


def is_head(checkpoint: dict[str, Any]) -> bool:
    """Whether a checkpoint is of a head on saved embeddings."""
    return bool(checkpoint["config"].get("model", {}).get("backbone") == NO_BACKBONE)


def with_backbone(checkpoint: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the checkpoint of backbone and head in one, as if both had been trained together; any other as it is.

    The backbone is loaded by the name that the embeddings remember, and compared: its weights and its preprocessing
    have to be what they were, and what this network gives of images what that model gives.

    Args:
        name: of the run, for messages.

    Raises:
        UserError: nobody knows what made the embeddings, or no network of aurank is the same.
    """
    if not is_head(checkpoint):
        return checkpoint
    config = read_trained(checkpoint["config"])
    features = config.model.features
    if features is None or features.model is None:
        raise UserError(
            f"{name} is a head on embeddings that do not say what made them, so it takes no images: write them with "
            f"aurank embed and train it again, or measure embeddings: --data {EMBEDDINGS}:FILE"
        )
    kind = features.model.partition(":")[0]
    if kind != "timm":
        raise UserError(
            f"{name} is a head on embeddings by {features.model}; only a model of timm and its head become one "
            f"network: embed the images by that one, and measure them with --data {EMBEDDINGS}:FILE"
        )
    base, data, model = _as_configuration(config, features, name)
    joined = config.model_copy(update={"data": data, "model": model})
    weights = {f"backbone.{key}": value.detach().clone() for key, value in base.state_dict().items()}

    def merged(head: dict[str, Any]) -> dict[str, Any]:
        return {**weights, **{key: value for key, value in head.items() if key.startswith("head.")}}

    average = checkpoint["average"]
    content = {**checkpoint, "config": joined.model_dump(mode="json"), "encoder": merged(checkpoint["encoder"])}
    if average is not None:
        content["average"] = {**average, "values": merged(average["values"])}
    _require_same_network(base, joined, content["encoder"], name)
    return content


def _as_configuration(config: Config, known: SavedFeatures, name: str) -> tuple[nn.Module, DataConfig, ModelConfig]:
    """Return the model that made the embeddings, with the sections of a configuration that says the same."""
    assert known.model is not None
    loaded = load_model(known.model)
    if (found := weights_sha256(loaded.module)) != known.weights_sha256:
        raise UserError(
            f"{known.model} has other weights than when {name} was trained on its embeddings: digest {found[:12]}…, "
            f"expected {str(known.weights_sha256)[:12]}…; put its own back, or embed and train anew"
        )
    if loaded.preprocessing != known.preprocessing:
        raise UserError(
            f"{known.model} is shown images otherwise than when {name} was trained on its embeddings, by another "
            "version of timm: use that one, or embed and train anew"
        )
    _, what, options = check_model(known.model)
    settings = evaluation_settings(known.model, loaded.module, options)
    channels, size, width = settings["input_size"]
    longer = math.floor(size / settings["crop_pct"])
    mode = settings.get("crop_mode") or "center"
    if size != width or mode not in ("center", "squash") or (mode == "squash" and longer != size):
        raise UserError(
            f"{known.model} is shown images of {size} x {width}, crop_mode={mode}, which no transform of aurank does; "
            f"measure embeddings: --data {EMBEDDINGS}:FILE"
        )
    squash = mode == "squash"
    transform = Component(name="resize") if squash else _centre(longer / size)
    look: dict[str, Any] = {"normalise": NormaliseConfig(mean=settings["mean"], std=settings["std"])}
    look |= {"interpolation": settings["interpolation"], "test_transform": transform, "image_size": size}
    data = config.data.model_copy(update={"name": "folder", "params": {}, "channels": channels, **look})
    params = {key: value for key, value in options.items() if key not in _OWN} | _pooling(loaded.module)
    model = {"backbone": what, "pretrained": False, "params": params, "features": None}
    return loaded.module, data, config.model.model_copy(update=model)


def _centre(margin: float) -> Component:
    return Component(name="torchvision_center", params={"margin": margin})


def _pooling(module: Any) -> dict[str, str]:
    """Return the pooling of a model of timm as an argument, where it is another than the average."""
    pool = getattr(module, "global_pool", "avg")
    kind = pool if isinstance(pool, str) else getattr(pool, "pool_type", "avg")
    return {} if kind == "avg" else {"global_pool": kind}


@torch.inference_mode()
def _require_same_network(base: nn.Module, config: Config, weights: dict[str, Any], name: str) -> None:
    """Raise UserError unless the network of the configuration gives what the model gave of images."""
    said = (
        f"{name}: the network of aurank with backbone {config.model.backbone} is not the model that made its embeddings"
    )
    encoder: Encoder = build_encoder(config.model, channels=config.data.channels, load=False).eval()
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        first = " ".join(str(error).split())[:200]
        raise UserError(f"{said} ({first}); measure embeddings: --data {EMBEDDINGS}:FILE") from error
    size = build_transform(config.data, train=False).image_size
    images = torch.randn(2, config.data.channels, size, size, generator=torch.Generator().manual_seed(0))
    expected, found = base.eval()(images), encoder.backbone(images)
    if found.shape != expected.shape or (found - expected).abs().max() > _TOLERANCE * expected.abs().max():
        raise UserError(f"{said}: its features differ; measure embeddings: --data {EMBEDDINGS}:FILE")
