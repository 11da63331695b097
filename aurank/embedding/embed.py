"""Embeddings of a manifest's images, with the rows, labels and paths they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image
from torch import nn

from aurank.arrays import load_arrays
from aurank.data import Batch, BatchLoader, ImageDataset, Manifest, Pipeline
from aurank.data.dataset import Key
from aurank.data.decode import MAX_PIXELS, quiet_decoding
from aurank.embedding.cache import EmbeddingCache, Piece
from aurank.errors import UserError
from aurank.evaluation.engine.inputs import ProgressCallback
from aurank.evaluation.evaluate import evaluate
from aurank.evaluation.report import Report
from aurank.files import replacing
from aurank.models.adapters.loading import ImageModel
from aurank.names import meant, nearest


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings float32 [row, dim] with each row's label, id (row of the manifest), path, protocol flags and group.

    Of a query's own label and group (a camera, −1 for none), nothing counts, neither as positive nor as negative.
    `classes[label]` is the name of a class, where names are known.
    """

    embeddings: np.ndarray
    labels: np.ndarray
    ids: np.ndarray
    paths: np.ndarray
    is_query: np.ndarray
    is_gallery: np.ndarray
    groups: np.ndarray
    classes: np.ndarray | None = None

    def evaluate(self, **options: Any) -> Report:
        """The exact ``Report`` under the manifest's query and gallery flags; ``options`` go to ``aurank.evaluate``."""
        if self.is_query.all() and self.is_gallery.all():
            return self.named(evaluate(self.embeddings, self.labels, groups=self.groups, **options))
        query, gallery = self.is_query, self.is_gallery
        for side, rows in (("query", query), ("gallery", gallery)):
            if not rows.any():
                raise UserError(f"none of the {len(rows)} images is a {side}: mark some as such")
        report = evaluate(
            self.embeddings[query],
            self.labels[query],
            self.embeddings[gallery],
            self.labels[gallery],
            ids=self.ids[query],
            gallery_ids=self.ids[gallery],
            groups=self.groups[query],
            gallery_groups=self.groups[gallery],
            **options,
        )
        return self.named(report, query, gallery)

    def named(
        self, report: Report, query: np.ndarray | slice = slice(None), gallery: np.ndarray | None = None
    ) -> Report:
        """Return the report with the path and class of each query, and of gallery rows beside neighbours.

        `query` and `gallery` choose the rows of each side, by default all of them for both.
        """
        classes = None if self.classes is None else self.classes[self.labels]
        own = None if classes is None else classes[query]
        if gallery is None:
            return report.named(self.paths[query], own)
        there = None if classes is None else classes[gallery]
        return report.named(self.paths[query], own, gallery_paths=self.paths[gallery], gallery_classes=there)

    def save(self, path: Path) -> None:
        """Write an ``.npz`` with all arrays, whole or not at all."""
        with replacing(path) as file:
            np.savez(file, **{name: values for name, values in vars(self).items() if values is not None})

    @staticmethod
    def load(path: Path, labels: Path | None = None) -> "Embedded":
        """Embeddings from an ``.npz`` (``embeddings``, ``labels``, if wanted the rest), or an ``.npy`` with ``labels``.

        An ``.npy`` of embeddings is mapped, not read. Without ``ids``, rows are counted; without flags, every row is
        query and gallery; without ``groups`` there are none.

        Raises:
            UserError: missing file, pickled content, or arrays that are absent or differ in length.
        """
        content = _read_arrays(path)
        for name in content:
            if name not in Embedded.__dataclass_fields__:
                likely = meant(nearest(name, Embedded.__dataclass_fields__))
                known = ", ".join(Embedded.__dataclass_fields__)
                raise UserError(f"{path} holds an array {name!r}, which means nothing here{likely}; known are {known}")
        if labels is not None:
            if "labels" in content:
                raise UserError(f"{path} holds labels of its own: leave out --labels {labels}, or the array")
            content["labels"] = _read_labels(labels)
        for name, remedy in (("embeddings", ""), ("labels", "; give them with --labels FILE.npy")):
            if name not in content:
                raise UserError(f"{path} holds no array {name!r}, only {', '.join(content) or 'nothing'}{remedy}")
        count = len(np.atleast_1d(content["embeddings"]))
        content.setdefault("ids", np.arange(count))
        content.setdefault("paths", np.array([""] * count))
        content.setdefault("is_query", np.ones(count, dtype=bool))
        content.setdefault("is_gallery", np.ones(count, dtype=bool))
        content.setdefault("groups", np.full(count, -1))
        classes = content.pop("classes", None)
        fields = {name: content[name] for name in Embedded.__dataclass_fields__ if name != "classes"}
        for name, values in fields.items():
            if values.ndim != (2 if name == "embeddings" else 1) or len(values) != count:
                expected = "a matrix, one row an item" if name == "embeddings" else f"{count} values, one an embedding"
                raise UserError(f"{path}: {name} has shape {values.shape}, expected {expected}; they must agree")
        if fields["paths"].dtype.kind != "U":
            raise UserError(
                f"{path}: paths are {fields['paths'].dtype}; save them as text, numpy.array([...], dtype=str)"
            )
        ids, places = np.unique(fields["ids"], return_index=True)
        if len(ids) < count:
            again = fields["ids"][np.setdiff1d(np.arange(count), places)[0]]
            raise UserError(f"{path}: ids name an item twice, {again!r}; give each item its own id")
        for name in ("is_query", "is_gallery"):
            fields[name] = _flags(fields[name], f"{path}: {name}")
        if classes is not None:
            _check_classes(classes, fields["labels"], path)
        return Embedded(**fields, classes=classes)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name; the one of an .npy is the embeddings."""
    return {name or "embeddings": values for name, values in load_arrays(path).items()}


def _read_labels(path: Path) -> np.ndarray:
    """The one array of a file, or the one that is named labels."""
    content = _read_arrays(path)
    if "labels" not in content and len(content) != 1:
        raise UserError(f"--labels {path} holds {', '.join(content) or 'nothing'}; expected one array, or 'labels'")
    return content["labels"] if "labels" in content else next(iter(content.values()))


def _check_classes(classes: np.ndarray, labels: np.ndarray, path: Path) -> None:
    """Raise UserError unless each label has its name in `classes`."""
    texts = classes.ndim == 1 and classes.dtype.kind == "U"
    if not texts or labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < len(classes))).all():
        raise UserError(f"{path}: classes must be the names of the labels 0, 1, …, in their order; leave them out")


def _flags(values: np.ndarray, name: str) -> np.ndarray:
    """The values as booleans; UserError unless they are, or are all 0 and 1."""
    wrong = values if values.dtype.kind not in "biu" else values[~np.isin(values, (0, 1))]
    if wrong.size:
        raise UserError(f"{name} must hold True or False, or 1 or 0, in each row; got {wrong.flat[0]!r}")
    return values.astype(bool)


class _AsDecoded(Pipeline):
    """The decoded pixels: all that follows is another library's transform."""

    def prepare(self, image: np.ndarray) -> np.ndarray:
        return image

    def augment(self, prepared: np.ndarray, seed: int | None) -> np.ndarray:
        return prepared


class ModelImages(ImageDataset):
    """The images of a manifest as a model of another library wants them: under that model's own transform.

    Args:
        manifest, on_error, max_pixels: as for ``ImageDataset``.
        model: its transform makes tensors of one shape.
    """

    def __init__(
        self, manifest: Manifest, model: ImageModel, *, on_error: str = "raise", max_pixels: int = MAX_PIXELS
    ) -> None:
        pipeline = _AsDecoded(1, model.channels)
        super().__init__(
            manifest, pipeline, channels=model.channels, on_error=on_error, cache_bytes=0, max_pixels=max_pixels
        )
        self.model = model

    def __getitems__(self, keys: Sequence[Key]) -> Batch:
        """Returns the batch of those rows, in their order, without the images that are skipped."""
        rows: list[int] = []
        images: list[torch.Tensor] = []
        with quiet_decoding():
            for key in keys:
                row = int(key[0] if isinstance(key, tuple) else key)
                pixels = self._prepared(row)
                if pixels is not None:
                    images.append(
                        self.model.transform(Image.fromarray(pixels.squeeze(2) if self.channels == 1 else pixels))
                    )
                    rows.append(row)
        shapes = sorted({tuple(image.shape) for image in images})
        if len(shapes) > 1 or (shapes and len(shapes[0]) != 3):
            raise UserError(
                f"{self.model.name}: its transform gives tensors of shape {', '.join(map(str, shapes))}; expected "
                "[channel, height, width], the same for every image"
            )
        return Batch(
            image=torch.stack(images) if images else torch.empty(0, self.channels, 1, 1),
            label=torch.from_numpy(self.manifest.labels[rows]),
            id=torch.tensor(rows, dtype=torch.int64),
        )


@torch.inference_mode()
def embed(
    model: nn.Module,
    dataset: ImageDataset,
    *,
    batch: int = 256,
    workers: int = 0,
    device: torch.device | None = None,
    rows: Int64[np.ndarray, " wanted"] | None = None,
    progress: ProgressCallback | None = None,
    cache: EmbeddingCache | None = None,
) -> Embedded:
    """Embeddings of every image of the data set, in row order; images it skips are left out.

    Args:
        model: maps float32 [batch, channel, height, width] to [batch, dim]; put in evaluation mode, then back.
        rows: the only ones to embed; default all.
        progress: called after each batch, and once for those read from the cache, with how many images are done and
            how many there are.
        cache: what it holds is not embedded again, and every batch is added to it. Skipped images are tried anew by
            each run, so that a repaired one is found.
    """
    if batch < 1:
        raise UserError(f"batch must be at least 1, got {batch}")
    device = device or next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    wanted = np.zeros(len(dataset), dtype=np.bool_)
    wanted[slice(None) if rows is None else rows] = True
    pieces = [] if cache is None else _among(cache.read(len(dataset)), wanted)
    done, total = sum(len(piece.rows) for piece in pieces), int(wanted.sum())
    if pieces and progress is not None:
        progress(done, total)
    training = model.training
    model.eval()
    try:
        for images, _, ids in BatchLoader(dataset, _batches(wanted, pieces, batch), workers=workers):
            if not len(ids):
                continue
            assert isinstance(images, torch.Tensor)  # only augmentation makes several sizes
            piece = Piece(ids.numpy(), _embedding(model(images.to(device, non_blocking=True)), len(ids)))
            pieces.append(piece)
            if cache is not None:
                cache.write(piece)
            done += len(ids)
            if progress is not None:
                progress(done, total)
    finally:
        model.train(training)
    if not pieces:
        raise UserError(f"no image of {dataset.manifest.name} could be read, so there is nothing to embed")
    return described(dataset.manifest, *_in_order(pieces))


def embed_pixels(dataset: ImageDataset, *, batch: int = 256, workers: int = 0) -> Embedded:
    """The images themselves as embeddings, each less its own mean: the baseline that any model has to beat.

    Without the mean taken off, the paper of a drawing makes all of them alike. An image of one value everywhere, of
    which nothing would be left, becomes all ones: at right angles to every other, the same as its like.
    """
    embedded = embed(nn.Flatten(), dataset, batch=batch, workers=workers)
    pixels = embedded.embeddings
    constant = pixels.min(axis=1, keepdims=True) == pixels.max(axis=1, keepdims=True)
    centred = pixels - pixels.mean(axis=1, keepdims=True)
    return replace(embedded, embeddings=np.where(constant, np.float32(1), centred))


def _among(pieces: Sequence[Piece], wanted: np.ndarray) -> list[Piece]:
    """What the pieces hold of the rows wanted."""
    kept = [(piece, wanted[piece.rows]) for piece in pieces]
    return [
        piece if mask.all() else Piece(piece.rows[mask], piece.embeddings[mask]) for piece, mask in kept if mask.any()
    ]


def _batches(wanted: np.ndarray, pieces: Sequence[Piece], batch: int) -> list[list[Key]]:
    """The rows wanted that no piece holds, in order, ``batch`` at a time."""
    missing = wanted.copy()
    for piece in pieces:
        missing[piece.rows] = False
    rows: list[Key] = [*np.flatnonzero(missing).tolist()]
    return [rows[start : start + batch] for start in range(0, len(rows), batch)]


def _embedding(output: Any, count: int) -> np.ndarray:
    """What a model returned as float32 [row, dim]; UserError unless it is a matrix with a row for each image."""
    if not isinstance(output, torch.Tensor) or output.ndim != 2 or len(output) != count:
        given = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise UserError(f"the model returned {given} for {count} images; expected a tensor [{count}, dim]")
    return output.float().cpu().numpy()


def _in_order(pieces: Sequence[Piece]) -> Piece:
    """All pieces as one, by increasing row, in a single array: what is copied is copied once."""
    counts = [len(piece.rows) for piece in pieces]
    rows = np.concatenate([piece.rows for piece in pieces])
    order = np.argsort(rows)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    embeddings = np.empty((len(rows), pieces[0].embeddings.shape[1]), dtype=np.float32)
    for piece, end in zip(pieces, np.cumsum(counts).tolist(), strict=True):
        embeddings[place[end - len(piece.rows) : end]] = piece.embeddings
    return Piece(rows[order], embeddings)


def described(manifest: Manifest, rows: np.ndarray, embeddings: np.ndarray) -> Embedded:
    """Embeddings of some rows of a manifest, with all that it says of these rows."""
    return Embedded(
        embeddings=embeddings,
        labels=manifest.labels[rows],
        ids=rows,
        paths=np.array(manifest.paths)[rows],
        is_query=manifest.is_query[rows],
        is_gallery=manifest.is_gallery[rows],
        groups=np.full(len(rows), -1) if manifest.groups is None else manifest.groups[rows],
        classes=np.array(manifest.classes),
    )
