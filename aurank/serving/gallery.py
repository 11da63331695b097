"""The gallery as it is shown: rows, names without the folders of this machine, small pictures."""

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import PureWindowsPath
from typing import Annotated

import numpy as np
from pydantic import Field
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from aurank.commands.galleries.search import ImageIndex, mixed_query
from aurank.errors import UserError
from aurank.models import explain
from aurank.names import meant, nearest
from aurank.reporting.pictures import heat_maps, thumbnail
from aurank.serving.uploads import DEEPEST, PhotoSearch, RowSearch, Window, decode_upload

SIDE = 256  # pixels of the longer side of a picture
_PICTURES, _QUERIES = 2048, 256  # so many pictures, and embeddings of queries, of the last requests are kept

# Written as a call, for the key "class".
Shown = TypedDict("Shown", {"row": int, "name": str, "class": str | None})


class Neighbour(Shown):
    rank: Annotated[int, Field(description="1 is the nearest, of the class if one was asked for.")]
    score: Annotated[float, Field(description="Larger is closer.")]


class ClassSize(TypedDict):
    name: str
    images: int


class ImagePage(TypedDict):
    offset: int
    total: int
    images: list[Shown]


class SearchResult(TypedDict):
    query: Annotated[Shown | None, Field(description="The image of the gallery; null for a photo or words alone.")]
    score: Annotated[str, Field(description="cosine, dot or euclidean (minus the squared distance).")]
    offset: int
    total: Annotated[int, Field(description=f"How many can be paged through: {DEEPEST:,} at most.")]
    neighbours: list[Neighbour]


class Reason(TypedDict):
    text: str
    pictures: Annotated[list[str], Field(description="The query and the image with heat maps, as data URLs.")]


class Gallery:
    def __init__(self, index: ImageIndex, max_pixels: int) -> None:
        self.index, self.max_pixels = index, max_pixels
        images, self._ids = index.images, index.rows.ids.tolist()  # of Milvus the names alone are in memory
        self._row_of = {number: row for row, number in enumerate(self._ids)}
        self.names = [public_name(path) for path in images["path"].tolist()]
        self._index_classes = images["class"].tolist()
        self._classes = [_speakable(name) for name in self._index_classes]
        self._rows: dict[str, list[int]] = {}
        for row, name in enumerate(self._classes):
            if name:
                self._rows.setdefault(name, []).append(row)
        # "class 9" comes before "class 10".
        names = sorted(self._rows, key=lambda name: re.sub("[0-9]+", lambda number: number[0].zfill(18), name))
        self.classes: list[ClassSize] = [{"name": name, "images": len(self._rows[name])} for name in names]
        model = str(index.about["model"]["name"])
        kind, _, network = model.partition(":")
        if kind != "aurank":  # a run has no options
            network = network.partition(",")[0]
        self.score, self.model = str(index.about["distance"]), f"{kind}:{public_name(network)}"
        self.description = index.description.replace(model, self.model, 1)
        self.version = hashlib.sha256(json.dumps(index.about, sort_keys=True).encode()).hexdigest()[:16]
        self._embeddings: dict[tuple[int | None, str, bytes], np.ndarray] = {}
        self.takes_texts = False
        with suppress(UserError):
            self.takes_texts = bool(index.load_model().text) and self.score != "euclidean"
        self._thumbnail = lru_cache(_PICTURES)(
            lambda row: thumbnail(index.read_image(self._ids[row], on_white=True), SIDE)
        )

    def images(self, window: Window) -> ImagePage:
        rows = self._rows_of(window.class_name)
        images = [self._shown(row) for row in rows[window.offset : window.offset + window.limit]]
        return {"offset": window.offset, "total": len(rows), "images": images}

    def search(self, query: RowSearch | PhotoSearch) -> SearchResult:
        row = query.row if isinstance(query, RowSearch) else None
        if row is not None:
            self.require(row)
            if not query.text:
                return self._neighbours(query, row)
        key = row, query.text, hashlib.sha256(query.photo if isinstance(query, PhotoSearch) else b"").digest()
        try:
            if (embedding := self._embeddings.get(key)) is None:
                embedding = self._embed(query)
            neighbours = self._neighbours(query, embedding)
        except UserError:  # its text names the model's file
            raise HTTPException(422, "the model makes no embedding of this query that can be searched with") from None
        self._embeddings[key] = embedding  # its results are paged through
        for oldest in list(self._embeddings)[:-_QUERIES]:
            self._embeddings.pop(oldest, None)  # another thread may have been as quick
        return neighbours if row is None else {**neighbours, "query": self._shown(row)}

    def _embed(self, query: RowSearch | PhotoSearch) -> np.ndarray:
        parts = []
        if isinstance(query, PhotoSearch):
            parts.append(self.index.embed([decode_upload(query.photo, self.max_pixels)]))
        elif query.row is not None:
            parts.append(np.asarray(self.index.rows.embeddings[np.array([self._ids[query.row]])]))
        if query.text:
            parts.append(self.index.embed_texts([query.text]))
        if not parts:
            raise HTTPException(422, "name the row of an image, or a text")
        return mixed_query(np.concatenate(parts)) if query.text else parts[0]

    def explain(self, query: RowSearch | PhotoSearch, row: int) -> Reason:
        number = query.row if isinstance(query, RowSearch) else 0
        if number is None or query.text:
            raise HTTPException(422, "a photo or an image is explained, no words")
        self.require(max(row, number))
        read, size = self.index.read_image, self.max_pixels
        try:
            photo = read(self._ids[number]) if isinstance(query, RowSearch) else decode_upload(query.photo, size)
            reason = explain(self.index.load_model(), photo, [read(self._ids[row])])[0]
        except UserError:  # its text names files
            raise HTTPException(422, "an image is gone, or the model has no cells to explain a cosine by") from None
        return {"text": str(reason), "pictures": heat_maps(reason)}

    def picture(self, row: int) -> tuple[str, bytes]:
        try:
            return self._thumbnail(row)
        except UserError:  # its text names the folder
            raise HTTPException(404, f"image {row} ({self.names[row]}) is gone or cannot be decoded") from None

    def require(self, row: int) -> None:
        if row >= len(self.names):
            raise HTTPException(404, f"there is no image {row}; the gallery has 0 to {len(self.names) - 1}")

    def _rows_of(self, name: str | None) -> Sequence[int]:
        if name is None:
            return range(len(self.names))
        if name not in self._rows:
            raise HTTPException(404, f"there is no class {name[:100]!r}{meant(nearest(name[:100], self._rows))}")
        return self._rows[name]

    def _neighbours(self, window: Window, query: int | np.ndarray) -> SearchResult:
        name, row = window.class_name, query if isinstance(query, int) else None
        rows = self._rows_of(name)
        classes = None if name is None else [self._index_classes[rows[0]]]
        total = len(rows) - (row is not None and name in (None, self._classes[row]))
        depth = max(1, min(DEEPEST, total, window.offset + window.limit))  # an index is never asked for none
        if isinstance(query, int):
            hits = self.index.search_rows([self._ids[query]], depth, classes=classes)[0]
        else:
            hits = self.index.search(query, depth, classes=classes)[0]
        return {
            "query": None if row is None else self._shown(row),
            "score": self.score,
            "offset": window.offset,
            # An approximate index may find fewer than there are.
            "total": len(hits) if len(hits) < depth else min(DEEPEST, total),
            "neighbours": [
                {**self._shown(self._row_of[hit.row]), "rank": rank, "score": hit.score}
                for rank, hit in enumerate(hits, start=1)
                if rank > window.offset and hit.row in self._row_of  # an image may be new in Milvus
            ],
        }

    def _shown(self, row: int) -> Shown:
        return {"row": row, "name": self.names[row], "class": self._classes[row] or None}


def public_name(path: str) -> str:
    """Return a path inside the data set as it is; of one that leaves it, or starts at the root, only the last name."""
    windows = PureWindowsPath(path)
    if path.startswith(("/", "~")) or windows.drive or windows.root or ".." in windows.parts:
        path = windows.name
    return _speakable(path)


def _speakable(text: str) -> str:  # bytes of a file's name that are no UTF-8 become question marks
    return text.encode("utf-8", "replace").decode()
