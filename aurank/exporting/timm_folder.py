"""Folders in the layout of timm on the hub: config.json and model.safetensors, loaded by timm alone."""

import importlib
import json
import math
from pathlib import Path
from typing import Any

from torch import nn

from aurank.config import ModelConfig
from aurank.data import Pipeline
from aurank.data.transforms.base import AREA
from aurank.exporting.formats import packed_preprocessing
from aurank.files import write_safetensors, write_text
from aurank.models import Encoder
from aurank.models.adapters.exported import StoredTransform, crop_of
from aurank.models.image_model import ImageModel

SETTINGS, PREPROCESSING = "config.json", "preprocessing.json"


def write_folder(encoder: Encoder, config: ModelConfig, pipeline: Pipeline, path: Path) -> None:
    """Write timm's own model beside `path`, with the encoder's weights and the projection as its classifier."""
    timm: Any = importlib.import_module("timm")
    arguments = {**config.params, "in_chans": pipeline.channels}
    arguments.setdefault("global_pool", config.pooling)
    arguments.pop("pretrained_cfg_overlay", None)
    classes = 0 if config.discard_head else config.dim
    model: Any = timm.create_model(config.backbone, pretrained=False, num_classes=classes, **arguments)
    weights = dict(encoder.backbone.state_dict())
    if classes:
        last = model.get_classifier()
        (prefix,) = [path for path, module in model.named_modules() if module is last]
        weights |= {f"{prefix}.{key}": value for key, value in encoder.head.state_dict().items()}
    model.load_state_dict(weights)
    published = model.pretrained_cfg
    structure = ("pool_size", "first_conv", "classifier")
    content = {
        "architecture": published["architecture"],
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "global_pool": arguments["global_pool"],
        "model_args": arguments,
        "pretrained_cfg": {
            **timm_settings(pipeline),
            "fixed_input_size": bool(published.get("fixed_input_size", False)),
            "num_classes": model.num_classes,
            **{name: published[name] for name in structure if published.get(name) is not None},
        },
    }
    write_text(path.with_name(SETTINGS), json.dumps(content, indent=2) + "\n")
    write_text(path.with_name(PREPROCESSING), packed_preprocessing(encoder, pipeline, is_inside=False) + "\n")
    write_safetensors(path, model.state_dict())


def load_folder(folder: Path, pipeline: Pipeline) -> ImageModel:
    """Return the model of a folder, with the preprocessing of its training and the unit length that users add."""
    timm: Any = importlib.import_module("timm")
    module: nn.Module = timm.create_model(f"local-dir:{folder}", pretrained=True)
    module.register_forward_hook(lambda module, images, embeddings: nn.functional.normalize(embeddings, dim=-1))
    return ImageModel("timm", module.eval(), StoredTransform(pipeline, is_inside=False), "timm", pipeline.channels)


def timm_settings(pipeline: Pipeline) -> dict[str, Any]:
    mode, canvas = crop_of(pipeline)
    pairs = list(zip(pipeline.size, canvas, strict=True))
    crop_pct = getattr(pipeline, "crop_pct", min(side / before for side, before in pairs))
    # By timm's own sum, which may miss a whole number by a bit.
    if any(math.floor(side / crop_pct) < before for side, before in pairs):
        crop_pct = math.nextafter(crop_pct, 0)
    return {
        "input_size": [pipeline.channels, *pipeline.size],
        "interpolation": pillow_interpolation(pipeline),
        "crop_pct": crop_pct,
        "crop_mode": mode,
        "mean": list(pipeline.mean or ()),
        "std": list(pipeline.std or ()),
    }


def pillow_interpolation(pipeline: Pipeline) -> str:
    return "box" if pipeline.interpolation == AREA else pipeline.interpolation
