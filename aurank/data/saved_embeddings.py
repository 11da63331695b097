"""Saved embeddings: the arrays of a file, checked, as the rows of a data set that trains a head without any image."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from aurank.arrays import load_arrays
from aurank.data.dataset import Batch, ImageDataset, Key
from aurank.data.manifest import Manifest
from aurank.data.readers.values import number_groups
from aurank.data.shards import PAIRS, read_saved
from aurank.data.sources import ImageSource
from aurank.data.transforms import Pipeline
from aurank.errors import UserError, refuse_first
from aurank.files import EXACT, checked, reading
from aurank.names import meant, nearest

_FLAGS = ("is_query", "is_gallery")
ARRAYS = (
    *("embeddings", "labels", "ids", "paths", "is_query", "is_gallery", "groups", "classes"),
    *("multi_label", "group_names", "splits", "super_labels", "made_by", *PAIRS),
)
"""Arrays of a file of saved embeddings; files of other programs lack all but the first two."""

# Of arrays that are not one value a row, and of texts: dimensions, kinds of NumPy, and words.
_FORMS = {
    "embeddings": (2, "fiu", "a matrix of numbers"),
    "paths": (1, "U", "one text a row"),
    "splits": (1, "U", "one text a row"),
    "is_query": (1, "biu", "one flag a row"),
    "is_gallery": (1, "biu", "one flag a row"),
    "classes": (1, "U", "one text a class"),
    "multi_label": (0, "b", "one flag"),
    "group_names": (1, "U", "one text a group"),
    "made_by": (0, "U", "one text"),
    **dict.fromkeys(PAIRS, (2, "iu", "pairs of rows, shape [pair, 2]")),
}


@dataclass(frozen=True)
class MadeBy:
    """The model that made saved embeddings: its name, and what else decides the rows, in words."""

    __pydantic_config__ = EXACT

    model: str
    weights_sha256: str
    preprocessing: str
    precision: str = ""

    @property
    def text(self) -> str:
        return json.dumps(vars(self))

    @staticmethod
    def parse(text: str, source: str) -> "MadeBy":
        """Return what `text` says; raise UserError, naming `source`, where it says nothing that is known."""
        with reading(source, "embeddings with made_by", remedy="leave it out, or embed the images again"):
            return checked(json.loads(text), MadeBy)


def read_arrays(path: Path, **columns: Path | None) -> dict[str, Any]:
    """Return the arrays of saved embeddings; `columns` are files of labels or splits that it lacks."""
    content = read_saved(path)
    for name, file in columns.items():
        if file is not None:
            arrays = load_arrays(file)
            if name not in arrays and len(arrays) != 1:
                raise UserError(f"{file} holds {', '.join(arrays) or 'nothing'}; expected one array, or {name!r}")
            content[name] = arrays.get(name, next(iter(arrays.values())))
    refuse_first(_problems(content), str(path))
    count = len(content["embeddings"])
    usual = {"ids": np.arange(count), "paths": np.array([""] * count), "groups": np.full(count, -1)}
    content = {**usual, **dict.fromkeys(_FLAGS, np.ones(count, dtype=bool)), **content}
    if content["groups"].dtype.kind in "fU":
        groups, names = number_groups(content["groups"].tolist())
        content |= {"groups": np.array(groups), "group_names": None if names is None else np.array(names)}
    return content | {name: content[name].astype(bool) for name in _FLAGS}


def _problems(content: Mapping[str, Any]) -> Iterator[str]:
    if odd := next((name for name in content if name not in ARRAYS), None):
        means = f"which means nothing here{meant(nearest(odd, ARRAYS))}; known are {', '.join(ARRAYS)}"
        yield f"holds an array {odd!r}, {means}"
    for name, remedy in (("embeddings", ""), ("labels", "; give them with --labels FILE.npy")):
        if name not in content:
            yield f"holds no array {name!r}, only {', '.join(content) or 'nothing'}{remedy}"
    count = content["embeddings"].shape[0] if content["embeddings"].ndim else 1
    for name, values in content.items():
        ndim, kinds, expected = _FORMS.get(name, (1, "", "one value a row"))
        is_of_rows = name not in ("classes", "multi_label", "group_names", "made_by", *PAIRS)
        is_odd = values.ndim != ndim or (is_of_rows and len(values) != count) or values.shape[1:] == (0,)
        if is_odd or (kinds and values.dtype.kind not in kinds):
            yield f"{name} has shape {values.shape}, {values.dtype}; expected {expected}, {count} rows in all arrays"
        if name in PAIRS and values.size and not (values.min() >= 0 and values.max() < count):
            yield f"{name} name rows {values.min()} to {values.max()}; expected rows from 0 to {count - 1}"
        if name in _FLAGS and not np.isin(values, (0, 1)).all():
            yield f"{name} must hold True or False, or 1 or 0, in each row"
    ids, first = np.unique(content.get("ids", []), return_index=True)
    if "ids" in content and len(ids) < count:
        again = content["ids"][np.setdiff1d(np.arange(count), first)[0]].item()
        yield f"ids name an item twice, {again!r}; give each item its own id"
    names = content.get("group_names", np.zeros(0))
    if "group_names" in content and not np.isin(content.get("groups", -1), np.arange(-1, len(names))).all():
        yield "group_names must be the names of the groups 0, 1, …, in their order; leave them out"
    if "classes" in content and not np.isin(content["labels"], np.arange(len(content["classes"]))).all():
        yield "classes must be the names of the labels 0, 1, …, in their order; leave them out"


class EmbeddingSource(ImageSource):
    def __init__(
        self, rows: Float32[np.ndarray, "row dim"], paths: Sequence[str], *, where: str, made_by: MadeBy | None = None
    ) -> None:
        self.rows, self.where, self.made_by = rows, where, made_by
        self.entries = {path: row for row, path in enumerate(paths)}

    def content(self, path: str) -> bytes:
        content: bytes = self.rows[self.entries[path]].tobytes()
        return content


class AsSaved(Pipeline):
    def prepare(self, image: np.ndarray) -> np.ndarray:
        return image


class EmbeddingDataset(ImageDataset):
    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest, AsSaved(1, 1), channels=1, cache_bytes=0)
        source = manifest.source
        assert isinstance(source, EmbeddingSource)
        self._position = np.array([source.entries[path] for path in manifest.paths], dtype=np.int64)
        self._rows = source.rows
        self._labels = torch.from_numpy(manifest.labels.copy())

    @property
    def cached_bytes(self) -> int:
        return 0 if isinstance(self._rows, np.memmap) else len(self) * self._rows.shape[1] * self._rows.itemsize

    def __getitems__(self, keys: Sequence[Key]) -> Batch:
        rows = np.array([key[0] if isinstance(key, tuple) else key for key in keys], dtype=np.int64)
        ids = torch.from_numpy(rows)
        return Batch(torch.from_numpy(self._rows[self._position[rows]]), self._labels[ids], ids)
