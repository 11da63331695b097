"""Random parts and warps of images, as albumentations draws and makes them, without its bookkeeping for each image.

The pixels of a seed are those of `albumentations.Compose` with `random.Random(seed)`, bit for bit: the tests compare
them. On images of 32 pixels that bookkeeping takes most of the time.
"""

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8

Number = int | float
Pixels = UInt8[np.ndarray, "height width channel"]
NewPixels = UInt8[np.ndarray, "new_height new_width channel"]

_CHANNELS = 4  # the most that OpenCV's functions take
_TRIES = 10  # parts that are drawn until one lies in the image


class Rectangle(NamedTuple):
    """A rectangle of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, image: Pixels) -> NewPixels:
        """Return a view of that part of an image."""
        return image[self.top : self.top + self.height, self.left : self.left + self.width]


def chance_of(seed: int) -> random.Random:
    """Return the generator of one augmentation, after the number by which a Compose decides that it is applied."""
    chance = random.Random(seed)
    chance.random()
    return chance


def happens(chance: random.Random, probability: Number) -> bool:
    """Draw whether something of that probability happens; nothing is drawn for 0 and 1."""
    return probability > 0 and (probability >= 1 or chance.random() < probability)


def draw_square(chance: random.Random, height: int, width: int, side: int) -> Rectangle:
    """Draw a square of an image at least that large, each of them as likely."""
    down, right = chance.random(), chance.random()
    return Rectangle(int((height - side + 1) * down), int((width - side + 1) * right), side, side)


def draw_part(
    chance: random.Random, height: int, width: int, *, scale: Sequence[Number], ratio: Sequence[Number]
) -> Rectangle:
    """Draw a part of an image by its area, relative to the image's, and by its width by height.

    Where ten draws do not lie in the image, it is the middle, as large as the ratios allow.
    """
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


def scaled(image: Pixels, side: int, interpolation: int) -> NewPixels:
    """Return an image as a square, by an interpolation of OpenCV; itself where it is that square."""
    if image.shape[:2] == (side, side):
        return image
    return in_fours(image, lambda part: cv2.resize(part, (side, side), interpolation=interpolation))


def flipped(image: Pixels) -> Pixels:
    """Return an image's mirror image, left for right."""
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
    """Draw a warp about the middle for each image: zoom, rotation, shear and shift by whole pixels.

    Args:
        sizes: height and width of each.
        rotate, shear: largest angle in degrees, either way.
        translate: largest shift, either way, as a part of the side.
        scale: range of the zoom, of width and height by itself.
    """
    low = np.array([-translate, -translate, -shear, -shear, scale[0], scale[0], -rotate])
    high = np.array([translate, translate, shear, shear, scale[1], scale[1], rotate])
    numbers = np.array([[chance.random() for _ in range(7)] for chance in chances]).reshape(-1, 7)
    right, down, *shears, wide, tall, turn = (low + (high - low) * numbers).T
    height, width = sizes.T
    lean, rise = (np.tan(np.deg2rad(-angle)) for angle in shears)
    turn = np.deg2rad(turn % 360)
    x, y = width / 2 - 0.5, height / 2 - 0.5
    # One product after the other, in albumentations' order: its floating-point numbers to the last bit.
    matrix: np.ndarray = _shifts(x, y) @ _shifts(np.trunc(right * width), np.trunc(down * height))
    matrix = matrix @ _squares(1.0, lean, rise, 1.0, count=len(sizes))
    matrix = matrix @ _squares(np.cos(turn), np.sin(turn), -np.sin(turn), np.cos(turn), count=len(sizes))
    matrix = matrix @ _squares(wide, 0.0, 0.0, tall, count=len(sizes)) @ _shifts(-x, -y)
    return matrix


def _squares(*values: Float64[np.ndarray, " image"] | float, count: int) -> Float64[np.ndarray, "image 3 3"]:
    """Return matrices with these four numbers at the upper left."""
    found = np.zeros((count, 3, 3))
    for place, value in zip(((0, 0), (0, 1), (1, 0), (1, 1)), values, strict=True):
        found[:, *place] = value
    found[:, 2, 2] = 1
    return found


def _shifts(x: Float64[np.ndarray, " image"], y: Float64[np.ndarray, " image"]) -> Float64[np.ndarray, "image 3 3"]:
    found = _squares(1.0, 0.0, 0.0, 1.0, count=len(x))
    found[:, 0, 2], found[:, 1, 2] = x, y
    return found


def change_nothing(matrices: Float64[np.ndarray, "image 3 3"]) -> Bool[np.ndarray, " image"]:
    """Return which matrices are so close to the identity that an image is left as it is."""
    still: np.ndarray = np.isclose(matrices, np.eye(3)).all(axis=(1, 2))
    return still


def warp(image: Pixels, matrix: Float64[np.ndarray, "3 3"], fill: int) -> Pixels:
    """Return an image of the same size, warped; `fill` is the value of what comes into view."""
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
    """Return the image with the channel axis that OpenCV drops when there is one channel."""
    return image if image.ndim == 3 else image[:, :, None]
