"""What a data set holds: one row an image, with its path, label, split, role in the evaluation and perhaps a text."""

import dataclasses
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int64, Integer, Shaped

from aurank.data.sources import ImageSource
from aurank.errors import UserError, refuse_first

SPLITS = ("train", "val", "test")
ValidationUnit = Literal["class", "super_category"]
Label = str | tuple[str, ...]  # the name of a class, or the names of all labels of a row, sorted
_COLUMNS = ("paths", "splits", "is_query", "is_gallery", "groups", "super_labels", "texts", "boxes")
_PAIRS = ("positives", "ignored")


@dataclass(frozen=True, eq=False)
class Manifest:
    """The rows of a data set; row i is image i, and i is the id of that image. Arrays are read-only.

    Attributes:
        source: where the bytes come from; no part of the content: a moved data set keeps its `sha256`.
        labels: contiguous, 0 … C − 1; `classes[label]` is the class's original name.
        class_ids: what the lists of the data set call the classes, where that is not their name: `sha256` is of these.
        multi_label: whether a class is a combination of labels with | between, such as "cat|sofa".
        groups: a camera, −1 for none; None where the data set has none, as for `super_labels` and `texts`.
        group_names: `group_names[group]` is the name of a camera; None where they are numbers. `sha256` leaves it out.
        texts: a caption of each row; one image may then stand in several rows, each with a caption of its own.
        boxes: the part of the upright image that a row is, in pixels: x1, y1, x2, y2, the last two just outside; −1 in
            all four for the whole image. One image may then stand in several rows, each with a box of its own.
        positives: pairs of a query's row and a gallery row, which alone belong together in an evaluation, whatever the
            labels; None where labels say so.
        ignored: such pairs that are left out of the query's list.
        unread: files in the folders of the images that no row is of; like `source` no part of the content.

    Raises:
        UserError: where the columns do not fit together.

    Example:
        >>> from aurank.data import READERS
        >>> READERS["digits"](None).split("test").split_sizes
        {'test': 899}
    """

    name: str
    source: ImageSource
    paths: tuple[str, ...]
    labels: Int64[np.ndarray, " image"]
    classes: tuple[str, ...]
    splits: Shaped[np.ndarray, " image"]  # text
    is_query: Bool[np.ndarray, " image"]
    is_gallery: Bool[np.ndarray, " image"]
    groups: Int64[np.ndarray, " image"] | None = None
    super_labels: Int64[np.ndarray, " image"] | None = None
    texts: tuple[str, ...] | None = None
    class_ids: tuple[str, ...] | None = None
    multi_label: bool = False
    boxes: Int64[np.ndarray, "image 4"] | None = None
    positives: Int64[np.ndarray, "positive 2"] | None = None
    ignored: Int64[np.ndarray, "ignored 2"] | None = None
    unread: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    group_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        problems = [
            f"{len(column)} {name} for {len(self.paths)} images; give one for each"
            for name in (*_COLUMNS, "labels")
            if (column := getattr(self, name)) is not None and len(column) != len(self.paths)
        ]
        if not np.array_equal(np.unique(self.labels), np.arange(len(self.classes))):
            problems.append(f"labels must be 0 … {len(self.classes) - 1}, each of at least one image")
        if odd := sorted(set(np.unique(self.splits).tolist()) - set(SPLITS)):
            problems.append(f"split {odd[0]!r} is not known; expected one of {', '.join(SPLITS)}")
        refuse_first(problems, self.name)
        for field in dataclasses.fields(self):
            if isinstance(column := getattr(self, field.name), np.ndarray):
                column = column.copy()  # the caller's array stays writable
                column.setflags(write=False)
                object.__setattr__(self, field.name, column)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{split} {count}" for split, count in self.split_sizes.items())
        return f"Manifest({self.name!r}: {len(self)} images of {count_labels(self)}; {sizes})"

    @functools.cached_property
    def split_sizes(self) -> dict[str, int]:
        """Images in each split that has any, in the order train, val, test."""
        sizes = {split: int(np.count_nonzero(self.splits == split)) for split in SPLITS}
        return {split: size for split, size in sizes.items() if size}

    @functools.cached_property
    def regions(self) -> tuple[str, ...]:
        """What each row shows: its path, behind which a box is written where it has one."""
        if self.boxes is None:
            return self.paths
        rows = zip(self.paths, self.boxes.tolist(), strict=True)
        return tuple(path if box[0] < 0 else f"{path} {box}" for path, box in rows)

    @functools.cached_property
    def class_counts(self) -> Int64[np.ndarray, " class"]:
        """Images of each class, at its label."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    @functools.cached_property
    def class_sets(self) -> Bool[np.ndarray, "class tag"] | None:
        """Which labels, ordered by name, each class combines; None where a class is one label."""
        tags = single_labels(self.classes)
        return np.array([np.isin(tags, name.split("|")) for name in self.classes]) if self.multi_label else None

    def by_label(self) -> "Manifest":
        """Return the manifest with each row once for each of its labels, which are the classes."""
        if self.class_sets is None:
            return self
        rows, labels = np.nonzero(self.class_sets[self.labels])
        classes = single_labels(self.classes)
        return dataclasses.replace(self.select(rows), labels=labels, classes=classes, class_ids=None, multi_label=False)

    def labels_of(self, rows: Int64[np.ndarray, " row"]) -> Shaped[np.ndarray, "row ..."]:
        """Return the labels of rows as a loss takes them: integers, or a row of `class_sets` each."""
        return self.labels[rows] if self.class_sets is None else np.asarray(self.class_sets[self.labels[rows]])

    def num_alike(self, counts: Int64[np.ndarray, " class"]) -> Int64[np.ndarray, " class"]:
        """Return, of images counted by class, how many share a label with each class."""
        if self.class_sets is None:
            return counts
        sets = self.class_sets.astype(np.float32)  # booleans are not multiplied by BLAS
        return np.concatenate([(part @ sets.T > 0) @ counts for part in np.array_split(sets, len(sets) // 1000 + 1)])

    @functools.cached_property
    def class_super_labels(self) -> Int64[np.ndarray, " class"] | None:
        """Super-category of each class, at its label, or None; UserError where a class has several."""
        if self.super_labels is None:
            return None
        of_class = np.empty(len(self.classes), np.int64)
        of_class[self.labels] = self.super_labels
        if len(odd := np.flatnonzero(of_class[self.labels] != self.super_labels)):
            label = int(self.labels[odd[0]])
            raise UserError(
                f"{self.name}: images of class {self.classes[label]!r} have several super-categories; where a loss or "
                "a sampler asks for them, a class lies within one"
            )
        return of_class

    @functools.cached_property
    def sha256(self) -> str:
        """Hexadecimal digest of the content: paths, labels and names, splits, flags, groups, super-labels, texts."""
        digest = hashlib.sha256()
        for words in (self.paths, self.class_ids or self.classes, self.splits.tolist()):
            digest.update(json.dumps(words).encode() + b"\n")
        for column in (self.labels, self.is_query, self.is_gallery, self.groups, self.super_labels):
            digest.update(b"none\n" if column is None else column.astype("<i8").tobytes() + b"\n")
        if self.texts is not None:
            digest.update(json.dumps(self.texts).encode() + b"\n")
        for name in (*_PAIRS, "boxes"):
            if (numbers := getattr(self, name)) is not None:
                digest.update(name.encode() + b"\n" + numbers.astype("<i8").tobytes() + b"\n")
        if self.multi_label:
            digest.update(b"multi_label\n")
        return digest.hexdigest()

    def select(self, rows: Bool[np.ndarray, " image"] | Integer[np.ndarray, " row"] | Sequence[int]) -> "Manifest":
        """Return the manifest of some rows, by a mask or by indices: labels made contiguous, empty classes dropped.

        The classes that stay keep their order. Rows, and so ids, are counted anew.
        """
        indices = np.arange(len(self))[np.asarray(rows) if len(rows) else np.zeros(0, dtype=np.int64)]
        labels_before, labels = np.unique(self.labels[indices], return_inverse=True)
        columns: dict[str, Any] = {"labels": labels.astype(np.int64).reshape(-1), "unread": ()}
        for name in (*_COLUMNS, *_PAIRS, "classes", "class_ids"):
            column = getattr(self, name)
            if column is None:
                continue
            if name in _PAIRS:
                columns[name] = pairs_among(column, indices, len(self))
            elif isinstance(column, tuple):
                chosen = labels_before if name.startswith("class") else indices
                columns[name] = tuple(column[index] for index in chosen.tolist())
            else:
                columns[name] = column[indices]
        return dataclasses.replace(self, **columns)

    def split(self, name: str) -> "Manifest":
        """Return the rows of one split; UserError names the splits that have images when it has none."""
        if name not in self.split_sizes:
            sizes = ", ".join(f"{split} ({size})" for split, size in self.split_sizes.items()) or "none"
            raise UserError(f"{self.name} has no images in split {name!r}; splits with images: {sizes}")
        return self.select(self.splits == name)

    def split_validation(self, fraction: int | float, *, seed: int, by: ValidationUnit = "class") -> "Manifest":
        """Return the manifest with a random `fraction` of the training classes, whole, turned into the split "val".

        At least two classes are taken: one alone has no negatives. Unchanged if there is a "val" split, if `fraction`
        is 0, or without training images. Only training rows move, so a class that training and test share stays in
        test. Classes that share an image, by its several texts, or a label move together and count as one.

        Args:
            fraction: at least 0 and below 1.
            by: "super_category": whole super-categories are taken, in random order, as long as their classes fit into
                the fraction, for data whose test classes are of super-categories that training has none of.

        Raises:
            UserError: with fewer than four training classes, or super-categories that do not fit.
        """
        training = self.splits == "train"
        if fraction == 0 or "val" in self.split_sizes or not training.any():
            return self
        units = self.units(by, training)
        # what moves as one, and its classes; the classes that share an image count as one where classes move
        moved, classes = units[training], (units if by == "class" else self.labels)[training]
        if (number := len(np.unique(classes))) < 4:
            few = "too few to keep some for validation (4 are needed); set data.validation_fraction=0"
            apart = "" if self.class_sets is None else " without a common label"
            raise UserError(f"{self.name} has {number} training classes{apart}, {few}, or name a split val")
        most = room = min(max(2, round(fraction * number)), number - 2)
        random = np.random.default_rng([seed, number])
        if by == "class":
            chosen = random.choice(np.unique(classes), size=most, replace=False)
        else:
            of_class = np.unique(np.stack([moved, classes]), axis=1)[0]
            names, sizes = np.unique(of_class, return_counts=True)
            taken = []
            for unit in random.permutation(len(names)).tolist():
                if sizes[unit] <= room:
                    taken.append(unit)
                    room -= int(sizes[unit])
            chosen = names[taken]
            if most - room < 2:
                raise UserError(
                    f"{self.name}: no super-categories have 2 to {most} classes together, as data.validation_fraction="
                    f"{fraction} of {number} training classes asks for; set it higher, or data.validation_by=class"
                )
        splits = self.splits.copy()
        splits[training & np.isin(units, chosen)] = "val"
        return dataclasses.replace(self, splits=splits)

    def units(self, by: ValidationUnit, among: Bool[np.ndarray, " image"]) -> Int64[np.ndarray, " image"]:
        """Return a number for each row, equal for rows that may not be parted: a class, or a super-category.

        Classes that share an image `among` some rows, by its several texts, or a label count as one.
        """
        units = self.labels
        if by == "super_category":
            if (of_class := self.class_super_labels) is None:
                raise UserError(f"{self.name} has no super-categories to hold out: hold out classes (by class)")
            alone = of_class.max() + 1 + np.arange(len(of_class))  # of a class without one
            units = np.unique(np.where(of_class < 0, alone, of_class), return_inverse=True)[1][self.labels]
        if self.texts is None and self.class_sets is None:
            return units
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        # Classes, images and single labels are the nodes of a graph; its connected parts are the units.
        count, numbers = int(units.max()) + 1, first_seen(self.paths)
        images = np.array([count + numbers[path] for path in self.paths], dtype=np.int64)
        ends = [(units[among], images[among])] if self.texts is not None else []
        if self.class_sets is not None:
            row, tag = np.nonzero(self.class_sets[self.labels[among]])
            ends.append((units[among][row], count + len(numbers) + tag))
        unit, node = map(np.concatenate, zip(*ends, strict=True))
        graph = coo_array((np.ones(len(unit), np.int8), (unit, node)), shape=(int(node.max(initial=count)) + 1,) * 2)
        return np.asarray(connected_components(graph, directed=False)[1][units], dtype=np.int64)


def build_manifest(
    name: str,
    source: ImageSource,
    *,
    paths: Sequence[str],
    labels: Sequence[Label],
    splits: Sequence[str],
    is_query: Sequence[bool] | None = None,
    is_gallery: Sequence[bool] | None = None,
    groups: Sequence[int] | None = None,
    group_names: tuple[str, ...] | None = None,
    super_labels: Sequence[int] | None = None,
    texts: Sequence[str] | None = None,
    boxes: Sequence[Sequence[int]] | None = None,
    class_names: Mapping[str, str] | None = None,
    unread: Sequence[str] = (),
) -> Manifest:
    """Return a manifest whose labels count the class names `labels` in the order they are first met.

    Every image is both query and gallery unless `is_query` or `is_gallery` say otherwise. Where `labels` are ids,
    `class_names` gives the name of each. Where some are tuples of names, a class is a combination of labels.

    Raises:
        UserError: when there is no image.

    Example:
        >>> from aurank.data import ArraySource
        >>> images = {name: np.zeros((2, 2), np.uint8) for name in ("a", "b", "c")}
        >>> build_manifest("toy", ArraySource(images), paths=list(images), labels=["x", "x", "y"], splits=["test"] * 3)
        Manifest('toy': 3 images of 2 classes; test 3)
    """
    if not paths:
        raise UserError(f"{name}: no images in {source.where}")
    multi_label = any(isinstance(label, tuple) for label in labels)
    names = ["|".join(label) if isinstance(label, tuple) else label for label in labels]
    numbers, everything = first_seen(names), [True] * len(paths)

    def whole(column: Sequence[Any] | None) -> Int64[np.ndarray, "image ..."] | None:
        return None if column is None else np.array(column, dtype=np.int64)

    return Manifest(
        name=name,
        source=source,
        paths=tuple(paths),
        labels=np.array([numbers[name] for name in names], dtype=np.int64),
        classes=tuple(numbers if class_names is None else map(class_names.__getitem__, numbers)),
        class_ids=None if class_names is None else tuple(numbers),
        multi_label=multi_label,
        splits=np.array(splits, dtype=np.str_),
        is_query=np.array(everything if is_query is None else is_query, dtype=np.bool_),
        is_gallery=np.array(everything if is_gallery is None else is_gallery, dtype=np.bool_),
        groups=whole(groups),
        group_names=group_names,
        super_labels=whole(super_labels),
        texts=None if texts is None else tuple(texts),
        boxes=whole(boxes),
        unread=tuple(unread),
    )


def pairs_among(
    pairs: Int64[np.ndarray, "pair 2"], rows: Int64[np.ndarray, " kept"], count: int
) -> Int64[np.ndarray, "among 2"]:
    position = np.full(count, -1, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    among = position[pairs]
    return np.asarray(among[(among >= 0).all(axis=1)])


def single_labels(classes: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({label for name in classes for label in name.split("|")}))


def count_labels(rows: Any) -> str:
    """Return of how many classes a `Manifest` or `Embedded` is, or of how many labels, where a class combines some."""
    return "{:,} {}".format(*labels_among(rows))


def labels_among(rows: Any, chosen: Any = slice(None)) -> tuple[int, str]:
    labels = np.unique(rows.labels[chosen])
    if not rows.multi_label or rows.classes is None:
        return len(labels), "classes"
    return len(single_labels(np.asarray(rows.classes)[labels].tolist())), "labels"


def by_ending(names: Iterable[str]) -> str:
    """Return how many files there are of each ending, as "12 .heic, 3 .txt"."""
    counts = Counter(PurePosixPath(name).suffix.lower() or "without ending" for name in names).most_common()
    return ", ".join(f"{count:,} {ending}" for ending, count in counts)


def first_seen(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}
