"""One model of any source: a network, how images or texts are shown to it, and where it came from."""

import importlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from aurank.data import Batch, ImageDataset, Manifest, Pipeline
from aurank.data.dataset import Key
from aurank.data.decode import quiet_decoding
from aurank.data.prepared import PreparedImages
from aurank.data.saved_embeddings import AsSaved
from aurank.data.transforms.standard import CROP_MODES
from aurank.errors import AurankWarning, UserError

Transform = Callable[[Image.Image], Tensor]
Tokenise = Callable[[Sequence[str]], Tensor]
"""Texts to int64 tokens [text, length], 0 where there is none."""


@dataclass(frozen=True, eq=False)
class ImageModel:
    """A model with the preprocessing that it expects.

    Attributes:
        module: maps a stack of what `transform` returns to embeddings [batch, dim].
        transform: takes an upright 8-bit image of `channels` channels; a Pipeline for a model that was trained here.
        description: all that decides an embedding beside the weights: name, options, version of the library, transform.
        notes: what was taken of a file of weights.
        config: the configuration of a model that was trained here.
    """

    name: str
    module: nn.Module
    transform: Transform | Pipeline
    description: str
    channels: int = 3
    notes: tuple[str, ...] = ()
    config: Any = None

    @property
    def preprocessing(self) -> str:
        """How images are shown to it, in words that another version of a library changes only if it does otherwise."""
        if self.name.partition(":")[0] != "python":
            return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self.transform))
        return " ".join([*self.description.split(" ")[:1], *self.description.split(" ")[2:]])  # without the version

    @property
    def needed_side(self) -> int | None:
        """The shorter side below which its transform enlarges an image before it cuts; None where that is unknown."""
        if hasattr(self.transform, "needed_side"):
            own: int | None = self.transform.needed_side
            return own
        steps = (step for step in getattr(self.transform, "transforms", ()) if type(step).__name__.startswith("Resize"))
        size = getattr(next(steps, None), "size", None)  # of torchvision's Resize, and timm's
        return max(size) if isinstance(size, list | tuple) else size

    def dataset(self, manifest: Manifest, *, cache_bytes: int = 0, **how: Any) -> ImageDataset:
        """Return the images of a manifest as the model wants them; `how`: on_error, max_pixels, prepared."""
        if isinstance(self.transform, Pipeline):
            return ImageDataset(manifest, self.transform, channels=self.channels, cache_bytes=cache_bytes, **how)
        return ModelImages(manifest, self, **how)

    def stack(self, images: Iterable[np.ndarray]) -> Tensor:
        """Return decoded images, uint8 [height, width, channel], as the batch that `module` takes."""
        transform = self.transform
        if isinstance(transform, Pipeline):
            shown = [transform(pixels) for pixels in images]
        else:
            shown = [transform(to_picture(pixels)) for pixels in images]
        shapes = sorted({tuple(image.shape) for image in shown})
        if len(shapes) > 1 or (shapes and len(shapes[0]) != 3):
            came = f"its transform gives tensors of shape {', '.join(map(str, shapes))}"
            raise UserError(f"{self.name}: {came}; expected [channel, height, width], the same for every image")
        return torch.stack(shown) if shown else torch.empty(0, self.channels, 1, 1)

    @torch.inference_mode()
    def embed(self, images: Sequence[np.ndarray], *, device: torch.device | None = None, batch: int = 64) -> np.ndarray:
        """Return the embeddings, float32 [image, dim], of decoded images, uint8 [height, width, channel]."""
        device = device or next((parameter.device for parameter in self.module.parameters()), torch.device("cpu"))
        training = self.module.training
        self.module.eval()
        try:
            parts = (self.stack(images[start : start + batch]) for start in range(0, len(images), batch))
            embedded = [as_embeddings(self.module(part.to(device)), len(part)) for part in parts]
        finally:
            self.module.train(training)
        return np.concatenate(embedded or [np.empty((0, 0), np.float32)])


class ModelImages(ImageDataset):
    """The images of a manifest under the transform of a model of another library."""

    def __init__(
        self, manifest: Manifest, model: ImageModel, *, prepared: PreparedImages | None = None, **how: Any
    ) -> None:
        as_decoded = AsSaved(1, model.channels)  # all that follows is another library's transform
        super().__init__(manifest, as_decoded, channels=model.channels, cache_bytes=0, prepared=prepared, **how)
        self.model = model
        if prepared is not None:
            side = prepared.how.short_side
            shape = model.transform(to_picture(np.zeros((side, side, model.channels), np.uint8))).shape
            warn_of_small(prepared, max(model.needed_side or 0, *shape[-2:]), model.name)

    def to_input(self, images: torch.Tensor) -> torch.Tensor:
        """Return them as the model's own transform gave them."""
        return images

    def __getitems__(self, keys: Sequence[Key]) -> Batch:
        """Return the batch of those rows, in their order, without the images that are skipped."""
        rows: list[int] = []

        def read() -> Iterator[np.ndarray]:
            for key in keys:
                row = int(key[0] if isinstance(key, tuple) else key)
                if (pixels := self._prepared(row)) is not None:
                    rows.append(row)
                    yield pixels

        with quiet_decoding():
            images = self.model.stack(read())
        return Batch(
            image=images,
            label=torch.from_numpy(self.manifest.labels[rows]),
            id=torch.tensor(rows, dtype=torch.int64),
        )


def as_embeddings(output: Any, count: int) -> np.ndarray:
    """Return what a module gave for so many images as float32 [count, dim]."""
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != count:
        given = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UserError(f"the model returned {given} for {count} images; expected a tensor [{count}, dim]")
    return output.float().cpu().numpy()


def to_picture(pixels: np.ndarray) -> Image.Image:
    """Return pixels [height, width, channel] as an image of Pillow."""
    return Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)


def warn_of_small(prepared: PreparedImages, needed: int, name: str) -> None:
    """Warn where prepared images are smaller than a model or a transform of that name asks for."""
    side = prepared.how.short_side
    if side < needed:
        said = f"the images in {prepared.folder} have a shorter side of {side} pixels, and {name} asks for {needed}"
        remedy = f"set data.prepared=null, or prepare them into another folder with --short-side {needed}"
        warnings.warn(f"data.prepared: {said}; {remedy}", AurankWarning, stacklevel=3)


def crop_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return timm's settings for the option resize=crop, pad or squash; {} for crop, which leaves a model's own."""
    how = options.get("resize", "crop")
    if how not in CROP_MODES:
        raise UserError(f"resize={how}: expected one of {', '.join(CROP_MODES)}")
    return {} if how == "crop" else {"crop_mode": CROP_MODES[how], "crop_pct": 1.0}


def standard_transform(
    *,
    size: Any = 224,
    margin: Any = 256 / 224,
    mean: Any = None,
    std: Any = None,
    channels: int = 3,
    resize: str = "crop",
) -> Transform:
    """Return the usual evaluation transform, for models that bring none."""
    timm_data: Any = importlib.import_module("timm.data")
    usual = (timm_data.IMAGENET_DEFAULT_MEAN, timm_data.IMAGENET_DEFAULT_STD) if channels == 3 else ((0.5,), (0.5,))
    transform: Transform = timm_data.create_transform(
        input_size=(channels, *(size if isinstance(size, tuple) else (size, size))),
        mean=tuple(usual[0]) * (channels // len(usual[0])) if mean is None else (float(mean),) * channels,
        std=tuple(usual[1]) * (channels // len(usual[1])) if std is None else (float(std),) * channels,
        **{"crop_pct": 1 / margin, **crop_settings({"resize": resize})},
    )
    return transform
