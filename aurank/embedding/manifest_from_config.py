"""From a data section of a configuration to its manifest and splits; data that cannot be meant are refused."""

import os
from pathlib import Path

import numpy as np

from aurank.config import DataConfig
from aurank.data import READERS, Manifest
from aurank.data.checks.doctor import odd_classes, repeated_image
from aurank.errors import UserError
from aurank.evaluation.engine.problem import count_positives, require_room


def data_folder(root: Path | str | None) -> Path:
    """Return ``root``, else ``$AURANK_DATA``, else ``./data``."""
    return Path(root or os.environ.get("AURANK_DATA") or "data").expanduser()


def read_manifest(config: DataConfig, *, seed: int) -> Manifest:
    """Return every image of the data set with its split, validation (class-disjoint from training, seeded) included.

    Example:
        >>> config = DataConfig(name="digits", validation_fraction=0.3)
        >>> read_manifest(config, seed=1).split_sizes
        {'train': 629, 'val': 269, 'test': 899}
    """
    return hold_out(read_whole(config), config, seed=seed)


def read_whole(config: DataConfig) -> Manifest:
    """Return every image of the data set, with the splits that the reader gives."""
    return READERS[config.name](data_folder(config.root), **config.params)


def hold_out(manifest: Manifest, config: DataConfig, *, seed: int) -> Manifest:
    """Return the data set with the validation split held out; of images that each are their own class, with none."""
    if config.train_labels == "image" and np.bincount(manifest.labels[manifest.splits == "train"]).max(initial=0) < 2:
        return manifest
    return manifest.split_validation(config.validation_fraction, seed=seed, by=config.validation_by)


def require_room_for(manifest: Manifest) -> None:
    """Raise UserError where measuring these images would take more memory than there is."""
    if manifest.positives is not None:
        require_room(len(manifest.positives))
        return
    query, gallery, labels = manifest.is_query, manifest.is_gallery, manifest.labels
    require_room(count_positives(labels[query], labels[gallery]) - int((query & gallery).sum()))


def require_distinct(manifest: Manifest, config: DataConfig) -> None:
    """Raise UserError where an image is listed more than once, unless the configuration keeps such."""
    if config.repeated == "refuse" and (repeated := repeated_image(manifest)):
        raise UserError(f"{repeated}; list each image once, or take them as different ones with data.repeated=keep")


def asks_about_classes(config: DataConfig, manifest: Manifest) -> bool:
    """Return whether the classes of what was read may be a mistake, as of a folder too high."""
    measured = config.train_labels == "class" or bool((manifest.splits != "train").any())
    return config.name in ("folder", "table") and config.odd_classes == "refuse" and manifest.texts is None and measured


def require_likely_classes(manifest: Manifest, config: DataConfig, *, counts: str) -> None:
    """Raise UserError where classes look like splits, or two hold everything, unless the configuration keeps such."""
    if config.odd_classes == "keep" or (odd := odd_classes(manifest.classes)) is None:
        return
    what, names = odd
    named = ("such as " if "splits" in what else "") + " and ".join(map(repr, names[:2]))
    raise UserError(
        f"the {len(manifest):,} images of {manifest.name} ({counts}) are of {what}, {named}: name the folder that "
        "holds a folder for each class, or say with data.odd_classes=keep that these are the classes"
    )


def split_of(whole: Manifest, config: DataConfig, name: str) -> Manifest:
    """Return the images of one split; UserError with the remedy for the reader where there are none."""
    try:
        return whole.split(name)
    except UserError as error:
        remedy = ""
        if config.name == "folder" and name in ("train", "test"):
            bound = "below 1 (such as 0.5)" if name == "train" else "above 0"
            remedy = (
                f"; add {name}/CLASS/IMAGE, or, where the folder is CLASS/IMAGE, set data.params.test_fraction "
                f"{bound}, the fraction of the classes that is for testing (default 1)"
            )
        elif config.name == "table":
            remedy = f"; write {name} into the column split of {config.params['file']} for some of its classes"
        elif config.name == "unlabelled" and name == "test":
            remedy = "; set data.train_labels=image, data.views=2 and sampler.name=shuffled to train without labels"
        raise UserError(f"{error}{remedy}") from error
