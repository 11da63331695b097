"""Any image model or text model by its name, from the libraries that have one; and kept in a folder."""

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from aurank.errors import UserError
from aurank.files import reading, write_safetensors
from aurank.models.adapters.exported import onnx_model
from aurank.models.adapters.names import IMAGES, LOCAL, TEXTS, TOWERS, Options, parse_name, without_weights
from aurank.models.adapters.open_clip import open_clip_model, open_clip_settings, open_clip_text_model
from aurank.models.adapters.python import python_model
from aurank.models.adapters.timm import require_known, timm_config, timm_model
from aurank.models.adapters.transformers import transformers_model, transformers_text_model
from aurank.models.image_model import ImageModel, TextParts, as_embeddings, to_picture
from aurank.models.views import MeanOverViews, add_views

ADAPTERS: Mapping[str, Callable[[str, str, Options, bool], ImageModel]] = {
    "timm": timm_model,
    "open_clip": open_clip_model,
    "transformers": transformers_model,
    "onnx": onnx_model,
    "python": python_model,
}
_GRAPH = "model.onnx"  # in a folder
_WEIGHTS = "model.safetensors"
# Options that say where weights come from, which a kept model has beside it.
_OF_WEIGHTS = ("weights", "pretrained", "pretrained_hf", "cache_dir", "revision", "variant", "subfolder")
TEXT_ADAPTERS: Mapping[str, Callable[[str, str, Options], TextParts]] = {
    "open_clip": open_clip_text_model,
    "transformers": transformers_text_model,
}


def load_model(name: str, *, allow_code: bool = False, folder: Path | None = None) -> ImageModel:
    """Return the model that `name` asks for, on the CPU, in evaluation mode.

    `name` is KIND:WHAT[,option=value…]. Options go to the library's own constructor; without `allow_code` those alone
    that can run no code, and weights are read as data. Weights that are not loaded are drawn from a fixed seed.

    Every kind takes `flip=true` and `scales=1+1.25`: the mean over an image, its mirror image, and other sizes.

    - `timm:resnet18[,pretrained=false]`: options of the model's own constructor; `weights=FILE`: those of a local file
      (safetensors, or torch's); `input_size=128`: another size of images.
    - `open_clip:ViT-B-32[,pretrained=laion2b_s34b_b79k]`: the image tower.
    - `transformers:facebook/dinov2-small`: a name of the hub, or a folder; `pretrained=false`: its architecture.
    - `onnx:FILE[,size=224,margin=1.143,mean=0.5,std=0.5,output=NAME]`: an image [batch, channel, height, width] to
      [batch, dim]; shorter side to margin × size, the middle, then, unless the graph takes uint8, ImageNet's mean and
      deviation or one number for each; `output`: the embedding, where the graph has several that may be it.
    - `onnx:FILE` of `aurank export`: the preprocessing is inside; or the folder.
    - `python:package.module:function[,option=value…]`: the function returns an `nn.Module`, or it and a transform.

    Args:
        allow_code: needed for `python`.
        folder: what `keep_model` wrote, and returned the name of.

    Raises:
        UserError: an unknown name, a package that is not installed, weights that cannot be had.

    Example:
        >>> load_model("timm:test_resnet,pretrained=false").channels
        3
    """
    kind, model_id, options = check_model(name, allow_code=allow_code)
    if folder is not None and kind == "onnx":
        model_id = str(folder / Path(model_id).name)
    elif folder is not None and kind != "python":
        model_id = f"{LOCAL * model_id.startswith(LOCAL)}{folder}"
    elif kind == "onnx" and Path(model_id).is_dir():
        name, model_id = (text.replace(model_id, str(Path(model_id) / _GRAPH), 1) for text in (name, model_id))
    path = model_id.removeprefix(LOCAL)
    flip, scales = options.pop("flip", False), str(options.pop("scales", 1))
    is_folder = (kind == "transformers" or path != model_id) and Path(path).is_dir()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ADAPTERS[kind](name, model_id, options, allow_code)
        model.module.eval()
        if folder is not None and kind != "onnx":
            _network(kind, model).load_state_dict(load_file(folder / _WEIGHTS))
        if kind == "onnx" or is_folder:
            # What does not fit in a file is told here, before hours of work are spent.
            with reading(name, "a model that takes images"), torch.inference_mode():
                shown = model.transform(to_picture(np.full((64, 64, model.channels), 127, np.uint8)))
                weights = next(model.module.parameters(), None)
                if weights is None or weights.dtype == torch.float32:  # others may need the autocast of --bf16
                    as_embeddings(model.module(shown[None]), 1)
        with reading(name, "a model by views", remedy="give flip=true, or scales such as scales=1+1.25"):
            views = MeanOverViews(bool(flip), tuple(map(float, scales.split("+"))))
            if views != MeanOverViews():
                shown = model.stack([np.full((64, 64, model.channels), 127, np.uint8)])
                add_views(model.module, views, shown)
                model = replace(model, description=f"{model.description} {views}")
    return model


def check_model(name: str, *, allow_code: bool = False) -> tuple[str, str, Options]:
    if name.startswith("python:") and not allow_code:
        raise UserError(f"{name} runs Python code of that module; if you trust it, add --allow-code")
    libraries = {**IMAGES, **dict.fromkeys(TOWERS)} if allow_code else IMAGES
    remedy = "" if name.startswith("onnx:") else "; if you trust what it may run, add --allow-code"
    kind, model_id, options = parse_name(name, libraries, remedy=remedy)
    if kind == "timm":
        require_known(model_id, {}, of=name)
    return kind, model_id, options


def keep_model(model: ImageModel, folder: Path) -> str:
    """Write what builds the model again into a folder; return the name that `load_model` takes with this folder."""
    kind, _, text = (model.origin or model.name).partition(":")
    model_id, *pairs = text.split(",")
    if kind == "onnx":
        shutil.copyfile(model_id, folder / Path(model_id).name)
        return ",".join([f"{kind}:{Path(model_id).name}", *pairs])
    network = _network(kind, model)
    write_safetensors(folder / _WEIGHTS, network.state_dict())
    if kind == "python":
        return ",".join([f"{kind}:{model_id}", *pairs])
    with suppress(UserError, AttributeError):  # open_clip's own has no files; a model without one still takes images
        model.text[1].tokenizer.save_pretrained(folder)  # type: ignore[attr-defined]
    options = dict(pair.partition("=")[::2] for pair in pairs)
    if kind == "transformers":
        network.config.save_pretrained(folder)  # type: ignore[operator, union-attr]
        model.transform.processor.save_pretrained(folder)  # type: ignore[union-attr]
    elif kind == "timm":
        _write_json(folder / "config.json", timm_config(network, model_id, options.get("weights")))
    else:
        _write_json(folder / "open_clip_config.json", open_clip_settings(network, model_id))
    pairs = [f"{key}={value}" for key, value in options.items() if key not in _OF_WEIGHTS]
    return ",".join([f"{kind}:{LOCAL * (kind != 'transformers')}.", *pairs, "pretrained=false"])


def _write_json(path: Path, settings: dict[str, Any]) -> None:
    path.write_text(json.dumps(settings, indent=2, default=list), encoding="utf-8")


def _network(kind: str, model: ImageModel) -> nn.Module:
    return model.module.model if kind in ("open_clip", "transformers") else model.module  # type: ignore[return-value]


def load_text_model(name: str, *, weights: bool = True) -> TextParts:
    """Return the text model that `name` asks for, on the CPU, in evaluation mode; no option of it may run code.

    - `open_clip:ViT-B-32[,pretrained=laion2b_s34b_b79k]`: the text tower.
    - `transformers:openai/clip-vit-base-patch32`: the projected text features, else the mean over the tokens; a name
      of the hub, or a folder; `pretrained=false`: its architecture; `length=77`: most tokens of a text.

    Without `weights` they are random ones: nothing is fetched where others are to be loaded.
    """
    kind, model_id, options = parse_name(name, TEXTS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, tokenise = TEXT_ADAPTERS[kind](name, model_id, options if weights else without_weights(kind, options))
    return module.eval(), tokenise
