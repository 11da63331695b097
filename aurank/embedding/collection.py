"""A gallery in a collection of Milvus: in a file of this machine, by milvus-lite, or in a cluster."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Collection, Sequence
from copy import copy
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NotRequired

import numpy as np
from jaxtyping import Int64

from aurank.arrays import Arrays, Rows
from aurank.embedding.embedded import Embedded
from aurank.embedding.index_folder import GalleryRecord, Ids, NewImages, Table, measured_recall
from aurank.embedding.locations import require_overwrite
from aurank.embedding.stored.trained_model import made_by
from aurank.errors import UserError
from aurank.evaluation.index.neighbours import Neighbours, SearchIndex, blocks, check_rows, drop_own, load_rows
from aurank.evaluation.inputs import ProgressCallback, as_array
from aurank.evaluation.postprocessing import GallerySearch
from aurank.files import checked, reading
from aurank.lazy import import_library
from aurank.models.image_model import ImageModel

PREFIX = "milvus:"
_FORMAT, _VERSION = "aurank.collection", 1
_PROPERTY = "aurank"  # property of a collection that holds its description
_MOST = 16_384  # most rows that Milvus returns in one answer
_NUMBERS = 2**20  # most numbers in one message
_TEXTS = {"path": 4096, "class": 4096, "sha256": 64}  # text columns and their most bytes
_METRICS = {"cosine": "COSINE", "dot": "IP", "euclidean": "L2"}
_clients: dict[str, Any] = {}  # shared by threads; milvus-lite lets one process open a file


class CollectionRecord(GalleryRecord):
    complete: bool
    multi_label: NotRequired[bool]  # as in a `Manifest`
    model: dict[Literal["name", "weights_sha256", "preprocessing"], str]


def is_collection(address: Path | str) -> bool:
    return str(address).startswith(PREFIX)


def image_ids(images: Table) -> Ids:
    names = zip(images["source"].tolist(), images["path"].tolist(), strict=True)
    digests = (hashlib.sha256(f"{source}/{path}".encode("utf-8", "surrogateescape")).digest() for source, path in names)
    return np.array([int.from_bytes(digest[:8], "big") >> 1 for digest in digests], dtype=np.int64)


class CollectionRows(SearchIndex):
    """The images of a collection, by their primary keys, with the methods of `IndexedRows` and of its faiss index."""

    def __init__(self, address: str) -> None:
        self.uri, _, self.name = address.removeprefix(PREFIX).partition("#")
        self.address = address
        if "@" in self.uri:
            raise UserError(f"milvus:…@…#{self.name}: give a password or token as MILVUS_TOKEN in the environment")
        self.client = _connect(self.uri, address)
        self.filter = ""  # Milvus expression: which images are searched

    @classmethod
    def open(cls, address: str) -> "CollectionRows":
        """Return the gallery of a collection that aurank has filled."""
        is_missing = "://" not in address and not Path(address.removeprefix(PREFIX).partition("#")[0]).exists()
        if is_missing or not (gallery := cls(address))._call("has_collection"):
            raise UserError(f"no index at {address}; make one with aurank index build --to {address}")
        gallery._describe_by(gallery._read_record())
        if not gallery.about["complete"]:
            raise UserError(f"{address}: filling it was cut short; run the same aurank index build again")
        gallery._call("load_collection")
        return gallery

    @classmethod
    def make(cls, address: str, model: ImageModel, about: dict[str, Any], *, overwrite: bool) -> "CollectionRows":
        """Return the gallery to fill; a collection that is there is replaced by `fill`, if aurank made it."""
        gallery, made = cls(address), made_by(model)
        embedded_by = {"name": made.model, "weights_sha256": made.weights_sha256, "preprocessing": made.preprocessing}
        gallery._describe_by({**about, "model": embedded_by})
        _index(about["factory"])  # a wrong index raises before images are embedded
        if gallery._call("has_collection") and gallery._read_record()["complete"]:
            require_overwrite(address, overwrite=overwrite)
        return gallery

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Return what a method of the client returns for this collection."""
        try:
            return getattr(self.client, method)(self.name, *arguments, **options)
        except (_library().MilvusException, UnicodeError) as error:
            message = " ".join(str(getattr(error, "message", error)).split())
            raise UserError(f"{self.address}: Milvus says: {message[:300]}") from error

    def _read_record(self) -> dict[str, Any]:
        text = self._call("describe_collection").get("properties", {}).get(_PROPERTY, "null")
        with reading(self.address, "a collection of this aurank", remedy="name another one"):
            return dict(checked(json.loads(text), CollectionRecord))

    def _describe_by(self, about: dict[str, Any]) -> None:
        self.about, self.dim, self.distance = about, int(about["dim"]), str(about["distance"])

    def fill(self, images: Table, embeddings: Rows, *, progress: ProgressCallback | None = None) -> None:
        milvus, (index_type, built, _) = _library(), _index(self.about["factory"])
        schema = milvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", milvus.DataType.INT64, is_primary=True)
        schema.add_field("source", milvus.DataType.INT64)
        for column, most in _TEXTS.items():
            schema.add_field(column, milvus.DataType.VARCHAR, max_length=most)
        schema.add_field("vector", milvus.DataType.FLOAT_VECTOR, dim=self.dim)
        index = milvus.MilvusClient.prepare_index_params()
        # Parameters in a dict of their own: milvus-lite ignores those that pymilvus sends one by one.
        how = {"metric_type": _METRICS[self.distance], "params": {"params": built}}
        index.add_index("vector", index_type=index_type, **how)
        self.about |= {"format": _FORMAT, "version": _VERSION, "aurank": version("aurank")}
        self.about |= {"revision": 0, "complete": False, "recall": None}
        if self._call("has_collection"):
            self._call("drop_collection")
        if "://" not in self.uri:  # remove files of killed processes, which milvus-lite neither reads nor overwrites
            shutil.rmtree(Path(self.uri, "collections", self.name), ignore_errors=True)
        options = {"consistency_level": "Strong", "properties": {_PROPERTY: json.dumps(self.about)}}
        self._call("create_collection", schema=schema, index_params=index, **options)
        self.add(images, embeddings, progress=progress)
        search = GallerySearch(self, self.embeddings, self.embeddings)
        recall = measured_recall(search, embeddings, image_ids(images), seed=self.about["seed"])
        self.describe(complete=True, recall=recall)

    def describe(self, **changes: Any) -> None:
        self.about = {**self.about, **changes, "revision": self.about["revision"] + 1}
        self._call("alter_collection_properties", {_PROPERTY: json.dumps(self.about)})

    def close(self) -> None:
        """Let go of the client, and of milvus-lite its server and the lock of the file."""
        if _clients.pop(self.uri, None) is not None:
            self.client.close()
            if "://" not in self.uri:
                servers = import_library("milvus_lite.server_manager", self.address)
                servers.server_manager_instance.release_server(self.uri)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._call("query", filter="", output_fields=["count(*)"])[0]["count(*)"])

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.dim

    @property
    def embeddings(self) -> Any:
        return self

    def nearest(
        self, queries: np.ndarray, k: int, *, classes: Collection[str] | None = None, **how: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        within = copy(self)
        if classes is not None:
            within.filter = f"class in {json.dumps(list(classes), ensure_ascii=False)}"
        return GallerySearch(within, self.embeddings, self.embeddings).nearest(queries, k, **how)

    @property
    def ids(self) -> Ids:
        return self._ids(self.filter)

    @property
    def images(self) -> Table:
        return self._table(self._scan("", ["source", *_TEXTS]))

    def where(self, column: str, values: Collection[Any], most: int | None = None) -> Ids:
        return self._ids(f"{column} in {json.dumps(list(values), ensure_ascii=False)}", most)

    def take(self, rows: Sequence[int] | Ids) -> Table:
        return self._table(self._get(rows, ["source", *_TEXTS]))

    def __getitem__(self, rows: Ids) -> Rows:
        return np.array([row["vector"] for row in self._get(rows, ["vector"])], np.float32).reshape(-1, self.dim)

    def lookup(self, source: int, paths: Sequence[str]) -> dict[str, tuple[int, str, str]]:
        ids = image_ids({"source": np.full(len(paths), source), "path": np.array(paths)})
        rows = self._get(ids, ["sha256", "class"], strict=False)
        by_id = {row["id"]: (row["id"], row["sha256"], row["class"]) for row in rows}
        return {path: by_id[key] for path, key in zip(paths, ids.tolist(), strict=True) if key in by_id}

    def add(self, images: Table, embeddings: Rows, *, progress: ProgressCallback | None = None) -> None:
        check_rows(embeddings, side="gallery", distance=self.distance)
        columns = {"id": image_ids(images), **images}
        for part in blocks(len(embeddings), max(1, min(_MOST, _NUMBERS // self.dim))):
            texts = zip(*(columns[name][part].tolist() for name in columns), strict=True)
            vectors = load_rows(embeddings, part, "dot")  # not scaled to length 1
            pairs = zip(texts, vectors, strict=True)
            rows = [dict(zip(columns, row, strict=True), vector=vector) for row, vector in pairs]
            self._call("upsert", rows)
            if progress is not None:
                progress(part.stop, len(embeddings))
        self._call("flush")

    def remove(self, rows: Ids) -> None:
        for part in blocks(len(rows), _MOST):
            self._call("delete", ids=rows[part].tolist())

    def search(self, queries: Arrays, k: int, *, leave_out: Int64[np.ndarray, " query"] | None = None) -> Neighbours:
        queries, depth = as_array(queries), min(k + (leave_out is not None), _MOST)
        row, similarity = np.full((len(queries), depth), -1), np.full((len(queries), depth), -np.inf, np.float32)
        sign = -1 if self.distance == "euclidean" else 1
        how = {"params": _index(self.about["factory"])[2]}
        for part in blocks(len(queries), max(1, min(1000, _NUMBERS // self.dim))):
            data = list(load_rows(queries, part, "dot"))
            lists = self._call("search", data, self.filter, limit=depth, search_params=how)
            for query, hits in enumerate(lists, start=part.start):
                row[query, : len(hits)] = [hit["id"] for hit in hits]
                similarity[query, : len(hits)] = [sign * hit["distance"] for hit in hits]
        if leave_out is not None:
            row, similarity = drop_own(row, similarity, leave_out)
        return Neighbours(row[:, :k], similarity[:, :k], (row[:, :k] >= 0).sum(axis=1))

    def change(self, folder: Path, about: dict[str, Any], gone: Ids, new: NewImages) -> int:
        # First: an image may name a new source, and the recall is no longer measured.
        self.describe(sources=about["sources"], recall=None)
        if new is not None:
            self.add(*new)
            gone = np.setdiff1d(gone, image_ids(new[0]))
        self.remove(gone)
        return len(self)

    def _ids(self, expression: str, most: int | None = None) -> Ids:
        return np.array([row["id"] for row in self._scan(expression, [], most)], dtype=np.int64)

    def _scan(self, expression: str, fields: list[str], most: int | None = None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        batches = self._call("query_iterator", _MOST, most or -1, expression, ["id", *fields])
        while batch := batches.next():
            rows += batch
        batches.close()
        return sorted(rows, key=lambda row: int(row["id"]))

    def _get(self, rows: Sequence[int] | Ids, fields: list[str], *, strict: bool = True) -> list[dict[str, Any]]:
        ids, by_id = [int(row) for row in rows], dict[int, dict[str, Any]]()
        width = self.dim if "vector" in fields else 32
        for part in blocks(len(ids), max(1, min(_MOST, _NUMBERS // width))):
            by_id |= {int(row["id"]): row for row in self._call("get", ids[part], ["id", *fields])}
        if strict and (missing := next((row for row in ids if row not in by_id), None)) is not None:
            raise UserError(f"{self.address} holds no image {missing}")
        return [by_id[row] for row in ids if row in by_id]

    @staticmethod
    def _table(rows: list[dict[str, Any]]) -> Table:
        texts = {name: np.array([row[name] for row in rows], dtype=np.str_) for name in _TEXTS}
        return {"source": np.array([row["source"] for row in rows], dtype=np.int64), **texts}


def read_collection(address: str) -> Embedded:
    rows = CollectionRows.open(address)
    ids, table = rows.ids, rows.images
    classes, labels = np.unique(table["class"], return_inverse=True)
    if without := int((table["class"] == "").sum()):
        raise UserError(f"{address} knows no class of {without:,} images, so there is nothing to measure by")
    count, everywhere = len(ids), np.ones(len(ids), bool)
    sides = {"is_query": everywhere, "is_gallery": everywhere, "groups": np.full(count, -1)}
    sides |= {"multi_label": np.array(True)} if rows.about.get("multi_label") else {}
    return Embedded(rows[ids], labels, np.arange(count), table["path"], **sides, classes=classes)


def _index(factory: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the type of an index, and the parameters that it is built and searched with."""
    built, _, searched = factory.partition(";")
    index_type, _, options = built.partition(",")
    parameters = []
    for text in (options, searched):
        pairs = [option.partition("=") for option in text.split(",") if option.strip()]
        try:
            parameters.append({name.strip(): json.loads(value) for name, _, value in pairs})
        except ValueError as error:
            message = f'an index of Milvus is a text such as "HNSW,M=16; ef=64", not {factory!r}'
            raise UserError(message) from error
    return index_type.strip().upper(), parameters[0], parameters[1]


def _library() -> Any:
    return import_library("pymilvus", "a gallery in Milvus")


def _connect(uri: str, address: str) -> Any:
    if uri not in _clients:
        milvus = _library()
        if "://" not in uri:
            import_library("milvus_lite", "a gallery of Milvus in a file")
            Path(uri).absolute().parent.mkdir(parents=True, exist_ok=True)
        for name in ("pymilvus", "milvus_lite", "grpc._server"):  # they log a traceback beside the error
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        try:
            _clients[uri] = milvus.MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", ""), timeout=10)
        except milvus.MilvusException as error:
            locked = "it is no file of milvus-lite, or another process has it open"
            why = "nobody answers there" if "://" in uri else locked
            raise UserError(f"{address} cannot be opened: {why} ({error.message})") from error
    return _clients[uri]
