"""Image towers of open_clip and transformers, to be trained as timm's backbones are; how any backbone sees images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aurank.models.adapters.names import TOWERS, is_tower, parse_name, without_weights
from aurank.models.adapters.open_clip import open_clip_look, open_clip_tower
from aurank.models.adapters.timm import by_channel, timm_crop, timm_look
from aurank.models.adapters.transformers import transformers_look, transformers_tower
from aurank.models.adapters.weights import read_look
from aurank.models.image_model import require_vectors

_TOWERS = {"open_clip": open_clip_tower, "transformers": transformers_tower}
_LOOKS = {"open_clip": open_clip_look, "transformers": transformers_look}
_OF_FILES = ("pretrained=", "cache_dir=")  # options that may name one
_SIZE = 224  # of images where a tower does not say its own


class ImageTower(nn.Module):
    def __init__(self, name: str, *, pretrained: bool, weights: str | None = None) -> None:
        super().__init__()
        kind, model_id, options = parse_name(name, TOWERS)
        if not pretrained or weights is not None:
            options = without_weights(kind, options)
        model, self.notes = _TOWERS[kind](name, model_id, options, weights)
        size: Any = getattr(model, "image_size", None)
        sides = size if isinstance(size, list | tuple) else (size or _SIZE,) * 2
        self.model = model.float()
        self.num_features = freeze_unused(self.model.eval(), torch.zeros(1, 3, *sides)).shape[1]

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch feature"]:
        features: Tensor = self.model(images)
        return features


def is_local(name: str) -> bool:
    kind, _, model_id = name.partition(":")
    return kind == "local-dir" or (kind == "transformers" and Path(model_id.split(",")[0]).is_dir())


def without_places(name: str) -> str:
    """Return the name of a backbone without files and folders of this machine, which only its first weights need."""
    model_id, *options = name.split(",")
    values = {option: Path(option.partition("=")[2]) for option in options if option.startswith(_OF_FILES)}
    paths = {option for option, path in values.items() if path.suffix or path.name != str(path) or path.exists()}
    return ",".join([model_id, *(option for option in options if option not in paths)])


def preprocessing(
    name: str, options: Mapping[str, Any], *, channels: int, pretrained: bool, weights: str | None = None
) -> dict[str, Any]:
    if is_tower(name):
        look: dict[str, Any] = {} if weights is None else read_look(weights)
        if "crop_pct" in look:
            look["crop"] = timm_crop(look)
        if "crop" not in look:
            kind, model_id, arguments = parse_name(name, TOWERS)
            arguments = arguments if pretrained and weights is None else without_weights(kind, arguments)
            look = {**_LOOKS[kind](name, model_id, arguments), **look}
    else:
        look = timm_look(name, options, weights=weights)
    learnt = pretrained or weights is not None
    is_known = learnt or len(look["mean"]) == channels
    mean, std = (by_channel(look[key] if is_known else (0.5,), channels) for key in ("mean", "std"))
    crop, params = look["crop"] if learnt else ("center", {})
    shown = {"normalise": {"mean": mean, "std": std}, "test_transform": {"name": crop, "params": params}}
    return {**shown, "interpolation": str(look["interpolation"]) if learnt else "area"}


def freeze_unused(module: nn.Module, inputs: Tensor) -> Tensor:
    output: Tensor = module(inputs)
    require_vectors(output, len(inputs))
    if not torch.is_grad_enabled():
        return output
    output.sum().backward()  # type: ignore[no-untyped-call]
    for parameter in module.parameters():
        if parameter.grad is None:
            parameter.requires_grad_(False)
        parameter.grad = None
    return output.detach()
