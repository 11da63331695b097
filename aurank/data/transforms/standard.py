"""The transforms of training with labels, and of evaluation."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import cv2
import numpy as np

from aurank.data.transforms.base import (
    AnyPrepared,
    Pipeline,
    Prepared,
    RandomPipeline,
    Square,
    centre_crop,
    resize_shorter,
)
from aurank.data.transforms.geometry import (
    Number,
    Pixels,
    chance_of,
    change_nothing,
    draw_part,
    draw_square,
    flipped,
    happens,
    scaled,
    warp,
    warp_matrices,
)
from aurank.errors import UserError

# Image transforms of ImageNet models: shorter side 256 for crops of 224.
MARGIN = 256 / 224
CROP_MODES = ("center", "squash", "border")  # timm's words
# OpenCV's like of Pillow's interpolations, for parts of an image; bilinear for the others.
_ENLARGING = {"nearest": cv2.INTER_NEAREST, "bicubic": cv2.INTER_CUBIC, "lanczos": cv2.INTER_LANCZOS4}


@dataclass(repr=False, eq=False)
class Resize(Pipeline):
    """Evaluation: the whole image, squeezed to image_size × image_size."""

    @property
    def needed_side(self) -> int:
        return self.image_size

    def prepare(self, image: Pixels) -> Prepared:
        return self.resize(image, self.image_size, self.image_size)


@dataclass(repr=False, eq=False, kw_only=True)
class Center(Pipeline):
    """Evaluation: shorter side to `margin` × image_size, then the square of image_size in the middle.

    The longer side and the edges of the square are those of torchvision.

    Args:
        margin: 256/224 as in the papers; 1 keeps all of the shorter side.
    """

    margin: Number = MARGIN

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_margin(self.margin)

    @property
    def needed_side(self) -> int:
        return round(self.margin * self.image_size)

    def prepare(self, image: Pixels) -> Prepared:
        return centre_crop(self.resize_shorter(image, self.margin), self.image_size)


class TransformersCenter(Center):
    """Evaluation as processors of transformers do it: as `center`, but half a pixel beside the square is cut off.

    Args:
        margin: the shorter side before the crop, by image_size.
    """

    def prepare(self, image: Pixels) -> Prepared:
        image, size = self.resize_shorter(image, self.margin), self.image_size
        top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
        return np.ascontiguousarray(image[top : top + size, left : left + size])


@dataclass(repr=False, eq=False, kw_only=True)
class Timm(Pipeline):
    """Evaluation as timm does it for a network with these settings: its sizes, its edges and its sums, to the last bit.

    Args:
        crop_pct: image_size by the side that the image is resized to before; timm's word, as the next.
        crop_mode: center: the shorter side is resized to that, and the square in the middle taken; squash: both sides
            are; border: the longer side is, and the mean fills what the square has more.

    Source: timm.data.transforms_factory.transforms_imagenet_eval.
    """

    crop_pct: Number = 0.875
    crop_mode: str = "center"
    unit: ClassVar[int] = 255

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.crop_pct <= self.image_size:
            raise UserError(f"crop_pct must be above 0 and at most image_size, {self.image_size}, got {self.crop_pct}")
        if self.crop_mode not in CROP_MODES:
            raise UserError(f"crop_mode must be one of {', '.join(CROP_MODES)}, got {self.crop_mode!r}")

    @property
    def needed_side(self) -> int:
        return math.floor(self.image_size / self.crop_pct)

    def prepare(self, image: Pixels) -> Prepared:
        side, fill = self.needed_side, [0]
        if self.crop_mode == "squash":
            image = self.resize(image, side, side)
        elif self.crop_mode == "border":
            ratio, fill = max(image.shape[:2]) / side, [round(255 * value) for value in self.mean or ()]
            image = self.resize(image, *(max(1, round(length / ratio)) for length in image.shape[:2]))
        else:
            image = resize_shorter(image, side, self.interpolation)
        return centre_crop(image, self.image_size, fill)


@dataclass(repr=False, eq=False, kw_only=True)
class RandomCrop(RandomPipeline):
    """Training as the papers say: shorter side to `margin` × image_size, a random square of image_size, a flip.

    Args:
        margin: 256/224: shorter side 256 for crops of 224.
        flip: the probability of a horizontal flip.
    """

    margin: Number = MARGIN
    flip: Number = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_margin(self.margin)
        check_between("flip", self.flip)

    @property
    def needed_side(self) -> int:
        return round(self.margin * self.image_size)

    def prepare(self, image: Pixels) -> Prepared:
        return self.resize_shorter(image, self.margin)

    def fit(self, prepared: Prepared) -> Square:
        return centre_crop(prepared, self.image_size)

    def change(self, prepared: Prepared, chance: random.Random, seed: int) -> Square:
        height, width = prepared.shape[:2]
        square = draw_square(chance, height, width, self.image_size).of(prepared)
        return flipped(square) if happens(chance, self.flip) else np.ascontiguousarray(square)


@dataclass(repr=False, eq=False, kw_only=True)
class CropFlip(RandomPipeline):
    """Training as SOPRC's code does: a random part of the image resized to a square, a horizontal flip.

    Args:
        margin: the image is first reduced to a shorter side of `margin` × image_size, so that more images fit in
            memory, and small parts are enlarged. None keeps the image at its own size, which is the authors' form.
        scale: the crop's part of the area. Default (0.16, 1) from SOPRC (KID-7391/SOPRC, dataloaders).
        ratio: the crop's width by height before it is resized to a square.
        flip: the probability of a flip.
    """

    margin: Number | None = MARGIN
    scale: Sequence[Number] = (0.16, 1.0)
    ratio: Sequence[Number] = (0.75, 4 / 3)
    flip: Number = 0.5
    _headroom: ClassVar[float] = 15 / 16  # parts are enlarged: half of 640 × 480 pixels will do for a side of 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.margin is not None:
            _check_margin(self.margin)
        self.scale = checked_range("scale", self.scale, high=1)
        self.ratio = checked_range("ratio", self.ratio)
        check_between("flip", self.flip)

    @property
    def needed_side(self) -> int:
        if self.margin is not None:
            return round(self.margin * self.image_size)
        return math.ceil(self.image_size / math.sqrt(self.scale[0]))  # of the smallest part

    def prepare(self, image: Pixels) -> Prepared:
        return image if self.margin is None else self.resize_shorter(image, self.margin)

    def fit(self, prepared: Prepared) -> Square:
        margin = MARGIN if self.margin is None else self.margin
        return centre_crop(self.resize_shorter(prepared, margin), self.image_size)

    def change(self, prepared: Prepared, chance: random.Random, seed: int) -> Square:
        # By area, as `resize`: parts of a whole photo are reduced several times over.
        square = self.random_part(prepared, chance, by_area=self.margin is None)
        return flipped(square) if happens(chance, self.flip) else np.ascontiguousarray(square)

    def random_part(self, prepared: Prepared, chance: random.Random, *, by_area: bool) -> Square:
        """Return a random part of an image as a square; `by_area` where it is reduced."""
        height, width = prepared.shape[:2]
        part = draw_part(chance, height, width, scale=self.scale, ratio=self.ratio)
        is_reduced = max(part.height, part.width) > self.image_size
        enlarging = _ENLARGING.get(self.interpolation, cv2.INTER_LINEAR)
        return scaled(part.of(prepared), self.image_size, cv2.INTER_AREA if by_area and is_reduced else enlarging)


@dataclass(repr=False, eq=False, kw_only=True)
class Affine(RandomPipeline):
    """Training on drawings: a small random rotation, shift, scaling and shear, no flip.

    The warp is done at up to `oversample` × image_size and then reduced by area, so thin strokes stay smooth.

    Args:
        rotate, shear: largest angle in degrees, either way; shear in each direction by itself.
        translate: largest shift, either way, as a part of the side.
        scale: range of the zoom, for width and height by itself.
        fill: value, 0 … 255, of what comes into view; 255 is white paper.
        oversample: images larger than this many times image_size are reduced to it before.
    """

    rotate: Number = 15.0
    translate: Number = 0.1
    scale: Sequence[Number] = (0.9, 1.1)
    shear: Number = 10.0
    fill: int = 255
    oversample: Number = 4.0
    _headroom: ClassVar[float] = 1.0  # which is in `oversample`

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, limit in (("rotate", 180), ("translate", 1), ("shear", 60), ("fill", 255)):
            check_between(name, getattr(self, name), limit)
        if self.oversample < 1:
            raise UserError(f"oversample must be at least 1, got {self.oversample}")
        self.scale = checked_range("scale", self.scale)

    @property
    def needed_side(self) -> int:
        return round(self.oversample * self.image_size)

    def prepare(self, image: Pixels) -> Prepared:
        most = round(self.oversample * self.image_size)
        height, width = (min(max(side, self.image_size), most) for side in image.shape[:2])
        return self.resize(image, height, width)

    def fit(self, prepared: Prepared) -> Square:
        return self.resize(prepared, self.image_size, self.image_size)

    def change(self, prepared: Prepared, chance: random.Random, seed: int) -> Square:
        return np.ascontiguousarray(self._warped([prepared], [chance])[0])

    def augment_all(
        self, prepared: Sequence[AnyPrepared], seeds: Sequence[int | None], squares: Sequence[Square]
    ) -> None:
        """Write each prepared image into its square; the warps of all of them are computed at once."""
        drawn = [(place, chance_of(seed)) for place, seed in enumerate(seeds) if seed is not None]
        changed = self._warped([prepared[place] for place, _ in drawn], [chance for _, chance in drawn])
        for (place, _), square in zip(drawn, changed, strict=True):
            squares[place][:] = square
        for place, seed in enumerate(seeds):
            if seed is None:
                squares[place][:] = self.fit(prepared[place])

    def _warped(self, prepared: Sequence[AnyPrepared], chances: Sequence[random.Random]) -> list[Square]:
        sizes = np.array([image.shape[:2] for image in prepared], dtype=np.int64).reshape(-1, 2)
        ranges = {"rotate": self.rotate, "translate": self.translate, "shear": self.shear}
        matrices = warp_matrices(chances, sizes, scale=self.scale, **ranges)
        still = change_nothing(matrices).tolist()
        warped = [
            image if is_still else warp(image, matrix, self.fill)
            for image, matrix, is_still in zip(prepared, matrices, still, strict=True)
        ]
        return [scaled(image, self.image_size, cv2.INTER_AREA) for image in warped]


def _check_margin(margin: Number) -> None:
    if margin < 1:
        raise UserError(f"margin must be at least 1 (the shorter side before the crop, by image_size), got {margin}")


def check_between(name: str, value: Number, limit: Number | None = None) -> None:
    """Raise UserError unless the value is between 0 and the limit; without one it is a probability."""
    if not 0 <= value <= (1 if limit is None else limit):
        what = "a probability, between 0 and 1" if limit is None else f"between 0 and {limit}"
        raise UserError(f"{name} must be {what}, got {value}")


def checked_range(name: str, values: Sequence[Number], *, high: Number | None = None) -> tuple[float, float]:
    """Return both values; UserError unless they are a range above 0 and up to `high`."""
    if len(values) != 2 or not 0 < values[0] <= values[1] or (high is not None and values[1] > high):
        limits = "above 0" + ("" if high is None else f" and at most {high}")
        raise UserError(f"{name} must be two numbers, smaller one first, {limits}, got {list(values)}")
    return float(values[0]), float(values[1])
