"""Image-text pairs: embedded by both towers, measured both ways, and told apart by what training has seen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from aurank.data import ImageDataset, Manifest, loader
from aurank.data.captions import text_key
from aurank.data.manifest import first_seen
from aurank.errors import UserError
from aurank.evaluation.embed import Embedded, described
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import PROMPTS, TwoWayReport, prompts, two_way, zero_shot
from aurank.models.text import TwoTower

Tokenise = Callable[[Sequence[str]], Tensor]
"""Texts to int64 tokens [text, length], 0 where there is none: `Tokeniser.encode`, or that of a loaded text model."""


@dataclass(frozen=True, eq=False)
class EmbeddedPairs:
    """The pairs of a manifest: row i holds the embeddings of an image and of its text, of unit length."""

    images: Float32[np.ndarray, "pair dim"]
    texts: Float32[np.ndarray, "pair dim"]
    labels: Int64[np.ndarray, " pair"]
    rows: Int64[np.ndarray, " pair"]  # of the manifest
    image_ids: Int64[np.ndarray, " pair"]  # equal for one image in several pairs
    text_ids: Int64[np.ndarray, " pair"]  # equal for one text, in whatever case

    def evaluate(
        self, rows: Int64[np.ndarray, " row"] | None = None, *, distinct_texts: bool = True, **options: Any
    ) -> TwoWayReport:
        """The report both ways of all pairs, or of those of some rows of the manifest among themselves.

        `distinct_texts`: a text that many images have stands once. `options` go to `two_way`.
        """
        kept = np.ones(len(self.rows), dtype=np.bool_) if rows is None else np.isin(self.rows, rows)
        return two_way(
            self.images[kept],
            self.texts[kept],
            self.labels[kept],
            image_ids=self.image_ids[kept],
            text_ids=self.text_ids[kept] if distinct_texts else None,
            **options,
        )

    def images_alone(self, manifest: Manifest) -> Embedded | None:
        """Each image once, to be compared with each other; None where their labels do not allow it.

        They do not where an image has several, or where no query has a positive.
        """
        first = first_rows(manifest)
        if first is None:
            return None
        once = np.isin(self.rows, first)
        found = described(manifest, self.rows[once], self.images[once])
        return found if (found.is_query & (_positives(found) > 0)).any() else None

    def zero_shot(
        self, model: TwoTower, tokenise: Tokenise, classes: Sequence[str], *, templates: Sequence[str] = PROMPTS
    ) -> Report:
        """The report of the classification of the images by the names of the classes, `classes[label]`."""
        named = embed_texts(model, tokenise, prompts(classes, templates))
        _, first = np.unique(self.image_ids, return_index=True)
        by_class = torch.from_numpy(named.reshape(len(classes), len(templates), -1))
        return zero_shot(self.images[first], self.labels[first], by_class)


def embed_pairs(
    model: TwoTower, tokenise: Tokenise, data: ImageDataset, *, batch: int = 256, workers: int = 0
) -> EmbeddedPairs:
    """The pairs of the data set, each distinct image and text embedded once; those of skipped images are left out.

    The model is put in evaluation mode, then back. Raises UserError for a data set without texts.
    """
    manifest = data.manifest
    written = texts_of(manifest)
    image_ids, text_ids = _numbered(manifest.paths), _numbered([text_key(text) for text in written])
    _, first = np.unique(image_ids, return_index=True)
    _, first_text = np.unique(text_ids, return_index=True)
    found, images = _embed_images(model, data, first, batch=batch, workers=workers)
    texts = embed_texts(model, tokenise, [written[row] for row in first_text.tolist()], batch=batch)
    place = np.full(len(first), -1)
    place[image_ids[found]] = np.arange(len(found))
    rows = np.flatnonzero(place[image_ids] >= 0)
    return EmbeddedPairs(
        images=images[place[image_ids[rows]]],
        texts=texts[text_ids[rows]],
        labels=manifest.labels[rows],
        rows=rows,
        image_ids=image_ids[rows],
        text_ids=text_ids[rows],
    )


@torch.inference_mode()
def embed_texts(
    model: TwoTower, tokenise: Tokenise, texts: Sequence[str], *, batch: int = 256
) -> Float32[np.ndarray, "text dim"]:
    """Embeddings of the texts; the model is put in evaluation mode, then back."""
    device = next(model.parameters()).device
    with _Evaluating(model):
        parts = [
            model.encode_text(tokenise(texts[start : start + batch]).to(device))
            for start in range(0, len(texts), batch)
        ]
    return torch.cat(parts).float().cpu().numpy()


def texts_of(manifest: Manifest) -> tuple[str, ...]:
    """The text of each row; UserError where the data set has none."""
    if manifest.texts is None:
        raise UserError(
            f"{manifest.name} has no texts: read a table with a column text, filled in each row (data.name=table)"
        )
    return manifest.texts


def first_rows(manifest: Manifest) -> Int64[np.ndarray, " image"] | None:
    """The first row of each image, in order; None where one has several labels, so that it is of no one class."""
    _, first, image = np.unique(_numbered(manifest.paths), return_index=True, return_inverse=True)
    return first if np.array_equal(manifest.labels[first][image], manifest.labels) else None


def each_image_once(manifest: Manifest) -> Manifest:
    """The first row of each image where texts make several of one: all would be positives of each other.

    Raises UserError where an image has several labels.
    """
    if manifest.texts is None:
        return manifest
    rows = first_rows(manifest)
    if rows is None:
        raise UserError(
            f"{manifest.name} has images with several labels, so images cannot be compared with each other; aurank "
            "pairs measures them with their texts"
        )
    return manifest if len(rows) == len(manifest) else manifest.select(rows)


def reports_by_group(
    embedded: EmbeddedPairs, train: Manifest | None, test: Manifest, **options: Any
) -> dict[str, TwoWayReport]:
    """The report of all pairs of `test`, "all", and of each of its `groups_of` among themselves, if `train` is given.

    `options` go to `two_way`.
    """
    groups = {} if train is None else groups_of(train, test)
    found = {name: rows for name, rows in groups.items() if np.isin(rows, embedded.rows).any()}
    return {
        "all": embedded.evaluate(**options),
        **{name: embedded.evaluate(rows, **options) for name, rows in found.items()},
    }


def describe_groups(reports: dict[str, TwoWayReport]) -> str:
    """All reports of `reports_by_group` as text, each under its name."""
    return "\n\n".join(f"two-way retrieval, {name.replace('_', ' ')}\n{report}" for name, report in reports.items())


def groups_of(train: Manifest, test: Manifest) -> dict[str, Int64[np.ndarray, " row"]]:
    """Rows of `test` by what training has seen of them; groups without rows are left out.

    "seen_texts": the text itself; "new_texts": other texts of its class; "new_classes": nothing of its class.
    """
    texts, classes = {text_key(text) for text in texts_of(train)}, set(train.classes)
    known_text = np.array([text_key(text) in texts for text in texts_of(test)], dtype=np.bool_)
    known_class = np.array([name in classes for name in test.classes], dtype=np.bool_)[test.labels]
    groups = {
        "seen_texts": known_text,
        "new_texts": ~known_text & known_class,
        "new_classes": ~known_text & ~known_class,
    }
    return {name: np.flatnonzero(rows) for name, rows in groups.items() if rows.any()}


@torch.inference_mode()
def _embed_images(
    model: TwoTower, data: ImageDataset, rows: Int64[np.ndarray, " row"], *, batch: int, workers: int
) -> tuple[Int64[np.ndarray, " found"], Float32[np.ndarray, "found dim"]]:
    """The rows whose images could be read, and their embeddings."""
    device = next(model.parameters()).device
    wanted = [rows[start : start + batch].tolist() for start in range(0, len(rows), batch)]
    found: list[Tensor] = []
    parts: list[Tensor] = []
    with _Evaluating(model):
        for images, _, ids in loader(data, wanted, workers=workers):
            if len(ids):
                assert isinstance(images, Tensor)  # several views are of training
                found.append(ids)
                parts.append(model.encode_image(images.to(device, non_blocking=True)).float().cpu())
    if not found:
        raise UserError(f"no image of {data.manifest.name} could be read, so there is nothing to embed")
    return torch.cat(found).numpy(), torch.cat(parts).numpy()


class _Evaluating:
    """A context in which a module is in evaluation mode."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.training = module.training

    def __enter__(self) -> None:
        self.module.eval()

    def __exit__(self, *_: object) -> None:
        self.module.train(self.training)


def _positives(found: Embedded) -> Int64[np.ndarray, " row"]:
    """For each row how many others of its class in the gallery count for it: those of its own group do not."""
    of_class = np.bincount(found.labels[found.is_gallery], minlength=int(found.labels.max()) + 1)[found.labels]
    _, camera = np.unique(np.stack([found.labels, found.groups]), axis=1, return_inverse=True)
    camera = camera.reshape(-1)
    of_group = np.bincount(camera[found.is_gallery], minlength=int(camera.max()) + 1)[camera]
    return np.asarray(of_class - np.where(found.groups >= 0, of_group, found.is_gallery), dtype=np.int64)


def _numbered(names: Sequence[str]) -> Int64[np.ndarray, " row"]:
    """For each name its number among the distinct ones, in the order they are first met."""
    numbers = first_seen(names)
    return np.array([numbers[name] for name in names], dtype=np.int64)
