"""From decoded pixels to the tensor a model sees: prepare (always the same), augment (seeded), normalise."""

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import cv2
import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL.Image import Image
from torch import Tensor

from aurank.data.decode import to_pixels
from aurank.data.transforms.resizing import (
    AREA,
    ENLARGING,
    INTERPOLATIONS,
    Number,
    Pixels,
    Prepared,
    Square,
    centre_crop,
    resize,
    resize_shorter,
    with_channels,
)
from aurank.errors import UserError

# Image transforms of ImageNet models: shorter side 256 for crops of 224.
_MARGIN = 256 / 224
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


class Look(TypedDict, total=False):
    """How the values of an image are shown to a model, and how images are resized; `mean` and `std` by channel."""

    mean: Sequence[Number] | None
    std: Sequence[Number] | None
    interpolation: str


def usual_look(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and deviation where nothing else is known: ImageNet's for colours, 0.5 otherwise."""
    return (_IMAGENET_MEAN, _IMAGENET_STD) if channels == 3 else ((0.5,) * channels, (0.5,) * channels)


class Pipeline(ABC):
    """One image, uint8 [height, width, channel] of any size, to a normalised float32 tensor [channel, size, size].

    `pipeline(image, seed)` depends on its two arguments only. Its steps are public, so that the first may be kept:
    `prepare(image)` never changes, `augment(prepared, seed)` is random or, with seed None, the same without chance, and
    `normalise` takes a batch. Values are (v / 255 − mean) / std; the defaults of `mean` and `std` are ImageNet's for 3
    channels and 0.5 otherwise. `interpolation` is that of whole images, one of INTERPOLATIONS. Raises UserError for
    impossible parameters.
    """

    def __init__(
        self,
        image_size: int,
        channels: int,
        *,
        mean: Sequence[Number] | None = None,
        std: Sequence[Number] | None = None,
        interpolation: str = AREA,
    ) -> None:
        if image_size < 1 or channels < 1:
            raise UserError(f"image_size and channels must be at least 1, got {image_size} and {channels}")
        self.image_size = image_size
        self.channels = channels
        usual = usual_look(channels)
        self.mean = tuple(mean or usual[0])
        self.std = tuple(std or usual[1])
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != channels:
                raise UserError(f"{name} must have one value for each of {channels} channels, got {list(values)}")
        if min(self.std) <= 0 or not 0 <= min(self.mean) <= max(self.mean) <= 1:
            raise UserError(f"mean must be between 0 and 1, and std above 0, got {list(self.mean)}, {list(self.std)}")
        if interpolation not in INTERPOLATIONS:
            raise UserError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {interpolation!r}")
        self.interpolation = interpolation

    @abstractmethod
    def prepare(self, image: Pixels) -> Prepared:
        """Returns what is always done to an image, and so may be kept in memory."""

    @abstractmethod
    def augment(self, prepared: Prepared, seed: int | None) -> Square:
        """Returns the prepared image at `image_size`, changed at random as `seed` says; None changes nothing."""

    def normalise(
        self, images: UInt8[np.ndarray, "batch height width channel"]
    ) -> Float[Tensor, "batch channel height width"]:
        """Returns float32 images, channels first."""
        # Copied: a view of the caller's array might be read-only, which torch warns about.
        tensor = torch.tensor(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
        tensor = tensor.to(torch.float32, memory_format=torch.contiguous_format)
        mean, std = (torch.tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in (self.mean, self.std))
        return tensor.sub_(255 * mean).div_(255 * std)

    def of_view(self, view: int) -> "Pipeline":
        """Returns the pipeline that augments this view of an image prepared here; only the sizes may differ."""
        return self

    def get_ready(self) -> None:
        """Does now what the first image would have to wait for, so that each forked worker need not."""
        return

    def __call__(self, image: np.ndarray | Image, seed: int | None = None) -> Float[Tensor, "channel size size"]:
        """Returns the tensor of one image: uint8 [height, width, channel], or Pillow's, of any mode and orientation."""
        if isinstance(image, Image):
            if image.mode == "I" and image.format is None:  # of a file they are 16-bit values, here nobody knows
                raise UserError("the image has mode I, whose values may be of 8 or 16 bits: give image.convert('L')")
            image = to_pixels(image, self.channels)
        shape = tuple(getattr(image, "shape", ()))
        kind = getattr(image, "dtype", type(image).__name__)
        if kind != np.uint8 or len(shape) != 3 or shape[2] != self.channels or 0 in shape:
            expected = f"Pillow's or a uint8 array [height, width, {self.channels}]"
            raise UserError(f"the image must be {expected}, got {kind} of shape {list(shape)}")
        return self.normalise(self.augment(self.prepare(image), seed)[None])[0]

    def resize(self, image: Pixels, height: int, width: int) -> Prepared:
        """Returns the image at another size, by this pipeline's interpolation."""
        return resize(image, height, width, self.interpolation)

    def resize_shorter(self, image: Pixels, margin: Number) -> Prepared:
        """Returns the image with its shorter side at `margin` × image_size, its shape kept."""
        return resize_shorter(image, round(margin * self.image_size), self.interpolation)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({values})"


class RandomPipeline(Pipeline):
    """A pipeline whose `augment` runs albumentations transforms, made by `random_transforms`."""

    _compose: Any = None

    @abstractmethod
    def random_transforms(self) -> list[Any]:
        """Returns the albumentations transforms, each with its own probability."""

    @abstractmethod
    def fit(self, prepared: Prepared) -> Square:
        """Returns the prepared image at `image_size` without chance."""

    def augment(self, prepared: Prepared, seed: int | None) -> Square:
        if seed is None:
            return self.fit(prepared)
        self.get_ready()
        # albumentations draws from these two; set anew for each image, so neither order nor worker matters.
        self._compose.set_random_state(np.random.default_rng(seed), random.Random(seed))
        return np.ascontiguousarray(with_channels(self._compose(image=prepared)["image"]))

    def get_ready(self) -> None:
        if self._compose is None:
            self._compose = load_albumentations().Compose(self.random_transforms())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_compose"}


class Resize(Pipeline):
    """Evaluation: the whole image, squeezed to image_size × image_size."""

    def prepare(self, image: Pixels) -> Prepared:
        return self.resize(image, self.image_size, self.image_size)

    def augment(self, prepared: Prepared, seed: int | None) -> Square:
        return prepared


class Center(Pipeline):
    """Evaluation: shorter side to `margin` × image_size, then the square of image_size in the middle.

    `margin` is 256/224 as in the papers; 1 keeps all of the shorter side.
    """

    def __init__(
        self,
        image_size: int,
        channels: int,
        *,
        margin: Number = _MARGIN,
        **look: Unpack[Look],
    ) -> None:
        super().__init__(image_size, channels, **look)
        self.margin = checked_margin(margin)

    def prepare(self, image: Pixels) -> Prepared:
        return centre_crop(self.resize_shorter(image, self.margin), self.image_size)

    def augment(self, prepared: Prepared, seed: int | None) -> Square:
        return prepared


class RandomCrop(RandomPipeline):
    """Training as the papers say: shorter side to `margin` × image_size, a random square of image_size, a flip.

    Args:
        margin: 256/224: shorter side 256 for crops of 224.
        flip: the probability of a horizontal flip.
    """

    def __init__(
        self,
        image_size: int,
        channels: int,
        *,
        margin: Number = _MARGIN,
        flip: Number = 0.5,
        **look: Unpack[Look],
    ) -> None:
        super().__init__(image_size, channels, **look)
        self.margin = checked_margin(margin)
        self.flip = checked_probability("flip", flip)

    def prepare(self, image: Pixels) -> Prepared:
        return self.resize_shorter(image, self.margin)

    def fit(self, prepared: Prepared) -> Square:
        return centre_crop(prepared, self.image_size)

    def random_transforms(self) -> list[Any]:
        albumentations = load_albumentations()
        return [
            albumentations.RandomCrop(self.image_size, self.image_size, p=1.0),
            albumentations.HorizontalFlip(p=self.flip),
        ]


class CropFlip(RandomPipeline):
    """Training as SOPRC's code does: a random part of the image resized to a square, a horizontal flip.

    Args:
        margin: the image is first reduced to a shorter side of `margin` × image_size, so that more images fit in
            memory, and small parts are enlarged. None keeps the image at its own size, which is the authors' form.
        scale: the crop's part of the area. Default (0.16, 1) from SOPRC (KID-7391/SOPRC, dataloaders).
        ratio: the crop's width by height before it is resized to a square.
        flip: the probability of a flip.
    """

    def __init__(
        self,
        image_size: int,
        channels: int,
        *,
        margin: Number | None = _MARGIN,
        scale: Sequence[Number] = (0.16, 1.0),
        ratio: Sequence[Number] = (0.75, 4 / 3),
        flip: Number = 0.5,
        **look: Unpack[Look],
    ) -> None:
        super().__init__(image_size, channels, **look)
        self.margin = None if margin is None else checked_margin(margin)
        self.scale = checked_range("scale", scale, low=0, high=1)
        self.ratio = checked_range("ratio", ratio, low=0)
        self.flip = checked_probability("flip", flip)

    def prepare(self, image: Pixels) -> Prepared:
        return image if self.margin is None else self.resize_shorter(image, self.margin)

    def fit(self, prepared: Prepared) -> Square:
        margin = _MARGIN if self.margin is None else self.margin
        return centre_crop(self.resize_shorter(prepared, margin), self.image_size)

    def random_transforms(self) -> list[Any]:
        # By area, as `resize`: parts of a whole photo are reduced several times over.
        return [
            self.random_part("image" if self.margin is None else None),
            load_albumentations().HorizontalFlip(p=self.flip),
        ]

    def random_part(self, area: str | None) -> Any:
        """Returns albumentations' crop of a random part; `area`: "image" where it is reduced by area."""
        return load_albumentations().RandomResizedCrop(
            (self.image_size, self.image_size),
            scale=self.scale,
            ratio=self.ratio,
            interpolation=ENLARGING.get(self.interpolation, cv2.INTER_LINEAR),
            area_for_downscale=area,
            p=1.0,
        )


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

    def __init__(
        self,
        image_size: int,
        channels: int,
        *,
        rotate: Number = 15.0,
        translate: Number = 0.1,
        scale: Sequence[Number] = (0.9, 1.1),
        shear: Number = 10.0,
        fill: int = 255,
        oversample: Number = 4.0,
        **look: Unpack[Look],
    ) -> None:
        super().__init__(image_size, channels, **look)
        for name, value, limit in (("rotate", rotate, 180), ("translate", translate, 1), ("shear", shear, 60)):
            if not 0 <= value <= limit:
                raise UserError(f"{name} must be between 0 and {limit}, got {value}")
        if not 0 <= fill <= 255:
            raise UserError(f"fill must be between 0 and 255, got {fill}")
        if oversample < 1:
            raise UserError(f"oversample must be at least 1, got {oversample}")
        self.rotate = rotate
        self.translate = translate
        self.scale = checked_range("scale", scale, low=0)
        self.shear = shear
        self.fill = fill
        self.oversample = oversample

    def prepare(self, image: Pixels) -> Prepared:
        most = round(self.oversample * self.image_size)
        height, width = (min(max(side, self.image_size), most) for side in image.shape[:2])
        return self.resize(image, height, width)

    def fit(self, prepared: Prepared) -> Square:
        return self.resize(prepared, self.image_size, self.image_size)

    def random_transforms(self) -> list[Any]:
        albumentations = load_albumentations()
        return [
            albumentations.Affine(
                rotate=(-self.rotate, self.rotate),
                translate_percent=(-self.translate, self.translate),
                scale=self.scale,
                shear=(-self.shear, self.shear),
                fill=self.fill,
                interpolation=cv2.INTER_LINEAR,
                p=1.0,
            ),
            albumentations.Resize(self.image_size, self.image_size, interpolation=cv2.INTER_AREA, p=1.0),
        ]


def load_albumentations() -> Any:
    """Returns the library."""
    # Imported late: it would otherwise ask the network for its version, and costs half a second that commands which
    # only read a config need not spend.
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    import albumentations

    return albumentations


def checked_margin(margin: Number) -> Number:
    """Returns the margin; UserError unless it leaves room for a crop."""
    if margin < 1:
        raise UserError(f"margin must be at least 1 (the shorter side before the crop, by image_size), got {margin}")
    return margin


def checked_probability(name: str, value: Number) -> Number:
    """Returns the value; UserError unless it is a probability."""
    if not 0 <= value <= 1:
        raise UserError(f"{name} must be a probability, between 0 and 1, got {value}")
    return value


def checked_range(
    name: str, values: Sequence[Number], *, low: Number, high: Number | None = None
) -> tuple[float, float]:
    """Returns both values; UserError unless they are a range above `low` and up to `high`."""
    if len(values) != 2 or not low < values[0] <= values[1] or (high is not None and values[1] > high):
        limits = f"above {low}" + ("" if high is None else f" and at most {high}")
        raise UserError(f"{name} must be two numbers, smaller one first, {limits}, got {list(values)}")
    return float(values[0]), float(values[1])
