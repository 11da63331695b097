"""The transforms of evaluation, of training with labels, and of training by several views of one image."""

import functools
import math
import os
import random
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import cv2
import numpy as np
import torch

from aurank.data.transforms.base import (
    LEAST,
    AnyPrepared,
    Limits,
    Pipeline,
    Prepared,
    View,
    centre_crop,
    channels_first,
    resize,
    resize_whole,
)
from aurank.data.transforms.geometry import (
    Number,
    Pixels,
    by_opencv,
    chance_of,
    flipped,
    happens,
    random_part,
    random_window,
    scaled,
    warp,
    warp_matrices,
    with_channels,
)
from aurank.errors import UserError, first_line
from aurank.files import reading
from aurank.lazy import import_library
from aurank.names import meant, nearest

# Image transforms of ImageNet models: shorter side 256 for crops of 224.
MARGIN = 256 / 224
CROP_MODES = {"crop": "center", "squash": "squash", "pad": "border"}
"""timm's words for `resize`."""
# OpenCV's like of Pillow's interpolations, for parts of an image; bilinear for the others.
_ENLARGING = {"nearest": cv2.INTER_NEAREST, "bicubic": cv2.INTER_CUBIC, "lanczos": cv2.INTER_LANCZOS4}


@dataclass(repr=False, eq=False)
class Resize(Pipeline):
    """Evaluation: the whole image, squeezed to image_size; padded to it where `resize` is pad."""

    margin: ClassVar[int] = 1

    def prepare(self, image: Pixels) -> Prepared:
        return self.canvas(image, 1) if self.resize == "pad" else resize(image, *self.size, self.interpolation)


@dataclass(repr=False, eq=False, kw_only=True)
class Center(Pipeline):
    """Evaluation, as torchvision: shorter side to `margin` × image_size, then the middle at image_size.

    Args:
        margin: 256/224 as in the papers; 1 keeps all of the shorter side. Where `resize` is pad or squash it is 1:
            nothing is cut off.
    """

    margin: Number = MARGIN

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resize != "crop":
            self.margin = 1

    def prepare(self, image: Pixels) -> Prepared:
        return centre_crop(self.canvas(image, self.margin), self.size)


class TransformersCenter(Center):
    """Evaluation as processors of transformers do it: as `center`, but half a pixel beside the middle is cut off."""

    def prepare(self, image: Pixels) -> Prepared:
        image, (height, width) = self.canvas(image, self.margin), self.size
        top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
        return np.ascontiguousarray(image[top : top + height, left : left + width])


@dataclass(repr=False, eq=False, kw_only=True)
class Timm(Pipeline):
    """Evaluation as timm does it for a network with these settings: its sizes, its edges and its sums, to the last bit.

    Args:
        crop_pct: image_size by the side that the image is resized to before; timm's word, as the next.
        crop_mode: center, squash or border: `resize` crop, squash or pad, with the middle taken of what is resized.
            `resize` itself, where it is pad or squash, takes the place of both: nothing is cut off.

    Source: timm.data.transforms_factory.transforms_imagenet_eval.
    """

    crop_pct: Number = 0.875
    crop_mode: str = "center"
    limits: ClassVar[Limits] = Pipeline.limits | {"crop_pct": (0.01, 2), "crop_mode": tuple(CROP_MODES.values())}
    unit: ClassVar[int] = 255

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resize != "crop":
            self.crop_pct, self.crop_mode = 1.0, CROP_MODES[self.resize]

    @property
    def resized_size(self) -> tuple[int, int]:
        return math.floor(self.size[0] / self.crop_pct), math.floor(self.size[1] / self.crop_pct)

    @property
    def needed_side(self) -> int:
        return max(self.resized_size)

    def prepare(self, image: Pixels) -> Prepared:
        how = next(how for how, mode in CROP_MODES.items() if mode == self.crop_mode)
        image = resize_whole(image, self.resized_size, how, self.interpolation)
        return centre_crop(image, self.size, self.mean_colour if how == "pad" else 0)


@dataclass(repr=False, eq=False, kw_only=True)
class RandomCrop(Pipeline):
    """Training as the papers say: shorter side to `margin` × image_size, a random window of image_size, a flip.

    Args:
        margin: 256/224: shorter side 256 for crops of 224.
        flip: the probability of a horizontal flip.
    """

    margin: Number = MARGIN
    flip: Number = 0.5

    def prepare(self, image: Pixels) -> Prepared:
        return self.canvas(image, self.margin)

    def fit(self, prepared: Prepared) -> View:
        return centre_crop(prepared, self.size)

    def change(self, prepared: Prepared, seed: int) -> View:
        chance = chance_of(seed)
        view = random_window(prepared, self.size, chance)
        return flipped(view) if happens(chance, self.flip) else np.ascontiguousarray(view)


@dataclass(repr=False, eq=False, kw_only=True)
class CropFlip(Pipeline):
    """Training as SOPRC's code does: a random part of the image resized to image_size, a horizontal flip.

    Args:
        margin: the image is first reduced to a shorter side of `margin` × image_size, so that more images fit in
            memory, and small parts are enlarged. None keeps the image at its own size, which is the authors' form.
        scale: the crop's part of the area. Default (0.16, 1) from SOPRC (KID-7391/SOPRC, dataloaders).
        ratio: the crop's width by height before it is resized, by that of image_size; where `resize` is squash, of the
            image squashed.
        flip: the probability of a flip.
    """

    margin: Number | None = MARGIN
    scale: Sequence[Number] = (0.16, 1.0)
    ratio: Sequence[Number] = (0.75, 4 / 3)
    flip: Number = 0.5
    limits: ClassVar[Limits] = Pipeline.limits | {"scale": (LEAST, 1)}
    _headroom: ClassVar[float] = 15 / 16  # parts are enlarged: half of 640 × 480 pixels will do for a side of 256

    @property
    def needed_side(self) -> int:
        smallest_part = math.ceil(max(self.size) / math.sqrt(self.scale[0]))
        return smallest_part if self.margin is None else max(self.canvas_size(self.margin))

    def prepare(self, image: Pixels) -> Prepared:
        return self.canvas(image, self.margin)

    def fit(self, prepared: Prepared) -> View:
        margin = MARGIN if self.margin is None else self.margin
        return centre_crop(self.canvas(prepared, margin), self.size)

    def change(self, prepared: Prepared, seed: int) -> View:
        chance = chance_of(seed)
        # By area, as `resize`: parts of a whole photo are reduced several times over.
        view = self._part(prepared, chance, by_area=self.margin is None)
        return flipped(view) if happens(chance, self.flip) else np.ascontiguousarray(view)

    def _part(self, prepared: Prepared, chance: random.Random, *, by_area: bool) -> View:
        """Return a random part of an image at image_size; `by_area` where it is reduced."""
        height, width = prepared.shape[:2]
        is_unsquashed = self.resize == "squash" and self.margin is None
        shape = width / height if is_unsquashed else self.size[1] / self.size[0]
        part = random_part(prepared, chance, scale=self.scale, ratio=[shape * value for value in self.ratio])
        is_reduced = part.shape[0] > self.size[0] or part.shape[1] > self.size[1]
        enlarging = _ENLARGING.get(self.interpolation, cv2.INTER_LINEAR)
        return scaled(part, self.size, cv2.INTER_AREA if by_area and is_reduced else enlarging)


@dataclass(repr=False, eq=False, kw_only=True)
class Affine(Pipeline):
    """Training on drawings: a small random rotation, shift, scaling and shear, no flip.

    Images of another shape are squeezed, or padded where `resize` is pad. The warp is done at up to `oversample` ×
    image_size and then reduced by area, so thin strokes stay smooth.

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
    limits: ClassVar[Limits] = Pipeline.limits | {"rotate": (0, 180), "shear": (0, 60), "fill": (0, 255)}
    _headroom: ClassVar[float] = 1.0  # which is in `oversample`

    @property
    def needed_side(self) -> int:
        return round(self.oversample * max(self.size))

    def prepare(self, image: Pixels) -> Prepared:
        image = self.canvas(image, None)
        pairs = zip(image.shape[:2], self.size, strict=True)
        height, width = (min(max(length, side), round(self.oversample * side)) for length, side in pairs)
        return resize(image, height, width, self.interpolation)

    def fit(self, prepared: Prepared) -> View:
        return resize(prepared, *self.size, self.interpolation)

    def change(self, prepared: Prepared, seed: int) -> View:
        return np.ascontiguousarray(next(self.change_all([prepared], [seed])))

    def change_all(self, prepared: Sequence[AnyPrepared], seeds: Sequence[int]) -> Iterator[View]:
        """Yield the changed images; the matrices of all of them are computed at once, which is faster."""
        sizes = np.array([image.shape[:2] for image in prepared], dtype=np.int64).reshape(-1, 2)
        ranges = {"rotate": self.rotate, "translate": self.translate, "shear": self.shear}
        matrices = warp_matrices([*map(chance_of, seeds)], sizes, scale=self.scale, **ranges)
        is_still = np.isclose(matrices, np.eye(3)).all(axis=(1, 2)).tolist()
        for image, matrix, still in zip(prepared, matrices, is_still, strict=True):
            yield scaled(image if still else warp(image, matrix, self.fill), self.size, cv2.INTER_AREA)


@dataclass(repr=False, eq=False, kw_only=True)
class SimCLR(CropFlip):
    """The views of SimCLR: a random part resized to image_size, a flip, changed colours, grey, a Gaussian blur.

    Colours and grey are of RGB only. The blur's kernel is a tenth of the shorter side, its deviation 0.1 to 2 pixels.

    Args:
        margin, scale, ratio, flip: as for CropFlip; `scale` from SimCLR.
        jitter: the probability that brightness, contrast and saturation change by up to 0.8 × `strength`, and the hue
            by up to 0.2 × `strength` of the circle, in random order.
        strength: 1 for photos, 0.5 for small images, in the paper; at most 2.5, a hue turned by half a circle.
        grey: the probability of an image without colours.
        blur: the probability of a blur; the paper has none for small images.

    Source: Chen et al., A simple framework for contrastive learning of visual representations (ICML 2020), App. A,
        https://arxiv.org/abs/2002.05709.
    """

    scale: Sequence[Number] = (0.08, 1.0)
    jitter: Number = 0.8
    strength: Number = 1.0
    grey: Number = 0.2
    blur: Number = 0.5
    limits: ClassVar[Limits] = CropFlip.limits | {"strength": (0, 2.5)}

    def change(self, prepared: Prepared, seed: int) -> View:
        chance = chance_of(seed)
        # Averaged by area: the result may have fewer pixels than the part of the image that it is cut from.
        view = self._part(prepared, chance, by_area=True)
        view = flipped(view) if happens(chance, self.flip) else view
        if self.channels == 3:
            view = self._recoloured(view, chance) if happens(chance, self.jitter) else view
            view = _grey(view) if happens(chance, self.grey) else view
        if happens(chance, self.blur):
            width, sigma = max(3, min(self.size) // 20 * 2 + 1), chance.uniform(0.1, 2.0)
            view = by_opencv(view, lambda part: cv2.GaussianBlur(part, (width, width), sigma))
        return np.ascontiguousarray(view)

    def _recoloured(self, view: View, chance: random.Random) -> View:
        change = 0.8 * self.strength
        brightness, contrast, saturation = (chance.uniform(max(0.0, 1 - change), 1 + change) for _ in range(3))
        hue = chance.uniform(-0.2 * self.strength, 0.2 * self.strength)
        for name in chance.sample(("brightness", "contrast", "saturation", "hue"), 4):
            if name == "brightness":
                view = _blend(view, np.zeros_like(view), brightness)
            elif name == "contrast":
                view = _blend(view, np.full_like(view, round(_grey(view).mean())), contrast)
            elif name == "saturation":
                view = _blend(view, _grey(view), saturation)
            else:
                turned = cv2.cvtColor(view, cv2.COLOR_RGB2HSV_FULL)
                turned[..., 0] += np.uint8(round(256 * hue) % 256)  # the whole circle is 256
                view = np.asarray(cv2.cvtColor(turned, cv2.COLOR_HSV2RGB_FULL))
        return view


def _blend(view: View, toward: View, amount: float) -> View:
    return np.asarray(cv2.addWeighted(view, amount, toward, 1 - amount, 0))


def _grey(view: View) -> View:
    return np.asarray(cv2.cvtColor(cv2.cvtColor(view, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB))


@dataclass(repr=False, eq=False, kw_only=True)
class Library(Pipeline):
    """Training by transforms of another library; what they leave at another size is resized to image_size."""

    pipeline: Any
    library: ClassVar[str]
    makes_float: ClassVar[str]
    """Transforms whose result is no uint8 image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        with reading("pipeline", f"transforms of {self.library}", remedy="mend it"), warnings.catch_warnings():
            warnings.simplefilter("error")  # of an argument that a transform does not take
            height, width = self.size
            self.change(np.zeros((2 * height, 2 * width, self.channels), np.uint8), 0)

    def prepare(self, image: Pixels) -> Prepared:
        return self.canvas(image, None)

    def fit(self, prepared: Prepared) -> View:
        return centre_crop(self.canvas(prepared, 1), self.size)

    def change(self, prepared: Prepared, seed: int) -> View:
        try:
            changed = self.apply(prepared, seed)
        except (MemoryError, UserError):
            raise
        except Exception as error:  # whatever a transform has for an image that it cannot take
            size = f"{prepared.shape[0]} × {prepared.shape[1]} pixels"
            remedy = "put a transform that pads or resizes before the one that does"
            raise UserError(f"data.train_transform fails on {size} ({first_line(error)}); {remedy}") from error
        if not isinstance(changed, np.ndarray) or changed.dtype != np.uint8:
            raise UserError(f"data.train_transform must make a uint8 image: leave out {self.makes_float}")
        return np.ascontiguousarray(resize(with_channels(changed), *self.size, self.interpolation))

    @abstractmethod
    def apply(self, prepared: Prepared, seed: int) -> Any:
        """Return what the transforms make of an image."""

    @functools.cached_property
    def _changes(self) -> Any:
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # else it asks the network for its newest version
        library: Any = import_library(self.library, f"data.train_transform.name={self.library.partition('.')[0]}")
        if not isinstance(self.pipeline, str):
            return library.Compose(_made(library, self.pipeline))
        loaded = library.load(self.pipeline, data_format="json" if self.pipeline.endswith(".json") else "yaml")
        return loaded if isinstance(loaded, library.Compose) else library.Compose([loaded])


def _made(library: Any, steps: Sequence[Mapping[str, Any]]) -> list[Any]:
    made = []
    for step in steps:
        name = str(step.get("name"))
        if not hasattr(library, name):
            raise UserError(f"{library.__name__} has no transform {name!r}{meant(nearest(name, dir(library)))}")
        arguments = {key: value for key, value in step.items() if key != "name"}
        for key, value in arguments.items():
            if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
                arguments[key] = _made(library, value)  # transforms within, as of a random choice
        made.append(getattr(library, name)(**arguments))
    return made


@dataclass(repr=False, eq=False, kw_only=True)
class Albumentations(Library):
    """Training by transforms of albumentations; what they leave at another size is resized to image_size.

    Args:
        pipeline: a YAML or JSON file that `albumentations.save` wrote, or a list of transforms by name, with their
            arguments, such as [{"name": "HorizontalFlip", "p": 0.5}].

    Example:
        >>> flips = Albumentations(8, 3, pipeline=[{"name": "HorizontalFlip", "p": 1.0}])
        >>> flips(np.zeros((8, 8, 3), np.uint8), seed=0).shape
        torch.Size([3, 8, 8])
    """

    pipeline: str | Sequence[Mapping[str, Any]]
    library: ClassVar[str] = "albumentations"
    makes_float: ClassVar[str] = "Normalize, ToFloat and ToTensorV2"

    def apply(self, prepared: Prepared, seed: int) -> Any:
        self._changes.set_random_state(np.random.default_rng(seed), chance_of(seed))
        return self._changes(image=prepared)["image"]


@dataclass(repr=False, eq=False, kw_only=True)
class Torchvision(Library):
    """Training by transforms of torchvision.transforms.v2; what they leave at another size is resized to image_size.

    Args:
        pipeline: transforms by name, with their arguments, such as [{"name": "RandAugment", "num_ops": 2}].

    Example:
        >>> flips = Torchvision(8, 3, pipeline=[{"name": "RandomHorizontalFlip", "p": 1.0}])
        >>> flips(np.zeros((8, 8, 3), np.uint8), seed=0).shape
        torch.Size([3, 8, 8])
    """

    pipeline: Sequence[Mapping[str, Any]]
    library: ClassVar[str] = "torchvision.transforms.v2"
    makes_float: ClassVar[str] = "ToDtype and Normalize"

    def apply(self, prepared: Prepared, seed: int) -> Any:
        generator = torch.default_generator  # the only one that torchvision draws from
        state = generator.get_state()
        try:
            generator.manual_seed(seed)
            return self._changes(channels_first(prepared)).permute(1, 2, 0).numpy()
        finally:
            generator.set_state(state)


TRANSFORMS: dict[str, type[Pipeline]] = {
    "crop_flip": CropFlip,
    "random_crop": RandomCrop,
    "affine": Affine,
    "simclr": SimCLR,
    "albumentations": Albumentations,
    "torchvision": Torchvision,
    "center": Center,
    "transformers_center": TransformersCenter,
    "timm": Timm,
    "resize": Resize,
}
TEST_TRANSFORMS = {name: kind for name, kind in TRANSFORMS.items() if not issubclass(kind, Library)}
