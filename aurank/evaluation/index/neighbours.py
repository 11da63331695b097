"""Nearest neighbours by faiss, exact or approximate: for grids, for mining and for judging an approximate index."""

import hashlib
import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64
from torch import Tensor
from typing_extensions import TypedDict

from aurank.arrays import Arrays
from aurank.errors import UserError
from aurank.evaluation.engine.scores import DISTANCES
from aurank.evaluation.inputs import Embeddings, ProgressCallback, as_matrix, require_at_least, require_same_width
from aurank.files import read_record, reading, replacing, require_ordinary
from aurank.lazy import import_library
from aurank.names import require_choice

BLOCK = 2**21  # numbers read and handed to faiss at a time


def faiss_library() -> Any:
    return import_library("faiss", "a search by faiss")


@contextmanager
def faiss_says(failure: str) -> Iterator[None]:
    """Turn an error of faiss into a UserError: the failure, and in brackets faiss's own message."""
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"^.*? at \S+:\d+: ", "", str(error).strip(), flags=re.DOTALL)
        raise UserError(f"{failure} ({' '.join(reason.split())})") from error


def choose_gpus(device: torch.device | str | None, index: Any, factory: str) -> list[int]:
    """Return the GPUs for an index, none for the CPU; UserError for a GPU that is missing or cannot hold the index."""
    faiss = faiss_library()
    available = int(faiss.get_num_gpus())
    inner = faiss.downcast_index(index.index) if isinstance(index, faiss.IndexPreTransform) else index
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", "cuda" if device is None else str(device))
    has_gpu = bool(available and faiss.isGpuIndexImplemented(inner))
    if (device is None and not has_gpu) or (match is not None and match[0] == "cpu"):
        return []
    chosen = list(range(available)) if match is None or match[1] is None else [int(match[1])]
    if match is None or not has_gpu or chosen[-1] >= available:
        raise UserError(
            f"device {str(device)!r} is not there, or not for {factory!r}: faiss sees {available} GPUs, where only "
            'Flat and IVF indexes run; use device="cpu" or such as "cuda:0"'
        )
    return chosen


def blocks(total: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


def row_blocks(embeddings: Embeddings) -> Iterator[slice]:
    return blocks(len(embeddings), max(1, BLOCK // embeddings.shape[1]))


def load_rows(
    embeddings: Embeddings, rows: slice | Int64[np.ndarray, " row"], distance: str
) -> Float32[np.ndarray, "row dim"]:
    """Return rows as faiss takes them: float32 in main memory, of length 1 under cosine; not finite if out of range."""
    part = embeddings[rows]
    if isinstance(part, Tensor):
        part = part.detach().to("cpu", torch.float64).numpy()
    with np.errstate(all="ignore"):  # check_rows names rows that are not finite
        return np.ascontiguousarray(scaled_rows(part, distance), dtype=np.float32)


def scaled_rows(rows: Any, distance: str) -> Float64[np.ndarray, "row dim"]:
    values = np.asarray(rows, np.float64)
    if distance != "cosine" or not len(values):
        return values
    values = values / np.abs(values).max(axis=1, keepdims=True)  # squares neither overflow nor vanish
    return np.asarray(values / np.sqrt((values * values).sum(axis=1, keepdims=True)))


def check_rows(embeddings: Embeddings, *, side: str, distance: str) -> None:
    """Raise UserError naming the first row that faiss cannot take."""
    for rows in row_blocks(embeddings):
        wrong = np.flatnonzero(~np.isfinite(load_rows(embeddings, rows, distance)).all(axis=1))
        if len(wrong):
            reason = "is all zeros, or holds NaN, infinity" if distance == "cosine" else "holds NaN, infinity"
            row = rows.start + wrong[0]
            raise UserError(f"row {row} of the {side} embeddings {reason} or a number beyond float32: remove it")


FORMAT, VERSION = "aurank.index", 3
PIECE = 2**20
REMEDY = "build the index again"
LIST_BLOCK = 2**21  # neighbours of one search
OPQ_CENTROIDS = 256  # that a rotation learns with, whatever the codes behind it
GPU_BYTES = 2**29  # that faiss sets aside on each GPU for searches
ROWS_PER_CENTROID = 64  # k-means gains little from more; faiss warns below 39


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The nearest rows of each query, best first.

    An approximate index may find fewer than asked for: after the first `count` entries of a query, `row` is the size of
    the index, a row that does not exist, and `similarity` is −inf.

    Example:
        >>> near = neighbours(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]]), 1, device="cpu")
        >>> near.row.tolist(), near.count.tolist()
        ([[2], [2], [0]], [1, 1, 1])
    """

    row: Int64[np.ndarray, "query k"]
    similarity: Float32[np.ndarray, "query k"]
    count: Int64[np.ndarray, " query"]


class SearchIndex(ABC):
    """An index that finds gallery rows by their ids: faiss's `Index`, or a collection of Milvus."""

    distance: str

    @property
    @abstractmethod
    def ids(self) -> Int64[np.ndarray, " row"]:
        """The ids of all rows."""

    @abstractmethod
    def search(self, queries: Arrays, k: int, *, leave_out: Int64[np.ndarray, " query"] | None = None) -> Neighbours:
        """Return the k nearest rows of each query; `leave_out` has the row that each must not find, or -1."""


class Index(SearchIndex):
    """A faiss index over rows 0, 1, … in the order in which they are added.

    Args:
        dim: width of the rows.
        factory: faiss's text such as "Flat" (exact up to float32), "HNSW32" or, with search parameters,
            "IVF1024,Flat; nprobe=16".
        distance: "cosine" (rows are normalised), "dot" or "euclidean".
        device: by default all GPUs where faiss has this kind on the GPU, else the CPU; several GPUs share the rows.

    Example:
        >>> gallery = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> index = Index.build(gallery, "Flat", device="cpu")
        >>> index.search(np.array([[2.0, 1.0]]), 2).row.tolist()
        [[0, 1]]
    """

    def __init__(
        self,
        dim: int,
        factory: str = "Flat",
        *,
        distance: str = "cosine",
        device: torch.device | str | None = None,
    ) -> None:
        faiss = faiss_library()
        require_at_least(1, dim=dim)
        require_choice("distance", distance, DISTANCES)
        self.dim, self.factory, self.distance = dim, factory, distance
        kind, _, parameters = (part.strip() for part in factory.partition(";"))
        metric = faiss.METRIC_L2 if distance == "euclidean" else faiss.METRIC_INNER_PRODUCT
        with faiss_says(f"the index {factory!r} cannot be made for {dim} dimensions and the distance {distance}"):
            self.host = faiss.index_factory(dim, kind, metric)
            if parameters:
                faiss.ParameterSpace().set_index_parameters(self.host, parameters.replace(" ", ""))
        self.gpus = choose_gpus(device, self.host, factory)
        self.mapped = False
        self._resources: list[Any] = []
        self._copy: Any = None  # of `host`, on the GPUs; made by the first search after rows were added

    @classmethod
    def build(
        cls,
        embeddings: Arrays,
        factory: str = "Flat",
        *,
        distance: str = "cosine",
        device: torch.device | str | None = None,
        training_rows: int | None = None,
        seed: int = 0,
        progress: ProgressCallback | None = None,
    ) -> "Index":
        """Return an index over these embeddings, trained on a sample of them if its kind needs that."""
        embeddings = as_matrix(embeddings, side="gallery")  # checked: the next line uses its shape
        index = cls(int(embeddings.shape[1]), factory, distance=distance, device=device)
        if not index.is_trained:
            index.train(embeddings, rows=training_rows, seed=seed)
        index.add(embeddings, progress=progress)
        return index

    def __len__(self) -> int:
        return int(self.host.ntotal)

    @property
    def ids(self) -> Int64[np.ndarray, " row"]:
        return np.arange(len(self))

    @property
    def is_trained(self) -> bool:
        """Whether rows can be added."""
        return bool(self.host.is_trained)

    @property
    def place(self) -> str:
        """The processors that search, in words: "CPU", "GPU 0", "GPUs 0, 1"."""
        return f"GPU{'s' if len(self.gpus) > 1 else ''} {', '.join(map(str, self.gpus))}" if self.gpus else "CPU"

    def train(self, embeddings: Arrays, *, rows: int | None = None, seed: int = 0) -> None:
        """Learn lists and codes from a random sample of `rows` rows; the same seed takes the same sample.

        By default 64 rows for each centroid to learn, or all there are.
        """
        embeddings = self._check(embeddings, side="training")
        faiss = faiss_library()
        lists = faiss.try_extract_index_ivf(self.host)
        if rows is None:
            coded = self.host if lists is None else faiss.downcast_index(lists)
            centroids = [1 if lists is None else lists.nlist, coded.pq.ksub if hasattr(coded, "pq") else 1]
            chain = self.host.chain if isinstance(self.host, faiss.IndexPreTransform) else faiss.VectorTransformVector()
            steps = [faiss.downcast_VectorTransform(chain.at(position)) for position in range(chain.size())]
            if any(isinstance(step, faiss.OPQMatrix) for step in steps):
                centroids.append(OPQ_CENTROIDS)
            rows = max(centroids) * ROWS_PER_CENTROID
        available = len(embeddings)
        size = min(available, rows)
        chosen = np.sort(np.random.default_rng(seed).permutation(available)[:size])
        sample = np.empty((size, self.dim), dtype=np.float32)
        for part in row_blocks(sample):
            sample[part] = load_rows(embeddings, chosen[part], self.distance)
        with faiss_says(f"the index {self.factory!r} cannot be trained on {size} rows"):
            if self.gpus and lists is not None:
                lists.clustering_index = on_gpus = self._to_gpus(faiss.IndexFlat(lists.d, lists.metric_type))
            self.host.train(sample)
            if self.gpus and lists is not None:
                lists.clustering_index = None
                del on_gpus

    def add(self, embeddings: Arrays, *, progress: ProgressCallback | None = None) -> None:
        """Check all rows, then append them, a block at a time."""
        if self.mapped or not self.is_trained:
            reason = "memory-mapped: load it without memory_map" if self.mapped else "not trained: use Index.build"
            raise UserError(f"the index {self.factory!r} takes no rows, as it is {reason}")
        embeddings = self._check(embeddings, side="gallery")
        self._copy = None
        for rows in row_blocks(embeddings):
            with faiss_says(f"rows cannot be added to the index {self.factory!r}"):
                self.host.add(load_rows(embeddings, rows, self.distance))
            if progress is not None:
                progress(rows.stop, len(embeddings))

    def search(
        self,
        queries: Arrays,
        k: int,
        *,
        leave_out: Int64[np.ndarray, " query"] | None = None,
        progress: ProgressCallback | None = None,
    ) -> Neighbours:
        """Return the k nearest rows of each query, or all rows where there are fewer.

        `leave_out` has the row that each query must not find, such as its own, or -1; a duplicate of it stays.
        """
        parts = []
        for rows, part in self.search_batches(queries, k, leave_out=leave_out):
            parts.append((part.row, part.similarity, part.count))
            if progress is not None:
                progress(rows.stop, len(queries))
        return Neighbours(*map(np.concatenate, zip(*parts, strict=True)))

    def search_batches(
        self,
        queries: Arrays,
        k: int,
        *,
        leave_out: Int64[np.ndarray, " query"] | None = None,
        seconds: list[float] | None = None,
    ) -> Iterator[tuple[slice, Neighbours]]:
        """Yield the neighbours of some queries at a time; `seconds` collects the time of each search."""
        queries = self._check(queries, side="query")
        require_at_least(1, k=k)
        if not len(self):
            raise UserError("the index is empty: add rows before searching it")
        depth = min(k + (leave_out is not None), len(self))
        width = min(k, len(self) - (leave_out is not None and bool((leave_out >= 0).all())))
        if self.gpus and self._copy is None:
            with faiss_says(f"the index {self.factory!r} cannot be moved to {self.place}"):
                self._copy = self._to_gpus(self.host)
        engine = self._copy if self.gpus else self.host
        for rows in blocks(len(queries), max(1, min(BLOCK // self.dim, LIST_BLOCK // depth))):
            block = load_rows(queries, rows, self.distance)
            before = time.perf_counter()
            with faiss_says(f"the index {self.factory!r} cannot be searched"):
                similarity, row = engine.search(block, depth)
            if seconds is not None:
                seconds.append(time.perf_counter() - before)
            if self.distance == "euclidean":
                similarity = -similarity
            if leave_out is not None:
                row, similarity = drop_own(row, similarity, leave_out[rows])
            row, similarity = row[:, :width], similarity[:, :width]
            missing = row < 0  # faiss pads with -1, which NumPy takes for the last row
            row = np.where(missing, len(self), row).astype(np.int64)
            similarity = np.where(missing, np.float32(-np.inf), similarity).astype(np.float32)
            yield rows, Neighbours(row, similarity, np.asarray((~missing).sum(axis=1), dtype=np.int64))

    def save(self, path: Path | str) -> None:
        """Write faiss's own file to `path`, and its description and checksum to `path` + ".json"."""
        write_index(self.host, Path(path), factory=self.factory, distance=self.distance)

    @classmethod
    def load(cls, path: Path | str, *, memory_map: bool = False, device: torch.device | str | None = None) -> "Index":
        """Return the index that `save` wrote; with `memory_map` its rows stay in the file, for the CPU."""
        host, saved = read_index(Path(path), memory_map=memory_map)
        with reading(path, "an index", remedy=REMEDY):
            device = "cpu" if memory_map else device
            index = cls(int(host.d), saved["factory"], distance=saved["distance"], device=device)
        index.host, index.mapped = host, memory_map
        return index

    def _check(self, values: Arrays, *, side: str) -> Embeddings:
        embeddings = as_matrix(values, side=side)
        require_same_width(side, int(embeddings.shape[1]), "index", self.dim)
        check_rows(embeddings, side=side, distance=self.distance)
        return embeddings

    def _to_gpus(self, index: Any) -> Any:
        faiss = faiss_library()
        if not self._resources:  # an attribute: the copies on the GPU live only as long as these
            self._resources = [faiss.StandardGpuResources() for _ in self.gpus]
            for resource in self._resources:
                resource.setTempMemory(GPU_BYTES)
        options = faiss.GpuMultipleClonerOptions()
        options.shard = True
        return faiss.index_cpu_to_gpu_multiple_py(self._resources, index, options, self.gpus)


def drop_own(row: np.ndarray, similarity: np.ndarray, leave_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return lists of neighbours without the row `leave_out` of each query, -1 where nothing is left out."""
    # Entries after the dropped row move up, and padding fills the end.
    row, similarity = (np.pad(part, ((0, 0), (0, 1)), constant_values=-1) for part in (row, similarity))
    drop = (row == leave_out[:, None]) & (leave_out[:, None] >= 0)
    drop[~drop.any(axis=1), -1] = True
    return row[~drop].reshape(len(row), -1), similarity[~drop].reshape(len(row), -1)


def neighbours(
    embeddings: Arrays,
    k: int,
    *,
    exclude_self: bool = True,
    factory: str = "Flat",
    distance: str = "cosine",
    device: torch.device | str | None = None,
    progress: ProgressCallback | None = None,
) -> Neighbours:
    """Return the k nearest rows of each row among the embeddings themselves.

    Each row's own entry is left out unless `exclude_self` is False: it is recognised by its number, so its duplicates
    stay. A single row has no neighbours.

    Example:
        >>> neighbours(np.array([[0.0], [1.0], [3.0]]), 1, distance="euclidean", device="cpu").row.tolist()
        [[1], [0], [1]]
    """
    index = Index.build(embeddings, factory, distance=distance, device=device)
    leave_out = np.arange(len(embeddings)) if exclude_self else None
    return index.search(embeddings, k, leave_out=leave_out, progress=progress)


class Description(TypedDict):
    factory: str
    distance: Literal["cosine", "dot", "euclidean"]
    sha256: str


def write_index(host: Any, path: Path, *, factory: str, distance: str) -> None:
    """Write a faiss index and its description; earlier files stay until both are complete."""
    faiss, digest = faiss_library(), hashlib.sha256()
    with replacing(path.with_name(f"{path.name}.json")) as description, replacing(path) as file:

        def write(piece: bytes) -> None:
            digest.update(piece)
            file.write(piece)

        # Unbuffered: faiss's own buffer is emptied by a destructor, from which no error returns.
        faiss.write_index(host, faiss.PyCallbackIOWriter(write, PIECE))
        content = {"format": FORMAT, "version": VERSION, "factory": factory, "distance": distance}
        content |= {"sha256": digest.hexdigest()}
        description.write((json.dumps(content, indent=2) + "\n").encode())
        description.flush()
        os.fsync(description.fileno())  # before faiss's file gets its name: a full disk then leaves both old files


def read_index(path: Path, *, memory_map: bool = False) -> tuple[Any, Description]:
    """Return the faiss index and its description; UserError unless `write_index` wrote both and no byte has changed."""
    require_ordinary(path)
    description = path.with_name(f"{path.name}.json")
    about = "the description of an index"
    saved = read_record(description, Description, about, named=FORMAT, version=VERSION, remedy=REMEDY)
    with reading(path, "an index", remedy=REMEDY), path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != saved["sha256"]:
            raise ValueError(f"it is damaged, cut short, or not the one that {description.name} describes")
        file.seek(0)
        faiss = faiss_library()
        with faiss_says(f"the index {path} cannot be read: {REMEDY}"):
            flags = faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE  # larger than a small file
            if memory_map:
                host = faiss.read_index(str(path), flags | faiss.IO_FLAG_MMAP_IFC)
            else:
                host = faiss.read_index(faiss.PyCallbackIOReader(file.read, PIECE), flags)
            # The tables of an IVF-PQ under squared distances are not in the file; faiss bounds their size.
            lists = faiss.downcast_index(faiss.try_extract_index_ivf(host))
            if isinstance(lists, faiss.IndexIVFPQ) and lists.metric_type == faiss.METRIC_L2:
                lists.precompute_table()
    return host, saved


def check_index(factory: str, distance: str, device: torch.device | str) -> None:
    """Raise UserError for an index that faiss cannot make, whatever the width of embeddings."""
    try:
        Index(256, factory, distance=distance, device=device)
    except UserError as error:
        if "should be a multiple" not in str(error):  # of the width, which only the first embedding tells
            raise
