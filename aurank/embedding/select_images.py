"""The images that a configuration or options name: whole data sets, their splits, a protocol."""

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from aurank.config import DataConfig
from aurank.data import Manifest
from aurank.data.checks.doctor import odd_classes, repeated_image
from aurank.data.manifest import ValidationUnit
from aurank.embedding.image_selection import ALL, ImageSelection, data_folder, located, read_whole
from aurank.embedding.image_text_pairs import WITH_TEXTS
from aurank.embedding.settings import read_data_config, read_trained
from aurank.errors import UserError
from aurank.evaluation.engine.problem import require_room

_HELD_OUT = ("validation_fraction", "validation_by")  # keys that choose the validation images
_WANTS_LABELS = "needs images with labels, such as --data folder:PATH with PATH/CLASS/IMAGE"


class Selected(NamedTuple):
    data: DataConfig
    images: Manifest
    trained: Manifest | None = None  # the run's data set with its splits; None for other data


def select(images: ImageSelection, checkpoint: dict[str, Any] | None) -> Selected:
    """Return the images to embed, with the data section that applies to them."""
    protocol = images.find_protocol()
    section = {"validation_fraction": 0.0} if checkpoint is None else checkpoint["config"]["data"]
    # A training transform may not fit another image_size: drop it.
    section = {key: value for key, value in section.items() if key != "train_transform"}
    if protocol is not None:
        root = None if images.root is None else str(images.root)
        data = read_data_config(
            {**section, "name": protocol.reader, "params": {}, "root": root, "prepared": None}, images.overrides
        )
        return Selected(data, protocol.manifest(data_folder(data.root), **data.params))
    if images.data is not None:
        section |= {"prepared": None, **located(images.data)}
    elif checkpoint is None:
        raise UserError("say which images to embed: --data READER:PATH or CONFIGURATION, or --protocol NAME")
    data = read_data_config(section, images.overrides)
    manifest = read_whole(data) if images.data is None or isinstance(images.data, str) else images.data
    in_splits, trained = _with_splits(manifest, data, images, checkpoint)
    is_untrained = images.split is None and images.usual == "train" and "train" not in in_splits.split_sizes
    if images.split == ALL or is_untrained:
        return Selected(data, in_splits, trained)
    return Selected(data, split_of(in_splits, data, images.split or images.usual), trained)


def _with_splits(
    manifest: Manifest, data: DataConfig, images: ImageSelection, checkpoint: dict[str, Any] | None
) -> tuple[Manifest, Manifest | None]:
    """Return the data set with the splits to choose from, and as the model was trained on it, if it was."""
    saved = None if checkpoint is None else read_trained(checkpoint["config"])
    seed = 0 if saved is None else saved.seed
    trained = None
    if checkpoint is not None and saved is not None:
        sections = [data.model_copy(update={key: getattr(saved.data, key) for key in _HELD_OUT})]
        is_same_root = data_folder(saved.data.root).resolve() == data_folder(data.root).resolve()
        if images.data is not None and saved.data.name == data.name and is_same_root:
            sections.append(saved.data)  # its splits may differ
        while trained is None and sections:
            section = sections.pop(0)
            with suppress(UserError):  # raised if there are too few classes to hold out
                split = hold_out(read_whole(section) if section is saved.data else manifest, section, seed=seed)
                trained = split if split.sha256 == checkpoint["manifest"] else None
    if any(override.startswith(tuple(f"data.{key}" for key in _HELD_OUT)) for override in images.overrides):
        return hold_out(manifest, data, seed=seed), trained
    return manifest if trained is None or images.data is not None else trained, trained


def describe_overlap(images: ImageSelection, selected: Selected) -> list[str]:
    """Return a line on how many of the images the model was trained on, unless these were asked for."""
    if images.split in ("train", "val") or (trained := selected.trained) is None:
        return []
    used = {path for path, split in zip(trained.paths, trained.splits, strict=True) if split in ("train", "val")}
    if not (count := sum(path in used for path in selected.images.paths)):
        return []
    of_training = f"{count:,} of these {len(selected.images):,} images are of the model's own training or validation"
    return [f"{of_training} split, so this is no test; without --data and --split its test images are taken"]


def require_measurable(manifest: Manifest, *, pooled: bool) -> None:
    listed, labels = manifest.positives, manifest.labels
    if listed is None and manifest.num_alike(manifest.class_counts).max() < 2:
        remedy = f"measuring {_WANTS_LABELS}" if manifest.texts is None else WITH_TEXTS
        raise UserError(f"no two of the {len(manifest):,} images of {manifest.name} have one label: {remedy}")
    if pooled:
        query, gallery = manifest.is_query, manifest.is_gallery
        positives = manifest.num_alike(np.bincount(labels[gallery], minlength=len(manifest.classes)))
        count = int(positives[labels[query]].sum()) - int((query & gallery).sum())
        require_room(count if listed is None else len(listed))


def read_manifest(config: DataConfig, *, seed: int, dataset: Manifest | None = None) -> Manifest:
    """Return every image of the data set with its split, validation (class-disjoint from training, seeded) included.

    Example:
        >>> config = DataConfig(name="digits", validation_fraction=0.3)
        >>> read_manifest(config, seed=1).split_sizes
        {'train': 629, 'val': 269, 'test': 899}
    """
    return hold_out(read_whole(config) if dataset is None else dataset, config, seed=seed)


def hold_out(manifest: Manifest, config: DataConfig, *, seed: int) -> Manifest:
    """Return the manifest with validation classes held out, none where each image is a class of its own."""
    if config.train_labels == "image" and np.bincount(manifest.labels[manifest.splits == "train"]).max(initial=0) < 2:
        return manifest
    return manifest.split_validation(config.validation_fraction, seed=seed, by=config.validation_by)


def class_folds(
    manifest: Manifest, folds: int, *, by: ValidationUnit = "class", seed: int = 0
) -> Int64[np.ndarray, " image"]:
    """Return the fold of each image, 0 … folds − 1, all of nearly equal size; a class or super-category is in one."""
    if folds < 2:
        raise UserError(f"folds={folds} leaves no class to train on; take two or more")
    units = manifest.units(by, np.ones(len(manifest), dtype=bool))
    names, sizes = np.unique(units, return_counts=True)
    order = np.random.default_rng([seed, len(names)]).permutation(len(names))
    fold_of, filled = np.zeros(int(units.max()) + 1, dtype=np.int64), np.zeros(folds)
    for unit in order[np.argsort(-sizes[order], kind="stable")].tolist():  # largest first evens folds out
        smallest = int(filled.argmin())
        fold_of[names[unit]] = smallest
        filled[smallest] += sizes[unit]
    fold: Int64[np.ndarray, " image"] = fold_of[units]
    for number in range(folds):
        parts = (fold == number, fold != number)
        if min(len(np.unique(manifest.labels[part])) for part in parts) < 2:
            count = f"{len(names)} {'classes' if by == 'class' else 'super-categories'}, too few for {folds} folds"
            raise UserError(f"{manifest.name} has {count} with two classes in each and outside; take fewer folds")
    return fold


def require_distinct(manifest: Manifest, config: DataConfig) -> None:
    if config.repeated == "refuse" and (repeated := repeated_image(manifest)):
        raise UserError(f"{repeated}; list each image once, or take them as different ones with data.repeated=keep")


def asks_about_classes(config: DataConfig, manifest: Manifest) -> bool:
    measured = config.train_labels == "class" or bool((manifest.splits != "train").any())
    return config.name in ("folder", "table") and config.odd_classes == "refuse" and manifest.texts is None and measured


def require_likely_classes(manifest: Manifest, config: DataConfig, *, counts: str) -> None:
    if config.odd_classes == "keep" or (odd := odd_classes(manifest.classes)) is None:
        return
    kind, names = odd
    examples = ("such as " if "splits" in kind else "") + " and ".join(map(repr, names[:2]))
    raise UserError(
        f"{manifest.name} ({len(manifest):,} images: {counts}) has {kind}, {examples}: name the folder that holds a "
        "folder for each class, or say with data.odd_classes=keep that these are the classes"
    )


def split_of(manifest: Manifest, config: DataConfig, name: str) -> Manifest:
    try:
        return manifest.split(name)
    except UserError as error:
        remedies = {
            "folder": "where it is CLASS/IMAGE, set data.params.test_fraction, such as 0.5 of the classes",
            "unlabelled": "take --split all; to train data.train_labels=image, data.views=2 and sampler.name=shuffled",
        }
        remedy = remedies.get(config.name)
        raise UserError(f"{error}; {remedy}" if remedy else str(error)) from error
