"""One model of any source: a network, how images or texts are shown to it, and where it came from."""

import importlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from aurank.data import Batch, ImageDataset, Manifest, Pipeline
from aurank.data.dataset import Key
from aurank.data.decode import MAX_PIXELS, Pixels, quiet_decoding
from aurank.data.photos import Photo, PhotoFile, read_photo
from aurank.data.prepared import PreparedImages
from aurank.data.saved_embeddings import AsSaved
from aurank.data.transforms.standard import CROP_MODES
from aurank.errors import AurankWarning, UserError
from aurank.lazy import import_library, imported
from aurank.names import meant, nearest

Transform = Callable[[Image.Image], Tensor]
Tokenise = Callable[[Sequence[str]], Tensor]
"""Texts to int64 tokens [text, length], 0 where there is none."""
TextParts = tuple[nn.Module, Tokenise]
"""A text model: maps the tokens that it expects, [text, length], to features [text, width]."""
_PHOTO = (str, Path, bytes, Image.Image, np.ndarray, PhotoFile)
# Arguments of `encode` in sentence-transformers and mteb that change nothing for images.
_FURTHER = {"show_progress_bar", "convert_to_numpy", "precision", "prompt", "prompt_name", "truncate_dim"}
_FURTHER |= {"task_metadata", "hf_split", "hf_subset", "prompt_type"}


@dataclass(frozen=True, eq=False)
class ImageModel:
    """A model with the preprocessing that it expects.

    Attributes:
        module: maps a stack of what `transform` returns to embeddings [batch, dim].
        transform: takes an upright 8-bit image of `channels` channels; a Pipeline for a model that was trained here.
        description: all that decides an embedding beside the weights: name, options, version of the library, transform.
        notes: what was taken of a file of weights.
        config: the configuration of a model that was trained here.
        origin: the name that builds it again, where that is not its own name.
        load_text: loads the text tower of the same space; None for a model of images alone.

    Example:
        >>> from aurank.models.adapters.by_name import load_model
        >>> model = load_model("timm:test_resnet,pretrained=false")
        >>> photos = [Image.new("RGB", (40, 30)), np.zeros((30, 40, 3), np.uint8)]  # or paths
        >>> model.encode(photos).shape, model.encode(photos[0]).shape
        ((2, 96), (96,))
    """

    name: str
    module: nn.Module
    transform: Transform | Pipeline
    description: str
    channels: int = 3
    notes: tuple[str, ...] = ()
    config: Any = None
    origin: str = ""
    load_text: Callable[[], TextParts] | None = None
    mteb_model_meta = None  # mteb then names the model itself

    @property
    def preprocessing(self) -> str:
        """How images are shown to it, in words that another version of a library changes only if it does otherwise."""
        if (self.origin or self.name).partition(":")[0] != "python":
            return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self.transform))
        return " ".join([*self.description.split(" ")[:1], *self.description.split(" ")[2:]])  # without the version

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
        return torch.stack(shown) if shown else torch.empty(0, self.channels, 1, 1)

    @overload
    def encode(
        self, images: Photo | Iterable[Any], batch_size: int = 64, *, convert_to_tensor: Literal[True], **further: Any
    ) -> Tensor: ...

    @overload
    def encode(self, images: Photo | Iterable[Any], batch_size: int = 64, **further: Any) -> np.ndarray: ...

    @torch.inference_mode()
    def encode(
        self,
        images: Photo | Iterable[Any],
        batch_size: int = 64,
        *,
        progress: bool = False,
        normalize_embeddings: bool = False,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        max_pixels: int = MAX_PIXELS,
        **further: Any,
    ) -> np.ndarray | Tensor:
        """Return the embeddings of images, float32 [image, dim]; of a single image float32 [dim].

        Args:
            images: paths, images of Pillow, uint8 arrays [height, width(, channel)] or the bytes of files, in any
                iterable, or one of these; or mteb's batches, mappings whose "image" is a list.
            batch_size: images embedded at once; no more of them are held in memory.
            progress: show a bar.
            normalize_embeddings: bring every row to length 1; otherwise rows are as the module gives them.
            convert_to_tensor: return a Tensor on the CPU.
            device: move the module there first; default: where it is.
            max_pixels: a larger image is refused.
            further: what else sentence-transformers and mteb hand over.

        Raises:
            UserError: names an image that cannot be read.
        """
        is_single = isinstance(images, _PHOTO) and getattr(images, "ndim", 0) < 4
        for name in further.keys() - _FURTHER:
            names = (*_FURTHER, "batch_size", "progress", "normalize_embeddings", "device", "max_pixels")
            raise TypeError(f"encode() takes no argument {name!r}{meant(nearest(name, names))}")
        if device is not None:
            self.module.to(device)
        on_device = next((parameter.device for parameter in self.module.parameters()), torch.device(device or "cpu"))
        every: Any = [images] if is_single else images
        total = len(every) if isinstance(every, Sequence | np.ndarray) else None
        # A batch of mteb's loader is a mapping of several images.
        photos = enumerate(
            photo for each in every for photo in (each["image"] if isinstance(each, Mapping) else [each])
        )
        parts = [np.empty((0, 0), np.float32)]
        bar: Any = None
        if progress or further.get("show_progress_bar"):
            bar = import_library("tqdm.auto", "progress").tqdm(total=total, unit="image")
        training = self.module.training
        self.module.eval()
        try:
            with quiet_decoding():
                while numbered := list(islice(photos, batch_size)):
                    batch = self.stack([self._read(photo, number, max_pixels) for number, photo in numbered])
                    parts.append(as_embeddings(self.module(batch.to(on_device)), len(numbered)))
                    if bar is not None:
                        bar.update(len(numbered))
        finally:
            self.module.train(training)
            if bar is not None:
                bar.close()
        rows = np.concatenate(parts[1:] or parts)
        rows = normalize(torch.from_numpy(rows)).numpy() if normalize_embeddings else rows
        rows = rows[0] if is_single else rows
        return torch.from_numpy(rows) if convert_to_tensor else rows

    @cached_property
    def text(self) -> TextParts:
        """The text tower, loaded when first asked for; UserError for a model that has none."""
        if self.load_text is None:
            raise UserError(f"{self.name} has no text tower for words: open_clip, transformers and model.text have one")
        return self.load_text()

    @torch.inference_mode()
    def encode_texts(self, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        """Return the embeddings of texts, float32 [text, dim], which are compared with those of images.

        A text that is longer than the model's context loses its end, as the model's own tokeniser cuts it. UserError
        for a model without a text tower, or where its tokeniser cannot be had.
        """
        module, tokenise = self.text
        device = next(self.module.parameters()).device
        module.to(device).eval()
        batches = [texts[start : start + batch_size] for start in range(0, len(texts), batch_size)]
        parts = [module(tokenise(batch).to(device)).float().cpu().numpy() for batch in batches]
        return np.concatenate(parts or [np.empty((0, 0), np.float32)])

    def _read(self, photo: Any, number: int, max_pixels: int) -> Pixels:
        if not isinstance(photo, _PHOTO):
            expected = "expected a path, an image of Pillow, a uint8 array [height, width, channel] or a file's bytes"
            raise UserError(f"images[{number}]: {expected}, got {type(photo).__name__}")
        try:
            return read_photo(photo, self.channels, max_pixels=max_pixels)
        except UserError as error:
            if isinstance(photo, str | Path | PhotoFile):  # whose name is in the message
                raise
            raise UserError(f"images[{number}]: {error}") from None

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the cosines [row, other row] of two sets of embeddings, as sentence-transformers and mteb ask."""
        left, right = (normalize(torch.as_tensor(rows).float(), dim=-1) for rows in (embeddings1, embeddings2))
        return left @ right.T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Return the cosine of each row with the row of the same number in the other set, as mteb asks."""
        return cosine_similarity(torch.as_tensor(embeddings1).float(), torch.as_tensor(embeddings2).float(), dim=-1)

    # Written by rooms that know models, and reached from here.

    def card(self, *, licence: str | None = None) -> str:
        """Return the text of a model card; `licence`: of this model, as hubs name it, such as mit."""
        text: str = imported("aurank.exporting.card:write_model_card")(self, licence)
        return text

    def save(self, folder: Path | str, *, licence: str | None = None) -> None:
        """Write a folder that `aurank.load` makes the same model of: weights, how to build it, and a card.

        Args:
            folder: a new one, or one that holds a saved model, which is replaced.
            licence: for the card, as hubs name it, such as mit.

        Raises:
            UserError: the folder holds something else.
        """
        imported("aurank.exporting.saved:save_model")(self, folder, licence=licence)

    def push_to_hub(self, repo_id: str, *, licence: str | None = None, **options: Any) -> str:
        """Save the model into a repository of the Hugging Face hub, which is made if needed; return the commit's URL.

        Args:
            repo_id: OWNER/NAME; `aurank.load("hf-hub:OWNER/NAME")` then loads it.
            licence: for the card, as hubs name it, such as mit.
            options: private, token, revision, commit_message.
        """
        url: str = imported("aurank.exporting.saved:push_to_hub")(self, repo_id, licence=licence, **options)
        return url


class ModelImages(ImageDataset):
    def __init__(
        self, manifest: Manifest, model: ImageModel, *, prepared: PreparedImages | None = None, **how: Any
    ) -> None:
        as_decoded = AsSaved(1, model.channels)  # all that follows is another library's transform
        super().__init__(manifest, as_decoded, channels=model.channels, cache_bytes=0, prepared=prepared, **how)
        self.model = model
        if prepared is not None:
            side = prepared.how.short_side
            shape = model.transform(to_picture(np.zeros((side, side, model.channels), np.uint8))).shape
            warn_of_small(prepared, max(shape[-2:]), model.name)

    def to_input(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def __getitems__(self, keys: Sequence[Key]) -> Batch:
        rows: list[int] = []

        def read() -> Iterator[np.ndarray]:
            for key in keys:
                row = int(key[0] if isinstance(key, tuple) else key)
                if (pixels := self._read(row)) is not None:
                    rows.append(row)
                    yield pixels

        with quiet_decoding():
            images = self.model.stack(read())
        return Batch(
            image=images, label=torch.from_numpy(self.manifest.labels[rows]), id=torch.tensor(rows, dtype=torch.int64)
        )


def require_vectors(output: Any, count: int) -> Tensor:
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != count:
        returned = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        expected = f"expected a tensor [{count}, dim]; use a model that gives one vector for each image"
        raise UserError(f"the model returned {returned} for {count} images; {expected}")
    return output


def as_embeddings(output: Any, count: int) -> np.ndarray:
    return require_vectors(output, count).float().cpu().numpy()


def to_picture(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)


def warn_of_small(prepared: PreparedImages, needed: int, name: str) -> None:
    """Warn where a model enlarges prepared images: they were prepared for another one."""
    side = prepared.how.short_side
    if side < needed:
        message = f"the images in {prepared.folder} have a shorter side of {side} pixels, and {name} asks for {needed}"
        remedy = f"set data.prepared=null, or prepare them into another folder with --short-side {needed}"
        warnings.warn(f"data.prepared: {message}; {remedy}", AurankWarning, stacklevel=3)


def crop_settings(options: Mapping[str, Any]) -> dict[str, Any]:
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
    is_raw: bool = False,
) -> Transform:
    timm_data: Any = importlib.import_module("timm.data")
    usual = (timm_data.IMAGENET_DEFAULT_MEAN, timm_data.IMAGENET_DEFAULT_STD) if channels == 3 else ((0.5,), (0.5,))
    transform: Transform = timm_data.create_transform(
        input_size=(channels, *(size if isinstance(size, tuple) else (size, size))),
        mean=tuple(usual[0]) * (channels // len(usual[0])) if mean is None else (float(mean),) * channels,
        std=tuple(usual[1]) * (channels // len(usual[1])) if std is None else (float(std),) * channels,
        normalize=not is_raw,
        **{"crop_pct": 1 / margin, **crop_settings({"resize": resize})},
    )
    return transform
