"""Searching an index of images with photos and words: what ``aurank search`` and ``aurank serve`` call."""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from PIL import Image
from pydantic import PositiveInt

from aurank.arrays import Arrays
from aurank.data.decode import MAX_PIXELS, decode, quiet_decoding
from aurank.data.photos import JoinedSource, Photo, PhotoFile, find_photos, read_photo
from aurank.data.sources import ArraySource, ImageSource
from aurank.embedding.collection import CollectionRows, is_collection
from aurank.embedding.index_folder import (
    TRIED,
    IndexedRows,
    Table,
    moved_sources,
    open_described,
    read_about,
    read_rows,
    verify_part,
)
from aurank.embedding.stored.trained_model import load, load_stored, require_same_model
from aurank.errors import UserError
from aurank.evaluation.inputs import ProgressCallback, as_array
from aurank.evaluation.postprocessing.steps import unit
from aurank.models.image_model import ImageModel
from aurank.names import meant, nearest
from aurank.reporting.page import render
from aurank.reporting.pictures import Pictures


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


class SearchOptions(TypedDict, total=False):
    """How an index is searched.

    Attributes:
        threshold: leave out what scores less, as aurank calibrate finds it.
        classes: find images of this class alone, by an exact search among them; may be given repeatedly.
        exact: search exactly although the index is approximate.
    """

    threshold: float | None
    classes: Collection[str] | None
    exact: bool


class ImageIndex:
    """Images that can be searched: embeddings, a faiss index over them, paths, classes, and the model itself.

    Nothing here changes the index, and several threads may use it at once.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from aurank.commands import build_index
        >>> from aurank.embedding import ImageSelection
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for colour in ("red", "green", "blue"):
        ...         Image.new("RGB", (8, 8), colour).save(f"{folder}/{colour}.png")
        ...     photos = ImageSelection(f"unlabelled:{folder}")
        ...     _ = build_index("timm:test_vit,pretrained=false", photos, out=f"{folder}/index")
        ...     index = ImageIndex.open(f"{folder}/index")
        ...     hits = index.search([Image.new("RGB", (8, 8), "green")], k=2)[0]
        >>> len(index), hits[0].path, round(hits[0].score, 3)
        (3, 'green.png', 1.0)
    """

    def __init__(
        self,
        folder: Path | str,
        about: dict[str, Any],
        rows: IndexedRows | CollectionRows,
        *,
        device: torch.device | None = None,
        allow_code: bool = False,
    ) -> None:
        self.folder, self.about, self.rows = folder, about, rows
        self.device, self.allow_code = device, allow_code
        self._loading = Lock()
        self._model: ImageModel | None = None

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        model: str | None = None,
        roots: Sequence[Path] = (),
        device: str | None = None,
        allow_code: bool = False,
        memory_map: bool = False,
    ) -> "ImageIndex":
        """Return the index in a folder; UserError unless every file of it is as it was written.

        Args:
            folder: the folder of the index, or milvus:FILE_OR_URL#COLLECTION.
            model: with milvus:…: where its model is now; default: where it was.
            roots: where the images are now, if they were moved; again for each place they came from.
            device: where the model runs, such as cuda:1 or cpu; faiss searches on the CPU.
            allow_code: trust the model of the index: let its code run.
            memory_map: whether what faiss searches stays in its file, which processes then share.
        """
        if model is not None and not is_collection(folder):
            raise UserError(f"--model {model} goes with a collection of Milvus: {folder} has its model inside")
        rows: IndexedRows | CollectionRows
        if is_collection(folder):
            rows = CollectionRows.open(str(folder))
            about = {**rows.about, "count": len(rows), "postprocessing": None}
        else:
            folder = Path(folder)
            about = read_about(folder)
            try:
                rows = read_rows(folder, about, memory_map=memory_map)
            except UserError:
                if (again := read_about(folder)) == about:
                    raise
                about, rows = again, read_rows(folder, again, memory_map=memory_map)  # it was changed while it was read
        if roots:
            samples = {number: rows.where("source", [number], TRIED) for number in range(len(about["sources"]))}
            paths = {number: rows.take(ids)["path"].tolist() for number, ids in samples.items()}
            about = {**about, "sources": moved_sources(about, paths, roots)}
        if model is not None:
            about = {**about, "model": {**about["model"], "name": model}}
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

    def load_model(self) -> ImageModel:
        """Return the model, loaded when first asked for; UserError unless it is the one that embedded the images."""
        with self._loading:  # of several threads one loads it
            if self._model is None:
                stored, folder, allow = self.about["model"], Path(self.folder), self.allow_code
                if isinstance(self.rows, CollectionRows):
                    self._model, made = load(stored["name"], allow_code=allow), self.rows.about["model"]
                    remedy = f"name the one that filled it, {made['name']}, with --model, or build another collection"
                    identity = made["weights_sha256"], made["preprocessing"]
                    require_same_model(self._model, *identity, str(self.folder), remedy)
                else:
                    verify_part(folder, self.about, stored["folder"])
                    path, remedy = folder / stored["folder"], "build the index again"
                    self._model = load_stored(path, stored["name"], allow_code=allow, remedy=remedy)
                if self.device is not None:
                    self._model.module.to(self.device)
            return self._model

    def read_image(self, row: int, *, max_pixels: int = MAX_PIXELS, on_white: bool = False) -> np.ndarray:
        """Return the pixels of an image, uint8 [height, width, channel]; UserError where it is gone or unreadable."""
        image = self.rows.take([row])
        path, number = str(image["path"][0]), int(image["source"][0])
        if (source := self.sources[number]) is None:
            root = self.about["sources"][number]["place"]
            raise UserError(f"image {path!r} is gone: {root} is not there any more; say where it is with --root")
        with quiet_decoding():
            return decode(source, path, None, max_pixels=max_pixels, on_white=on_white)

    @property
    def description(self) -> str:
        """What is searched, in a line, with what an approximate index was measured to find."""
        about = self.about
        text = f"{len(self):,} images, {about['model']['name']}, {about['distance']}, index {about['factory']}"
        if about["postprocessing"] is not None:
            text += f" behind {about['postprocessing']}"
        if (recall := about["recall"]) is None:
            return text
        parts = " and ".join(f"{value:.4f} of the true nearest {k}" for k, value in recall.items() if k != "queries")
        return f"{text}, which finds {parts} (mean of {int(recall['queries']):,} of its images)"

    @cached_property
    def sources(self) -> list[ImageSource | None]:
        """Where the bytes of images come from, None for what is there no more."""
        return [open_described(source) for source in self.about["sources"]]

    def embed(self, photos: Sequence[Photo], *, max_pixels: int = MAX_PIXELS) -> Float32[np.ndarray, "photo dim"]:
        """Return the embeddings of photos under the model's own preprocessing; UserError for one that is none."""
        return self.load_model().encode(list(photos), max_pixels=max_pixels)

    def embed_texts(self, texts: Sequence[str]) -> Float32[np.ndarray, "text dim"]:
        """Return the embeddings of texts, to be compared with those of images; UserError without a text tower."""
        return self.load_model().encode_texts(texts)

    def search(
        self,
        queries: Arrays | Sequence[Photo] = (),
        k: int = 10,
        *,
        texts: Sequence[str] = (),
        **options: Unpack[SearchOptions],
    ) -> list[list[Hit]]:
        """Return the images nearest to each query, best first.

        Args:
            queries: photos, or their embeddings as a matrix, one row a query.
            k: of a smaller index all are found.
            texts: descriptions of images; each is a query, after `queries`. `mixed_query` makes one of several.
            options: those of `SearchOptions`.
        """
        is_photo = isinstance(queries, str | bytes | Path | Image.Image) or getattr(queries, "ndim", 2) == 3
        if is_photo or isinstance(texts, str):
            raise UserError("search takes photos as a list, and texts too, also where there is only one: [photo]")
        nested = isinstance(queries, Sequence) and len(queries) > 0 and isinstance(queries[0], list | tuple)
        is_matrix = nested or len(getattr(queries, "shape", ())) == 2
        rows = as_array(queries) if is_matrix or not len(queries) else self.embed(list(queries))
        if len(texts):
            words = self.embed_texts(texts)
            rows = np.concatenate([rows, words]) if len(rows) else words
        return self._hits(rows, None, k, **options)

    def search_rows(self, rows: Sequence[int], k: int = 10, **options: Unpack[SearchOptions]) -> list[list[Hit]]:
        """Return the images nearest to images of the index, which do not find themselves; `options` as for `search`."""
        chosen = np.array(rows, dtype=np.int64).reshape(-1)
        if (chosen < 0).any():  # numpy would count from the end, and the image would find itself
            raise UserError(f"there is no image {chosen.min()}: the index holds images 0 to {len(self) - 1}")
        return self._hits(np.asarray(self.rows.embeddings[chosen]), chosen, k, **options)

    def _hits(
        self, queries: np.ndarray, rows: Int64[np.ndarray, " query"] | None, k: int, **options: Unpack[SearchOptions]
    ) -> list[list[Hit]]:
        if k < 1:
            raise UserError(f"k must be 1 or more, got {k}")
        if not len(queries):
            return []
        classes, threshold = options.get("classes"), options.get("threshold")
        if threshold is not None and not np.isfinite(threshold):
            raise UserError(f"the threshold must be a number, got {threshold}")
        least = -np.inf if threshold is None else threshold
        self.require_classes(classes or ())
        nearest_rows, scores = self.rows.nearest(
            queries, k, leave_out=rows, classes=classes, exact=options.get("exact", False)
        )
        shown = np.unique(nearest_rows[nearest_rows >= 0]).tolist()
        table = self.rows.take(shown)
        columns = zip(shown, table["path"].tolist(), table["class"].tolist(), strict=True)
        images = {row: (path, name) for row, path, name in columns}
        return [
            [Hit(row, *images[row], score) for row, score in zip(*ranked, strict=True) if row >= 0 and score >= least]
            for ranked in zip(nearest_rows.tolist(), scores.tolist(), strict=True)
        ]

    def require_classes(self, names: Collection[str]) -> None:
        """Raise UserError for a class that the index has not."""
        for name in names:
            if not len(self.rows.where("class", [name], 1)):
                count = f"it has {len(self.classes):,}" if self.classes else "its images have none"
                raise UserError(f"the index has no class {name!r}, {count}{meant(nearest(name, self.classes, most=3))}")

    def close(self) -> None:
        """Let go of a collection: of milvus-lite, for another process to open its file."""
        if isinstance(self.rows, CollectionRows):
            self.rows.close()


def mixed_query(
    embeddings: Float[np.ndarray, "part dim"], weights: Sequence[float] | None = None
) -> Float64[np.ndarray, "1 dim"]:
    """Return one query of several embeddings: the weighted sum of their unit vectors, of length 1.

    Args:
        embeddings: of photos or texts, from `ImageIndex.embed` and `ImageIndex.embed_texts`.
        weights: of each; below 0 the query moves away from it. Default: 1.

    Example:
        >>> mixed_query(np.array([[2.0, 0.0], [0.0, 3.0]]), [0.6, -0.8]).round(6).tolist()
        [[0.6, -0.8]]
    """
    scales = np.ones(len(embeddings)) if weights is None else np.array(weights, dtype=np.float64)
    if len(scales) != len(embeddings):
        raise UserError(f"{len(scales)} weights for {len(embeddings)} photos and texts: give one for each, in order")
    return unit(scales[None] @ unit(embeddings))


@dataclass(frozen=True)
class PhotoHits:
    """What one photo found, or why it could not be read; for a mixed query `photo.path` describes all of it.

    Example:
        >>> from aurank.data.photos import find_photos
        >>> PhotoHits(find_photos(["photos/a.jpg"])[0], [], "it is not there").photo.name
        'a.jpg'
    """

    photo: PhotoFile
    hits: list[Hit]
    error: str | None = None


def search_photos(
    index: ImageIndex,
    photos: Iterable[str] = (),
    k: PositiveInt = 10,
    *,
    with_photos: Sequence[str] = (),
    texts: Sequence[str] = (),
    without: Sequence[str] = (),
    weights: Sequence[float] | None = None,
    batch: PositiveInt = 64,
    progress: ProgressCallback | None = None,
    **options: Unpack[SearchOptions],
) -> list[PhotoHits]:
    """Return what each photo finds in the index; one that cannot be read among several has an error and no hits.

    Args:
        photos: images, folders, zips; the command reads a list of them from stdin by -.
        k: how many images to find for each photo.
        with_photos: a photo of a mixed query, whose result comes first; may be given repeatedly.
        texts: words of the mixed query, such as "red mug"; may be given repeatedly.
        without: a photo that the mixed query moves away from; may be given repeatedly.
        weights: of the photos, the texts and those to move away from, in this order, such as 1,0.5,1; default: 1.
        options: those of `SearchOptions`.
        batch: photos embedded at once.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from aurank.commands import build_index
        >>> from aurank.embedding import ImageSelection
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for colour in ("red", "green"):
        ...         Image.new("RGB", (8, 8), colour).save(f"{folder}/{colour}.png")
        ...     photos = ImageSelection(f"unlabelled:{folder}")
        ...     index = build_index("timm:test_vit,pretrained=false", photos, out=f"{folder}/index")
        ...     results = search_photos(index, [f"{folder}/red.png"], k=1)
        >>> [(result.photo.name, result.hits[0].path) for result in results]
        [('red.png', 'red.png')]
    """
    files, results = find_photos(photos), list[PhotoHits]()
    groups = find_photos(with_photos), texts, find_photos(without)
    parts = [part for group in groups for part in group]
    if not files and not parts:
        raise UserError("there is no photo to search with: name files, folders or zip archives, or texts")
    channels = index.load_model().channels
    if parts and index.about["distance"] == "euclidean":
        raise UserError("photos and words are mixed as directions: build the index with --distance cosine")
    if parts:
        rows = [index.embed_texts([part]) if isinstance(part, str) else index.embed([part]) for part in parts]
        signs = np.repeat([1.0, 1.0, -1.0], [len(group) for group in groups])
        query = mixed_query(signs[:, None] * np.concatenate(rows), weights)
        names = [f"“{part}”" if isinstance(part, str) else part.path for part in parts]
        weighted = zip(names, signs if weights is None else signs * weights, strict=True)
        description = " ".join(f"{weight:+g} × {name}" for name, weight in weighted).removeprefix("+1 × ")
        shown = next((part for part in parts if isinstance(part, PhotoFile)), PhotoFile(ArraySource({}), "", ""))
        results.append(PhotoHits(replace(shown, path=description), index.search(query, k, **options)[0]))
    for start in range(0, len(files), batch):
        pixels: dict[PhotoFile, np.ndarray] = {}
        errors: dict[PhotoFile, str] = {}
        with quiet_decoding():
            for file in files[start : start + batch]:
                try:
                    pixels[file] = read_photo(file, channels)
                except UserError as error:
                    errors[file] = str(error)
        hits = dict(zip(pixels, index.search(list(pixels.values()), k, **options), strict=True))
        results += [PhotoHits(file, hits.get(file, []), errors.get(file)) for file in files[start : start + batch]]
        if progress is not None:
            progress(len(results), len(files))
    if all(result.error for result in results):
        raise UserError(f"no photo can be read: {results[0].error}")
    return results


def results_json(index: ImageIndex, results: Sequence[PhotoHits]) -> str:
    photos = [
        {
            "photo": result.photo.path,
            "error": result.error,
            "hits": [
                {"rank": rank, "score": hit.score, "path": hit.path, "class": hit.class_name, "row": hit.row}
                for rank, hit in enumerate(result.hits, start=1)
            ],
        }
        for result in results
    ]
    names = ("distance", "factory", "postprocessing", "recall", "count", "revision")
    about = {"model": index.about["model"]["name"], **{name: index.about[name] for name in names}}
    return json.dumps({"index": about, "photos": photos}, indent=1)


def results_page(
    index: ImageIndex, results: Sequence[PhotoHits], options: Sequence[tuple[str, str]] = (), *, explained: bool = False
) -> str:
    """Return what photos found as one HTML file with small pictures, 10 MiB of them at most."""
    joined = JoinedSource([*(result.photo.source for result in results), *index.sources])
    pictures = Pictures(joined, model=index.load_model() if explained else None)
    searched, alike = [], []
    for number, result in enumerate(results):
        sources = index.rows.take([hit.row for hit in result.hits])["source"].tolist()
        places = [f"{len(results) + source}/{hit.path}" for hit, source in zip(result.hits, sources, strict=True)]
        hits = list(zip(result.hits, map(pictures.of, places), strict=True))
        picture = f"{number}/{result.photo.name}"
        is_drawn = result.photo.name and not result.error
        searched.append((result, pictures.of(picture) if is_drawn else None, hits))
        alike.append(pictures.explained(picture, dict(enumerate(places, 1))) if is_drawn else [])
    notes = []
    if pictures.missing:
        notes.append(f"Pictures whose file is gone or unreadable: {len(pictures.missing):,}. The path stands instead.")
    if pictures.left_out:
        notes.append(f"{pictures.left_out:,} pictures are left out to keep this file small.")
    facts = [("index", index.description), *options]
    return render("search.html", title="Found", photos=searched, alike=alike, facts=facts, notes=notes)
