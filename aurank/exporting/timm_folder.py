"""Folders in the layout of timm on the hub: config.json and model.safetensors, loaded by timm alone."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from aurank.config import ModelConfig
from aurank.data import Pipeline
from aurank.errors import UserError, first_line
from aurank.exporting.resizing import timm_settings
from aurank.files import replacing
from aurank.models import Encoder
from aurank.models.adapters.exported import StoredTransform
from aurank.models.adapters.towers import is_tower
from aurank.models.image_model import ImageModel

WEIGHTS, SETTINGS = "model.safetensors", "config.json"
_REMEDY = "export it as onnx, torchexport or safetensors"


def require_expressible(config: ModelConfig) -> None:
    """Raise UserError where timm has no model of that shape.

    timm has a backbone, its own pooling and one linear layer; it has neither generalised-mean pooling nor a projection
    of several layers.
    """
    if config.pooling == "gem":
        raise UserError(f"--to hf: timm has no generalised-mean pooling (model.pooling=gem); {_REMEDY}")
    if config.head_layers > 1 and not config.discard_head:
        what = f"timm has one linear layer behind a backbone, this model {config.head_layers} (model.head_layers)"
        raise UserError(f"--to hf: {what}; {_REMEDY}")
    if is_tower(config.backbone):
        raise UserError(f"--to hf: timm has no {config.backbone}; {_REMEDY}")


def as_timm(encoder: Encoder, config: ModelConfig, *, channels: int) -> tuple[nn.Module, dict[str, Any]]:
    """Return timm's own model with the encoder's weights, the projection as its classifier, and its arguments.

    Raises:
        UserError: a backbone whose classifier is not one linear layer on the pooled features.
    """
    timm: Any = importlib.import_module("timm")
    given = dict(config.params)
    given.pop("pretrained_cfg_overlay", None)
    pool = given.pop("global_pool", config.pooling)
    arguments = {**given, "in_chans": channels, "global_pool": pool}
    classes = 0 if config.discard_head else config.dim
    name = config.backbone
    model: Any = timm.create_model(name, pretrained=False, num_classes=classes, **arguments)
    weights = dict(encoder.backbone.state_dict())
    if classes:
        last = model.get_classifier()
        if not isinstance(last, nn.Linear) or last.weight.shape != encoder.head.weight.shape:
            raise UserError(f"--to hf: the classifier of {name} is not one linear layer like the projection; {_REMEDY}")
        (prefix,) = [path for path, module in model.named_modules() if module is last]
        weights |= {f"{prefix}.{key}": value for key, value in encoder.head.state_dict().items()}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:200]
        what = f"the weights do not fit timm's {name} with a classifier ({said})"
        raise UserError(f"--to hf: {what}; {_REMEDY}") from error
    return model.eval(), arguments


def write_folder(
    encoder: Encoder, config: ModelConfig, pipeline: Pipeline, folder: Path, *, interpolation: str
) -> None:
    """Write config.json and model.safetensors; what timm makes of both is not yet at unit length.

    `interpolation`: Pillow's word for how images are resized.
    """
    model, arguments = as_timm(encoder, config, channels=pipeline.channels)
    known: Any = model.pretrained_cfg
    kept = ("pool_size", "first_conv", "classifier")
    settings = {
        **timm_settings(pipeline, interpolation),
        "fixed_input_size": bool(known.get("fixed_input_size", False)),
        "num_classes": model.num_classes,
        **{name: known[name] for name in kept if known.get(name) is not None},
    }
    content = {
        "architecture": known["architecture"],
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "global_pool": arguments["global_pool"],
        "model_args": arguments,
        "pretrained_cfg": settings,
    }
    (folder / SETTINGS).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tensors = {name: value.detach().contiguous().clone() for name, value in model.state_dict().items()}
    with replacing(folder / WEIGHTS) as file:
        file.write(save(tensors, metadata={"format": "pt"}))


def load_folder(folder: Path, pipeline: Pipeline) -> tuple[ImageModel, ImageModel]:
    """Return the model that timm makes of a folder, behind the encoder's own transform and behind timm's for it."""
    timm: Any = importlib.import_module("timm")
    try:
        module: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True)
        settings = timm.data.resolve_model_data_config(module)
        transform = timm.data.create_transform(**settings, is_training=False)
    except Exception as error:
        raise UserError(f"--to hf: timm cannot load the folder ({first_line(error)}); {_REMEDY}") from error
    unit = nn.Sequential(module, _UnitLength()).eval()
    own = ImageModel("timm", unit, StoredTransform(pipeline, is_inside=False), "timm", pipeline.channels)
    return own, replace(own, transform=transform)


class _UnitLength(nn.Module):
    """What whoever loads the folder does by himself."""

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(embeddings, dim=-1)
