"""Searching an index of images with photos: what ``aurank search`` and ``aurank serve`` call."""

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from PIL import Image

from aurank.data.decode import MAX_PIXELS, decode, quiet_decoding, to_pixels
from aurank.data.sources import FolderSource, ImageSource
from aurank.embedding.index_folder import IndexedRows, Table, open_described, read_about, read_rows, verify
from aurank.embedding.stored_model import StoredModel, load_stored
from aurank.errors import UserError
from aurank.evaluation.engine.inputs import Embeddings
from aurank.evaluation.postprocessing import GallerySearch
from aurank.names import meant, nearest

Photo = Path | str | bytes | Image.Image | np.ndarray
"""A file, the bytes of one, an image of Pillow, or uint8 pixels [height, width, channel]."""


@dataclass(frozen=True)
class Hit:
    """One image that was found: its row in the index, its path and class, and its score; larger is closer.

    Example:
        >>> Hit(3, "shoes/a.jpg", "shoes", 0.87).class_name
        'shoes'
    """

    row: int
    path: str
    class_name: str
    score: float


class ImageIndex:
    """Images that can be searched: embeddings, a faiss index over them, paths, classes, and the model itself.

    Nothing here changes the index, and several threads may use it at once.

    Example:
        >>> import tempfile
        >>> from aurank.commands import build_index
        >>> from aurank.embedding import ImageSelection
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for colour in ("red", "green", "blue"):
        ...         Path(folder, "photos", colour).mkdir(parents=True)
        ...         Image.new("RGB", (8, 8), colour).save(f"{folder}/photos/{colour}/one.png")
        ...     photos = ImageSelection(f"folder:{folder}/photos")
        ...     _ = build_index("timm:test_vit,pretrained=false", photos, out=Path(folder, "index"))
        ...     index = ImageIndex.open(Path(folder, "index"))
        ...     found = index.search([Image.new("RGB", (8, 8), "green")], k=2)
        >>> len(index), found[0][0].path, round(found[0][0].score, 3)
        (3, 'green/one.png', 1.0)
    """

    def __init__(
        self,
        folder: Path,
        about: dict[str, Any],
        rows: IndexedRows,
        *,
        device: torch.device | None = None,
        allow_code: bool = False,
    ) -> None:
        self.folder, self.about, self.rows = folder, about, rows
        self.device, self.allow_code = device, allow_code
        self._sources: dict[int, ImageSource | None] = {}
        self._search = GallerySearch(rows.index, rows.embeddings, rows.searched, rows.processing)
        self._loading = Lock()

    @classmethod
    def open(cls, folder: Path | str, *, device: str | None = None, allow_code: bool = False) -> "ImageIndex":
        """Return the index in a folder; UserError unless every file of it is as it was written.

        Args:
            device: where faiss searches and the model runs; default: the CPU for the model, faiss as in `Index`.
            allow_code: whether a ``python:`` model may run.
        """
        folder = Path(folder)
        about = read_about(folder)
        try:
            rows = read_rows(folder, about, device=device)
        except UserError:
            if (again := read_about(folder)) == about:
                raise
            about, rows = again, read_rows(folder, again, device=device)  # it was changed while it was read
        chosen = None if device is None else torch.device(device)
        return cls(folder, about, rows, device=chosen, allow_code=allow_code)

    def __len__(self) -> int:
        return int(self.about["count"])

    @property
    def images(self) -> Table:
        """The images, row by row: columns "path", "class" ("" where unknown), "source" and "sha256" (of the file)."""
        return self.rows.images

    @cached_property
    def classes(self) -> list[str]:
        """The names of the classes, sorted."""
        return sorted({name for name in self.images["class"].tolist() if name})

    @cached_property
    def model(self) -> StoredModel:
        """The model, loaded when it is first needed; UserError unless it is the one that embedded the images."""
        record = self.about["model"]
        if record["file"] is not None:
            verify(self.folder, self.about, record["file"])
        return load_stored(self.folder, record, allow_code=self.allow_code)

    def load_model(self) -> StoredModel:
        """Return the model; of several threads one loads it."""
        with self._loading:
            return self.model

    def read_image(self, row: int, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
        """Return the pixels of an image, uint8 [height, width, channel]; UserError where it is gone or unreadable."""
        if not 0 <= row < len(self):
            raise UserError(f"the index holds images 0 to {len(self) - 1}; there is no image {row}")
        path = str(self.images["path"][row])
        source = self.source_of(row)
        if source is None:
            place = self.about["sources"][int(self.images["source"][row])]["place"]
            raise UserError(f"image {path!r} is gone: there is no {place} any more")
        with quiet_decoding():
            return decode(source, path, None, max_pixels=max_pixels)

    def source_of(self, row: int) -> ImageSource | None:
        """Return where the bytes of an image come from, None where that is there no more."""
        number = int(self.images["source"][row])
        if number not in self._sources:
            self._sources[number] = open_described(self.about["sources"][number])
        return self._sources[number]

    def embed(self, photos: Sequence[Photo], *, max_pixels: int = MAX_PIXELS) -> Float32[np.ndarray, "photo dim"]:
        """Return the embeddings of photos under the model's own preprocessing; UserError for one that is none."""
        model = self.load_model()
        with quiet_decoding():
            pixels = [_pixels(photo, place, model.channels, max_pixels) for place, photo in enumerate(photos)]
        return model.embed(pixels, device=self.device)

    def search(
        self,
        queries: Embeddings | Sequence[Photo],
        k: int = 10,
        *,
        threshold: float | None = None,
        classes: Collection[str] | None = None,
        exact: bool = False,
    ) -> list[list[Hit]]:
        """Return the images nearest to each query, best first.

        Args:
            queries: photos, or their embeddings as a matrix, one row a query.
            k: of a smaller index all are found.
            threshold: leave out what scores less.
            classes: find images of these classes only, by an exact search among them.
            exact: search exactly although the index is approximate.
        """
        rows = queries if _is_matrix(queries) else self.embed(list(queries))
        return self._hits(np.asarray(rows), None, k, threshold, classes, exact)

    def search_rows(
        self,
        rows: Sequence[int],
        k: int = 10,
        *,
        threshold: float | None = None,
        classes: Collection[str] | None = None,
        exact: bool = False,
    ) -> list[list[Hit]]:
        """Return the images nearest to images of the index, which do not find themselves."""
        chosen = np.array(rows, dtype=np.int64).reshape(-1)
        if len(wrong := chosen[(chosen < 0) | (chosen >= len(self))]):
            raise UserError(f"the index holds images 0 to {len(self) - 1}; there is no image {wrong[0]}")
        return self._hits(np.asarray(self.rows.embeddings[chosen]), chosen, k, threshold, classes, exact)

    def _hits(
        self,
        queries: np.ndarray,
        own: Int64[np.ndarray, " query"] | None,
        k: int,
        threshold: float | None,
        classes: Collection[str] | None,
        exact: bool,
    ) -> list[list[Hit]]:
        if k < 1:
            raise UserError(f"k must be 1 or more, got {k}")
        if threshold is not None and not np.isfinite(threshold):
            raise UserError(f"the threshold must be a number, got {threshold}")
        if not len(queries):
            return []
        among = None if classes is None else self._rows_of(classes)
        row, score = self._search.nearest(queries, k, own=own, among=among, exact=exact)
        return [self._listed(*one, threshold) for one in zip(row, score, strict=True)]

    def _listed(
        self, row: Int64[np.ndarray, " k"], score: Float64[np.ndarray, " k"], threshold: float | None
    ) -> list[Hit]:
        kept = (row >= 0) & (score >= (-np.inf if threshold is None else threshold))
        paths, names = (self.images[name][row[kept]].tolist() for name in ("path", "class"))
        return [Hit(*one) for one in zip(row[kept].tolist(), paths, names, score[kept].tolist(), strict=True)]

    def _rows_of(self, classes: Collection[str]) -> Int64[np.ndarray, " row"]:
        for name in classes:
            if name not in self.classes:
                known = f"it has {len(self.classes):,}" if self.classes else "its images have none"
                raise UserError(f"the index has no class {name!r}, {known}{meant(nearest(name, self.classes, most=3))}")
        return np.flatnonzero(np.isin(self.images["class"], list(classes)))


def _is_matrix(queries: Any) -> bool:
    return isinstance(queries, torch.Tensor) or (isinstance(queries, np.ndarray) and queries.ndim == 2)


class _OneFile:
    """The bytes of one photo as a source of images."""

    def __init__(self, content: bytes) -> None:
        self.where = "what was given"
        self.content = content

    def read_bytes(self, path: str) -> bytes:
        return self.content

    def exists(self, path: str) -> bool:
        return True

    def names(self) -> list[str]:
        return []


def _pixels(photo: Photo, place: int, channels: int, max_pixels: int) -> np.ndarray:
    """Return a photo as the model's channels want it, upright."""
    name = f"photo {place}"
    if isinstance(photo, Image.Image):
        try:
            return to_pixels(photo, channels)
        except OSError as error:
            raise UserError(f"{name} cannot be decoded: {error}") from error
    if isinstance(photo, bytes):
        return decode(_OneFile(photo), name, channels, max_pixels=max_pixels)
    if isinstance(photo, np.ndarray):
        content = io.BytesIO()
        np.save(content, photo, allow_pickle=False)
        return decode(_OneFile(content.getvalue()), name, channels, max_pixels=max_pixels)
    path = Path(photo)
    return decode(FolderSource(path.parent), path.name, channels, max_pixels=max_pixels)
