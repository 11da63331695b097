"""The images of a manifest, decoded once where they fit in memory, to batches."""

import dataclasses
import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int64, Shaped, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from aurank.data.decode import MAX_PIXELS, OR_SKIP, Pixels, crop, decode, quiet_decoding
from aurank.data.manifest import Manifest
from aurank.data.prepared import PreparedImages
from aurank.data.transforms import Pipeline
from aurank.errors import UserError

Key = int | np.integer | tuple[int, int, int]  # row, or (row, epoch, view)
_ParsedKey = tuple[int, int | None, int]  # row, epoch (None: not augmented) and view
Sample = tuple[Shaped[Tensor, "channel height width"], int, int]
_ESTIMATE_FROM = 32  # images whose prepared size decides whether all of them fit in memory
_ROWS_PER_TASK = 64


class Batch(NamedTuple):
    """Images with their labels and ids; an id is a row of the manifest.

    Images are uint8 pixels, or other things such as embeddings; `ImageDataset.to_input` makes of them what a model is
    given.

    Example:
        >>> pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
        >>> batch = Batch(pixels, label=torch.tensor([0, 1]), id=torch.tensor([5, 7]))
        >>> len(batch.id)
        2
    """

    image: Shaped[Tensor, "batch channel height width"]
    label: Int64[Tensor, " batch"]
    id: Int64[Tensor, " batch"]


def view_keys(rows: Iterable[int] | np.ndarray, epoch: int, views: int = 1) -> list[Key]:
    """Return the keys of so many augmented views of each row: view 0 of all rows, then view 1, and so on.

    A row that is there again has further views, so that no two are augmented alike.

    Example:
        >>> view_keys([4, 2], epoch=7, views=2)
        [(4, 7, 0), (2, 7, 0), (4, 7, 1), (2, 7, 1)]
        >>> view_keys([4, 2, 4], epoch=7)
        [(4, 7, 0), (2, 7, 0), (4, 7, 1)]
    """
    counts: Counter[int] = Counter()
    keys: list[Key] = []
    for row in [int(row) for row in rows] * views:
        keys.append((row, epoch, counts[row]))
        counts[row] += 1
    return keys


def with_own_labels(manifest: Manifest) -> Manifest:
    labels, classes = np.arange(len(manifest)), manifest.paths
    return dataclasses.replace(manifest, labels=labels, classes=classes, class_ids=None, multi_label=False)


class ImageDataset(Dataset[Sample]):
    """The images of a manifest as a model sees them, but for `to_input`, which is left to the device of the model.

    An item is asked for by (row, epoch, view), and is then augmented as (seed, row, epoch, view) say and nothing else,
    or by its row alone, without augmentation. `dataset.__getitems__(keys)` makes a whole Batch.

    Args:
        manifest: only its rows are ever read; use `manifest.split("train")`.
        pipeline: a transform of the same number of channels.
        channels: 1 for grey, 3 for RGB, 4 for RGBA; more with .npy files.
        seed: of the augmentation.
        on_error: "raise" a UserError naming an image that cannot be read, or "skip" it: batches then lack it, and its
            path is in `skipped`.
        cache_bytes: images are decoded and prepared once, here, with threads, when all of them take no more than this;
            otherwise each time they are asked for. 0 keeps nothing.
        max_pixels: an image of more counts as one that cannot be read.
        prepared: where the images are kept decoded and resized; None reads them from the manifest's source.
        reduced: decode JPEGs at a fraction of their size where that is enough for the pipeline: faster, with pixels
            that differ by a level or two of 255.

    Example:
        >>> from aurank.data import READERS, TRANSFORMS
        >>> digits = READERS["digits"](None).split("train")
        >>> image, label, row = ImageDataset(digits, TRANSFORMS["resize"](16, 1), channels=1)[3]
        >>> image.shape, image.dtype, digits.classes[label], row
        (torch.Size([1, 16, 16]), torch.uint8, '3', 3)
    """

    def __init__(
        self,
        manifest: Manifest,
        pipeline: Pipeline,
        *,
        channels: int,
        seed: int = 0,
        on_error: str = "raise",
        cache_bytes: int = 2**30,
        max_pixels: int = MAX_PIXELS,
        reduced: bool = False,
        prepared: PreparedImages | None = None,
    ) -> None:
        self.manifest, self.pipeline, self.channels, self.seed = manifest, pipeline, channels, seed
        self.on_error, self.max_pixels = on_error, max_pixels
        self.prepared = None if prepared is None else prepared.rows_of(manifest, channels, on_error=on_error)
        self._least_side = pipeline.least_decoded_side if reduced else None
        # Shared memory, so that what a worker skips is counted here too.
        self._unreadable = torch.zeros(len(manifest), dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call]
        self._cache = self._fill_cache(cache_bytes) if cache_bytes > 0 else None

    @property
    def made_of(self) -> str:
        """Words for how the images were prepared, which decides pixels too; "" of originals."""
        return "" if self.prepared is None else f" of prepared images ({self.prepared.how})"

    def __len__(self) -> int:
        return len(self.manifest)

    @property
    def cached_bytes(self) -> int:
        return sum(image.nbytes for image in self._cache or () if image is not None)

    @property
    def skipped(self) -> list[str]:
        """Paths of the images found unreadable so far, by any worker, when `on_error` is "skip"."""
        return [self.manifest.paths[row] for row in torch.nonzero(self._unreadable).flatten().tolist()]

    def leave_out(self, rows: Int64[np.ndarray, " row"]) -> None:
        self._unreadable[torch.from_numpy(rows)] = True

    def __getitem__(self, key: Key) -> Sample:
        """Return image, label and id; IndexError where batches skip it."""
        batch = self.__getitems__([key])
        return batch.image[0], int(self.manifest.labels[batch.id[0]]), int(batch.id[0])

    def __getitems__(self, keys: Sequence[Key]) -> Batch:
        parsed = [_parse(key) for key in keys]
        images = np.empty((len(parsed), *self.pipeline.size, self.channels), dtype=np.uint8)
        is_there = self._write(parsed, images)
        if not is_there.all():
            images = images[is_there]
        rows = np.array([row for row, _, _ in parsed], dtype=np.int64)[is_there]
        labels = torch.from_numpy(self.manifest.labels_of(rows))
        return Batch(torch.from_numpy(images).permute(0, 3, 1, 2), labels, torch.from_numpy(rows))

    def to_input(self, images: Shaped[Tensor, "batch ..."]) -> Tensor:
        """Return what a model is given of a batch's images, on their device: pixels normalised, others as they are."""
        return self.pipeline.normalise(images) if images.dtype == torch.uint8 else images

    def _write(
        self, keys: Sequence[_ParsedKey], views: UInt8[np.ndarray, "key height width channel"]
    ) -> Bool[np.ndarray, " key"]:
        by_row: dict[int, list[int]] = defaultdict(list)
        for number, (row, _, _) in enumerate(keys):
            by_row[row].append(number)
        is_there = np.zeros(len(keys), dtype=np.bool_)
        seeds = [
            None
            if epoch is None
            else int(np.random.SeedSequence([self.seed, row, epoch, view]).generate_state(1, np.uint64)[0])
            for row, epoch, view in keys
        ]
        # Images that are held are changed all at once; others come and go one by one, since they may be large.
        portions = [list(by_row)] if self._cache is not None else [[row] for row in by_row]
        with quiet_decoding() if self._cache is None else nullcontext():
            for portion in portions:
                images, numbers = list[Pixels](), list[int]()
                for row in portion:
                    is_skipped = self.on_error == "skip" and bool(self._unreadable[row])
                    prepared = None if is_skipped else self._cache[row] if self._cache else self._read(row)
                    if prepared is not None:
                        images += [prepared] * len(by_row[row])
                        numbers += by_row[row]
                is_there[numbers] = True
                try:
                    self.pipeline.augment_all(images, [seeds[key] for key in numbers], [views[key] for key in numbers])
                    continue
                except UserError:  # of one of them: which one?
                    pass
                for image, number in zip(images, numbers, strict=True):
                    try:
                        views[number] = self.pipeline.augment(image, seeds[number])
                    except UserError as error:
                        row = keys[number][0]
                        if self.on_error == "raise":
                            raise UserError(f"image {self.manifest.paths[row]!r}: {error}{OR_SKIP}") from error
                        self._unreadable[row], is_there[by_row[row]] = True, False
        return is_there

    def _read(self, row: int) -> Pixels | None:
        path, boxes = self.manifest.paths[row], self.manifest.boxes
        box = None if boxes is None or boxes[row, 0] < 0 else boxes[row].tolist()
        least = self._least_side if box is None else None
        try:
            if self.prepared is not None:
                image = self.prepared.read(row)
            else:
                image = decode(self.manifest.source, path, self.channels, max_pixels=self.max_pixels, least_side=least)
                image = image if box is None else crop(image, box, path)
        except UserError:
            if self.on_error == "raise":
                raise
            self._unreadable[row] = True
            return None
        return self.pipeline.prepare(image)

    def _fill_cache(self, most: int) -> list[Pixels | None] | None:
        count = len(self.manifest)
        sample = np.unique(np.linspace(0, count - 1, _ESTIMATE_FROM, dtype=np.int64)).tolist() if count else []
        with quiet_decoding():
            sizes = [image.nbytes for image in map(self._read, sample) if image is not None]
            if sizes and sum(sizes) / len(sizes) * count > most:
                return None
            tasks = [range(count)[start : start + _ROWS_PER_TASK] for start in range(0, count, _ROWS_PER_TASK)]
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
                read = pool.map(lambda rows: list(map(self._read, rows)), tasks)
                images = list(itertools.chain.from_iterable(read))
        if count and all(image is None for image in images):
            raise UserError(
                f"none of the {count} images of {self.manifest.name} in {self.manifest.source.where} can be read "
                f"(first: {self.manifest.paths[0]!r}); data.on_error=raise shows why"
            )
        return images


def _parse(key: Key) -> _ParsedKey:
    return key if isinstance(key, tuple) else (int(key), None, 0)
