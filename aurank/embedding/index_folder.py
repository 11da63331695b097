"""An image index: a folder whose `index.json` names the other files with their checksums, and is replaced last."""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64
from typing_extensions import TypedDict

from aurank.arrays import Rows, load_arrays
from aurank.data import READERS, FolderSource, ImageSource, ZipSource, open_source
from aurank.data.shards import storable_texts
from aurank.data.sources import PartsSource
from aurank.embedding.locations import ABOUT, KEPT, require_index
from aurank.embedding.stored.trained_model import store_model
from aurank.errors import UserError
from aurank.evaluation.index.neighbours import Index
from aurank.evaluation.postprocessing import GallerySearch, PostProcessing, by_products, processed_gallery
from aurank.files import content_sha256, file_sha256, read_record, reading, replacing, write_text
from aurank.models.image_model import ImageModel

FORMAT, VERSION = "aurank.image_index", 2
_EMBEDDINGS, _VECTORS, _IMAGES = "embeddings.npy", "vectors.npy", "images.parquet"
_FAISS, _STEPS = "index.faiss", "postprocessing.safetensors"
_VERIFIED = (_FAISS, _STEPS, KEPT)  # files that verify their own checksum when read
_WHAT, _REMEDY = "an image index", "build the index again"
TRIED = 1000  # images looked for at a new root, to verify it
EXACT = "Flat"
RECALL_AT = (1, 10)
RECALL_QUERIES = 1000  # most images searched to measure the recall

Ids = Int64[np.ndarray, " row"]
Table = dict[str, np.ndarray]
"""Columns of the images: "path" and "class" (text), "source" (its number among the sources), "sha256" (of the file)."""
NewImages = tuple[Table, np.ndarray] | None  # images to add to an index, and their embeddings


class SourceRecord(TypedDict):
    """Where images are: a folder, the folder `prefix` of a zip archive, or the memory of a process that ended."""

    kind: Literal["folder", "zip", "reader", "memory"]  # for a reader, `prefix` holds its name and parameters
    place: str
    prefix: str


class GalleryRecord(TypedDict):
    """What an index says of itself, in a folder or in a collection."""

    format: str
    version: int
    aurank: str
    revision: int
    sources: list[SourceRecord]
    distance: Literal["cosine", "dot", "euclidean"]
    dim: int
    factory: str
    recall: dict[str, float] | None
    seed: int


class _About(GalleryRecord):
    rows: str
    files: dict[str, str]
    model: dict[Literal["name", "folder"], str]
    count: int
    postprocessing: str | None
    checksum: str


@dataclass(frozen=True, eq=False)
class IndexedRows:
    """The rows of an index: a table of the images, their embeddings, and what is searched."""

    images: Table
    embeddings: Rows
    index: Index
    searched: Rows  # embeddings after post-processing
    processing: PostProcessing | None = None

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def ids(self) -> Ids:
        return np.arange(len(self))

    def take(self, rows: Sequence[int] | Ids) -> Table:
        return {name: values[np.asarray(rows, np.int64)] for name, values in self.images.items()}

    def where(self, column: str, values: Collection[Any], most: int | None = None) -> Ids:
        return np.flatnonzero(np.isin(self.images[column], list(values)))[:most]

    def lookup(self, source: int, paths: Sequence[str]) -> dict[str, tuple[int, str, str]]:
        """Return the row of each path of a source that is there, the SHA-256 of its file, and its class."""
        rows = self.where("source", [source])
        names, *columns = (self.images[name][rows].tolist() for name in ("path", "sha256", "class"))
        by_path = dict(zip(names, zip(rows.tolist(), *columns, strict=True), strict=True))
        return {path: by_path[path] for path in paths if path in by_path}

    def nearest(
        self, queries: np.ndarray, k: int, *, classes: Collection[str] | None = None, **how: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        among = None if classes is None else self.where("class", classes)
        return self.search.nearest(queries, k, among=among, **how)

    @cached_property
    def search(self) -> GallerySearch:
        return GallerySearch(self.index, self.embeddings, self.searched, self.processing)

    def change(self, folder: Path, about: dict[str, Any], gone: Ids, new: NewImages) -> int:
        """Take images out and put others in; return how many there are then."""
        if not len(gone) and new is None:
            _write_about(folder, about)
            return len(self)
        stays = np.ones(len(self), bool)
        stays[gone] = False
        table, added = new or (self.take(gone[:0]), self.embeddings[:0])
        rows = change_rows(self, stays, table, np.asarray(added))
        rows.write(folder, about)
        return len(rows)

    def write(self, folder: Path, about: dict[str, Any], model: ImageModel | None = None) -> dict[str, Any]:
        """Write the index with what it finds, if it is not exact; return what index.json says."""
        import pyarrow
        import pyarrow.parquet

        about = {**about, "factory": self.index.factory, "recall": None, "postprocessing": None}
        if self.index.factory != EXACT:
            search = GallerySearch(self.index, self.searched, self.searched)
            about["recall"] = measured_recall(search, self.searched, self.ids, seed=about["seed"])
        part, model_part = (folder / f"{kind}-{uuid.uuid4().hex[:12]}" for kind in ("rows", "model"))
        try:
            if model is not None:
                store_model(model_part, model)
                about["model"] = {"name": model.name, "folder": model_part.name}
            with replacing(part / _EMBEDDINGS) as file:
                np.save(file, self.embeddings)
            self.index.save(part / _FAISS)
            if self.processing is not None:
                self.processing.save(part / _STEPS)
                about["postprocessing"] = str(self.processing)
                with replacing(part / _VECTORS) as file:
                    np.save(file, self.searched)
            columns = self.images.items()
            texts = {name: storable_texts(values.tolist()) for name, values in columns if values.dtype.kind == "U"}
            with replacing(part / _IMAGES) as file:
                pyarrow.parquet.write_table(pyarrow.table(self.images | texts), file)
            with reading(folder, _WHAT, remedy=_REMEDY):
                written = (*sorted(part.iterdir()), *sorted((folder / about["model"]["folder"]).iterdir()))
            about["files"] = {
                path.relative_to(folder).as_posix(): file_sha256(path) for path in written if path.name not in _VERIFIED
            }
            about |= {"rows": part.name, "count": len(self), "dim": int(self.embeddings.shape[1])}
            content = _write_about(folder, about)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(model_part, ignore_errors=True)
            raise
        for part in (*folder.glob("rows-*"), *folder.glob("model-*")):  # earlier parts, or of a killed process
            if part.name not in (content["rows"], content["model"]["folder"]):
                shutil.rmtree(part, ignore_errors=True)
        return content


def _write_about(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    content = {**about, "format": FORMAT, "version": VERSION, "aurank": version("aurank")}
    content["revision"] = about.get("revision", 0) + 1
    content["checksum"] = content_sha256(content)
    write_text(folder / ABOUT, json.dumps(content, indent=1) + "\n")
    return content


def read_about(folder: Path) -> dict[str, Any]:
    require_index(folder)
    path = folder / ABOUT
    about = dict(read_record(path, _About, _WHAT, named=FORMAT, version=VERSION, remedy=_REMEDY))
    if about["checksum"] != content_sha256(about):
        raise UserError(f"{path} is damaged, or was changed by hand: {_REMEDY}")
    return about


def read_rows(folder: Path, about: dict[str, Any], *, memory_map: bool = False) -> IndexedRows:
    import pyarrow.parquet

    part, is_processed = folder / about["rows"], about["postprocessing"] is not None
    verify_part(folder, about, about["rows"])
    with reading(folder, _WHAT, remedy=_REMEDY):
        embeddings = load_arrays(part / _EMBEDDINGS)[""]
        index = Index.load(part / _FAISS, device="cpu", memory_map=memory_map)
        processing = PostProcessing.load(part / _STEPS) if is_processed else None
        searched = load_arrays(part / _VECTORS)[""] if is_processed else embeddings
        table = pyarrow.parquet.read_table(part / _IMAGES).to_pydict()
        images = {"source": np.array(table["source"], dtype=np.int64)}
        for name in ("path", "class", "sha256"):
            images[name] = np.array([os.fsdecode(text) for text in table[name]], dtype=np.str_)
        return IndexedRows(images, embeddings, index, searched, processing)


def verify_part(folder: Path, about: dict[str, Any], part: str) -> None:
    for file, expected in about["files"].items():
        if file.partition("/")[0] == part:
            with reading(folder / file, "a part of an image index", remedy=_REMEDY):
                if file_sha256(folder / file) != expected:
                    raise ValueError("it is damaged, cut short or of another index")


def describe_source(source: ImageSource) -> SourceRecord:
    if isinstance(source, ZipSource):
        return {"kind": "zip", "place": str(source.file.absolute()), "prefix": source.prefix}
    if isinstance(source, FolderSource):
        return {"kind": "folder", "place": str(source.root.absolute()), "prefix": ""}
    if isinstance(source, PartsSource) and source.reader is not None:
        name, root, params = source.reader
        return {"kind": "reader", "place": str(root), "prefix": json.dumps([name, params])}
    return {"kind": "memory", "place": source.where, "prefix": ""}


def open_described(described: SourceRecord) -> ImageSource | None:
    path = Path(described["place"])
    with contextlib.suppress(UserError, OSError):
        if described["kind"] == "reader":
            name, params = json.loads(described["prefix"])
            return READERS[name](path, **params).source
        if described["kind"] != "memory":
            return open_source(path, prefix=described["prefix"])
    return None


def moved_sources(
    about: dict[str, Any], paths: Mapping[int, Sequence[str]], roots: Sequence[Path]
) -> list[SourceRecord]:
    """Return the sources of an index whose images, some of whose `paths` are given, were moved to `roots`, in order."""
    sources: list[SourceRecord] = list(about["sources"])
    of_files = [number for number, source in enumerate(sources) if source["kind"] != "memory"]
    if len(roots) != len(of_files):
        before = ", ".join(sources[number]["place"] for number in of_files) or "no file"
        counts = f"--root is given {len(roots)} times for images from {len(of_files)} places"
        raise UserError(f"{counts} ({before}): give one for each, in this order")
    for number, root in zip(of_files, roots, strict=True):
        path, prefix = root.absolute(), sources[number]["prefix"]
        if sources[number]["kind"] == "reader":
            sources[number] = {"kind": "reader", "place": str(path), "prefix": prefix}
        elif path.is_dir():
            inside = path / prefix if (path / prefix).is_dir() else path
            sources[number] = {"kind": "folder", "place": str(inside), "prefix": ""}
        else:
            sources[number] = {"kind": "zip", "place": str(path), "prefix": prefix}
        source = open_described(sources[number])
        if source is None or (paths[number] and not any(map(source.exists, paths[number]))):
            raise UserError(f"--root {root} is no folder or zip archive with the images, such as {paths[number][:1]}")
    return sources


def index_rows(
    images: Table, embeddings: Rows, steps: PostProcessing | None, factory: str, *, distance: str, seed: int
) -> IndexedRows:
    searched = embeddings if steps is None else processed_gallery(steps, np.asarray(embeddings))
    index = Index.build(searched, factory, distance=distance, device="cpu", seed=seed)
    return IndexedRows(images, embeddings, index, searched, steps)


def change_rows(rows: IndexedRows, stays: np.ndarray, new: Table, embeddings: np.ndarray) -> IndexedRows:
    """Return some of the rows and new ones behind them; the faiss index, which is changed, keeps what it has learnt."""
    images = {name: np.concatenate([values[stays], new[name]]) for name, values in rows.images.items()}
    joined = np.concatenate([rows.embeddings[stays], embeddings])
    processing, added, searched = rows.processing, embeddings, joined
    if processing is not None and processing.is_of_rows:
        added = processed_gallery(processing, embeddings) if len(embeddings) else rows.searched[:0]
        searched = np.concatenate([rows.searched[stays], added.astype(rows.searched.dtype)])
    elif processing is not None:  # the steps use neighbours: all vectors change
        searched = processed_gallery(processing, joined)
    if stays.all() and (processing is None or processing.is_of_rows):
        rows.index.add(added)
    else:
        rows.index.host.reset()
        rows.index.add(searched)
    return IndexedRows(images, joined, rows.index, searched, processing)


def measured_recall(search: GallerySearch, vectors: Rows, ids: Ids, *, seed: int = 0) -> dict[str, float] | None:
    """Return which part of the true nearest of these vectors a search lists, at 1 and 10; None for a single one."""
    if len(vectors) < 2:
        return None
    count = min(RECALL_QUERIES, len(vectors))
    chosen = np.sort(np.random.default_rng(seed).permutation(len(vectors))[:count])
    queries = np.asarray(vectors[chosen])
    k = min(max(RECALL_AT), len(vectors) - 1)
    listed = search.nearest(queries, k, leave_out=ids[chosen])[0]
    true = ids[by_products(queries, vectors, k, chosen, np.arange(len(vectors)), distance=search.index.distance)]
    recall = {"queries": float(count)}
    for at in sorted({min(at, k) for at in RECALL_AT}):
        hits = sum(len({*near} & {*nearest}) for near, nearest in zip(listed[:, :at], true[:, :at], strict=True))
        recall[str(at)] = hits / (at * count)
    return recall
