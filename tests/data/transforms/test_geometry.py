"""The random transforms, pixel for pixel those that albumentations makes of the same seed."""

import random
from itertools import product
from typing import Any

import albumentations
import cv2
import numpy as np
import pytest
from testing.trees import pixels

from aurank.data import TRANSFORMS, Pipeline
from aurank.data.transforms.geometry import chance_of, draw_part

LINEAR, AREA = cv2.INTER_LINEAR, cv2.INTER_AREA


def crop(pipeline: Any, area: str | None) -> Any:
    enlarging = {"bicubic": cv2.INTER_CUBIC}.get(pipeline.interpolation, LINEAR)
    size, ways = pipeline.size, {"interpolation": enlarging, "area_for_downscale": area}
    ratio = tuple(size[1] / size[0] * value for value in pipeline.ratio)
    return albumentations.RandomResizedCrop(size, scale=pipeline.scale, ratio=ratio, p=1.0, **ways)


def flip(pipeline: Any) -> Any:
    return albumentations.HorizontalFlip(p=pipeline.flip)


def random_crop(pipeline: Any) -> list[Any]:
    return [albumentations.RandomCrop(*pipeline.size, p=1.0), flip(pipeline)]


def crop_flip(pipeline: Any) -> list[Any]:
    return [crop(pipeline, "image" if pipeline.margin is None else None), flip(pipeline)]


def simclr(pipeline: Any) -> list[Any]:
    change, hue = 0.8 * pipeline.strength, 0.2 * pipeline.strength
    around_one = (max(0.0, 1 - change), 1 + change)
    jitter = albumentations.ColorJitter(around_one, around_one, around_one, (-hue, hue), p=pipeline.jitter)
    colours = [jitter, albumentations.ToGray(p=pipeline.grey)] if pipeline.channels == 3 else []
    kernel = max(3, min(pipeline.size) // 20 * 2 + 1)
    blur = albumentations.GaussianBlur((kernel, kernel), sigma_limit=(0.1, 2.0), p=pipeline.blur)
    return [crop(pipeline, "image"), flip(pipeline), *colours, blur]


def affine(pipeline: Any) -> list[Any]:
    ranges = {name: (-getattr(pipeline, name), getattr(pipeline, name)) for name in ("rotate", "shear")}
    shift = (-pipeline.translate, pipeline.translate)
    look: dict[str, Any] = {"fill": pipeline.fill, "interpolation": LINEAR, "scale": pipeline.scale, "p": 1.0}
    return [
        albumentations.Affine(**ranges, translate_percent=shift, **look),
        albumentations.Resize(*pipeline.size, interpolation=AREA, p=1.0),
    ]


LIBRARY = {
    "random_crop": random_crop, "crop_flip": crop_flip, "simclr": simclr, "multi_crop": simclr, "affine": affine
}  # fmt: skip


def by_library(name: str, pipeline: Pipeline, prepared: np.ndarray, seed: int) -> np.ndarray:
    compose = albumentations.Compose(LIBRARY[name](pipeline))
    compose.set_random_state(np.random.default_rng(seed), random.Random(seed))
    found: np.ndarray = compose(image=prepared)["image"]
    return found.reshape(*found.shape[:2], -1)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6, 9])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("random_crop", {}),
        ("crop_flip", {}),
        ("crop_flip", {"margin": None, "scale": [0.3, 1], "ratio": [1.5, 3], "interpolation": "bicubic"}),
        ("affine", {}),
        ("affine", {"oversample": 1, "rotate": 180, "translate": 0.5, "scale": [0.3, 2], "shear": 40, "fill": 7}),
        ("affine", {"rotate": 0, "translate": 0, "scale": [1, 1], "shear": 0}),
        ("simclr", {}),
        ("simclr", {"jitter": 1, "grey": 1, "blur": 0, "flip": 1, "strength": 0.5}),
        ("multi_crop", {"local_size": 9}),
        *((name, {"image_size": (30, 18), "resize": "pad"}) for name in ("random_crop", "crop_flip", "affine")),
        ("crop_flip", {"image_size": (30, 18), "resize": "squash"}),
        ("simclr", {"image_size": (18, 30)}),
    ],
)
def test_a_seed_gives_the_pixels_of_albumentations(name: str, options: dict[str, Any], channels: int) -> None:
    pipeline = TRANSFORMS[name](channels=channels, **{"image_size": 24, **options})
    for seed in range(8):
        image = pixels(seed, *((37, 31), (24, 60), (90, 40), (70, 105))[seed % 4], channels)
        for view in range(3 if name == "multi_crop" else 1):
            prepared, own = pipeline.prepare(image), pipeline.of_view(view)
            expected = by_library(name, own, prepared, 2**61 + seed)
            np.testing.assert_array_equal(own.augment(prepared, 2**61 + seed), expected)


def test_random_parts_are_of_the_canvas_and_have_the_shape_of_the_size() -> None:
    """Parts of a ramp from left to right and one from top to bottom say how much of each side they hold."""
    rows, columns = (np.linspace(0, 255, side).round().astype(np.uint8) for side in (80, 240))
    image = np.stack([np.tile(columns, (80, 1)), np.tile(rows[:, None], (1, 240)), np.full((80, 240), 9, np.uint8)], 2)
    look: dict[str, Any] = {"scale": [0.2, 0.4], "ratio": [1, 1], "flip": 0, "mean": [1, 1, 1], "std": [1, 1, 1]}
    for margin, resize in product((None, 256 / 224), ("crop", "squash", "pad")):
        pipeline = TRANSFORMS["crop_flip"]((40, 20), 3, margin=margin, resize=resize, **look)
        prepared = pipeline.prepare(image)
        parts = [pipeline.augment(prepared, seed).astype(int) for seed in range(60)]
        assert {part.shape for part in parts} == {(40, 20, 3)}
        inside = [part[:, :, :2].reshape(-1, 2)[(part[:, :, 2] == 9).ravel()] for part in parts]
        if resize == "pad":  # parts of two images' widths by six: the photo is a band of a sixth of the height
            assert any(len(each) < 800 for each in inside)
            assert prepared.shape[0] == pytest.approx(2 * prepared.shape[1], abs=1)
            continue
        across, down = np.array([np.ptp(each, axis=0) for each in inside]).T / 256
        # Squashed, as much of the width as of the height; cut, a part of shape 20 / 40 of an image of 240 / 80.
        assert np.median(down / across) == pytest.approx(1 if resize == "squash" else 6, rel=0.15)


@pytest.mark.parametrize("name", LIBRARY)
def test_images_changed_at_once_are_those_changed_one_by_one(name: str) -> None:
    pipeline = TRANSFORMS[name](16, 3)
    prepared = [pipeline.prepare(pixels(place, 30 + place % 2, 25, 3)) for place in range(9)]
    seeds = [None if place in (2, 8) else place % 5 for place in range(9)]
    squares = np.zeros((9, 16, 16, 3), np.uint8)
    pipeline.augment_all(prepared, seeds, list(squares))
    for image, seed, square in zip(prepared, seeds, squares, strict=True):
        np.testing.assert_array_equal(square, pipeline.augment(image, seed))


def test_a_part_that_never_fits_is_the_middle_as_large_as_its_shape_allows() -> None:
    wide = draw_part(chance_of(0), 10, 100, scale=(1, 1), ratio=(0.5, 2))
    tall = draw_part(chance_of(0), 100, 10, scale=(1, 1), ratio=(0.5, 2))
    assert (tuple(wide), tuple(tall)) == ((0, 40, 10, 20), (40, 0, 20, 10))
    assert tuple(draw_part(chance_of(0), 8, 8, scale=(0.01, 0.01), ratio=(100, 101))) == (4, 0, 0, 8)
