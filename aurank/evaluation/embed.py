"""Embeddings of a manifest's images, with the rows, labels and paths they belong to."""

from collections.abc import Callable
from dataclasses import dataclass
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
            content["labels"] = next(iter(_read_arrays(labels).values()))
        for name, remedy in (("embeddings", ""), ("labels", "; give them with --labels FILE.npy")):
            if name not in content:
                raise UserError(f"{path} holds no array {name!r}, only {', '.join(content) or 'nothing'}{remedy}")
        count = len(content["embeddings"])
        content.setdefault("ids", np.arange(count))
        content.setdefault("paths", np.array([""] * count))
        content.setdefault("is_query", np.ones(count, dtype=bool))
        content.setdefault("is_gallery", np.ones(count, dtype=bool))
        fields = {name: content[name] for name in Embedded.__dataclass_fields__}
        for name, values in fields.items():
            if len(values) != count:
                raise UserError(f"{path}: {name} has {len(values)} rows but embeddings has {count}; they must agree")
        return Embedded(**fields)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise UserError(f"no file {path}; expected saved embeddings, .npz or .npy")
    try:
        content = np.load(path, mmap_mode="r", allow_pickle=False)
        return {"embeddings": content} if isinstance(content, np.ndarray) else dict(content)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} is no readable .npz or .npy of plain arrays: {error}") from error


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
    """The images themselves as embeddings: the baseline that any model has to beat."""
    return embed(nn.Flatten(), dataset, batch=batch, workers=workers)


def _described(manifest: Manifest, embeddings: np.ndarray, rows: np.ndarray) -> Embedded:
    return Embedded(
        embeddings=embeddings,
        labels=manifest.labels[rows],
        ids=rows,
        paths=np.array(manifest.paths)[rows],
        is_query=manifest.is_query[rows],
        is_gallery=manifest.is_gallery[rows],
    )
