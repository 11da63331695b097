"""Which images are embedded: a split of a data set, the test images of a protocol, or a query and a gallery table."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from aurank.config import Config, DataConfig, load_config, shipped_configs
from aurank.config.schema import EMBEDDINGS
from aurank.data import READERS, Manifest
from aurank.data.readers.table import read_two_tables
from aurank.embedding.choices import DATA_CHOICES, read_data_config, read_trained
from aurank.embedding.image_text_pairs import WITH_TEXTS
from aurank.embedding.manifest_from_config import data_folder, hold_out, read_whole, split_of
from aurank.embedding.protocols import Protocol, find_protocol
from aurank.errors import UserError

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
        if len(chosen) > 1:
            raise UserError(f"{chosen[0]} and {chosen[1]} both say which images to take; give one of them")
        if tables and (self.query is None or self.gallery is None):
            raise UserError("--query and --gallery go together: give a table for each side")
        if self.split is not None and (tables or self.protocol is not None):
            raise UserError(f"--split {self.split} has no use with {chosen[0]}, which says what is measured")
        if self.seeds is not None and self.protocol is None:
            raise UserError("--seeds goes with --protocol: they are of its draws")
        if self.root is not None and not (tables or self.protocol is not None):
            raise UserError(f"--root {self.root} goes with --protocol or --query; with --data, write READER:PATH")

    def find_protocol(self) -> Protocol | None:
        """Return the protocol named, or None."""
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
    images.check()
    wrong = [override for override in images.overrides if not override.startswith("data.")]
    if wrong:
        raise UserError(f"{wrong[0]!r}: only data.* can be changed for a model that is measured")
    section = {"validation_fraction": 0.0} if checkpoint is None else checkpoint["config"]["data"]
    # How images were changed for training need not agree with what they are measured with, another image_size say.
    section = {key: value for key, value in section.items() if key != "train_transform"}
    if images.query is not None and images.gallery is not None:
        # A data section needs a reader; of its params only `outside` is used here.
        section |= {"name": "table", "params": {"file": images.query.name}, "prepared": None}
        odd = [one for one in images.overrides if one.startswith("data.params.") and ".outside=" not in one]
        if odd:
            raise UserError(f"{odd[0]} has no use with --query and --gallery: --root names where their paths start")
        data = read_data_config(section, images.overrides)
        outside = bool(data.params.get("outside", False))
        return Selected(data, read_two_tables(images.query, images.gallery, root=images.root, outside=outside))
    if (protocol := images.find_protocol()) is not None:
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
    if images.split in (None, "test") and "test" not in whole.split_sizes:
        others = " or ".join(whole.split_sizes)
        if whole.texts is None and whole.class_counts.max() < 2:
            what = f"aurank embed takes its images with --split {others}, but measuring {_WANTS_LABELS}"
            raise UserError(f"{whole.name} has no test images and no labels: {what}")
        if images.split is None:
            raise UserError(f"{whole.name} has no test images to measure; choose another split with --split {others}")
    return Selected(data, split_of(whole, data, images.split or "test"), trained)


def _with_splits(
    given: Manifest, data: DataConfig, images: ImageSelection, checkpoint: dict[str, Any] | None
) -> tuple[Manifest, Manifest | None]:
    """Return the data with the splits that apply, and with those of the run that made the checkpoint."""
    trained, seed = None, 0
    if checkpoint is not None:
        saved = read_trained(checkpoint["config"])
        seed, held_out = saved.seed, {key: getattr(saved.data, key) for key in _HELD_OUT}
        with suppress(UserError):  # too few classes to hold some out
            trained = hold_out(given, data.model_copy(update=held_out), seed=seed)
        if trained is not None and trained.sha256 != checkpoint["manifest"]:
            trained = None
        if trained is None and images.data is not None:
            trained = _split_otherwise(saved, data, checkpoint["manifest"])
    if any(override.startswith(tuple(f"data.{key}" for key in _HELD_OUT)) for override in images.overrides):
        return hold_out(given, data, seed=seed), trained
    return given if trained is None or images.data is not None else trained, trained


def _split_otherwise(saved: Config, data: DataConfig, sha256: str) -> Manifest | None:
    """Return the data of a run as it read them, None where those of a data section lie elsewhere or have changed."""
    if saved.data.name != data.name or data_folder(saved.data.root).resolve() != data_folder(data.root).resolve():
        return None
    with suppress(UserError):
        found = hold_out(read_whole(saved.data), saved.data, seed=saved.seed)
        return found if found.sha256 == sha256 else None
    return None


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


def require_comparable(manifest: Manifest) -> None:
    """Raise UserError where no two images share a label, so that there is nothing to measure."""
    if manifest.positives is None and manifest.class_counts.max() < 2:
        remedy = f"measuring {_WANTS_LABELS}" if manifest.texts is None else WITH_TEXTS
        raise UserError(f"no two of the {len(manifest):,} images of {manifest.name} have one label: {remedy}")


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
