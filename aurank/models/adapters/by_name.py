"""Any image model or text model by its name, from the libraries that have one."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from aurank.errors import UserError
from aurank.files import reading
from aurank.models.adapters.exported import safetensors_model, torchexport_model
from aurank.models.adapters.loading import (
    IMAGE_OPTIONS,
    TEXT_OPTIONS,
    ImageModel,
    Options,
    TextModel,
    TextParts,
    parse_options,
    require_known,
    require_likely,
    weights_only,
)
from aurank.models.adapters.onnx import onnx_model
from aurank.models.adapters.open_clip import open_clip_model, open_clip_text_model
from aurank.models.adapters.python import python_model
from aurank.models.adapters.timm import timm_model, unknown_backbone
from aurank.models.adapters.transformers import transformers_model, transformers_text_model

ADAPTERS: Mapping[str, Callable[[str, str, Options, bool], ImageModel]] = {
    "timm": timm_model,
    "open_clip": open_clip_model,
    "transformers": transformers_model,
    "onnx": onnx_model,
    "safetensors": safetensors_model,
    "torchexport": torchexport_model,
    "python": python_model,
}

_FILES = ("onnx", "safetensors", "torchexport")

TEXT_ADAPTERS: Mapping[str, Callable[[str, str, Options], TextParts]] = {
    "open_clip": open_clip_text_model,
    "transformers": transformers_text_model,
}


def load_model(name: str, *, allow_code: bool = False, file: Path | None = None) -> ImageModel:
    """Return the model that `name` asks for, on the CPU, in evaluation mode.

    `name` is KIND:WHAT[,option=value…]. Options go to the library's own constructor; without `allow_code` those alone
    that can run no code, and weights are read as data. Weights that are not loaded are drawn from a fixed seed, so one
    name means one model.

    - `timm:resnet18[,pretrained=false]`: options of the model's own constructor; `weights=FILE`: those of a local file
      (safetensors, or torch's); `input_size=128`: another size of images. The transform is `timm.data`'s for the model.
    - `open_clip:ViT-B-32[,pretrained=laion2b_s34b_b79k]`: the image tower.
    - `transformers:facebook/dinov2-small`: a name of the hub, or a folder; `pretrained=false`: its architecture.
    - `onnx:FILE[,size=224,margin=1.143,mean=0.5,std=0.5]`: an image [batch, channel, height, width] to [batch, dim];
      shorter side to margin × size, the middle, then ImageNet's mean and deviation unless one number is given for each.
      Of a file of `aurank export` the preprocessing stored inside holds.
    - `safetensors:FILE`, `torchexport:FILE`: of `aurank export`. torch reads programs with pickle, which can run code,
      so `allow_code` must be set for the second.
    - `python:package.module:function[,option=value…]`: the function returns an `nn.Module`, or it and a transform. It
      runs code of the caller's choice, so `allow_code` must be set.

    Args:
        file: read this one in place of the file that the name names.

    Raises:
        UserError: an unknown name, a package that is not installed, weights that cannot be had.
    """
    kind, what, options = check_model(name, allow_code=allow_code)
    place = Path(what.removeprefix("local-dir:"))
    is_folder = (kind == "transformers" or what.startswith("local-dir:")) and place.is_dir()
    is_of_file = file is not None or kind in _FILES or is_folder
    if is_folder:
        require_likely(place)
    with torch.random.fork_rng(devices=[]), weights_only(allow_code):
        torch.manual_seed(0)
        model = ADAPTERS[kind](name, what if file is None else str(file), options, allow_code)
        model.module.eval()
        if is_of_file:
            _try(model)
    return model


def _try(model: ImageModel) -> None:
    """Show an image to a model of a file: what does not fit in that comes out here, before hours of work are spent.

    Raises:
        UserError: names the model.
    """
    weights = next(model.module.parameters(), None)
    with reading(model.name, "a model that takes images"), torch.inference_mode():
        pixels = np.full((64, 64, model.channels), 127, np.uint8)
        shown = model.transform(Image.fromarray(pixels.squeeze(2) if model.channels == 1 else pixels))
        if weights is None or weights.dtype == torch.float32:  # others may need the autocast of --bf16
            model.module(shown[None])


def check_model(name: str, *, allow_code: bool = False) -> tuple[str, str, Options]:
    """Return the kind that a name begins with, what it names and the options, nothing of which is loaded.

    Raises:
        UserError: an unknown name or option, or one that may run code unless `allow_code` is set.
    """
    kind, _, rest = name.partition(":")
    if kind not in ADAPTERS or not rest:
        raise UserError(f"no model {name!r}; expected one of {', '.join(f'{known}:…' for known in ADAPTERS)}")
    if kind == "python" and not allow_code:
        raise UserError(f"{name} runs Python code of that module; if you trust it, add --allow-code")
    if kind == "torchexport" and not allow_code:
        raise UserError(f"{name}: torch reads it with pickle, which can run code; if you trust it, add --allow-code")
    what, options = parse_options(name, rest)
    if kind == "timm" and (complaint := unknown_backbone(what)) is not None:
        raise UserError(f"{name}: {complaint}")
    if not allow_code and kind in IMAGE_OPTIONS:
        require_known(name, options, IMAGE_OPTIONS[kind])
    return kind, what, options


def load_text_model(name: str, *, weights: bool = True) -> TextModel:
    """Return the text model that `name` asks for, on the CPU, in evaluation mode.

    `name` is KIND:WHAT[,option=value…], as for `load_model`; what both make of one name can be compared. It stands in
    configurations and checkpoints, so that nothing in it may run code: there is no way to allow it.

    - `open_clip:ViT-B-32[,pretrained=laion2b_s34b_b79k]`: the text tower.
    - `transformers:openai/clip-vit-base-patch32`: the projected text features, else the mean over the tokens; a name
      of the hub, or a folder; `pretrained=false`: its architecture; `length=77`: most tokens of a text.

    Args:
        weights: False takes random ones, whatever the name asks for, so that none are fetched where others are to be
            loaded (but for `open_clip:hf-hub:…`, which open_clip fetches with their configuration).

    Raises:
        UserError: an unknown name, a package that is not installed, weights that cannot be had.
    """
    kind, what, options = check_text_model(name)
    if not weights:
        options |= {"pretrained": False}
        if kind == "open_clip":
            options |= {"pretrained_hf": False}  # of a text tower from transformers
    with torch.random.fork_rng(devices=[]), weights_only():
        torch.manual_seed(0)
        module, tokenise = TEXT_ADAPTERS[kind](name, what, options)
    module.eval()
    with torch.inference_mode():
        width = int(module(tokenise(["a text"])).shape[1])
    return TextModel(name, module, tokenise, width)


def check_text_model(name: str) -> tuple[str, str, Options]:
    """Return the kind that a name begins with, what it names and the options; UserError for unknown ones."""
    kind, _, rest = name.partition(":")
    if kind not in TEXT_ADAPTERS or not rest:
        raise UserError(f"no text model {name!r}; expected one of {', '.join(f'{known}:…' for known in TEXT_ADAPTERS)}")
    what, options = parse_options(name, rest)
    require_known(name, options, TEXT_OPTIONS[kind], flag=False)
    return kind, what, options
