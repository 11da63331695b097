"""Embeddings of a manifest's images, with the rows, labels and paths they belong to."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import nn

from aurank.arrays import Rows, select_rows
from aurank.data import Batch, BatchLoader, ImageDataset, Manifest
from aurank.data.manifest import pairs_among
from aurank.data.saved_embeddings import read_arrays
from aurank.distributed import ProcessGroup
from aurank.embedding.cache import EmbeddingCache, Piece
from aurank.embedding.pace import LEAST, TRIED, Pace, find_pace, kept_to
from aurank.errors import UserError
from aurank.evaluation.engine.nearest import nearest_rows
from aurank.evaluation.engine.problem import (
    NO_GROUP,
    ProgressCallback,
    RetrievalProblem,
    choose_devices,
    group_texts,
)
from aurank.evaluation.evaluate import evaluate
from aurank.evaluation.report import Report
from aurank.files import replacing
from aurank.models.image_model import as_embeddings
from aurank.names import accepting

MOST_GROUPS = 8  # whose pairs are measured


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings float32 [row, dim], which may stay in files, with what is known of each row.

    Attributes:
        ids: rows of the manifest.
        groups: cameras, −1 for none; of a query's own label and group nothing counts.
        group_names: `group_names[group]` is the name of a camera; None where they are numbers.
        classes: `classes[label]` is the name of a class.
        super_labels: super-categories, −1 for none.
        made_by: the text of a ``MadeBy``.
        positives, ignored: pairs of rows, a query's and a gallery row's, as a ``Manifest`` has them.
    """

    embeddings: Rows
    labels: np.ndarray
    ids: np.ndarray
    paths: np.ndarray
    is_query: np.ndarray
    is_gallery: np.ndarray
    groups: np.ndarray
    classes: np.ndarray | None = None
    super_labels: np.ndarray | None = None
    splits: np.ndarray | None = None
    made_by: np.ndarray | None = None
    positives: np.ndarray | None = None
    ignored: np.ndarray | None = None
    group_names: np.ndarray | None = None

    @accepting(neighbors="neighbours")
    def evaluate(self, **options: Any) -> Report:
        """Return the exact ``Report`` under the query and gallery flags; ``options`` go to ``aurank.evaluate``.

        Processes that count together hold the same rows; the first alone lists neighbours.
        """
        group, (query, gallery) = ProcessGroup(options.get("distributed")), self._roles
        lists = options.pop("neighbours", 0) if group.size > 1 else 0
        above: dict[str, Any] = {}
        if self.super_labels is not None:
            above = {"super_labels": self.super_labels[query]}
            above |= {} if gallery is None else {"gallery_super_labels": self.super_labels[gallery]}
        report = evaluate(**self._question(), **above, **options)
        if lists and group.rank == 0:
            device = choose_devices(options.get("device"), self.embeddings)[0]
            how = {name: options[name] for name in ("distance", "max_memory", "progress") if name in options}
            near = nearest_rows(self.problem(), lists, device=device, **how)
            there = self.labels if gallery is None else self.labels[gallery]
            report = replace(report, neighbours=near, gallery={"label": there})
        if count := len(np.unique(self.groups[self.groups != NO_GROUP])):
            said = f"{count:,} cameras: images of a query's own class and camera are left out of its list"
            report = replace(report, notes=[*report.notes, said])
        return self.named(report, query, gallery)

    @property
    def _roles(self) -> tuple[np.ndarray | slice, np.ndarray | None]:
        is_one_set = self.is_query.all() and self.is_gallery.all()
        return (slice(None), None) if is_one_set else (self.is_query, self.is_gallery)

    def _question(self) -> dict[str, Any]:
        query, gallery = self._roles
        asked = {"labels": self.labels[query], "groups": self.groups[query], **self._pairs()}
        if gallery is None:
            return {"embeddings": self.embeddings, **asked}
        for side, rows in (("query", self.is_query), ("gallery", gallery)):
            if not rows.any():
                raise UserError(f"none of the {len(rows)} images is a {side}: mark some as such")
        sides = {"embeddings": select_rows(self.embeddings, self.is_query), "ids": self.ids[query]}
        sides |= {"gallery": select_rows(self.embeddings, gallery), "gallery_labels": self.labels[gallery]}
        return {**asked, **sides, "gallery_ids": self.ids[gallery], "gallery_groups": self.groups[gallery]}

    def _pairs(self) -> dict[str, Any]:
        places = [np.where(side, np.cumsum(side) - 1, -1) for side in (self.is_query, self.is_gallery)]
        options: dict[str, Any] = {}
        for name, pairs in (("positives", self.positives), ("ignore", self.ignored)):
            if pairs is not None:
                of_sides = np.stack([place[pairs[:, column]] for column, place in enumerate(places)], axis=1)
                options[name] = of_sides[(of_sides >= 0).all(axis=1)]
        return options

    def select(self, rows: np.ndarray) -> "Embedded":
        chosen = np.arange(len(self.labels))[rows]
        changed: dict[str, Any] = {"embeddings": select_rows(self.embeddings, rows)}
        for name, values in vars(self).items():
            if name in ("positives", "ignored") and values is not None:
                changed[name] = pairs_among(values, chosen, len(self.labels))
            elif name not in ("embeddings", "classes", "made_by", "group_names") and values is not None:
                changed[name] = values[rows]
        return replace(self, **changed)

    def problem(self) -> RetrievalProblem:
        _, labels = np.unique(self.labels, return_inverse=True)
        return RetrievalProblem(**replace(self, labels=labels)._question())

    def named(
        self, report: Report, query: np.ndarray | slice = slice(None), gallery: np.ndarray | None = None
    ) -> Report:
        classes = None if self.classes is None else self.classes[self.labels]
        columns = (self.paths, classes, group_texts(self.groups, self.group_names))
        own = (None if column is None else column[query] for column in columns)
        if gallery is None:
            return report.named(*own)
        paths, there, groups = (None if column is None else column[gallery] for column in columns)
        return report.named(*own, gallery_paths=paths, gallery_classes=there, gallery_groups=groups)

    def group_pairs(self, options: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Return metrics of the queries of one group among the gallery rows of another alone, for each pair of groups.

        Of more than eight groups those with the most rows are taken. None where there are not two. Of the ``options``
        of a whole evaluation those hold that say how scores are compared.
        """
        how = {name: options[name] for name in ("distance", "ties", "max_memory", "device") if name in options}
        groups, counts = np.unique(self.groups[self.groups != NO_GROUP], return_counts=True)
        groups = np.sort(groups[np.argsort(-counts, kind="stable")[:MOST_GROUPS]])
        pairs = []
        for one, other in itertools.permutations(groups.tolist(), 2):
            query, gallery = self.is_query & (self.groups == one), self.is_gallery & (self.groups == other)
            sides = replace(self, is_query=query, is_gallery=gallery).select(query | gallery)
            with suppress(UserError):  # no query of this group has a positive in the other
                report = sides.evaluate(metrics=["mauprc", "recall@1"], distributed=False, **how)
                names = group_texts([one, other], self.group_names)
                found = {"num_queries": len(report.per_query["query"]), "metrics": report.metrics}
                pairs.append(dict(zip(("query", "gallery"), names.tolist(), strict=True)) | found)
        return pairs or None

    def save(self, path: Path) -> None:
        with replacing(path) as file:
            np.savez(file, **{name: values for name, values in vars(self).items() if values is not None})

    @staticmethod
    def load(path: Path, labels: Path | None = None) -> "Embedded":
        return Embedded(**read_arrays(path, labels))


def embed(
    model: nn.Module, dataset: ImageDataset, *, rows: Int64[np.ndarray, " wanted"] | None = None, **how: Any
) -> Embedded:
    """Return embeddings of the images of the data set, or of some rows, in row order; images it skips are left out."""
    wanted = np.zeros(len(dataset), dtype=np.bool_)
    wanted[slice(None) if rows is None else rows] = True
    piece = embed_rows(model, dataset, wanted, **how)
    if not len(piece.rows):
        raise UserError(f"no image of {dataset.manifest.name} could be read, so there is nothing to embed")
    return described(dataset.manifest, *piece)


def embed_rows(
    model: nn.Module,
    dataset: ImageDataset,
    wanted: Bool[np.ndarray, " row"],
    *,
    batch: int | Pace | None = 256,
    workers: int = 0,
    device: torch.device | None = None,
    bf16: bool = False,
    progress: ProgressCallback | None = None,
    cache: EmbeddingCache | None = None,
    group: ProcessGroup | None = None,
) -> Piece:
    """Return the embeddings of the rows wanted of a data set; there may be none.

    Row i of those wanted is in batch i // `batch`, whatever is cached and however many processes share the batches.

    Args:
        batch: None takes what `choose_pace` finds.
        bf16: let the model multiply in bfloat16, under autocast.
        cache: what it holds is not embedded again, and every batch is added to it; skipped images are tried anew.
        group: processes that share the batches; each calls this with the same model and images, and gets all rows.
    """
    group = group or ProcessGroup(False)
    device = device or next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    pieces, missing = _held(cache, wanted, group)
    if batch is None:
        batch = choose_pace(model, dataset, missing, device=device, bf16=bf16, cache=cache, group=group)
    pace = batch if isinstance(batch, Pace) else Pace(batch)
    least = Pace().batch if isinstance(batch, Pace) else 1  # rows of a piece
    total, done = int(wanted.sum()), int(wanted.sum()) - int(missing.sum())
    if done and progress is not None:
        progress(done, total)
    places = np.flatnonzero(wanted)
    parts = (places[start : start + pace.batch] for start in range(0, len(places), pace.batch))
    batches = [part[missing[part]].tolist() for part in parts if missing[part].any()]
    loader, new = BatchLoader(dataset, group.shard(batches), workers=workers), list[Piece]()
    with _inference(model, device, bf16), kept_to(pace, model) as laid_out:
        for images, _, ids in loader if workers else _read_ahead(loader):
            if not len(ids):
                continue
            assert isinstance(images, torch.Tensor)  # only augmentation makes several sizes
            output = model(laid_out(dataset.to_input(images.to(device, non_blocking=True))))
            new.append(Piece(ids.numpy(), as_embeddings(output, len(ids))))
            if sum(len(piece.rows) for piece in new) >= least:
                pieces.append(_joined(new, cache))
                new = []
            done = min(total, done + len(ids) * group.size)  # the others are about as far
            if progress is not None:
                progress(done, total)
        if new:
            pieces.append(_joined(new, cache))
    found = gather_pieces(pieces, wanted, group)
    if group.size > 1:
        dataset.leave_out(np.setdiff1d(np.flatnonzero(wanted), found.rows))  # what others could not read
    return found


def choose_pace(
    model: nn.Module,
    dataset: ImageDataset,
    wanted: Bool[np.ndarray, " row"],
    *,
    device: torch.device,
    bf16: bool,
    cache: EmbeddingCache | None,
    group: ProcessGroup,
    known: Pace | None = None,
) -> Pace:
    """Return the pace for the rows wanted, the same in all processes: one that is known, the cache's, or a trial's.

    Without a trial, on GPUs or for few images, it is 256 images as the network is. The cache keeps what is returned.
    """
    if device.type != "cpu":
        return Pace()
    pace = known or (None if cache is None else cache.pace)
    if pace is None and group.rank == 0:
        pace, rows = Pace(), np.flatnonzero(wanted)
        if len(rows) >= LEAST and next(model.parameters(), None) is not None:
            images = dataset.__getitems__(rows[:TRIED].tolist()).image
            if isinstance(images, torch.Tensor) and images.ndim == 4 and len(images):
                with _inference(model, device, bf16):
                    model(images := dataset.to_input(images))  # what is made once is no part of the trial
                    pace = find_pace(model, images, len(rows))
    pace = group.all_gather(pace)[0]
    assert pace is not None  # of the first process
    if cache is not None and group.rank == 0:
        cache.pace = pace
    return pace


@contextmanager
def _inference(model: nn.Module, device: torch.device, bf16: bool) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            yield
    finally:
        model.train(training)


def _read_ahead(loader: BatchLoader) -> Iterator[Batch]:
    batches: Iterator[Batch] = iter(loader)
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = thread.submit(next, batches, None)
            yield batch


def _joined(pieces: Sequence[Piece], cache: EmbeddingCache | None) -> Piece:
    piece = Piece(*map(np.concatenate, zip(*pieces, strict=True)))
    if cache is not None:
        cache.write(piece)
    return piece


def _held(
    cache: EmbeddingCache | None, wanted: np.ndarray, group: ProcessGroup
) -> tuple[list[Piece], Bool[np.ndarray, " row"]]:
    """Return what this process has to give of the cache, each row in one process alone, and the rows that none has."""
    pieces = [] if cache is None else cache.read(len(wanted), wanted)
    held = np.zeros(len(wanted), dtype=np.bool_)
    for piece in pieces:
        held[piece.rows] = True
    everyone = [np.unpackbits(bits, count=len(held)).astype(np.bool_) for bits in group.all_gather(np.packbits(held))]
    before = np.logical_or.reduce([np.zeros_like(held), *everyone[: group.rank]])
    if before.any():  # of a folder that all share, only the first reads
        own = ((piece, ~before[piece.rows]) for piece in pieces)
        pieces = [Piece(piece.rows[new], piece.embeddings[new]) for piece, new in own if new.any()]
    return pieces, wanted & ~np.logical_or.reduce(everyone)


def embed_pixels(dataset: ImageDataset, *, batch: int | None = None, workers: int = 0) -> Embedded:
    embedded = embed(nn.Flatten(), dataset, batch=batch, workers=workers)
    pixels = np.asarray(embedded.embeddings)
    constant = pixels.min(axis=1, keepdims=True) == pixels.max(axis=1, keepdims=True)
    centred = pixels - pixels.mean(axis=1, keepdims=True)
    return replace(embedded, embeddings=np.where(constant, np.float32(1), centred))


def gather_pieces(pieces: Sequence[Piece], wanted: np.ndarray, group: ProcessGroup) -> Piece:
    """Return the rows wanted of all pieces of all processes as one, by increasing row, copied once."""
    held = np.concatenate([np.empty(0, np.int64), *(piece.rows for piece in pieces)])
    everyone = group.concatenate(held[wanted[held]])
    rows = np.sort(everyone)
    width = max(group.all_gather(pieces[0].embeddings.shape[1] if pieces else 0))
    embeddings = np.empty((len(rows), width), dtype=np.float32)
    if group.size == 1:
        for piece in pieces:
            kept = wanted[piece.rows]
            embeddings[np.searchsorted(rows, piece.rows[kept])] = piece.embeddings[kept]
        return Piece(rows, embeddings)
    own = [np.empty((0, width), np.float32), *(piece.embeddings[wanted[piece.rows]] for piece in pieces)]
    start = 0
    for part in group.parts(torch.from_numpy(np.concatenate(own))):
        embeddings[np.searchsorted(rows, everyone[start : start + len(part)])] = part.numpy()
        start += len(part)
    return Piece(rows, embeddings)


def described(manifest: Manifest, rows: np.ndarray, embeddings: Rows) -> Embedded:
    labels, paths, classes = manifest.labels[rows], np.array(manifest.paths)[rows], np.array(manifest.classes)
    groups = np.full(len(rows), -1) if manifest.groups is None else manifest.groups[rows]
    roles = {"is_query": manifest.is_query[rows], "is_gallery": manifest.is_gallery[rows]}
    above = None if manifest.super_labels is None else manifest.super_labels[rows]
    further = {"super_labels": above, "splits": manifest.splits[rows]}
    for name in ("positives", "ignored"):
        if (pairs := getattr(manifest, name)) is not None:
            further[name] = pairs_among(pairs, rows, len(manifest))
    names = None if manifest.group_names is None else np.array(manifest.group_names)
    how = {**roles, "groups": groups, "group_names": names, "classes": classes}
    return Embedded(embeddings, labels, rows, paths, **how, **further)
