"""Folders and zip archives of images: the folders name splits and classes, or nothing does."""

from pathlib import Path, PurePosixPath

import numpy as np

from aurank.data.decode import IMAGE_SUFFIXES
from aurank.data.manifest import SPLITS, Manifest, build_manifest
from aurank.data.sources import ImageSource, open_source
from aurank.errors import UserError


def read_folder(root: Path, *, path: str = ".", test_fraction: int | float = 1.0, seed: int = 0) -> Manifest:
    """Return the images of a folder, or zip, whose own folders name the splits and classes.

    Args:
        test_fraction: for the second layout: the fraction of the classes, drawn at random, that is "test"; the others
            are "train". 1 makes everything test, to evaluate a model on one's own images.
        seed: of that draw.

    Two layouts are read: `{train,val,test}/CLASS/IMAGE`, when train or test is there, and `CLASS/IMAGE`. A class is the
    folder that holds the images, by its path, so folders may be nested. Files that are no images are ignored.
    """
    source, names = _images(root / path)
    if not names:
        raise UserError(f"no images in {source.where}; expected train/CLASS/IMAGE and test/CLASS/IMAGE, or CLASS/IMAGE")
    tops = {name.split("/")[0] for name in names}
    if not tops & {"train", "test"}:
        labels = [_class_of(name, source, start=0) for name in names]
        test = _draw_classes(labels, fraction=test_fraction, seed=seed)
        splits = ["test" if label in test else "train" for label in labels]
    elif odd := sorted(tops - set(SPLITS)):
        raise UserError(f"{source.where} holds {odd[0]!r} beside train, val and test; move it, or set data.params.path")
    else:
        labels = [_class_of(name, source, start=1) for name in names]
        splits = [name.split("/")[0] for name in names]
    return build_manifest(Path(source.where).resolve().stem, source, paths=names, labels=labels, splits=splits)


def read_unlabelled(root: Path, *, path: str = ".") -> Manifest:
    """Return the images of a folder, or zip, at any depth, all "train", each with a label of its own: its path.

    For training with data.train_labels=image, by the views of each image alone. Files that are no images are ignored.
    """
    source, names = _images(root / path)
    name = Path(source.where).resolve().stem
    return build_manifest(name, source, paths=names, labels=names, splits=["train"] * len(names))


def _images(place: Path) -> tuple[ImageSource, list[str]]:
    source = open_source(place)
    return source, [name for name in source.names() if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES]


def _class_of(name: str, source: ImageSource, *, start: int) -> str:
    label = "/".join(name.split("/")[start:-1])
    if not label:
        raise UserError(f"image {name!r} in {source.where} is in no class folder; expected CLASS/{name.split('/')[-1]}")
    return label


def _draw_classes(labels: list[str], *, fraction: int | float, seed: int) -> set[str]:
    if not 0 <= fraction <= 1:
        raise UserError(f"test_fraction must be between 0 and 1, got {fraction}")
    classes = np.array(sorted(set(labels)))
    return set(np.random.default_rng(seed).permutation(classes)[: round(fraction * len(classes))].tolist())
