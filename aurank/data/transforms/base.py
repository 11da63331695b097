"""From decoded pixels to the tensor a model sees: prepare (always the same), augment (seeded), normalise."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import cv2
import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL.Image import Image, Resampling, fromarray
from torch import Tensor

from aurank.data.decode import to_pixels
from aurank.data.transforms.geometry import Number, Pixels, by_opencv
from aurank.errors import UserError
from aurank.files import EXACT

# One thread: images are small, several workers run at once, and OpenCV's own threads do not survive a fork.
cv2.setNumThreads(0)

Prepared = UInt8[np.ndarray, "new_height new_width channel"]
View = UInt8[np.ndarray, "view_height view_width channel"]
AnyPrepared = UInt8[np.ndarray, "_ _ channel"]  # one of several, each of its own size

AREA = "area"
_PILLOWS: Mapping[str, Resampling] = {
    name: Resampling[name.upper()] for name in ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
}
INTERPOLATIONS = (AREA, *_PILLOWS)
"""Ways to resize: "area" averages where an image shrinks and is bilinear where it grows; the others are Pillow's."""
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation
LEAST = 1e-6  # of what has to be above 0
Limits = dict[str, tuple[Any, ...]]


@dataclass(repr=False, eq=False)
class Pipeline(ABC):
    """One image, uint8 [height, width, channel] of any size, to a normalised float32 tensor of image_size.

    `pipeline(image, seed)` depends on its two arguments only. Its steps are public, so that the first may be kept, and
    the last done where the model is: `prepare(image)` never changes, `augment(prepared, seed)` is random or, with seed
    None, the same without chance, and `normalise(pixels)` takes one image or a batch, on any device.

    Args:
        image_size: of what a model sees, [height, width], or one number for both.
        mean, std: values are (v / 255 − mean) / std; by default ImageNet's for 3 channels and 0.5 otherwise.
        interpolation: that of whole images, one of INTERPOLATIONS.
        resize: how an image of another shape is brought to that of image_size: crop, pad or squash, as in `canvas`.

    Raises:
        UserError: for parameters beyond `limits`.

    Example:
        >>> from aurank.data import TRANSFORMS
        >>> pipeline = TRANSFORMS["crop_flip"](image_size=8, channels=3)
        >>> pipeline(np.zeros((20, 30, 3), np.uint8), seed=0).shape
        torch.Size([3, 8, 8])
    """

    __pydantic_config__ = EXACT

    image_size: int | Sequence[int]
    channels: int
    _: KW_ONLY
    mean: Sequence[Number] | None = None
    std: Sequence[Number] | None = None
    interpolation: str = AREA
    resize: str = "crop"
    limits: ClassVar[Limits] = {
        **dict.fromkeys(("image_size", "channels"), (1, math.inf)),
        **dict.fromkeys(("margin", "oversample"), (1, math.inf)),
        **dict.fromkeys(("mean", "flip", "translate", "jitter", "grey", "blur"), (0, 1)),
        **dict.fromkeys(("scale", "ratio", "std"), (LEAST, math.inf)),
        "interpolation": INTERPOLATIONS,
        "resize": ("crop", "pad", "squash"),
    }
    """Least and most of a parameter, and of each value of a range, or all that it can be."""
    _headroom: ClassVar[float] = 1.5  # times `needed_side` that a photo decoded smaller has to have
    unit: ClassVar[int] = 1
    """Values are divided by it before the mean, in that unit, is subtracted: 1, or 255 as in torchvision."""

    def __post_init__(self) -> None:
        if isinstance(self.image_size, Sequence):
            height, width = self.image_size
            self.image_size = height if height == width else (height, width)
        mean, std = IMAGENET if self.channels == 3 else ((0.5,) * self.channels,) * 2
        self.mean, self.std = tuple(self.mean or mean), tuple(self.std or std)
        for name, limit in self.limits.items():
            value: Any = getattr(self, name, None)
            if value is None:
                continue
            if isinstance(limit[0], str):
                is_fit, expected = value in limit, f"one of {', '.join(limit)}"
            else:
                values, (low, high) = list(value) if isinstance(value, Sequence) else [value], limit
                is_fit = all(low <= each <= high for each in values)
                expected = f"at least {low}" if high == math.inf else f"between {low} and {high}"
                if name in ("mean", "std"):
                    is_fit, expected = is_fit and len(values) == self.channels, f"{self.channels} numbers {expected}"
                elif isinstance(value, Sequence) and name != "image_size":
                    is_fit = is_fit and len(values) == 2 and values[0] <= values[1]
                    expected = f"two numbers {expected}, smaller one first"
                    setattr(self, name, tuple(map(float, values)))
            if not is_fit:
                raise UserError(f"{name} must be {expected}, got {value!r}")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of what a model sees."""
        height, width = (self.image_size,) * 2 if isinstance(self.image_size, int) else self.image_size
        return height, width

    @property
    def mean_colour(self) -> list[int]:
        """The value of each channel that is 0 after `normalise`, to the nearest of 256."""
        return [round(255 * value) for value in self.mean or ()]

    def canvas_size(self, margin: Number) -> tuple[int, int]:
        """Return margin × image_size, height and width; a rectangle's are rounded down, as timm does it."""
        height, width = self.size
        if height == width:
            return (round(margin * height),) * 2
        return math.floor(height / (1 / margin)), math.floor(width / (1 / margin))

    def canvas(self, image: Pixels, margin: Number | None) -> Prepared:
        """Return a whole image, brought to a canvas of `margin` × image_size as `resize` says, to take crops of.

        - crop: its shape is kept and it covers the canvas; what stands out on two sides is part of the result.
        - pad: its shape is kept and it lies inside, in the middle; around it is the mean colour, 0 once normalised.
        - squash: it is as large as the canvas, whatever its shape.

        With None it keeps its own pixels: crop and squash return it, pad adds what its shape lacks.
        """
        if margin is None:
            pairs = list(zip(image.shape[:2], self.size, strict=True))
            stretch = max(length / side for length, side in pairs)
            height, width = (max(length, round(stretch * side)) for length, side in pairs)
        else:
            height, width = self.canvas_size(margin)
            image = resize_whole(image, (height, width), self.resize, self.interpolation)
        return centre_crop(image, (height, width), self.mean_colour) if self.resize == "pad" else image

    @property
    def least_decoded_side(self) -> int | None:
        """The shorter side to which decoding may reduce a photo (mean error below 2 of 255 levels), or None."""
        return None if self.needed_side is None else math.ceil(self._headroom * self.needed_side)

    @property
    def needed_side(self) -> int | None:
        """The shorter side that an image needs so that nothing is lost by reducing it before; None: all that it has."""
        margin = getattr(self, "margin", None)
        return None if margin is None else max(self.canvas_size(margin))

    @abstractmethod
    def prepare(self, image: Pixels) -> Prepared:
        """Return what is always done to an image, and so may be kept in memory."""

    def fit(self, prepared: Prepared) -> View:
        """Return the prepared image at `image_size`, without chance."""
        return prepared

    def change(self, prepared: Prepared, seed: int) -> View:
        """Return the prepared image at `image_size`, changed at random as `seed` says."""
        return self.fit(prepared)

    def change_all(self, prepared: Sequence[AnyPrepared], seeds: Sequence[int]) -> Iterator[View]:
        return map(self.change, prepared, seeds)

    def augment(self, prepared: Prepared, seed: int | None) -> View:
        """Return the prepared image at `image_size`, changed at random as `seed` says; None changes nothing."""
        return self.fit(prepared) if seed is None else self.change(prepared, seed)

    def augment_all(self, prepared: Sequence[AnyPrepared], seeds: Sequence[int | None], views: Sequence[View]) -> None:
        """Write each prepared image into its view, as `augment` changes it for its seed."""
        random = [(image, seed) for image, seed in zip(prepared, seeds, strict=True) if seed is not None]
        changed = iter(self.change_all([image for image, _ in random], [seed for _, seed in random]))
        for image, seed, view in zip(prepared, seeds, views, strict=True):
            view[:] = self.fit(image) if seed is None else next(changed)

    def normalise(
        self, pixels: UInt8[Tensor, "*batch channel height width"]
    ) -> Float[Tensor, "*batch channel height width"]:
        """Return float32 images on the device of their pixels, with the same numbers on every device."""
        if pixels.device not in self._constants:  # copied there once: a copy in every step would wait for the device
            with torch.inference_mode(False):
                unit, mean, std = (values.to(pixels.device) for values in self.constants())
            self._constants[pixels.device] = unit, mean, std
        unit, mean, std = self._constants[pixels.device]
        values = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        return (values if self.unit == 1 else values.div_(unit)).sub_(mean).div_(std)

    @functools.cached_property
    def _constants(self) -> dict[torch.device, tuple[Tensor, Tensor, Tensor]]:
        return {}

    def constants(self) -> tuple[Float[Tensor, "1 1 1"], Float[Tensor, "channel 1 1"], Float[Tensor, "channel 1 1"]]:
        """Return `unit`, and mean and deviation in it, by which others compute `normalise` to the last bit."""
        mean, std = (
            255 // self.unit * torch.tensor(values, dtype=torch.float32).view(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        # A tensor: CUDA would multiply by the inverse of a number.
        return torch.full((1, 1, 1), float(self.unit)), mean, std

    def __call__(self, image: np.ndarray | Image, seed: int | None = None) -> Float[Tensor, "channel height width"]:
        """Return the tensor of one image: uint8 [height, width, channel], or Pillow's, of any mode and orientation."""
        if isinstance(image, Image):
            image = to_pixels(image, self.channels)
        shape, kind = np.shape(image), getattr(image, "dtype", type(image).__name__)
        if kind != np.uint8 or len(shape) != 3 or shape[2] != self.channels or 0 in shape:
            expected = f"Pillow's or a uint8 array [height, width, {self.channels}]"
            raise UserError(f"the image must be {expected}, got {kind} of shape {list(shape)}")
        return self.normalise(channels_first(self.augment(self.prepare(image), seed)))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_constants", "_changes")}

    def __repr__(self) -> str:
        # Omit resize=crop, so old cache keys still match.
        shown = {name: value for name, value in vars(self).items() if (name, value) != ("resize", "crop")}
        values = ", ".join(f"{name}={value}" for name, value in shown.items() if not name.startswith("_"))
        return f"{type(self).__name__}({values})"


def channels_first(view: View) -> UInt8[Tensor, "channel view_height view_width"]:
    return torch.tensor(view).permute(2, 0, 1).contiguous()


def resize(image: Pixels, height: int, width: int, interpolation: str = AREA) -> Prepared:
    if image.shape[:2] == (height, width):
        return image
    if interpolation == AREA:
        way = cv2.INTER_AREA if height < image.shape[0] or width < image.shape[1] else cv2.INTER_LINEAR
        return by_opencv(image, lambda part: cv2.resize(part, (width, height), interpolation=way))
    # Pillow takes RGB; other channels go one by one: it would take the last of four for transparency.
    parts = [image] if image.shape[2] == 3 else [image[:, :, channel] for channel in range(image.shape[2])]
    method = _PILLOWS[interpolation]
    return np.dstack([np.asarray(fromarray(part).resize((width, height), method)) for part in parts])


def resize_whole(image: Pixels, size: tuple[int, int], how: str, interpolation: str = AREA) -> Prepared:
    height, width = image.shape[:2]
    if how == "crop" and size[0] == size[1]:
        shorter = min(height, width)
        return resize(image, size[0] * height // shorter, size[0] * width // shorter, interpolation)
    if how != "squash":
        ratio = (max if how == "pad" else min)(height / size[0], width / size[1])
        size = max(1, round(height / ratio)), max(1, round(width / ratio))
    return resize(image, *size, interpolation)


def centre_crop(image: Pixels, size: tuple[int, int], fill: Sequence[int] | int = 0) -> View:
    height, width = image.shape[:2]
    if height < size[0] or width < size[1]:
        padded = np.empty((max(height, size[0]), max(width, size[1]), image.shape[2]), np.uint8)
        padded[:] = fill
        top, left = (padded.shape[0] - height) // 2, (padded.shape[1] - width) // 2
        padded[top : top + height, left : left + width] = image
        image = padded
    top, left = (round((length - side) / 2) for length, side in zip(image.shape[:2], size, strict=True))
    return np.ascontiguousarray(image[top : top + size[0], left : left + size[1]])
