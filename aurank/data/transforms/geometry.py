"""Random parts and warps of images: a seed gives the pixels of `albumentations.Compose`, in less time for each."""

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import cv2
import numpy as np
from jaxtyping import Float64, Int64, UInt8

Number = int | float
Pixels = UInt8[np.ndarray, "height width channel"]
NewPixels = UInt8[np.ndarray, "new_height new_width channel"]

_CHANNELS = 4  # the most that OpenCV's functions take
_TRIES = 10  # parts that are drawn until one lies in the image


class Rectangle(NamedTuple):
    top: int
    left: int
    height: int
    width: int

    def of(self, image: Pixels) -> NewPixels:
        return image[self.top : self.top + self.height, self.left : self.left + self.width]


def chance_of(seed: int) -> random.Random:
    """Return the generator of one augmentation, after the number by which a Compose decides that it is applied."""
    chance = random.Random(seed)
    chance.random()
    return chance


def happens(chance: random.Random, probability: Number) -> bool:
    return probability > 0 and (probability >= 1 or chance.random() < probability)


def draw_window(chance: random.Random, height: int, width: int, size: tuple[int, int]) -> Rectangle:
    down, right = chance.random(), chance.random()
    return Rectangle(int((height - size[0] + 1) * down), int((width - size[1] + 1) * right), *size)


def draw_part(
    chance: random.Random, height: int, width: int, *, scale: Sequence[Number], ratio: Sequence[Number]
) -> Rectangle:
    area = height * width
    smallest, largest = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_TRIES):
        wanted = chance.uniform(scale[0] * area, scale[1] * area)
        shape = math.exp(chance.uniform(smallest, largest))
        across, along = round(math.sqrt(wanted * shape)), round(math.sqrt(wanted / shape))
        if 0 < across <= width and 0 < along <= height:
            down, right = chance.random(), chance.random()
            return Rectangle(int((height - along + 1) * down), int((width - across + 1) * right), along, across)
    along, across = height, width
    if width / height < ratio[0]:
        along = round(width / ratio[0])
    elif width / height > ratio[1]:
        across = round(height * ratio[1])
    return Rectangle((height - along) // 2, (width - across) // 2, along, across)


def scaled(image: Pixels, size: tuple[int, int], interpolation: int) -> NewPixels:
    if image.shape[:2] == size:
        return image
    return in_fours(image, lambda part: cv2.resize(part, size[::-1], interpolation=interpolation))


def flipped(image: Pixels) -> Pixels:
    if image.shape[2] > _CHANNELS:
        return np.ascontiguousarray(image[:, ::-1])
    return with_channels(cv2.flip(image, 1))


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
    numbers = np.array([[chance.random() for _ in range(7)] for chance in chances]).reshape(-1, 7)
    right, down, *shears, wide, tall, turn = (low + (high - low) * numbers).T
    height, width = sizes.T
    lean, rise = (np.tan(np.deg2rad(-angle)) for angle in shears)
    turn = np.deg2rad(turn % 360)
    x, y = width / 2 - 0.5, height / 2 - 0.5

    def matrices(corner: Sequence[Any], shift: Sequence[Any] = (0.0, 0.0)) -> Float64[np.ndarray, "image 3 3"]:
        values = np.zeros((len(sizes), 3, 3))
        for place, value in zip(((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 2)), (*corner, *shift), strict=True):
            values[:, *place] = value
        values[:, 2, 2] = 1
        return values

    still = (1.0, 0.0, 0.0, 1.0)
    # One product after the other, in albumentations' order: its floating-point numbers to the last bit.
    matrix: np.ndarray = matrices(still, (x, y)) @ matrices(still, (np.trunc(right * width), np.trunc(down * height)))
    matrix = matrix @ matrices((1.0, lean, rise, 1.0))
    matrix = matrix @ matrices((np.cos(turn), np.sin(turn), -np.sin(turn), np.cos(turn)))
    return np.asarray(matrix @ matrices((wide, 0.0, 0.0, tall)) @ matrices(still, (-x, -y)))


def warp(image: Pixels, matrix: Float64[np.ndarray, "3 3"], fill: int) -> Pixels:
    height, width = image.shape[:2]
    values = [float(fill)] * min(image.shape[2], _CHANNELS)
    how: dict[str, Any] = {"flags": cv2.INTER_LINEAR, "borderMode": cv2.BORDER_CONSTANT, "borderValue": values}
    return in_fours(image, lambda part: cv2.warpAffine(part, matrix[:2], (width, height), **how))


def in_fours(image: Pixels, change: Callable[[Any], Any]) -> NewPixels:
    """Return what a function of OpenCV makes of an image, which may have more channels than that takes."""
    channels = image.shape[2]
    if channels <= _CHANNELS:
        return with_channels(change(image))
    # A rest of two one by one, as albumentations does: OpenCV warps pairs of channels with other roundings.
    starts = [*range(0, channels, _CHANNELS), *([channels - 1] if channels % _CHANNELS == 2 else []), channels]
    parts = [image[:, :, start:end] for start, end in pairwise(starts)]
    return np.concatenate([with_channels(change(part)) for part in parts], axis=2)


def with_channels(image: UInt8[np.ndarray, "height width ..."]) -> Pixels:
    return image if image.ndim == 3 else image[:, :, None]
