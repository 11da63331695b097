"""Images at another size: by area, or as Pillow does it."""

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
from jaxtyping import UInt8
from PIL import Image

# One thread: images are small, several workers run at once, and OpenCV's own threads do not survive a fork.
cv2.setNumThreads(0)

Number = int | float
Pixels = UInt8[np.ndarray, "height width channel"]
Prepared = UInt8[np.ndarray, "new_height new_width channel"]
Square = UInt8[np.ndarray, "size size channel"]

AREA = "area"
_PILLOWS: Mapping[str, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
INTERPOLATIONS = (AREA, *_PILLOWS)
"""Ways to resize: "area" averages where an image shrinks and is bilinear where it grows; the others are Pillow's."""

ENLARGING: Mapping[str, int] = {
    "nearest": cv2.INTER_NEAREST,
    "bicubic": cv2.INTER_CUBIC,
    "lanczos": cv2.INTER_LANCZOS4,
}
"""OpenCV's like of some of them, for parts of an image; bilinear for the others."""


def resize(image: Pixels, height: int, width: int, interpolation: str = AREA) -> Prepared:
    """Returns the image at another size, without aliasing where it shrinks."""
    if image.shape[:2] == (height, width):
        return image
    if interpolation != AREA:
        return _by_pillow(image, height, width, _PILLOWS[interpolation])
    shrinks = height < image.shape[0] or width < image.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    # OpenCV reduces at most four channels at once.
    parts = [image[:, :, start : start + 4] for start in range(0, image.shape[2], 4)]
    done = [with_channels(np.asarray(cv2.resize(part, (width, height), interpolation=method))) for part in parts]
    return done[0] if len(done) == 1 else np.concatenate(done, axis=2)


def _by_pillow(image: Pixels, height: int, width: int, method: Image.Resampling) -> Prepared:
    # Other than colours, each channel by itself: of four, Pillow would take the last for transparency.
    parts: list[Any] = [image] if image.shape[2] == 3 else [image[:, :, channel] for channel in range(image.shape[2])]
    done = [with_channels(np.array(Image.fromarray(part).resize((width, height), method))) for part in parts]
    return done[0] if len(done) == 1 else np.concatenate(done, axis=2)


def resize_shorter(image: Pixels, side: int, interpolation: str = AREA) -> Prepared:
    """Returns the image with its shorter side at `side`, its shape kept."""
    height, width = image.shape[:2]
    scale = side / min(height, width)
    return resize(image, max(side, round(height * scale)), max(side, round(width * scale)), interpolation)


def centre_crop(image: Pixels, size: int) -> Square:
    """Returns the size × size middle of an image at least that large."""
    top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
    return np.ascontiguousarray(image[top : top + size, left : left + size])


def with_channels(image: UInt8[np.ndarray, "height width ..."]) -> Pixels:
    """Returns the image with the channel axis that is dropped when there is one channel."""
    return image if image.ndim == 3 else image[:, :, None]
