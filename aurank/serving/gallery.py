"""The gallery as it is shown: numbers, names without the folders of this machine, small pictures."""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import PureWindowsPath
from threading import Lock
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import Float32

from aurank.commands.galleries.search import Hit, ImageIndex
from aurank.errors import UserError
from aurank.names import meant, nearest
from aurank.reporting.pictures import thumbnail
from aurank.serving.schema import DEEPEST, ImagesAnswer, NamedClass, Neighbour, SearchAnswer, Shown, Window
from aurank.serving.uploads import Limits, Refused, decode_upload

SIDE = 256  # pixels of the longer side of a picture
_REMEMBERED = 256  # photos whose embeddings are kept, as their results are paged through

Key = TypeVar("Key")
Value = TypeVar("Value")


class Gallery:
    """What the server answers with. Its methods may be called by several threads.

    Args:
        index: what is searched.
        limits: of photos and of the memory for pictures.
    """

    def __init__(self, index: ImageIndex, limits: Limits) -> None:
        self.index, self.limits = index, limits
        self.names = [public_name(path) for path in index.images["path"].tolist()]
        self._classes = [_speakable(name) for name in index.images["class"].tolist()]
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(self._classes):
            if name:
                rows.setdefault(name, []).append(row)
        self._rows = {name: rows[name] for name in sorted(rows, key=_natural)}
        self._original: dict[str, list[str]] = {}  # names that are shown alike are one class here
        for name in index.classes:
            self._original.setdefault(_speakable(name), []).append(name)
        self._pictures = _Recent[int, tuple[str, bytes]](limits.thumbnail_bytes, lambda picture: len(picture[1]))
        self._embeddings = _Recent[bytes, Float32[np.ndarray, "1 dim"]](_REMEMBERED, lambda _: 1)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def model(self) -> str:
        """The name of the model, without folders of this machine."""
        return public_model(str(self.index.about["model"]["name"]))

    @property
    def about(self) -> str:
        """A line on what is searched."""
        return self.index.description.replace(str(self.index.about["model"]["name"]), self.model, 1)

    @property
    def score(self) -> str:
        """What scores are: cosine, dot or euclidean."""
        return str(self.index.about["distance"])

    @property
    def classes(self) -> list[NamedClass]:
        """Every class with its size, by name."""
        return [NamedClass(name=name, images=len(rows)) for name, rows in self._rows.items()]

    def images(self, window: Window) -> ImagesAnswer:
        """Return a page of the gallery, in its order."""
        total = self._total(window)
        rows = None if window.class_name is None else self._rows[window.class_name]
        places = range(window.offset, min(total, window.offset + window.limit))
        images = [self._shown(place if rows is None else rows[place]) for place in places]
        return ImagesAnswer(offset=window.offset, total=total, images=images)

    def near_row(self, row: int, window: Window) -> SearchAnswer:
        """Return the neighbours of an image of the gallery, without itself."""
        self.require(row)
        total = self._total(window) - (window.class_name in (None, self._classes[row]))
        found = self.index.search_rows([row], _depth(total, window), classes=self._chosen(window))[0]
        return self._answer(found, total, window, self._shown(row))

    def near_photo(self, content: bytes, window: Window) -> SearchAnswer:
        """Return the neighbours of an uploaded photo."""
        total, classes = self._total(window), self._chosen(window)
        key = hashlib.sha256(content).digest()
        try:
            if (embedding := self._embeddings.get(key)) is None:
                embedding = self.index.embed([decode_upload(content, self.limits.pixels)])
            found = self.index.search(embedding, _depth(total, window), classes=classes)[0]
        except UserError:  # its text names the model's file
            raise Refused(422, "the model makes no embedding of this photo that can be searched with") from None
        self._embeddings.put(key, embedding)
        return self._answer(found, total, window, None)

    def picture(self, row: int) -> tuple[str, bytes]:
        """Return the media type and the bytes of a small picture of an image."""
        self.require(row)
        if (kept := self._pictures.get(row)) is None:
            try:
                kept = thumbnail(self.index.read_image(row, on_white=True), SIDE)
            except UserError:  # its text names the folder
                raise Refused(404, f"image {row} ({self.names[row]}) is gone or cannot be decoded") from None
            self._pictures.put(row, kept)
        return kept

    def require(self, row: int) -> None:
        """Raise Refused unless the gallery has this row."""
        if row >= len(self):
            raise Refused(404, f"there is no image {row}; the gallery has 0 to {len(self) - 1}")

    def _total(self, window: Window) -> int:
        """Return how many images there are of the class asked for, or at all."""
        name = window.class_name
        if name is None:
            return len(self)
        if name not in self._rows:
            raise Refused(404, f"there is no class {name[:100]!r}{meant(nearest(name[:100], self._rows))}")
        return len(self._rows[name])

    def _chosen(self, window: Window) -> list[str] | None:
        return None if window.class_name is None else self._original[window.class_name]

    def _answer(self, found: Sequence[Hit], total: int, window: Window, query: Shown | None) -> SearchAnswer:
        listed = [
            Neighbour(**self._shown(hit.row).model_dump(), rank=rank, score=hit.score)
            for rank, hit in enumerate(found, start=1)
            if rank > window.offset
        ]
        # An approximate index may find fewer than there are.
        total = len(found) if len(found) < _depth(total, window) else min(DEEPEST, total)
        return SearchAnswer(query=query, score=self.score, offset=window.offset, total=total, neighbours=listed)

    def _shown(self, row: int) -> Shown:
        return Shown(row=row, name=self.names[row], class_name=self._classes[row] or None)


def _depth(total: int, window: Window) -> int:
    """Return how many neighbours to look for; an index is never asked for none."""
    return max(1, min(DEEPEST, total, window.offset + window.limit))


class _Recent(Generic[Key, Value]):
    """The values used last, up to a total size."""

    def __init__(self, most: int, size: Callable[[Value], int]) -> None:
        self._most, self._size, self._total = most, size, 0
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        with self._lock:
            if key not in self._values:  # else another thread was as quick
                self._values[key] = value
                self._total += self._size(value)
            while self._total > self._most and self._values:
                self._total -= self._size(self._values.popitem(last=False)[1])


def public_name(path: str) -> str:
    """Return a path inside the data set as it is; of one that leaves it, or starts at the root, only the last name."""
    windows = PureWindowsPath(path)
    if path.startswith(("/", "~")) or windows.drive or windows.root or ".." in windows.parts:
        path = windows.name
    return _speakable(path)


def public_model(name: str) -> str:
    """Return the name of a model without folders of this machine."""
    kind, _, rest = name.partition(":")
    what, *options = [rest] if kind == "aurank" else rest.split(",")  # a run has no options
    given = ("".join([*mark[:2], public_name(mark[2])]) for mark in (option.partition("=") for option in options))
    return ",".join([f"{kind}:{public_name(what)}", *given])


def _speakable(text: str) -> str:
    """Return text that can be sent: bytes of a file's name that are no UTF-8 become question marks."""
    return text.encode("utf-8", "replace").decode()


def _natural(name: str) -> list[tuple[int, str]]:
    """Return what sorts "class 9" before "class 10"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]{1,18})", name)]
