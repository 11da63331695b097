"""The crops of evaluation: those of timm and torchvision to the last bit, of transformers up to its rounding."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import timm
import torch
from packaging.version import Version
from PIL import Image
from timm.data import create_transform
from torchvision import transforms

from aurank.data import TRANSFORMS

# Larger and smaller than the crop, an odd number of pixels beside it, square, and as long as photos get.
SHAPES = [(41, 57), (57, 41), (64, 64), (33, 190), (200, 131), (36, 37), (32, 33), (9, 14), (7, 7), (5, 300), (1, 90)]
SIZES: list[Any] = [32, (40, 24), (24, 40)]  # height first
OLD_TIMM = Version(timm.__version__) < Version("1.0.31")
LOOK: dict[str, Any] = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}


def photo(*shape: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 0.95, 1.0, 1.15])
@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", SIZES)
def test_numbers_are_those_of_timm(size, crop_mode, crop_pct):
    height, width = (size, size) if size == 32 else size
    for shape, interpolation in product(SHAPES, ["bicubic", "bilinear"]):
        if crop_mode == "border" and min(shape) * min(height, width) / crop_pct < max(shape) / 2:
            continue  # timm reduces the shorter side to nothing
        if (crop_mode, interpolation) == ("center", "bicubic") and height != width and OLD_TIMM:
            continue  # older ones take bilinear, whatever is asked for
        given = {**LOOK, "interpolation": interpolation, "crop_pct": crop_pct, "crop_mode": crop_mode}
        expected = create_transform(input_size=(3, height, width), **given)(photo(*shape))
        assert torch.equal(TRANSFORMS["timm"](size, 3, **given)(photo(*shape)), expected), given


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("resize", "crop_mode"), [("pad", "border"), ("squash", "squash")])
def test_padded_and_squashed_images_are_whole_by_every_transform_of_evaluation(resize, crop_mode, size):
    height, width = (size, size) if size == 32 else size
    given: dict[str, Any] = {"mean": LOOK["mean"], "interpolation": "bicubic"}
    as_timm = create_transform((3, height, width), **given, crop_pct=1, crop_mode=crop_mode, normalize=False)
    for name, shape in product(("center", "transformers_center", "timm", "resize"), SHAPES):
        if min(shape) * min(height, width) < max(shape) / 2:
            continue
        pipeline = TRANSFORMS[name](size, 3, **given, resize=resize)
        found = torch.tensor(pipeline.prepare(np.asarray(photo(*shape)))).permute(2, 0, 1)
        assert torch.equal(found, as_timm(photo(*shape))), (name, shape)


@pytest.mark.parametrize("name", ["center", "resize", "timm"])
def test_the_border_of_a_padded_image_is_zero_once_normalised(name):
    pipeline = TRANSFORMS[name]((30, 20), 3, **LOOK, resize="pad")
    wide = pipeline(np.zeros((10, 40, 3), np.uint8))  # 5 × 20 pixels, 12 or 13 rows above and below
    tall = pipeline(np.zeros((90, 20, 3), np.uint8))  # 30 × 7 pixels
    levels = 0.5001 / 255 / torch.tensor(LOOK["std"]).view(3, 1, 1)  # 8 bits come no nearer
    for border in (wide[:, :12], wide[:, 18:], tall[:, :, :6], tall[:, :, 14:]):
        assert (border.abs() <= levels).all()
    black = (-torch.tensor(LOOK["mean"]) / torch.tensor(LOOK["std"])).view(3, 1, 1)
    for inside, size in ((wide[:, 12:17], (5, 20)), (tall[:, :, 6:13], (30, 7))):
        torch.testing.assert_close(inside, black.expand(3, *size))


@pytest.mark.parametrize("margin", [1, 256 / 224, 35 / 32, 1.3])
def test_a_rectangle_is_covered_as_timm_covers_it(margin):
    for size, shape in product([(40, 24), (24, 40), (33, 50)], SHAPES):
        pipeline = TRANSFORMS["center"](size, 3, margin=margin, interpolation="bilinear")
        expected = create_transform((3, *size), crop_pct=1 / margin, normalize=False)(photo(*shape))
        found = torch.tensor(pipeline.prepare(np.asarray(photo(*shape)))).permute(2, 0, 1)
        assert torch.equal(found, expected), (size, shape)


@pytest.mark.parametrize("side", [32, 35, 37, 40])
def test_the_middle_is_that_of_torchvision(side):
    bicubic = transforms.InterpolationMode.BICUBIC
    steps = [transforms.Resize(side, bicubic), transforms.CenterCrop(32), transforms.PILToTensor()]
    pipeline = TRANSFORMS["center"](32, 3, margin=side / 32, interpolation="bicubic")
    for shape in SHAPES:
        expected = transforms.Compose(steps)(photo(*shape))
        found = pipeline.prepare(np.asarray(photo(*shape)))
        assert torch.equal(torch.tensor(found).permute(2, 0, 1), expected), shape


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(41, 57), (57, 41), (64, 40), (64, 64), (33, 190), (200, 131)])
@pytest.mark.parametrize("resample", [2, 3])
def test_pixels_are_those_of_transformers_up_to_their_rounding(shape, resample):
    transformers = pytest.importorskip("transformers")
    image = photo(*shape)
    look = {"image_mean": [0.5, 0.4, 0.3], "image_std": [1 / 255] * 3, "resample": resample}
    sizes = {"size": {"shortest_edge": 35}, "crop_size": {"height": 32, "width": 32}}
    expected = transformers.CLIPImageProcessor(**sizes, **look)(images=image, return_tensors="pt")["pixel_values"][0]
    own = {"mean": (0.5, 0.4, 0.3), "std": (1 / 255,) * 3, "interpolation": {2: "bilinear", 3: "bicubic"}[resample]}
    found = TRANSFORMS["transformers_center"](32, 3, margin=35 / 32, **own)(image)
    # Of 255: torch resizes with other roundings.
    torch.testing.assert_close(found, expected, atol=2.01, rtol=0)
    assert float((found - expected).abs().mean()) < 0.5
