"""Embeddings of a manifest's images, with the rows, labels and paths they belong to."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from aurank.data import ImageDataset, Manifest, evaluation_loader
from aurank.errors import UserError
from aurank.evaluation.evaluate import evaluate
from aurank.evaluation.report import Report
from aurank.files import replacing


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings float32 [row, dim] with each row's label, id (row of the manifest), path and protocol flags."""

    embeddings: np.ndarray
    labels: np.ndarray
    ids: np.ndarray
    paths: np.ndarray
    is_query: np.ndarray
    is_gallery: np.ndarray

    def evaluate(self, **options: Any) -> Report:
        """The exact ``Report`` under the manifest's query and gallery flags; ``options`` go to ``aurank.evaluate``."""
        if self.is_query.all() and self.is_gallery.all():
            return evaluate(self.embeddings, self.labels, **options)
        query, gallery = self.is_query, self.is_gallery
        return evaluate(
            self.embeddings[query],
            self.labels[query],
            self.embeddings[gallery],
            self.labels[gallery],
            ids=self.ids[query],
            gallery_ids=self.ids[gallery],
            **options,
        )

    def save(self, path: Path) -> None:
        """Write an ``.npz`` with all arrays, whole or not at all."""
        with replacing(path) as file:
            np.savez(file, **{name: getattr(self, name) for name in self.__dataclass_fields__})

    @staticmethod
    def load(path: Path, labels: Path | None = None) -> "Embedded":
        """Embeddings from an ``.npz`` (``embeddings``, ``labels``, if wanted the rest), or an ``.npy`` with ``labels``.

        Raises:
            UserError: missing file, pickled content, or arrays that are absent or differ in length.
        """
        content = _read_arrays(path)
        if labels is not None:
            content["labels"] = _read_labels(labels)
        for name, remedy in (("embeddings", ""), ("labels", "; give them with --labels FILE.npy")):
            if name not in content:
                raise UserError(f"{path} holds no array {name!r}, only {', '.join(content) or 'nothing'}{remedy}")
        for name, values in content.items():
            if name in Embedded.__dataclass_fields__ and values.ndim == 0:
                raise UserError(f"{path}: {name} is a single value; expected an array with one row for each item")
        count = len(content["embeddings"])
        content.setdefault("ids", np.arange(count))
        content.setdefault("paths", np.array([""] * count))
        content.setdefault("is_query", np.ones(count, dtype=bool))
        content.setdefault("is_gallery", np.ones(count, dtype=bool))
        fields = {name: content[name] for name in Embedded.__dataclass_fields__}
        for name, values in fields.items():
            if len(values) != count:
                raise UserError(f"{path}: {name} has {len(values)} rows but embeddings has {count}; they must agree")
        for name in ("is_query", "is_gallery"):
            fields[name] = _flags(fields[name], f"{path}: {name}")
        return Embedded(**fields)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise UserError(f"no file {path}; expected saved embeddings, .npz or .npy")
    try:
        with path.open("rb") as file:
            if file.read(2) == b"PK":  # a zip archive; given its path, NumPy would leave a damaged one open
                file.seek(0)
                with np.load(file, allow_pickle=False) as content:
                    return dict(content)
        return {"embeddings": np.load(path, mmap_mode="r", allow_pickle=False)}
    except MemoryError:
        raise
    # A file that is cut short or damaged fails anywhere: in the archive, its compression, an array's header.
    except Exception as error:
        raise UserError(f"{path} is no readable .npz or .npy of plain arrays: {error}") from error


def _read_labels(path: Path) -> np.ndarray:
    """The one array of a file, or the one that is named labels."""
    content = _read_arrays(path)
    if "labels" not in content and len(content) != 1:
        raise UserError(f"--labels {path} holds {', '.join(content) or 'nothing'}; expected one array, or 'labels'")
    return content["labels"] if "labels" in content else next(iter(content.values()))


def _flags(values: np.ndarray, name: str) -> np.ndarray:
    """The values as booleans; UserError unless they are, or are all 0 and 1."""
    wrong = values if values.dtype.kind not in "biu" else values[~np.isin(values, (0, 1))]
    if wrong.size:
        raise UserError(f"{name} must hold True or False, or 1 or 0, in each row; got {wrong.flat[0]!r}")
    return values.astype(bool)


@torch.inference_mode()
def embed(
    model: nn.Module,
    dataset: ImageDataset,
    *,
    batch: int = 256,
    workers: int = 0,
    device: torch.device | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> Embedded:
    """Embeddings of every image of the data set, in row order; images it skips are left out.

    Args:
        model: maps float32 [batch, channel, height, width] to [batch, dim]; put in evaluation mode, then back.
        on_batch: called with the number of images done in each batch.
    """
    device = device or next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    training = model.training
    model.eval()
    embeddings: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    try:
        for images, _, ids in evaluation_loader(dataset, batch=batch, workers=workers):
            embeddings.append(model(images.to(device, non_blocking=True)).float().cpu().numpy())
            rows.append(ids.numpy())
            if on_batch is not None:
                on_batch(len(ids))
    finally:
        model.train(training)
    if not rows:
        raise UserError(f"no image of {dataset.manifest.name} could be read, so there is nothing to embed")
    return _described(dataset.manifest, np.concatenate(embeddings), np.concatenate(rows))


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


def _described(manifest: Manifest, embeddings: np.ndarray, rows: np.ndarray) -> Embedded:
    return Embedded(
        embeddings=embeddings,
        labels=manifest.labels[rows],
        ids=rows,
        paths=np.array(manifest.paths)[rows],
        is_query=manifest.is_query[rows],
        is_gallery=manifest.is_gallery[rows],
    )
