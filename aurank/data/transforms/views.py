"""Training without labels: the augmentations that make several views of one image."""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from aurank.data.transforms.base import Pipeline, Prepared, Square
from aurank.data.transforms.geometry import Number, flipped, happens, with_channels
from aurank.data.transforms.standard import CropFlip, check_between, checked_range
from aurank.errors import UserError


@dataclass(repr=False, eq=False, kw_only=True)
class SimCLR(CropFlip):
    """The views of SimCLR: a random part resized to a square, a flip, changed colours, grey, a Gaussian blur.

    Images of 1, 4 or more channels keep their values: colours and grey are of RGB only. As in the paper the blur's
    kernel is a tenth of the side and its deviation between 0.1 and 2 pixels.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("strength", self.strength, 2.5)
        for name in ("jitter", "grey", "blur"):
            check_between(name, getattr(self, name))
        # Of albumentations, each with its probability; made when the first image comes.
        self._changes: list[tuple[Number, Any]] = []

    def change(self, prepared: Prepared, chance: random.Random, seed: int) -> Square:
        self.get_ready()
        # By area: a small crop may be smaller than the part of the image that it is made of.
        square = self.random_part(prepared, chance, by_area=True)
        square = flipped(square) if happens(chance, self.flip) else square
        for probability, transform in self._changes:
            if happens(chance, probability):
                # The second, which draws the order of the colours, is made anew for each: only the seed decides it.
                transform.set_random_state(np.random.default_rng(seed), chance)
                square = transform(image=square, force_apply=True)["image"]
        return np.ascontiguousarray(with_channels(square))

    def get_ready(self) -> None:
        if self._changes:
            return
        # Imported late: it takes half a second that commands which only read a configuration need not.
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # else it asks the network for its version
        import albumentations

        change = 0.8 * self.strength
        around_one = (max(0.0, 1 - change), 1 + change)
        hue = (-0.2 * self.strength, 0.2 * self.strength)
        colours = [
            (self.jitter, albumentations.ColorJitter(around_one, around_one, around_one, hue)),
            (self.grey, albumentations.ToGray()),
        ]
        kernel = max(3, self.image_size // 20 * 2 + 1)
        blur = albumentations.GaussianBlur((kernel, kernel), sigma_limit=(0.1, 2.0))
        self._changes = [*(colours if self.channels == 3 else []), (self.blur, blur)]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_changes": []}


@dataclass(repr=False, eq=False, kw_only=True)
class MultiCrop(SimCLR):
    """The first views are SimCLR's at image_size, the others small crops of small parts of the image.

    Args:
        local_size: side of a small crop, in pixels.
        local_scale: a small crop's part of the area; of a large one, `scale`.
        global_views: how many views come before the small ones; `data.views` says how many there are in all.
        margin, ratio, flip, jitter, strength, grey, blur: as for SimCLR, of both.

    Source: Caron et al., Unsupervised learning of visual features by contrasting cluster assignments (SwAV; NeurIPS
        2020), Sec. 3.2 and App. A, https://arxiv.org/abs/2006.09882; sizes and scales as in its code for 2 × 224 +
        6 × 96 pixels. Here every crop is a positive of every other one of its image, where SwAV predicts the codes of
        the large ones only.

    Example:
        >>> pipeline = MultiCrop(16, 3, local_size=8)
        >>> [pipeline.of_view(view).image_size for view in range(3)]
        [16, 16, 8]
    """

    scale: Sequence[Number] = (0.14, 1.0)
    local_size: int = 96
    local_scale: Sequence[Number] = (0.05, 0.14)
    global_views: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("local_size", "global_views"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        self.local_scale = checked_range("local_scale", self.local_scale, high=1)
        same = {field.name: getattr(self, field.name) for field in fields(SimCLR)}
        self._local = SimCLR(**same | {"image_size": self.local_size, "scale": self.local_scale})

    @property
    def needed_side(self) -> int:
        return max(super().needed_side, 0 if self.margin is not None else self._local.needed_side)

    def of_view(self, view: int) -> Pipeline:
        return self if view < self.global_views else self._local

    def get_ready(self) -> None:
        super().get_ready()
        self._local.get_ready()
