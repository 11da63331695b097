"""The images that a configuration or options name: whole data sets, their splits, a protocol, two tables."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aurank.config import DataConfig, load_config, shipped_configs
from aurank.config.schema import EMBEDDINGS
from aurank.data import READERS, Manifest
from aurank.data.checks.doctor import odd_classes, repeated_image
from aurank.data.readers.table import read_two_tables
from aurank.embedding.choices import DATA_CHOICES, read_data_config, read_trained
from aurank.embedding.image_text_pairs import WITH_TEXTS
from aurank.embedding.protocols import Protocol, find_protocol
from aurank.errors import UserError
from aurank.evaluation.engine.problem import count_positives, require_room

ALL = "all"  # splits together
_HELD_OUT = ("validation_fraction", "validation_by")  # keys that say which training images are validation
_WANTS_LABELS = "needs images with labels, such as --data folder:PATH with PATH/CLASS/IMAGE"


@dataclass(frozen=True)
class ImageSelection:
    """The images to embed; nothing given: the test split of the data that the model was trained on.

    Args:
        data: READER:PATH, or a configuration, by its file or shipped name, whose images are taken.
        split: as the data have it, default "test"; of the data that the model was trained on, not named, "train" is
            what training used and "val" what it held out; "all" takes every image.
        protocol: a name from `aurank.embedding.protocols`.
        root: the folder of a protocol's data, or where the paths of tables start, by default the folder they lie in.
        query, gallery: a table (csv, parquet) for each side; an image of both sides is never its own result.
        overrides: dotted changes of the `data` section.
        seeds: of the draws of a protocol.

    Example:
        >>> ImageSelection("folder:photos", protocol="sop").check()
        Traceback (most recent call last):
        aurank.errors.UserError: --data and --protocol both say which images to take; give one of them
    """

    data: str | None = None
    split: str | None = None
    protocol: str | None = None
    root: Path | None = None
    query: Path | None = None
    gallery: Path | None = None
    overrides: Sequence[str] = ()
    seeds: Sequence[int] | None = None

    @property
    def given(self) -> list[str]:
        """The options that say where images are, as typed."""
        named = {name: getattr(self, name) for name in ("data", "split", "protocol", "root", "query", "gallery")}
        drawn = [] if self.seeds is None else [f"--seeds {','.join(map(str, self.seeds))}"]
        return [f"--{name} {value}" for name, value in named.items() if value is not None] + drawn + [*self.overrides]

    @property
    def takes_embeddings(self) -> bool:
        """Whether the rows of a file of embeddings are named, or a configuration of a head on such."""
        return self.data is not None and _located(self.data)["name"] == EMBEDDINGS

    @property
    def takes_images(self) -> bool:
        """Whether images are named, none of which a head on saved embeddings was trained on."""
        named = (self.data, self.protocol, self.query, self.gallery)
        return any(one is not None for one in named) and not self.takes_embeddings

    def check(self) -> None:
        """Raise UserError where the options do not go together."""
        tables = self.query is not None or self.gallery is not None
        ways = [("--data", self.data is not None), ("--protocol", self.protocol is not None), ("--query", tables)]
        chosen = [name for name, there in ways if there]
        is_named, both = tables or self.protocol is not None, " and ".join(chosen[:2])
        others = [override for override in self.overrides if not override.startswith("data.")]
        for is_wrong, message in (
            (len(chosen) > 1, f"{both} both say which images to take; give one of them"),
            ((self.query is None) != (self.gallery is None), "--query and --gallery go together: give both tables"),
            (self.split and is_named, f"--split {self.split} has no use with {both}, which says what is measured"),
            (self.seeds is not None and self.protocol is None, "--seeds goes with --protocol: they are of its draws"),
            (
                self.root and not is_named,
                f"--root {self.root} goes with --protocol or --query, not with --data",
            ),
            (others, f"{' '.join(others)}: only data.* can be changed for a model that is measured"),
        ):
            if is_wrong:
                raise UserError(message)

    def find_protocol(self) -> Protocol | None:
        """Return the protocol named, or None; raise UserError where the options do not go together."""
        self.check()
        return None if self.protocol is None else find_protocol(self.protocol, seeds=self.seeds)


def read_data(data: str, overrides: Sequence[str] = ()) -> DataConfig | None:
    """Return the data section that names READER:PATH; None where `data` names no reader."""
    if data.partition(":")[0] not in READERS or Path(data).is_file():
        if Path(data).is_dir():
            raise UserError(f"{data} is a folder; did you mean 'folder:{data}'?")
        return None
    return read_data_config({"validation_fraction": 0.0, **_located(data)}, overrides)


class Selected(NamedTuple):
    """The data section that applies, and the images to embed."""

    data: DataConfig
    images: Manifest
    trained: Manifest | None = None  # the whole data set with the splits of the run, None of other data


def select(images: ImageSelection, checkpoint: dict[str, Any] | None) -> Selected:
    """Return the images to embed, with the data section that applies to them."""
    protocol = images.find_protocol()
    section = {"validation_fraction": 0.0} if checkpoint is None else checkpoint["config"]["data"]
    # How images were changed for training need not agree with what they are measured with, another image_size say.
    section = {key: value for key, value in section.items() if key != "train_transform"}
    if images.query is not None and images.gallery is not None:
        # A data section needs a reader; of its params only `outside` is used here.
        section |= {"name": "table", "params": {"file": images.query.name}, "prepared": None}
        data = read_data_config(section, images.overrides)
        outside = bool(data.params.get("outside", False))
        return Selected(data, read_two_tables(images.query, images.gallery, root=images.root, outside=outside))
    if protocol is not None:
        root = None if images.root is None else str(images.root)
        data = read_data_config(
            {**section, "name": protocol.reader, "params": {}, "root": root, "prepared": None}, images.overrides
        )
        return Selected(data, protocol.manifest(data_folder(data.root), **data.params))
    if images.data is not None:
        section |= {"prepared": None, **_located(images.data)}
    elif checkpoint is None:
        raise UserError(
            "say which images to embed: --data READER:PATH or CONFIGURATION, --protocol NAME, or --query and --gallery"
        )
    data = read_data_config(section, images.overrides)
    whole, trained = _with_splits(read_whole(data), data, images, checkpoint)
    if images.split == ALL:
        return Selected(data, whole, trained)
    if images.split is None and "test" not in whole.split_sizes:
        others = " or ".join(whole.split_sizes)
        raise UserError(f"{whole.name} has no test images to measure; choose another split with --split {others}")
    return Selected(data, split_of(whole, data, images.split or "test"), trained)


def _with_splits(
    given: Manifest, data: DataConfig, images: ImageSelection, checkpoint: dict[str, Any] | None
) -> tuple[Manifest, Manifest | None]:
    """Return the data with the splits that apply, and with those of the run that made the checkpoint."""
    saved = None if checkpoint is None else read_trained(checkpoint["config"])
    seed = 0 if saved is None else saved.seed
    trained = None
    if checkpoint is not None and saved is not None:
        sections = [data.model_copy(update={key: getattr(saved.data, key) for key in _HELD_OUT})]
        is_there = data_folder(saved.data.root).resolve() == data_folder(data.root).resolve()
        if images.data is not None and saved.data.name == data.name and is_there:
            sections.append(saved.data)  # which may split them otherwise
        while trained is None and sections:
            section = sections.pop(0)
            with suppress(UserError):  # too few classes to hold some out
                split = hold_out(read_whole(section) if section is saved.data else given, section, seed=seed)
                trained = split if split.sha256 == checkpoint["manifest"] else None
    if any(override.startswith(tuple(f"data.{key}" for key in _HELD_OUT)) for override in images.overrides):
        return hold_out(given, data, seed=seed), trained
    return given if trained is None or images.data is not None else trained, trained


def describe_split(images: ImageSelection, selected: Selected) -> list[str]:
    """Return a line on what "train" or "val" means for the data that a model was trained on, none for other data."""
    if images.split not in ("train", "val") or selected.trained is None:
        return []
    sizes = {split: f"{selected.trained.split_sizes.get(split, 0):,}" for split in ("train", "val")}
    used = f"training used {sizes['train']} images and held out {sizes['val']} for validation"
    if images.data is not None:
        return [f"--split {images.split} is as the data have it; of these data {used}"]
    return [f"--split {images.split} is that of the training run: {used}; --data READER:PATH takes splits as they are"]


def describe_overlap(images: ImageSelection, selected: Selected) -> list[str]:
    """Return a line where a model was trained or chosen on some of the images, unless their split was named."""
    if images.split in ("train", "val") or (trained := selected.trained) is None:
        return []
    used = {path for path, split in zip(trained.paths, trained.splits, strict=True) if split in ("train", "val")}
    if not (count := sum(path in used for path in selected.images.paths)):
        return []
    said = f"{count:,} of these {len(selected.images):,} images are of the model's own training or validation split"
    return [f"{said}, so this is no test; without --data and --split its test images are taken"]


def require_measurable(manifest: Manifest, *, pooled: bool) -> None:
    """Raise UserError where no image has a positive, or where pooled metrics would keep more than the memory holds."""
    listed, labels = manifest.positives, manifest.labels
    if listed is None and manifest.class_counts.max() < 2:
        remedy = f"measuring {_WANTS_LABELS}" if manifest.texts is None else WITH_TEXTS
        raise UserError(f"no two of the {len(manifest):,} images of {manifest.name} have one label: {remedy}")
    if pooled:
        query, gallery = manifest.is_query, manifest.is_gallery
        count = count_positives(labels[query], labels[gallery]) - int((query & gallery).sum())
        require_room(count if listed is None else len(listed))


def _located(data: str) -> dict[str, Any]:
    """The keys of a ``data`` section that READER:PATH or a configuration sets."""
    shipped = shipped_configs()
    if data in shipped or data.endswith((".yaml", ".yml")):
        config = load_config(shipped.get(data, data), choices=DATA_CHOICES)
        return config.data.model_dump(include={"name", "params", "root"})
    name, _, path = data.partition(":")
    if name not in READERS:
        expected = f"READER:PATH, such as folder:{path or name}, or a configuration"
        raise UserError(f"--data {data}: expected {expected}; the readers are {', '.join(READERS)}")
    section: dict[str, Any] = {"name": name, "params": {}}
    if not path:
        return section
    target = Path(path)
    if not target.exists():
        start = "" if target.is_absolute() else f" in {Path.cwd()}"
        raise UserError(f"--data {data}: there is no {target}{start}; correct the path")
    if not target.is_file():
        return {**section, "root": str(target)}
    key = "file" if name in ("table", EMBEDDINGS) else "path"  # of an archive
    return {**section, "params": {key: target.name}, "root": str(target.parent)}


# -- a data section, its manifest and splits ---------------------------------------------------------------------------


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
        fraction = "; where the folder is CLASS/IMAGE, set data.params.test_fraction {}, of the classes"
        remedies = {
            ("folder", "train"): fraction.format("below 1 (such as 0.5; default 1)"),
            ("folder", "test"): fraction.format("above 0"),
            ("table", name): f"; write {name} into the column split for some of its classes",
            ("unlabelled", "test"): "; set data.train_labels=image, data.views=2 and sampler.name=shuffled to train "
            "without labels",
        }
        raise UserError(f"{error}{remedies.get((config.name, name), '')}") from error
