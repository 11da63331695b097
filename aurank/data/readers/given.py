"""Data sets of a Python program: whatever gives an image and a label by number."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from jaxtyping import Integer
from PIL import Image

from aurank.data.decode import to_pixels
from aurank.data.manifest import Label, Manifest, build_manifest
from aurank.data.readers.folders import draw_splits
from aurank.data.readers.values import read_label, require_filled
from aurank.data.sources import ArraySource
from aurank.errors import UserError
from aurank.files import reading
from aurank.lazy import import_library
from aurank.names import require_choice

GIVEN = "given"  # as data.name: what was given from Python
_COMPARED = 4  # images that are read twice
_reading = Lock()  # an item is made by code that need not bear several threads


def read_given(root: Path) -> Manifest:
    """Refuse: the data set was an object of the program that trained on it."""
    raise UserError(
        "the data set was given from Python: give it again, by aurank.train(…, dataset=…) or ImageSelection"
    )


def from_dataset(
    dataset: Any,
    *,
    image: str | int | None = None,
    label: str | int | None = None,
    name: str = "dataset",
    test_fraction: int | float = 1.0,
    seed: int = 0,
) -> Manifest:
    """Return the images of a map-style data set of torch, torchvision or Hugging Face, to train, measure or index.

    Nothing is copied: an image is read from the data set whenever it is needed, by one thread at a time. Labels come
    from `targets` or the column, where there are such, else from the items themselves. A label may be a list of labels.

    Args:
        dataset: has `len()` and items by number, an image and a label each; or one such for each split,
            `{"train": …, "test": …}`. An image is of Pillow, a uint8 array [height, width(, channel)], or a tensor
            [channel, height, width], uint8 or from 0 to 1. Leave out random transforms: aurank has its own.
        image, label: keys of an item; default 0 and 1, of a mapping "image" and "label".
        name: in reports.
        test_fraction, seed: as for the reader "folder", where there are no splits.

    Raises:
        UserError: names what does not fit, and the first item that does not.

    Example:
        >>> pixels = np.zeros((8, 8, 3), np.uint8)
        >>> from_dataset({"train": [(pixels, "cat"), (pixels, "dog")], "test": [(pixels, "owl")]})
        Manifest('dataset': 3 images of 3 classes; train 2, test 1)
    """
    items: dict[str, Callable[[], Any]] = {}
    labels, splits = list[Label](), list[str]()
    for split, part in (dataset if isinstance(dataset, Mapping) else {"": dataset}).items():
        with reading(name, "a data set", remedy="give one whose items are an image and a label"):
            is_mapping = len(part) > 0 and isinstance(part[0], Mapping)
            usual = ("image", "label") if is_mapping else (0, 1)
            part_labels = _labels(part, usual[1] if label is None else label)
        labels += part_labels
        splits += ["val" if split == "validation" else split] * len(part_labels)
        key = usual[0] if image is None else image
        for row in range(len(part_labels)):
            path = f"{split}/{row:07d}".lstrip("/")
            items[path] = partial(_item, part, row, key, f"{name}, image {path!r}")
    require_filled("label", [f"{name}, {path!r}" for path, text in zip(items, labels, strict=True) if not text])
    source = ArraySource(items, where=name)
    source.is_read_to_mark = True
    for path in [*items][:_COMPARED]:
        if not np.array_equal(source.pixels(path), source.pixels(path)):
            remedy = "leave out the random transform of the data set, and set data.train_transform"
            raise UserError(f"{name}: reading image {path!r} twice gave different pixels; {remedy}")
    if not any(splits):
        splits = draw_splits(labels, test_fraction, seed)
    return build_manifest(name, source, paths=[*items], labels=labels, splits=splits)


def read_torchvision(
    root: Path, *, dataset: str, path: str = ".", splits: Mapping[str, str] | None = None, imbalance: int | float = 1
) -> Manifest:
    """Return a data set that a class of `torchvision.datasets` reads, such as CIFAR10 or STL10; nothing is fetched.

    Images without a label (−1, as in STL10's "unlabeled") have one of their own each.

    Args:
        dataset: the class; it has an argument `train` or `split`.
        path: the folder that holds its own, such as cifar-10-batches-py.
        splits: its name for each split, {"train": "unlabeled", "test": "test"}; default: train and test.
        imbalance: of a long tail, largest class by smallest: of class k of C the split train keeps
            n·imbalance^(−k/(C − 1)) images, n being the images by classes; 100 makes CIFAR-10-LT and CIFAR-100-LT.

    Source: Cui et al. (CVPR 2019), https://arxiv.org/abs/1901.05555, for the long tail; its images are those that Cao
        et al. (NeurIPS 2019), https://arxiv.org/abs/1906.07413, draw.
    """
    library = import_library("torchvision.datasets", "data.name=torchvision")
    kind = getattr(library, require_choice("data.params.dataset", dataset, library.__all__))
    argument = next((name for name in ("train", "split") if name in inspect.signature(kind).parameters), None)
    if argument is None:
        raise UserError(f"torchvision's {dataset} has no splits; give it to aurank.data.from_dataset")
    parts = {}
    for split, name in (splits or {"train": "train", "test": "test"}).items():
        value = (
            require_choice("data.params.splits", name, ("train", "test")) == "train" if argument == "train" else name
        )
        remedy = "set data.root or data.params.path to the folder that holds it, unpacked"
        with reading(f"{dataset}, {name!r}, in {root / path}", "a data set of torchvision", remedy=remedy):
            part = kind(root / path, **{argument: value})
            targets = next((getattr(part, key) for key in ("targets", "labels") if hasattr(part, key)), None)
            numbers = np.array([part[row][1] for row in range(len(part))] if targets is None else targets)
            if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
                raise UserError("its labels are no class numbers; give it to aurank.data.from_dataset")
        rows = np.arange(len(numbers)) if split != "train" or imbalance == 1 else _long_tail(numbers, imbalance)
        names = [", ".join(each) if isinstance(each, tuple) else each for each in getattr(part, "classes", ())]
        labels = [
            f"{name}/{row}" if numbers[row] == -1 else read_label(numbers[row], f"{dataset}, item {row}", names)
            for row in rows.tolist()
        ]
        parts[split] = _Relabelled(part, rows.tolist(), labels)
    return from_dataset(parts, name=dataset)


def _long_tail(labels: Integer[np.ndarray, " row"], imbalance: int | float) -> Integer[np.ndarray, " kept"]:
    """Return the rows that a long tail keeps, the same that the published code draws."""
    random = np.random.RandomState(0)  # the generator of that code
    classes, tail = np.unique(labels), list[np.ndarray]()
    for number, label in enumerate(classes):
        members = np.flatnonzero(labels == label)
        random.shuffle(members)
        share = (1 / imbalance) ** (number / max(1, len(classes) - 1))
        tail.append(members[: int(len(labels) / len(classes) * share)])
    return np.concatenate(tail)


@dataclass(frozen=True, eq=False)
class _Relabelled:
    """Rows of a data set, with other labels."""

    dataset: Any
    rows: Sequence[int]
    targets: Sequence[Label]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Any, Label]:
        return self.dataset[self.rows[row]][0], self.targets[row]


def _labels(dataset: Any, key: Any) -> list[Label]:
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # a Subset
        inner = _labels(dataset.dataset, key)
        return [inner[row] for row in dataset.indices]
    names: Sequence[str] = getattr(dataset, "classes", ())
    if hasattr(dataset, "column_names"):  # of Hugging Face
        feature = dataset.features[key]
        labels, names = dataset[key], getattr(getattr(feature, "feature", feature), "names", ())
    elif key in (1, "label") and hasattr(dataset, "targets") and getattr(dataset, "target_transform", None) is None:
        labels = dataset.targets  # of torchvision
    else:
        labels = [dataset[row][key] for row in range(len(dataset))]
    return [read_label(label, f"item {row}", names) for row, label in enumerate(labels)]


def _item(dataset: Any, row: int, key: Any, where: str) -> Any:
    with _reading, reading(where, "an item of a data set", remedy="mend the data set"):
        image = dataset[row][key]
        if isinstance(image, Image.Image):
            return to_pixels(image, None)
        if hasattr(image, "permute"):  # a tensor: torch is not imported here, where commands begin
            if image.is_floating_point():
                if not (image.min() >= 0 and image.max() <= 1):
                    raise UserError("its numbers are not from 0 to 1; leave out the normalisation of the data set")
                image = (image * 255).round().byte()
            image = image.permute(1, 2, 0).numpy() if image.ndim == 3 else image.numpy()
        if not isinstance(image, np.ndarray):
            raise UserError(f"it is a {type(image).__name__}, expected an image of Pillow, an array or a tensor")
        return image
