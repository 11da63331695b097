"""A first configuration for images: what ``aurank init`` calls. Its text is first.yaml or first_unlabelled.yaml."""

import io
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from jaxtyping import Int64
from PIL import ExifTags, Image

from aurank.config import Config, DataConfig
from aurank.config.load import override_text
from aurank.data import READERS, FolderSource, Manifest
from aurank.data.checks.findings import classes_with_pairs
from aurank.data.decode import quiet_decoding
from aurank.data.manifest import by_ending, count_labels
from aurank.data.readers.folders import holds_splits
from aurank.embedding.image_selection import data_folder, located, read_whole
from aurank.embedding.select_images import require_likely_classes
from aurank.embedding.settings import read_data_config
from aurank.errors import UserError
from aurank.files import require_absent, require_writable, write_text
from aurank.models.adapters.names import is_tower
from aurank.training.components import read_config

SIDE = 128  # of grocery/finetuned, whose settings were measured
SLIM, VARIED = 1.4, 2.0  # of height over width: a median or a range of which crops lose much; a range of no one shape
MEASURED = 2000  # images, drawn, whose headers are read
LEAST_CLASSES = 6  # to train on three and to measure on three
HELD_OUT = 0.2  # of the training classes, for validation
_TRIES = 100  # draws of test classes: the first is taken in which every split has two images of one class


def write_first_configuration(
    images: Path | str,
    out: Path | str = "mine.yaml",
    overrides: Sequence[str] = (),
    *,
    overwrite: bool = False,
) -> str:
    """Write a configuration that fits images and trains as it stands; return what was seen and how to go on.

    Of the images only headers are read, of 2,000 at most.

    Args:
        images: a folder or zip of images, as {train,val,test}/CLASS/IMAGE, CLASS/IMAGE or without classes; or a table
            (csv, parquet).
        out: the configuration to write (.yaml).
        overrides: dotted changes in place of what would be chosen, such as train.steps=600.
        overwrite: replace `out`.

    Raises:
        UserError: the file is there already; there are too few classes; a wrong override.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for number in range(16):
        ...         photo = Path(folder, f"photos/class{number // 2}/{number}.png")
        ...         photo.parent.mkdir(parents=True, exist_ok=True)
        ...         Image.new("RGB", (200, 100)).save(photo)
        ...     text = write_first_configuration(f"{folder}/photos", f"{folder}/mine.yaml")
        >>> text.splitlines()[0]
        'photos: 16 images of 8 classes, 2 each; train 10, test 6'
    """
    folder, out = Path(images), Path(out)
    require_writable(out, suffix=".yaml")
    require_absent(out, overwrite=overwrite)
    reader = "table" if folder.suffix in (".csv", ".parquet", ".pq") else "folder"
    config = read_data_config(located(f"{reader}:{folder}"), [each for each in overrides if each.startswith("data.")])
    manifest, config = _read_folders(config) if config.name == "folder" else (read_whole(config), config)
    if manifest.texts is not None:
        raise UserError(f"{folder} holds texts beside images: begin with aurank cp grocery/text_sogclr {out}")
    is_labelled = config.name != "unlabelled"
    if is_labelled:
        _require_trainable(manifest, folder, config)
    sizes, unreadable = measure_sizes(manifest)
    values = _choices(manifest, config, sizes, len(unreadable)) | {"images": shlex.join([str(images), *overrides])}
    template = Path(__file__).with_name("first.yaml" if is_labelled else "first_unlabelled.yaml")
    text = Template(template.read_text(encoding="utf-8")).substitute(values)
    if overrides:
        text = override_text(text, overrides, read_config)
    write_text(out, text)
    model, name = shlex.quote(published_model(read_config(out))), shlex.quote(str(out))
    run, data = shlex.quote(f"runs/{out.stem}"), f"--data {name}"
    measuring = is_labelled * [f"aurank evaluate --model {model} {data} --out before"]
    comparing = [f"aurank evaluate --model aurank:{run}/best --out after", f"aurank compare before after {data}"]
    index = [f"aurank index build --model aurank:{run}/best {data} --split all --out index", "aurank serve index"]
    adapting = is_labelled * [f"aurank adapt {name} --out runs/adapted"]
    training = [f"aurank train {name} --out {run}", *is_labelled * comparing]
    commands = [f"aurank doctor {name}", *adapting, *measuring, *training, *index]
    following = [f"written, with a reason beside each choice: {out}. To go on:", *(f"  {line}" for line in commands)]
    if ",input_size" in model and ",weights=" not in model:
        following.append("Without network: model.weights=FILE for adapt and train, weights=FILE in --model")
    return "\n".join([*_seen(manifest, sizes, unreadable), *following])


def measure_sizes(manifest: Manifest) -> tuple[Int64[np.ndarray, "image 2"], list[str]]:
    paths = [path for path in dict.fromkeys(manifest.paths) if not path.endswith(".npy")]
    drawn = np.sort(np.random.default_rng(0).permutation(len(paths))[:MEASURED])
    sizes, unreadable, source = [], list[str](), manifest.source
    with quiet_decoding():
        for path in (paths[position] for position in drawn.tolist()):
            try:
                file = source.root / path if isinstance(source, FolderSource) else io.BytesIO(source.read_bytes(path))
                with Image.open(file) as image:
                    is_photo = image.format in ("JPEG", "MPO")  # a PNG would be decoded to tell
                    is_turned = is_photo and image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
                    sizes.append(image.size if is_turned else image.size[::-1])
            except Exception:  # readers of broken files raise almost anything, as in `decode`
                unreadable.append(path)
    return np.array(sizes, np.int64).reshape(-1, 2), unreadable


def _read_folders(config: DataConfig) -> tuple[Manifest, DataConfig]:
    """Read folders of classes, test classes drawn until every split has two images of one; else images without any."""
    root, params = data_folder(config.root), {name: value for name, value in config.params.items() if name == "path"}
    images = READERS["unlabelled"](root, **params)
    manifest = read_whole(config) if any("/" in path for path in images.paths) else images
    if manifest.class_counts.max() < 2:
        return images, config.model_copy(update={"name": "unlabelled", "params": params})
    if holds_splits(images.paths, images.source.where) or "test_fraction" in config.params:
        return manifest, config
    if (count := len(manifest.classes)) < LEAST_CLASSES:
        least = f"to train on some and to measure on others takes {LEAST_CLASSES}: add classes, or measure a published"
        raise UserError(f"{manifest.name} has {count} class{'es' * (count > 1)}; {least} network by aurank evaluate")
    drawing: dict[str, Any] = {"test_fraction": max(0.3, round(3 / count, 2))}
    for seed in range(_TRIES):
        drawing |= {"seed": seed} if seed else {}
        manifest = READERS["folder"](root, **params, **drawing)
        if not _without_pairs(manifest.split_validation(_fraction(manifest), seed=0)):
            break
    return manifest, config.model_copy(update={"params": config.params | drawing})


def _fraction(manifest: Manifest) -> float:
    train = manifest.split("train")
    is_enough = "val" not in manifest.split_sizes and len(np.unique(train.units("class", train.splits == "train"))) >= 8
    return HELD_OUT if is_enough and not _without_pairs(train.split_validation(HELD_OUT, seed=0)) else 0.0


def _without_pairs(manifest: Manifest) -> list[str]:
    return sorted(manifest.split_sizes.keys() - {split for split, _ in classes_with_pairs(manifest)})


def _require_trainable(manifest: Manifest, folder: Path, config: DataConfig) -> None:
    if lacking := {"train", "test"} - manifest.split_sizes.keys():
        remedy = "add some, or name a folder of classes alone, some of which are then kept for testing"
        raise UserError(f"{folder} has no {lacking.pop()} images: {remedy}")
    counts = ", ".join(f"{count:,} {split}" for split, count in manifest.split_sizes.items())
    require_likely_classes(manifest, config, counts=counts)
    if lonely := _without_pairs(manifest):
        camera = "" if manifest.groups is None else ", by another camera"
        raise UserError(f"{folder}: no {lonely[0]} image has a second one of its class{camera}; add such images")


def published_model(config: Config) -> str:
    """Return the name, as --model takes it, of the network that a configuration begins at."""
    model, size, resize = config.model, config.data.image_size, config.data.resize
    if is_tower(model.backbone):
        return model.backbone
    options = {"input_size": size if isinstance(size, int) else "x".join(map(str, size)), **model.params}
    options |= {"resize": resize} if resize != "crop" else {}
    options |= {"in_chans": config.data.channels} if config.data.channels != 3 else {}
    weights = f",weights={model.weights}" if model.weights else ",pretrained=false" * (not model.pretrained)
    return f"timm:{model.backbone}{weights}" + "".join(f",{key}={value}" for key, value in options.items())


def _seen(manifest: Manifest, sizes: Int64[np.ndarray, "image 2"], unreadable: list[str]) -> list[str]:
    counts = manifest.by_label().class_counts
    splits = ", ".join(f"{split} {count:,}" for split, count in manifest.split_sizes.items())
    least, most = counts.min(), counts.max()
    each = f"{most:,} each" if least == most else f"{least:,} to {most:,} each, median {np.median(counts):,.0f}"
    of = f" of {count_labels(manifest)}, {each}; {splits}" if most > 1 else ", no folder of which names a class"
    lines = [f"{manifest.name}: {len(manifest):,} images{of}"]
    if len(sizes):
        low, high = np.percentile(sizes.min(axis=1), [5, 95])
        flat, tall = np.percentile(sizes[:, 0] / sizes[:, 1], [5, 95])
        shape = f"height over width {flat:.2f} to {tall:.2f}: nine in ten of {len(sizes):,} images"
        lines.append(f"shorter side {low:,.0f} to {high:,.0f} pixels, {shape}")
    if manifest.unread:
        lines.append(f"files that are not read: {by_ending(manifest.unread)}")
    if unreadable:
        lines.append(f"{len(unreadable):,} of them cannot be read, such as {unreadable[0]}: aurank doctor names all")
    return lines


def _shape(sizes: Int64[np.ndarray, "image 2"]) -> tuple[int | list[int], str, str]:
    if not len(sizes):
        return SIDE, "crop", "the usual"
    shapes, side = sizes[:, 0] / sizes[:, 1], min(SIDE, int(np.median(sizes.min(axis=1))))
    low, middle, high = np.percentile(shapes, [5, 50, 95]).tolist()
    if max(middle, 1 / middle) >= SLIM and high <= VARIED * low:
        tall, wide = (max(32, round(side * part / 32) * 32) for part in (middle**0.5, middle**-0.5))
        return [tall, wide], "squash", f"most images have height over width near {middle:.2f}"
    square = max(32, side // 32 * 32)
    if high > SLIM * low:
        return square, "squash", f"height over width from {low:.2f} to {high:.2f}: a crop would cut ends off"
    return square, "crop", "most images are nearly square"


def _choices(
    manifest: Manifest, config: DataConfig, sizes: Int64[np.ndarray, "image 2"], unreadable: int
) -> dict[str, Any]:
    is_labelled = config.name != "unlabelled"
    fraction = _fraction(manifest) if is_labelled else 0.0
    train = manifest.split_validation(fraction, seed=0).split("train")
    counts = train.by_label().class_counts
    in_fours = counts[counts >= 4].sum() * 2 >= counts.sum()
    per_class = 4 if in_fours else 2
    classes = max(2, min(len(counts), 64 // per_class))
    batch = per_class * classes if is_labelled else min(64, len(train))
    steps = int(min(3000, max(120, -(-3 * len(train) // batch))))
    size, resize, reason = _shape(sizes)
    tested = (test := manifest.split("test")).num_alike(test.class_counts) if is_labelled else np.zeros(1)
    why = "training classes held out: their mAUPRC says which step is best"
    if not fraction:
        why = "val/ is there" if "val" in manifest.split_sizes else "best is the last step: there are few classes"
    few = "" if in_fours else f": half of the classes have at most {np.median(counts):.0f}"
    divided = "  # classes to measure with, none of them trained on" if "test_fraction" in config.params else ""
    skip = f"\n  on_error: skip  # {unreadable:,} images cannot be read" if unreadable else ""
    return {
        "reader": config.name,
        "root": json.dumps(str(config.root), ensure_ascii=False),
        "params": json.dumps(config.params, ensure_ascii=False) + divided,
        "size": size,
        "resize": f"{resize}  # {reason}{skip}",
        "validation": f"{fraction}  # {why}",
        "batch": batch,
        "per_class": per_class,
        "batch_why": f"{classes} {'labels' if manifest.multi_label else 'classes'}, {per_class} images of each{few}",
        "steps": steps,
        "every": -(-steps // 3) if is_labelled else steps,
        "recall_at": [k for k in ((1, 10, 100) if in_fours else (1, 5, 10)) if k < tested.sum()],
        "matches": f"{np.median(tested) - 1:,.0f}",
    }
