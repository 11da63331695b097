"""The random transforms: parts, windows and warps by closed forms, colours and blur as torchvision has them."""

import random
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from testing.trees import pixels
from torchvision.transforms.v2 import functional

from aurank.data import TRANSFORMS
from aurank.data.transforms.geometry import chance_of, random_part, warp, warp_matrices

RANDOM = ("random_crop", "crop_flip", "simclr", "affine")


class Drawn(random.Random):
    """Gives these numbers, one after the other, and samples in order."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = iter(numbers)

    def random(self) -> float:
        return next(self.numbers)

    def uniform(self, a: float, b: float) -> float:
        number = next(self.numbers)
        assert a <= number <= b
        return number

    def sample(self, population: Any, k: int, *, counts: Any = None) -> list[Any]:
        return [*population][:k]


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_a_random_crop_is_a_window_of_the_canvas_or_its_mirror_image(channels: int) -> None:
    pipeline = TRANSFORMS["random_crop"]((5, 4), channels, margin=1.5)
    canvas = pipeline.prepare(pixels(0, 9, 9, channels))
    height, width = canvas.shape[:2]
    windows = {}
    for top, left in product(range(height - 4), range(width - 3)):
        window = canvas[top : top + 5, left : left + 4]
        windows[window.tobytes()], windows[window[:, ::-1].tobytes()] = (top, left, False), (top, left, True)
    drawn = {windows[pipeline.augment(canvas, seed).tobytes()] for seed in range(800)}
    assert drawn == set(windows.values())


def test_parts_have_areas_and_shapes_of_their_ranges() -> None:
    image = np.zeros((500, 400, 1), np.uint8)
    parts = [random_part(image, chance_of(seed), scale=(0.1, 0.3), ratio=(0.5, 2)) for seed in range(400)]
    heights, widths = np.array([part.shape[:2] for part in parts]).T
    areas, shapes = heights * widths / 200_000, widths / heights
    assert 0.099 < areas.min() < 0.11
    assert 0.29 < areas.max() < 0.301
    assert areas.mean() == pytest.approx(0.2, abs=0.01)
    assert 0.49 < shapes.min() < 0.53
    assert 1.9 < shapes.max() < 2.02
    assert np.log(shapes).mean() == pytest.approx(0, abs=0.06)


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


def test_a_part_that_never_fits_is_the_middle_as_large_as_its_shape_allows() -> None:
    wide, tall, small = (pixels(0, *shape) for shape in ((10, 100), (100, 10), (8, 8)))
    large = ((wide, wide[:, 40:60], 1, (0.5, 2)), (tall, tall[40:60], 1, (0.5, 2)))
    for image, middle, scale, ratio in (*large, (small, small[4:4], 0.01, (100, 101))):
        part = random_part(image, chance_of(0), scale=(scale, scale), ratio=ratio)
        np.testing.assert_array_equal(part, middle)


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_warps_shift_turn_and_scale_about_the_middle(channels: int) -> None:
    image = pixels(0, 9, 9, channels)
    ranges: dict[str, Any] = {"rotate": 180, "translate": 1, "scale": (0.5, 1.5), "shear": 10}

    def warped(right: float = 0, down: float = 0, wide: float = 1, tall: float = 1, turn: float = 0) -> np.ndarray:
        still = right / 2 + 0.5, down / 2 + 0.5, 0.5, 0.5, wide - 0.5, tall - 0.5, turn / 360 + 0.5
        (matrix,) = warp_matrices([Drawn(*still)], np.array([[9, 9]]), **ranges)
        return warp(image, matrix, 7)

    np.testing.assert_array_equal(warped(), image)
    shifted = np.full_like(image, 7)
    shifted[4:, 2:] = image[:-4, :-2]
    np.testing.assert_array_equal(warped(right=2.5 / 9, down=4.5 / 9), shifted)
    turned = np.rot90(image)
    inner = slice(1, -1)  # the edge is mixed with what comes into view
    np.testing.assert_allclose(warped(turn=90)[inner, inner].astype(int), turned[inner, inner].astype(int), atol=1)
    half = warped(wide=0.5, tall=0.5)
    np.testing.assert_array_equal(half[2:7, 2:7], image[::2, ::2])
    assert (half[0] == 7).all()


def test_colours_are_changed_as_torchvision_changes_them() -> None:
    """Up to the rounding of hues to 8 bits, which every change of the hue brings."""
    ramp = np.linspace(30, 220, 32).round().astype(np.uint8)
    image = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None], np.uint8(120)), 2)
    tensor = torch.tensor(image).permute(2, 0, 1)
    pipeline: Any = TRANSFORMS["simclr"](32, 3)
    still = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}
    for name, amount in [*product([*still][:3], (0.3, 1.7)), ("hue", -0.2), ("hue", 0.1)]:
        found = pipeline._recoloured(image, Drawn(*(still | {name: amount}).values()))
        expected = getattr(functional, f"adjust_{name}")(tensor, amount).permute(1, 2, 0).numpy()
        assert np.abs(found.astype(int) - expected).mean() < 2, (name, amount)
    grey = TRANSFORMS["simclr"](32, 3, scale=(1, 1), ratio=(1, 1), flip=0, jitter=0, grey=1, blur=0).augment(image, 0)
    expected = functional.rgb_to_grayscale(tensor, 3).permute(1, 2, 0).numpy()
    np.testing.assert_allclose(grey.astype(int), expected.astype(int), atol=1)


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_a_blur_is_gaussian_with_a_kernel_of_a_tenth_of_the_side(channels: int) -> None:
    image = pixels(0, 48, 48, channels)
    whole = {"scale": (1, 1), "ratio": (1, 1), "flip": 0, "jitter": 0, "grey": 0, "blur": 1}
    blurred = TRANSFORMS["simclr"](48, channels, **whole).augment(image, 3).astype(int)
    tensor = torch.tensor(image).permute(2, 0, 1)
    like = [functional.gaussian_blur(tensor, [5, 5], [sigma]) for sigma in np.linspace(0.1, 2, 191).tolist()]
    assert min(np.abs(each.permute(1, 2, 0).numpy() - blurred).max() for each in like) <= 2


@pytest.mark.parametrize("name", RANDOM)
def test_images_changed_at_once_are_those_changed_one_by_one(name: str) -> None:
    pipeline = TRANSFORMS[name](16, 3)
    prepared = [pipeline.prepare(pixels(place, 30 + place % 2, 25, 3)) for place in range(9)]
    seeds = [None if place in (2, 8) else place % 5 for place in range(9)]
    squares = np.zeros((9, 16, 16, 3), np.uint8)
    pipeline.augment_all(prepared, seeds, list(squares))
    for image, seed, square in zip(prepared, seeds, squares, strict=True):
        np.testing.assert_array_equal(square, pipeline.augment(image, seed))
