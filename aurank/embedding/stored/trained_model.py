"""Trained models from their checkpoints; a head on saved embeddings with the backbone that made them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image, fromarray
from torch import Tensor, nn

from aurank.config import Config, DataConfig, ModelConfig
from aurank.config.schema import EMBEDDINGS, NormaliseConfig, SavedFeatures, Transform
from aurank.data import Pipeline
from aurank.data.saved_embeddings import MadeBy
from aurank.embedding.cache import weights_sha256
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
from aurank.embedding.stored.checkpoint import (
    image_weights,
    is_head,
    load_checkpoint,
    load_weights,
    model_weights,
    resolve_checkpoint,
)
from aurank.errors import UserError
from aurank.models import Encoder, TwoTower
from aurank.models.adapters.by_name import check_model, load_model
from aurank.models.adapters.fit_weights import fit_tensors, some
from aurank.models.adapters.loading import ImageModel
from aurank.models.adapters.timm import FILE_OPTIONS, evaluation_settings, split_file, timm_crop
from aurank.models.adapters.towers import tower_preprocessing
from aurank.models.encoder import network_of
from aurank.models.tuning import WHOLE, merge_lora

_OWN = ("pretrained", "input_size", "in_chans")  # options that are no arguments of the network
_BACKBONES = ("timm", "open_clip", "transformers")  # whose models a head can be put behind
_AS_ROWS = f"measure embeddings: --data {EMBEDDINGS}:FILE"
_TOLERANCE = 1e-4  # of features, by their largest
_LEVELS = 0.5  # of 255, of pixels on average: processors of transformers round otherwise than Pillow


def load(path: Path | str) -> tuple[nn.Module, Pipeline]:
    """The encoder of a checkpoint in evaluation mode, and the transform of its evaluation images.

    Of two towers it is that of the images; `load_pairs` gives both. A head that was trained on saved embeddings comes
    with the backbone that made them.

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
    """The towers of a checkpoint in evaluation mode, what makes tokens of texts, and the transform of images.

    Args:
        path: ``DIR/best``, ``DIR/last`` (with or without ``.safetensors``), or ``DIR`` for its best.

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
        raise UserError(f"{name} lacks the tokeniser of its texts; use last.safetensors or best.safetensors of a run")
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
    of_files = ("pretrained",) if kind == "open_clip" else FILE_OPTIONS  # which may name published weights too
    files = {value for key, _, value in options if key in of_files and (kind == "timm" or Path(value).exists())}
    whole = [f"{key}={Path(value).resolve() if value in files else value}" for key, _, value in options]
    return f"{kind}:{','.join([what, *whole])}"


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
            f"aurank embed and train it again, or {_AS_ROWS}"
        )
    loaded = _load_again(features, name)
    data, model = _as_configuration(config, loaded)
    joined = config.model_copy(update={"data": data, "model": model})
    weights = _backbone_weights(joined, loaded, name)

    def merged(head: dict[str, Any]) -> dict[str, Any]:
        return {**weights, **{key: value for key, value in head.items() if key.startswith("head.")}}

    average = checkpoint["average"]
    content = {**checkpoint, "config": joined.model_dump(mode="json"), "encoder": merged(checkpoint["encoder"])}
    if average is not None:
        content["average"] = {**average, "values": merged(average["values"])}
    return content


def _load_again(known: SavedFeatures, name: str) -> ImageModel:
    """Return the model that made embeddings; raise UserError unless it is what it was."""
    assert known.model is not None
    if known.model.partition(":")[0] not in _BACKBONES:
        raise UserError(
            f"{name} is a head on embeddings by {known.model}; only a model of timm, open_clip or transformers and its "
            f"head become one network: embed the images by that one, and {_AS_ROWS}"
        )
    try:
        loaded = load_model(known.model)
    except UserError as error:
        raise UserError(f"{name} is a head on embeddings by {known.model}, which cannot be loaded: {error}") from error
    if (found := weights_sha256(loaded.module)) != known.weights_sha256:
        raise UserError(
            f"{known.model} has other weights than when {name} was trained on its embeddings: digest {found[:12]}…, "
            f"expected {str(known.weights_sha256)[:12]}…; put its own back, or embed and train anew"
        )
    if loaded.preprocessing != known.preprocessing:
        raise UserError(
            f"{known.model} is shown images otherwise than when {name} was trained on its embeddings, by another "
            "version of its library: use that one, or embed and train anew"
        )
    return loaded


def _as_configuration(config: Config, loaded: ImageModel) -> tuple[DataConfig, ModelConfig]:
    """Return the sections of a configuration that say the same as the model that made the embeddings."""
    kind, what, options = check_model(loaded.name)
    file, own = split_file(options)
    if kind == "timm":
        settings = evaluation_settings(loaded.name, loaded.module, options)
        params = {key: value for key, value in own.items() if key not in _OWN} | _pooling(loaded.module)
        crop = Transform(name="timm", params=timm_crop(settings))
    else:
        what, params = loaded.name, {}
        settings = vars(tower_preprocessing(what, pretrained=True))
        crop = Transform(name=settings["transform"], params=settings["params"])
    size = int(loaded.transform(_picture(np.zeros((64, 64, loaded.channels), np.uint8))).shape[-1])
    data = {
        "name": "folder",
        "params": {},
        "channels": loaded.channels,
        "image_size": size,
        "normalise": NormaliseConfig(mean=settings["mean"], std=settings["std"]),
        "interpolation": settings["interpolation"],
        "test_transform": crop,
    }
    first = {"pretrained": file is None and options.get("pretrained", True) is not False, "weights": file}
    model: dict[str, Any] = {"backbone": what, **first, "init_from": None, "freeze": (WHOLE,)}
    model |= {"params": params, "features": None}
    found = config.data.model_copy(update=data), config.model.model_copy(update=model)
    _require_same_pixels(loaded, found[0])
    return found


def _pooling(module: Any) -> dict[str, str]:
    """Return the pooling of a model of timm as an argument, where it is another than the average."""
    pool = getattr(module, "global_pool", "avg")
    kind = pool if isinstance(pool, str) else getattr(pool, "pool_type", "avg")
    return {} if kind == "avg" else {"global_pool": kind}


def _picture(pixels: np.ndarray) -> Image:
    return fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)


def _require_same_pixels(loaded: ImageModel, config: DataConfig) -> None:
    """Raise UserError unless the transform of a configuration gives what the model is shown, up to rounding."""
    said = f"{loaded.name} is shown images as no transform of aurank does it"
    chance, size = np.random.default_rng(0), config.image_size
    try:
        pipeline = build_transform(config, train=False)
    except UserError as error:
        raise UserError(f"{said} ({error}); {_AS_ROWS}") from error
    levels = 255 * torch.tensor(pipeline.std).view(-1, 1, 1)
    for shape in ((size + 37, 2 * size), (2 * size + 1, size + 8), (size // 2 + 3, size // 2 + 6)):
        pixels = chance.integers(0, 256, (*shape, config.channels), dtype=np.uint8)
        image = _picture(pixels)
        expected, found = loaded.transform(image), pipeline(image)
        if found.shape != expected.shape or ((found - expected).abs() * levels).mean() > _LEVELS:
            raise UserError(f"{said}; {_AS_ROWS}")


def _backbone_weights(config: Config, loaded: ImageModel, name: str) -> dict[str, Tensor]:
    """Return the weights of the network of a configuration; raise UserError unless it gives what the model gives."""
    backbone = config.model.backbone
    said = f"{name}: the network of aurank with backbone {backbone} is not the model that made its embeddings"
    encoder = build_encoder(config.model, channels=config.data.channels, load=False).eval()
    network, base = network_of(encoder.backbone), loaded.module.eval()
    fit = fit_tensors(network.state_dict(), base.state_dict())
    if fit.wrong:
        wrong = some([*fit.missing, *fit.misshapen, *fit.unexpected])
        raise UserError(f"{said}: its tensors differ, {wrong}; {_AS_ROWS}")
    network.load_state_dict(fit.tensors, strict=False)
    size = config.data.image_size
    images = torch.randn(2, config.data.channels, size, size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, found = base(images), encoder.backbone(images)
    if found.shape != expected.shape or (found - expected).abs().max() > _TOLERANCE * expected.abs().max():
        raise UserError(f"{said}: its features differ; {_AS_ROWS}")
    return {f"backbone.{key}": value.detach().clone() for key, value in encoder.backbone.state_dict().items()}
