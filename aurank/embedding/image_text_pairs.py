"""Image-text pairs: embedded by both towers, measured both ways, in groups by what training has seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64

from aurank.data import ImageDataset, Manifest
from aurank.data.manifest import first_seen
from aurank.distributed import ProcessGroup
from aurank.embedding.cache import Piece
from aurank.embedding.embed import embed, gather_pieces
from aurank.embedding.embedded import Embedded, described
from aurank.errors import UserError
from aurank.evaluation.engine.problem import sort_by_label
from aurank.evaluation.inputs import ProgressCallback
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import PROMPTS, TwoWayReport, prompts, two_way, zero_shot
from aurank.models.text_encoder import TwoTower
from aurank.names import text_key

WITH_TEXTS = "aurank pairs measures them with their texts"


@dataclass(frozen=True, eq=False)
class EmbeddedPairs:
    images: Float32[np.ndarray, "pair dim"]
    texts: Float32[np.ndarray, "pair dim"]
    labels: Int64[np.ndarray, " pair"]
    rows: Int64[np.ndarray, " pair"]  # row of the manifest
    image_ids: Int64[np.ndarray, " pair"]  # equal for pairs with the same image
    text_ids: Int64[np.ndarray, " pair"]  # equal for texts that differ only in case

    def evaluate(self, rows: Int64[np.ndarray, " row"] | None = None, **options: Any) -> TwoWayReport:
        mask = np.ones(len(self.rows), dtype=np.bool_) if rows is None else np.isin(self.rows, rows)
        sides = (self.images[mask], self.texts[mask], self.labels[mask])
        return two_way(*sides, image_ids=self.image_ids[mask], text_ids=self.text_ids[mask], **options)

    def images_alone(self, manifest: Manifest) -> Embedded | None:
        """Each image once, to be compared; None where an image has several labels, or no query a positive."""
        if not has_one_label(manifest):
            return None
        once = np.isin(self.rows, first_rows(manifest.paths))
        embedded = described(manifest, self.rows[once], self.images[once])
        return embedded if sort_by_label(embedded.problem()).num_positives.any() else None

    def zero_shot(self, model: TwoTower, classes: Sequence[str], *, templates: Sequence[str] = PROMPTS) -> Report:
        named = embed_texts(model, prompts(classes, templates))
        _, first = np.unique(self.image_ids, return_index=True)
        by_class = torch.from_numpy(named.reshape(len(classes), len(templates), -1))
        return zero_shot(self.images[first], self.labels[first], by_class)


def embed_pairs(
    model: TwoTower,
    data: ImageDataset,
    *,
    batch: int = 256,
    pairs: Manifest | None = None,
    text_progress: ProgressCallback | None = None,
    group: ProcessGroup | None = None,
    **options: Any,
) -> EmbeddedPairs:
    """Return the pairs of the data set, each distinct image and text embedded once; skipped images are left out."""
    manifest = data.manifest if pairs is None else pairs
    written = texts_of(manifest)
    image_ids, text_ids = _numbered(manifest.paths), _numbered([text_key(text) for text in written])
    _, first_text = np.unique(text_ids, return_index=True)
    images = embed(model.image, data, batch=batch, rows=first_rows(data.manifest.paths), group=group, **options)
    distinct = [written[row] for row in first_text.tolist()]
    texts = embed_texts(model, distinct, batch=batch, progress=text_progress, group=group)
    row_of = {path: row for row, path in enumerate(images.paths.tolist())}
    rows = np.flatnonzero([path in row_of for path in manifest.paths])
    by_pair = images.embeddings[[row_of[manifest.paths[row]] for row in rows]]
    return EmbeddedPairs(by_pair, texts[text_ids[rows]], manifest.labels[rows], rows, image_ids[rows], text_ids[rows])


@torch.inference_mode()
def embed_texts(
    model: TwoTower,
    texts: Sequence[str],
    *,
    batch: int = 256,
    progress: ProgressCallback | None = None,
    group: ProcessGroup | None = None,
) -> Float32[np.ndarray, "text dim"]:
    group = group or ProcessGroup(False)
    device, training = next(model.parameters()).device, model.training
    model.eval()
    pieces: list[Piece] = []
    try:
        for start in group.shard(range(0, len(texts), batch)):
            part = model.encode_text(model.tokenise(texts[start : start + batch]).to(device)).float().cpu().numpy()
            pieces.append((np.arange(start, start + len(part)), part))
            if progress is not None:
                progress(min(start + batch * group.size, len(texts)), len(texts))
    finally:
        model.train(training)
    return gather_pieces(pieces, np.ones(len(texts), dtype=np.bool_), group)[1]


def texts_of(manifest: Manifest) -> tuple[str, ...]:
    if manifest.texts is None:
        remedy = "read a table with a column text, filled in each row (data.name=table)"
        raise UserError(f"{manifest.name} has no texts: {remedy}")
    if manifest.multi_label:
        raise UserError(f"{manifest.name} has several labels for an image, and texts go by one: give one, or none")
    return manifest.texts


def has_one_label(manifest: Manifest, names: Sequence[str] | None = None) -> bool:
    """Return whether rows of one image, or of one of `names`, have one label."""
    names = manifest.paths if names is None else names
    return np.array_equal(manifest.labels[first_rows(names)][_numbered(names)], manifest.labels)


def require_one_label(manifest: Manifest) -> None:
    """Raise UserError where tables by class are impossible: an image or a text stands for several classes."""
    if not (has_one_label(manifest) and has_one_label(manifest, [text_key(text) for text in texts_of(manifest)])):
        raise UserError(f"{manifest.name} has no table by class: give each test image and each text one label alone")


def each_image_once(manifest: Manifest, *, one_label: bool = True) -> Manifest:
    if manifest.texts is None:
        return manifest
    if one_label and not has_one_label(manifest):
        message = f"{manifest.name} has images with several labels, so images cannot be compared with each other"
        raise UserError(f"{message}; {WITH_TEXTS}")
    rows = first_rows(manifest.paths)
    return manifest if len(rows) == len(manifest) else manifest.select(rows)


def first_rows(names: Sequence[str]) -> Int64[np.ndarray, " distinct"]:
    return np.unique(_numbered(names), return_index=True)[1]


def reports_by_group(
    embedded: EmbeddedPairs, train: Manifest | None, test: Manifest, **options: Any
) -> dict[str, TwoWayReport]:
    groups = {} if train is None else groups_of(train, test)
    groups = {name: rows for name, rows in groups.items() if np.isin(rows, embedded.rows).any()}
    return {name: embedded.evaluate(rows, **options) for name, rows in {"all": None, **groups}.items()}


def describe_groups(reports: dict[str, TwoWayReport], *further: str) -> str:
    parts = [f"two-way retrieval, {name.replace('_', ' ')}\n{report}" for name, report in reports.items()] + [*further]
    if len({part.rpartition("\n")[2] for part in parts}) == 1:
        parts[:-1] = [part.rpartition("\n")[0] for part in parts[:-1]]
    return "\n\n".join(parts)


def groups_of(train: Manifest, test: Manifest) -> dict[str, Int64[np.ndarray, " row"]]:
    """Return rows of `test` by what training has seen: the text, other texts of its class, nothing of its class."""
    texts, classes = {text_key(text) for text in texts_of(train)}, set(train.classes)
    known_text = np.array([text_key(text) in texts for text in texts_of(test)], dtype=np.bool_)
    known_class = np.array([name in classes for name in test.classes], dtype=np.bool_)[test.labels]
    groups = {"seen_texts": known_text, "new_texts": ~known_text & known_class}
    groups["new_classes"] = ~known_text & ~known_class
    return {name: np.flatnonzero(rows) for name, rows in groups.items() if rows.any()}


def _numbered(names: Sequence[str]) -> Int64[np.ndarray, " row"]:
    numbers = first_seen(names)
    return np.array([numbers[name] for name in names], dtype=np.int64)
