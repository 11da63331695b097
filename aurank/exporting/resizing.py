"""Which of Pillow's ways to resize comes nearest to that of a pipeline."""

import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from aurank.data import Manifest, Pipeline
from aurank.data.transforms.base import AREA
from aurank.models.adapters.exported import StoredTransform, crop_of
from aurank.models.image_model import ImageModel, ModelImages, Transform

_LIKELY = ("box", "bilinear", "bicubic")
_SAMPLE = 64  # images that are tried


def timm_settings(pipeline: Pipeline, interpolation: str) -> dict[str, Any]:
    """Return the settings with which timm makes the pipeline's pixels, up to another interpolation."""
    (mode, side), size = crop_of(pipeline), pipeline.image_size
    crop_pct = getattr(pipeline, "crop_pct", size / side)
    if math.floor(size / crop_pct) < side:  # timm's own sum, which may miss a whole number by a bit
        crop_pct = math.nextafter(crop_pct, 0)
    return {
        "input_size": [pipeline.channels, size, size],
        "interpolation": interpolation,
        "crop_pct": crop_pct,
        "crop_mode": mode,
        "mean": list(pipeline.mean or ()),
        "std": list(pipeline.std or ()),
    }


def spread_rows(count: int, most: int) -> list[int]:
    """Return at most so many rows, evenly from the first to the last."""
    rows: list[int] = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(np.int64)).tolist()
    return rows


def pillow_interpolation(pipeline: Pipeline, manifest: Manifest, *, max_pixels: int) -> str:
    """Return Pillow's word for how a pipeline resizes; of "area", which Pillow lacks, the nearest on these images.

    Area averages where an image shrinks, as Pillow's box does, and is bilinear where it grows.
    """
    if pipeline.interpolation != AREA:
        return pipeline.interpolation
    timm: Any = importlib.import_module("timm")
    own = StoredTransform(pipeline, is_inside=False)
    others: Sequence[Transform] = [timm.data.create_transform(**timm_settings(pipeline, name)) for name in _LIKELY]

    def both(image: Image) -> Tensor:
        wanted = own(image)
        return torch.cat([(other(image) - wanted).abs() for other in others])

    tried = ImageModel("resizing", torch.nn.Identity(), both, "", pipeline.channels)
    sample = ModelImages(manifest, tried, on_error="skip", max_pixels=max_pixels)
    found = sample.__getitems__(spread_rows(len(manifest), _SAMPLE)).image
    if isinstance(found, tuple) or not len(found):
        return _LIKELY[0]
    differences = found.reshape(len(found), len(_LIKELY), -1).mean(dim=(0, 2))
    return _LIKELY[int(differences.argmin())]
