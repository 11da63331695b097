"""Folders of networks as transformers writes them, tiny and of random weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 16}
LOOK = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.2, 0.2], "resample": 3, "size": {"height": 32, "width": 32}}
_PROCESSORS = {"clip": "CLIPImageProcessor", "dinov2": "BitImageProcessor", "siglip": "SiglipImageProcessor"}


def folder_of(folder: Path, kind: str = "dinov2", **look: Any) -> str:
    """A folder of a network of that kind, with its processor; `look` overrides what that does."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    both = {"intermediate_size": 32}
    if kind == "clip":
        text = {key: value for key, value in SIZES.items() if key not in ("image_size", "patch_size")}
        config = transformers.CLIPConfig(
            text_config={**text, **both, "vocab_size": 9}, vision_config={**SIZES, **both}, projection_dim=12
        )
        model = transformers.CLIPModel(config)
    elif kind == "siglip":
        model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**SIZES, **both))
    else:
        model = transformers.Dinov2Model(transformers.Dinov2Config(**SIZES))
    for value in model.parameters():
        if value.ndim > 1:
            nn.init.normal_(value, std=0.2)
    model.save_pretrained(folder)
    settings = {**LOOK, "image_processor_type": _PROCESSORS[kind], "crop_size": LOOK["size"], **look}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return str(folder)
