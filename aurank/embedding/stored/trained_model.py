"""Models by name, from checkpoints and from folders; a head on saved embeddings with its backbone."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypedDict

from aurank.config import Config
from aurank.config.schema import EMBEDDINGS, NO_BACKBONE
from aurank.data import Pipeline, Tokeniser
from aurank.data.saved_embeddings import AsSaved, MadeBy
from aurank.embedding.build import (
    build_encoder,
    build_transform,
    describe_model,
    encoder_of,
    towers_of,
    with_preprocessing,
)
from aurank.embedding.cache import weights_sha256
from aurank.embedding.locations import HUB, KEPT, RECORD, resolve_checkpoint, split_name
from aurank.embedding.settings import read_trained
from aurank.embedding.stored.checkpoint import is_head, load_checkpoint, save_checkpoint
from aurank.errors import UserError, first_line
from aurank.files import read_record, reading, write_text
from aurank.lazy import import_library
from aurank.models import TwoTower
from aurank.models.adapters.by_name import check_model, keep_model, load_model
from aurank.models.adapters.loading import asking_once
from aurank.models.adapters.names import LOCAL
from aurank.models.adapters.timm import NO_ARGUMENTS
from aurank.models.adapters.weights import fit_tensors
from aurank.models.encoder import network_of
from aurank.models.image_model import ImageModel, TextParts, Tokenise, to_picture
from aurank.models.tuning import WHOLE

_BACKBONES = ("timm", "open_clip", "transformers")  # kinds of model that a head can stand behind
_AS_ROWS = f"measure embeddings: --data {EMBEDDINGS}:FILE"
_TOLERANCE = 1e-4  # largest difference of features, relative to the largest value
_LEVELS = 0.5  # largest mean difference of pixels (of 255): transformers rounds otherwise than Pillow
_FORMAT = "aurank.model"
_BRACKETS = str.maketrans("[]", "()")  # JSON keeps tuples as lists


def load(model: Path | str, *, allow_code: bool = False) -> ImageModel:
    """Load any image model, on the CPU, in evaluation mode.

    Of two towers it is that of the images. A head on saved embeddings comes with the backbone that made them.

    Args:
        model: a run or its checkpoint (``DIR``, ``DIR/best``, ``DIR/last``); a folder that `ImageModel.save` wrote;
            ``hf-hub:OWNER/NAME``, such a folder or a model of timm on the hub; or KIND:NAME as `aurank evaluate
            --model` takes it, such as ``timm:resnet18`` or ``onnx:FILE``.
        allow_code: needed for ``python:``, which runs code.

    Raises:
        UserError: there is no such model, or it cannot be loaded.

    Example:
        >>> import aurank
        >>> model = aurank.load("timm:test_resnet,pretrained=false")
        >>> model.encode(np.zeros((30, 20, 3), np.uint8)).shape
        (96,)
    """
    name = fetched(str(model))
    kind, source = split_name(name)
    if kind != "aurank":
        loaded = load_model(name, allow_code=allow_code)
    elif (Path(source) / RECORD).is_file():
        loaded = load_stored(Path(source), name, allow_code=allow_code)
    else:
        loaded = _trained(name, resolve_checkpoint(source))
    if str(model).startswith(HUB):
        return replace(loaded, name=str(model), origin=loaded.origin or loaded.name)
    return loaded


def _trained(name: str, path: Path) -> ImageModel:
    source = name.removeprefix("aurank:")
    checkpoint = with_backbone(load_checkpoint(path), source)
    config = read_trained(checkpoint["config"])
    return trained_model(name, encoder_of(checkpoint, config, source).eval(), config, path)


def fetched(model: str) -> str:
    kind, _, repo = model.partition(":")
    if kind != HUB:
        return f"aurank:{model}" if split_name(model) == ("aurank", model) else model
    hub = import_library("huggingface_hub", model)
    repo, _, revision = repo.partition("@")
    try:
        with asking_once():
            hub.hf_hub_download(repo, RECORD, revision=revision or None)
            return f"aurank:{hub.snapshot_download(repo, revision=revision or None)}"
    except hub.errors.EntryNotFoundError:  # also raised offline: timm then uses its cache
        return f"timm:{model}"
    except Exception as error:  # bad name, missing repository, no permission, …
        raise UserError(f"{model} cannot be had from the hub: {first_line(error)}") from error


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


def trained_model(name: str, encoder: nn.Module, config: Config, path: Path) -> ImageModel:
    def load_text() -> TextParts:
        towers, tokenise, _ = load_pairs(path)
        return towers.text, tokenise

    is_head = config.model.backbone == NO_BACKBONE
    transform = AsSaved(1, 1) if is_head else build_transform(config.data, train=False)
    model = ImageModel(name, encoder, transform, describe_model(config), config.data.channels, config=config)
    return model if config.model.text is None else replace(model, load_text=load_text)


def made_by(model: ImageModel) -> MadeBy:
    """Return what a file of embeddings remembers of the model that made them: its name has whole paths."""
    kind, _, text = model.name.partition(":")
    source, *options = text.split(",")
    if kind == "aurank":
        source = str(Path(source).absolute())
    elif kind not in ("timm", "open_clip", "python") and Path(source).exists():
        source = str(Path(source).resolve())
    for number, option in enumerate(options):
        key, _, value = option.partition("=")
        if key in ("weights", "pretrained") and Path(value).exists():
            options[number] = f"{key}={Path(value).resolve()}"
    return MadeBy(f"{kind}:{','.join([source, *options])}", weights_sha256(model.module), model.preprocessing)


def with_backbone(checkpoint: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the checkpoint of a head on saved embeddings with the network that made them; any other as it is."""
    if not is_head(checkpoint):
        return checkpoint
    config = read_trained(checkpoint["config"])
    features = config.model.features
    if features is None or features.model is None or features.model.partition(":")[0] not in _BACKBONES:
        maker = "an unknown model" if features is None or features.model is None else features.model
        raise UserError(
            f"{name} is a head on embeddings by {maker}; only one of timm, open_clip or "
            f"transformers takes images with its head behind it: embed them by that model, and {_AS_ROWS}"
        )
    where = f"{name}, a head on embeddings by {features.model}"
    with reading(where, "one", remedy=_AS_ROWS):
        base = load_model(features.model)
    require_same_model(base, features.weights_sha256, features.preprocessing, where, "put its own back, or train anew")
    joined = joined_config(config, base)
    weights = _backbone_weights(joined, base, name)

    def merged(head: dict[str, Any]) -> dict[str, Any]:
        return {**weights, **{key: value for key, value in head.items() if key.startswith("head.")}}

    content = {**checkpoint, "config": joined.model_dump(mode="json"), "encoder": merged(checkpoint["encoder"])}
    if (average := checkpoint["average"]) is not None:
        content["average"] = {**average, "values": merged(average["values"])}
    return content


def joined_config(config: Config, base: ImageModel) -> Config:
    """Return the configuration of head and backbone; UserError unless its transform gives what the model is shown."""
    kind, model_id, options = check_model(base.name)
    file, params = options.get("weights"), {}
    if kind == "timm":
        pool: Any = getattr(base.module, "global_pool", "avg")
        pool = pool if isinstance(pool, str) else getattr(pool, "pool_type", "avg")
        params = {key: value for key, value in options.items() if key not in (*NO_ARGUMENTS, "in_chans")}
        params |= {} if pool == "avg" else {"global_pool": pool}
    else:
        model_id = base.name
    height, width = map(int, base.transform(to_picture(np.zeros((64, 64, base.channels), np.uint8))).shape[-2:])
    data: dict[str, Any] = {"name": "folder", "params": {}, "channels": base.channels}
    data |= {"image_size": height if height == width else (height, width), "resize": options.get("resize", "crop")}
    data |= dict.fromkeys(("normalise", "interpolation", "test_transform"))  # take the backbone's
    network: dict[str, Any] = {"backbone": model_id, "params": params, "pretrained": True, "weights": file}
    network |= {"features": None, "init_from": None, "freeze": (WHOLE,)}
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
    network.load_state_dict(fit_tensors(network.state_dict(), module.state_dict())[0], strict=False)
    shape = (2, config.data.channels, *build_transform(config.data, train=False).size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, features = module(images), encoder.backbone(images)
    is_same = features.shape == expected.shape
    if not is_same or (features - expected).abs().max() > _TOLERANCE * expected.abs().max():
        network_name = f"the network of aurank with backbone {config.model.backbone}"
        raise UserError(f"{name}: {network_name} is not the model that made its embeddings; {_AS_ROWS}")
    return {f"backbone.{key}": value.detach().clone() for key, value in encoder.backbone.state_dict().items()}


# -- models in a folder, of an index or by themselves, to be loaded again years later ---------------------------------


class StoredRecord(TypedDict):
    """What model.json says: the name that `load_model` takes with the folder, and what tells the model from another."""

    format: str
    version: int
    load: str
    weights_sha256: str
    preprocessing: str
    files: list[Annotated[str, Field(pattern=r"^[^/\\]+$")]]  # plain names: no file outside the folder


def store_model(folder: Path, model: ImageModel) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if model.config is None:
        load_by = keep_model(model, folder)
    else:
        load_by = f"aurank:{KEPT}"
        state, tokeniser, dropped = model.module.state_dict(), None, ["text", "lora", "weights", "init_from"]
        with suppress(UserError):  # without a text tower, or its library, it still takes images
            text, tokenise = model.text
            state = nn.ModuleDict({"image": model.module, "text": text}).state_dict()
            tokeniser = tokenise.state_dict() if isinstance(tokenise, Tokeniser) else None
            dropped.remove("text")
        network = model.config.model.model_copy(update=dict.fromkeys(dropped))
        data = model.config.data.model_copy(update=dict.fromkeys(("root", "prepared")))  # no paths of this machine
        if data.params:
            data = data.model_copy(update={"name": "folder", "params": {}})
        config = model.config.model_copy(update={"model": network, "data": data}).model_dump(mode="json")
        encoder = {"encoder": state, "average": None, "tokeniser": tokeniser}
        save_checkpoint(folder / KEPT, {"config": config, "manifest": "", "data": None, "progress": {}, **encoder})
    content = {"format": _FORMAT, "version": 1, "load": load_by, "weights_sha256": weights_sha256(model.module)}
    content |= {"preprocessing": model.preprocessing, "files": sorted(file.name for file in folder.iterdir())}
    write_text(folder / RECORD, json.dumps(content, indent=1) + "\n")


def stored_files(folder: Path) -> list[str]:
    return list(read_record(folder / RECORD, StoredRecord, "a stored model", named=_FORMAT)["files"])


def load_stored(folder: Path, name: str, *, allow_code: bool = False, remedy: str = "save it again") -> ImageModel:
    record = read_record(folder / RECORD, StoredRecord, "a stored model", named=_FORMAT, remedy=remedy)
    with reading(folder, "a stored model", remedy=remedy):
        kind, _, text = record["load"].partition(":")
        source, *pairs = text.split(",")
        if kind == "aurank":
            model, origin = _trained(name, folder / KEPT), ""
        else:
            model = load_model(record["load"], allow_code=allow_code, folder=folder)
            path = {"onnx": folder / Path(source).name, "transformers": folder, "python": source}
            origin = ",".join([f"{kind}:{path.get(kind, f'{LOCAL}{folder}')}", *pairs])
    model = replace(model, name=name, origin=origin)
    require_same_model(model, record["weights_sha256"], record["preprocessing"], str(folder), remedy)
    return model


def require_same_model(
    model: ImageModel, weights: str | None, preprocessing: str | None, where: str, remedy: str
) -> None:
    for difference, now, before in (
        ("has other weights", weights_sha256(model.module), weights),
        ("is shown images otherwise", model.preprocessing, preprocessing),
    ):
        if now.translate(_BRACKETS) != (before or "").translate(_BRACKETS):
            raise UserError(
                f"{where}: the model {model.name} {difference} than when its embeddings were made; {remedy}"
            )
