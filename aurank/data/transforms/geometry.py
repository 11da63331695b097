"""Random parts and warps of images, from seeded numbers."""

import functools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float64, Int64, UInt8

Number = int | float
Pixels = UInt8[np.ndarray, "height width channel"]
NewPixels = UInt8[np.ndarray, "new_height new_width channel"]

_CHANNELS = 4  # the most that OpenCV's functions take
_TRIES = 10  # parts that are drawn until one lies in the image


def chance_of(seed: int) -> random.Random:
    """Return the generator of one augmentation, after its first number, which nothing uses."""
    chance = random.Random(seed)
    chance.random()
    return chance


def happens(chance: random.Random, probability: Number) -> bool:
    return probability > 0 and (probability >= 1 or chance.random() < probability)


def random_window(image: Pixels, size: tuple[int, int], chance: random.Random) -> NewPixels:
    top, left = (int((length - side + 1) * chance.random()) for length, side in zip(image.shape[:2], size, strict=True))
    return image[top : top + size[0], left : left + size[1]]


def random_part(image: Pixels, chance: random.Random, *, scale: Sequence[Number], ratio: Sequence[Number]) -> NewPixels:
    """Return a part of an area within `scale` × the image's and a width by height within `ratio`.

    Where none of ten draws fits into the image, it is the largest middle part of such a shape.
    """
    height, width = image.shape[:2]
    area = height * width
    for _ in range(_TRIES):
        part_area = chance.uniform(scale[0] * area, scale[1] * area)
        shape = math.exp(chance.uniform(math.log(ratio[0]), math.log(ratio[1])))
        size = round(math.sqrt(part_area / shape)), round(math.sqrt(part_area * shape))
        if 0 < size[0] <= height and 0 < size[1] <= width:
            return random_window(image, size, chance)
    part_height, part_width = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    top, left = (height - part_height) // 2, (width - part_width) // 2
    return image[top : top + part_height, left : left + part_width]


def scaled(image: Pixels, size: tuple[int, int], interpolation: int) -> NewPixels:
    if image.shape[:2] == size:
        return image
    return by_opencv(image, lambda part: cv2.resize(part, size[::-1], interpolation=interpolation))


def flipped(image: Pixels) -> Pixels:
    return by_opencv(image, lambda part: cv2.flip(part, 1))


def warp_matrices(
    chances: Sequence[random.Random],
    sizes: Int64[np.ndarray, "image 2"],
    *,
    rotate: Number,
    translate: Number,
    scale: Sequence[Number],
    shear: Number,
) -> Float64[np.ndarray, "image 3 3"]:
    low = np.array([-translate, -translate, -shear, -shear, scale[0], scale[0], -rotate])
    high = np.array([translate, translate, shear, shear, scale[1], scale[1], rotate])
    numbers = np.array([[chance.random() for _ in low] for chance in chances]).reshape(-1, len(low))
    right, down, *shears, wide, tall, turn = (low + (high - low) * numbers).T
    height, width = sizes.T
    lean, rise = (np.tan(np.deg2rad(-angle)) for angle in shears)
    turn = np.deg2rad(turn % 360)
    x, y = width / 2 - 0.5, height / 2 - 0.5

    def matrices(*corner: Any, shift: Sequence[Any] = (0, 0)) -> Float64[np.ndarray, "image 3 3"]:
        values = np.tile(np.eye(3), (len(sizes), 1, 1))
        values[:, 0, 0], values[:, 0, 1], values[:, 1, 0], values[:, 1, 1] = corner
        values[:, 0, 2], values[:, 1, 2] = shift
        return values

    # One after the other: another order would change the last bits, and so pixels.
    steps = (
        matrices(1, 0, 0, 1, shift=(x, y)),
        matrices(1, 0, 0, 1, shift=(np.trunc(right * width), np.trunc(down * height))),
        matrices(1, lean, rise, 1),
        matrices(np.cos(turn), np.sin(turn), -np.sin(turn), np.cos(turn)),
        matrices(wide, 0, 0, tall),
        matrices(1, 0, 0, 1, shift=(-x, -y)),
    )
    return np.asarray(functools.reduce(np.matmul, steps))


def warp(image: Pixels, matrix: Float64[np.ndarray, "3 3"], fill: int) -> Pixels:
    how: dict[str, Any] = {"flags": cv2.INTER_LINEAR, "borderValue": [float(fill)] * _CHANNELS}
    return by_opencv(image, lambda part: cv2.warpAffine(part, matrix[:2], image.shape[1::-1], **how))


def by_opencv(image: Pixels, change: Callable[[Any], Any]) -> NewPixels:
    """Return what a function of OpenCV makes of an image; of more channels than that takes, of one at a time."""
    channels = image.shape[2]
    if channels <= _CHANNELS:
        return with_channels(change(image))
    return np.dstack([change(image[:, :, channel : channel + 1]) for channel in range(channels)])


def with_channels(image: UInt8[np.ndarray, "height width ..."]) -> Pixels:
    return image if image.ndim == 3 else image[:, :, None]
