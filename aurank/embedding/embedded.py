"""Embeddings with what is known of their images, and how they are measured."""

import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from aurank.arrays import Rows, select_rows
from aurank.config import Config
from aurank.data import Manifest
from aurank.data.manifest import pairs_among
from aurank.data.saved_embeddings import read_arrays
from aurank.data.shards import write_saved
from aurank.distributed import ProcessGroup
from aurank.errors import UserError
from aurank.evaluation.engine.nearest import nearest_rows
from aurank.evaluation.evaluate import evaluate
from aurank.evaluation.inputs import NO_GROUP, RetrievalProblem, choose_devices, group_texts
from aurank.evaluation.metrics import hierarchical_names
from aurank.evaluation.relevance import matched
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import TwoWayReport

MOST_GROUPS = 8  # most groups of which all pairs are measured


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings float32 [row, dim], which may stay in files, with what is known of each row.

    Attributes:
        ids: rows of the manifest.
        groups: cameras, −1 for none; of a query's own label and group nothing counts.
        group_names: `group_names[group]` is the name of a camera; None where they are numbers.
        classes: `classes[label]` is the name of a class.
        multi_label: True where a class is a combination of labels, as a ``Manifest`` has them.
        super_labels: super-categories, −1 for none.
        made_by: the text of a ``MadeBy``.
        positives, ignored: pairs of rows, a query's and a gallery row's, as a ``Manifest`` has them.
        gallery_embeddings: another model's embeddings of the same rows, which queries are ranked against.
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
    multi_label: np.ndarray | None = None
    gallery_embeddings: np.ndarray | None = None

    def evaluate(self, **options: Any) -> Report:
        """Return the exact ``Report`` under the query and gallery flags; ``options`` go to ``aurank.evaluate``."""
        group, (query, gallery) = ProcessGroup(options.get("distributed")), self._roles
        lists = options.pop("neighbours", 0) if group.size > 1 else 0
        if options.get("positives", "") is None:  # the usual ones, of listed pairs these
            del options["positives"]
        above: dict[str, Any] = {}
        if self.super_labels is not None:
            above = {"super_labels": self.super_labels[query]}
            above |= {} if gallery is None else {"gallery_super_labels": self.super_labels[gallery]}
        report = evaluate(**{**self._question(), **above, **options})
        if lists and group.rank == 0:
            device = choose_devices(options.get("device"), self.embeddings)[0]
            how = {name: options[name] for name in ("distance", "max_memory", "progress") if name in options}
            near = nearest_rows(self.problem(options.get("positives")), lists, device=device, **how)
            labels = self.labels if gallery is None else self.labels[gallery]
            report = replace(report, neighbours=near, gallery={"label": labels})
        if count := len(np.unique(self.groups[self.groups != NO_GROUP])):
            note = f"{count:,} cameras: images of a query's own class and camera are left out of its list"
            report = replace(report, notes=[*report.notes, note])
        classes = None if self.classes is None else self.classes[self.labels]
        columns = (self.paths, classes, group_texts(self.groups, self.group_names))
        keys = ("gallery_paths", "gallery_classes", "gallery_groups")
        named = zip(keys, columns, strict=True) if gallery is not None else ()
        names = {key: column[gallery] for key, column in named if column is not None}
        return report.named(*(None if column is None else column[query] for column in columns), **names)

    @property
    def _roles(self) -> tuple[np.ndarray | slice, np.ndarray | None]:
        is_one_set = self.is_query.all() and self.is_gallery.all() and self.gallery_embeddings is None
        return (slice(None), None) if is_one_set else (self.is_query, self.is_gallery)

    def _question(self) -> dict[str, Any]:
        query, gallery = self._roles
        question: dict[str, Any] = {"labels": self._labels(query), "groups": self.groups[query]}
        positions = [np.where(side, np.cumsum(side) - 1, -1) for side in (self.is_query, self.is_gallery)]
        for name, pairs in (("positives", self.positives), ("ignore", self.ignored)):
            if pairs is not None:
                of_sides = np.stack([position[pairs[:, side]] for side, position in enumerate(positions)], axis=1)
                question[name] = of_sides[(of_sides >= 0).all(axis=1)]
        if gallery is None:
            return {"embeddings": self.embeddings, **question}
        sides = {"embeddings": select_rows(self.embeddings, self.is_query), "ids": self.ids[query]}
        rows = self.embeddings if self.gallery_embeddings is None else self.gallery_embeddings
        sides |= {"gallery": select_rows(rows, gallery), "gallery_labels": self._labels(gallery)}
        return {**question, **sides, "gallery_ids": self.ids[gallery], "gallery_groups": self.groups[gallery]}

    def _labels(self, rows: np.ndarray | slice) -> Any:
        if not self.multi_label or self.classes is None:
            return self.labels[rows]
        return [name.split("|") for name in self.classes[self.labels[rows]].tolist()]

    def select(self, rows: np.ndarray) -> "Embedded":
        chosen = np.arange(len(self.labels))[rows]
        changed: dict[str, Any] = {"embeddings": select_rows(self.embeddings, rows)}
        for name, values in vars(self).items():
            if name in ("positives", "ignored") and values is not None:
                changed[name] = pairs_among(values, chosen, len(self.labels))
            elif name not in ("embeddings", "classes", "multi_label", "made_by", "group_names") and values is not None:
                changed[name] = values[rows]
        return replace(self, **changed)

    def problem(self, positives: Any = None) -> RetrievalProblem:
        if self.multi_label:
            question = self._question() | ({} if positives is None else {"positives": positives})
            sides = question.pop("labels"), question.pop("gallery_labels", None)
            return RetrievalProblem(**question | {"positives": matched(*sides, question.get("positives"))[1]})
        _, labels = np.unique(self.labels, return_inverse=True)
        return RetrievalProblem(**replace(self, labels=labels)._question())

    def group_pairs(self, options: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Return metrics of queries of one group among gallery rows of another, by pair of the eight largest groups."""
        how = {key: options[key] for key in ("distance", "ties", "positives", "max_memory", "device") if key in options}
        groups, counts = np.unique(self.groups[self.groups != NO_GROUP], return_counts=True)
        groups = np.sort(groups[np.argsort(-counts, kind="stable")[:MOST_GROUPS]])
        pairs = []
        for pair in itertools.permutations(groups.tolist(), 2):
            query, gallery = self.is_query & (self.groups == pair[0]), self.is_gallery & (self.groups == pair[1])
            sides = replace(self, is_query=query, is_gallery=gallery).select(query | gallery)
            with suppress(UserError):  # raised if no query has a positive in the other group
                report = sides.evaluate(metrics=["mauprc", "recall@1"], distributed=False, **how)
                names = group_texts([*pair], self.group_names)
                measured = {"num_queries": len(report.per_query["query"]), "metrics": report.metrics}
                pairs.append(dict(zip(("query", "gallery"), names.tolist(), strict=True)) | measured)
        return pairs or None

    def save(self, path: Path, **columns: Any) -> None:
        write_saved(path, {name: values for name, values in vars(self).items() if values is not None}, columns)

    @staticmethod
    def load(path: Path, labels: Path | None = None) -> "Embedded":
        return Embedded(**read_arrays(path, labels=labels))


def described(manifest: Manifest, rows: np.ndarray, embeddings: Rows) -> Embedded:
    labels, paths, classes = manifest.labels[rows], np.array(manifest.paths)[rows], np.array(manifest.classes)
    groups = np.full(len(rows), -1) if manifest.groups is None else manifest.groups[rows]
    roles = {"is_query": manifest.is_query[rows], "is_gallery": manifest.is_gallery[rows]}
    above = None if manifest.super_labels is None else manifest.super_labels[rows]
    further = {"super_labels": above, "splits": manifest.splits[rows]}
    for name in ("positives", "ignored"):
        if (pairs := getattr(manifest, name)) is not None:
            further[name] = pairs_among(pairs, rows, len(manifest))
    further |= {"multi_label": np.array(True)} if manifest.multi_label else {}
    names = None if manifest.group_names is None else np.array(manifest.group_names)
    how = {**roles, "groups": groups, "group_names": names, "classes": classes}
    return Embedded(embeddings, labels, rows, paths, **how, **further)


Result = TypeVar("Result", Report, TwoWayReport)
_ALL, _LABELS, _PATHS = np.ones(4, dtype=np.bool_), np.array([0, 0, 1, 1]), np.array(["a", "b", "c", "d"])
_ROWS = np.array([[1, 0], [1, 0.5], [0, 1], [0.5, 1]], dtype=np.float32)
_SIDES = {"groups": np.full(4, -1), "super_labels": np.zeros(4, np.int64)}
# A tiny set on which options are tried before hours of work.
TRIAL = Embedded(_ROWS, _LABELS, np.arange(4), _PATHS, _ALL, _ALL, **_SIDES)


def evaluation_options(config: Config) -> dict[str, Any]:
    return {**options_of(vars(config.evaluate)), "distributed": False}


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    names = ("recall_at", "ties", "max_memory", "metrics", "positives")
    options: dict[str, Any] = {name: settings[name] for name in names if settings.get(name) is not None}
    return options | ({"metrics": ("mauprc", *options["metrics"])} if "metrics" in options else {})


def evaluate_together(measure: Callable[..., Result], group: ProcessGroup, **options: Any) -> Result:
    if group.size == 1:
        return measure(**options)
    by_one = any(options.get(name) for name in ("index", "postprocess", "codes"))
    if by_one or hierarchical_names(options.get("metrics")):
        alone = measure(**{**options, "distributed": False}) if group.rank == 0 else None
        return group.all_gather(alone)[0]  # type: ignore[return-value]  # of the first
    return measure(**{**options, "distributed": None})


def two_way_options(config: Config) -> dict[str, Any]:
    return {"ties": config.evaluate.ties, "max_memory": config.evaluate.max_memory, "distributed": False}


def trial_of(manifest: Manifest) -> Embedded:
    return TRIAL if manifest.super_labels is not None else replace(TRIAL, super_labels=None)


def noted(result: Result, *notes: str) -> Result:
    if isinstance(result, TwoWayReport):
        return TwoWayReport(noted(result.image_to_text, *notes), noted(result.text_to_image, *notes))
    return replace(result, notes=[*result.notes, *notes])
