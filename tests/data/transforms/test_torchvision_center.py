"""The evaluation transforms of torchvision and of transformers, pixel for pixel."""

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform

from aurank.data import TRANSFORMS


@pytest.mark.parametrize("shape", [(41, 57), (57, 41), (64, 64), (33, 190), (200, 131)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_pixels_are_those_of_timm(shape: tuple[int, int], interpolation: str) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8))
    look = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "interpolation": interpolation}
    expected = create_transform(input_size=(3, 32, 32), crop_pct=0.9, **look)(image)
    found = TRANSFORMS["torchvision_center"](32, 3, margin=35 / 32, **look)(image)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(41, 57), (57, 41), (64, 40), (64, 64), (33, 190), (200, 131)])
@pytest.mark.parametrize("resample", [2, 3])
def test_pixels_are_those_of_transformers_up_to_their_rounding(shape: tuple[int, int], resample: int) -> None:
    transformers = pytest.importorskip("transformers")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8))
    look = {"image_mean": [0.5, 0.4, 0.3], "image_std": [1 / 255] * 3, "resample": resample}
    sizes = {"size": {"shortest_edge": 35}, "crop_size": {"height": 32, "width": 32}}
    expected = transformers.CLIPImageProcessor(**sizes, **look)(images=image, return_tensors="pt")["pixel_values"][0]
    own = {"mean": (0.5, 0.4, 0.3), "std": (1 / 255,) * 3, "interpolation": {2: "bilinear", 3: "bicubic"}[resample]}
    found = TRANSFORMS["transformers_center"](32, 3, margin=35 / 32, **own)(image)
    # Of 255: torch resizes with other roundings.
    torch.testing.assert_close(found, expected, atol=2.01, rtol=0)
    assert float((found - expected).abs().mean()) < 0.5
