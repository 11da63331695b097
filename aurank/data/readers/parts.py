"""Images inside larger files: tar archives as webdataset has them, arrow and parquet files as Hugging Face has them."""

import json
import re
import tarfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from aurank.data.decode import IMAGE_SUFFIXES
from aurank.data.manifest import Label, Manifest, build_manifest
from aurank.data.readers.folders import draw_splits
from aurank.data.readers.values import name_by_texts, read_label, require_filled
from aurank.data.sources import PartsSource, open_source
from aurank.errors import AurankWarning, UserError
from aurank.files import reading
from aurank.names import tidied

_SPLIT = re.compile(r"(?:^|[^a-z])(train|val|test)(?:ing|id|idation)?(?:[^a-z]|$)")
Sample = tuple[str, Label, Any, int, int]  # name; label, or text; path or bytes it lies in, from where, and how long


def read_webdataset(
    root: Path,
    *,
    path: str = ".",
    label: str = "cls",
    text: str | None = None,
    test_fraction: int | float = 1.0,
    seed: int = 0,
) -> Manifest:
    """Return the images of tar archives as webdataset writes them: KEY.jpg beside KEY.cls, KEY.txt or KEY.json.

    A key ends at the first dot of a file's name: `0.left.png` is the file `left.png` of the sample 0, not its image.
    Such files are left out, and counted in a warning.

    Each image is read where it lies in its archive, so every sampler works. The word train, val or test in the name of
    an archive, or of a folder below `path`, is the split.

    Args:
        path: a folder of archives, or one of them; braces stand for several: `{train,test}-{000..009}.tar`.
        label: the ending of the file with the label, or json.KEY for a key of KEY.json.
        text: likewise of the image's text, such as txt in shards of CC3M, in place of a label: images with equal texts
            are of one class.
        test_fraction, seed: as for `read_folder`, where no name says a split.
    """
    reader = ("webdataset", root.resolve(), {"path": path, "label": label} | ({"text": text} if text else {}))
    left_out: list[str] = []
    return _read(reader, (".tar",), lambda file: _members(file, label, text, left_out), test_fraction, seed, left_out)


def read_hf(
    root: Path,
    *,
    path: str = ".",
    image: str = "image",
    label: str = "label",
    test_fraction: int | float = 1.0,
    seed: int = 0,
) -> Manifest:
    """Return the images of a data set of Hugging Face: a folder of `save_to_disk`, or parquet files that hold images.

    Images of arrow files are read where they lie; those of parquet files are held in memory.

    Args:
        path, test_fraction, seed: as for `read_webdataset`.
        image, label: columns; a label may be a list.
    """
    reader = ("hf", root.resolve(), {"path": path, "image": image, "label": label})
    return _read(reader, (".arrow", ".parquet"), lambda file: _rows(file, image, label), test_fraction, seed)


def _read(
    reader: tuple[str, Path, Mapping[str, str]],
    suffixes: tuple[str, ...],
    samples_of: Callable[[Path], Iterator[Sample]],
    test_fraction: int | float,
    seed: int,
    left_out: Sequence[str] = (),  # filled while the files are read
) -> Manifest:
    root, path = reader[1], reader[2]["path"]
    with reading(path, "a pattern of files", remedy="write it as {000..009} or {train,test}"):
        targets = _expanded(path)
    names: list[str] = []
    for name in targets:
        if (root / name).is_dir():
            files = (str(PurePosixPath(name, file)) for file in open_source(root / name).names())
            # Hugging Face leaves results of its own beside the data.
            names += [file for file in files if file.endswith(suffixes) and "/cache-" not in f"/{file}"]
        else:
            names.append(name)
    where = str(root / path)
    split_of = {name: ["", *_SPLIT.findall(name.removeprefix(f"{path}/").lower())][-1] for name in names}
    parts: list[Any] = []
    entries: dict[str, tuple[int, int, int]] = {}
    labels, splits = list[Label](), list[str]()
    for name, split in split_of.items():
        file = root / name
        with reading(file, f"a {file.suffix or suffixes[0]} file", remedy="fetch or write it again"):
            for inside, label, part, start, length in samples_of(file):
                if not parts or parts[-1] is not part:
                    parts.append(part)
                entries[f"{name}/{inside}"] = len(parts) - 1, start, length
                labels.append(label)
                splits.append(split)
    if left_out:
        message = (
            f"left out as no image of a sample: {len(left_out):,} (first {left_out[0]}); a key ends at the first dot"
        )
        warnings.warn(f"{where}: {message} of a name", AurankWarning, stacklevel=3)
    has_texts = "text" in reader[2]
    missing = [path for path, label in zip(entries, labels, strict=True) if not label]
    require_filled("text" if has_texts else "label", missing)
    texts = [str(label) for label in labels] if has_texts else None
    if texts is not None:
        labels = name_by_texts(texts)
    if not any(splits):
        splits = draw_splits(labels, test_fraction, seed)
    elif unnamed := [name for name, split in split_of.items() if not split]:
        raise UserError(
            f"{unnamed[0]!r} in {where} names no split, and others do; name those by data.params.path={{train,test}}"
        )
    source = PartsSource(parts, entries, where=where, reader=reader)
    folder = root / targets[0]
    folder = folder.parent if folder.suffix in suffixes or len(targets) > 1 else folder
    return build_manifest(folder.resolve().name, source, paths=[*entries], labels=labels, splits=splits, texts=texts)


def _expanded(pattern: str) -> list[str]:
    if (braces := re.search(r"\{([^{}]*)\}", pattern)) is None:
        return [pattern]
    low, dots, high = braces[1].partition("..")
    inner = [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)] if dots else braces[1].split(",")
    return [name for text in inner for name in _expanded(pattern[: braces.start()] + text + pattern[braces.end() :])]


def _members(file: Path, label: str, text: str | None, left_out: list[str]) -> Iterator[Sample]:
    ending, _, key = (text or label).partition(".")
    part = str(file.resolve())
    labels: dict[str, Label] = {}
    images: dict[str, tuple[str, Any, int, int]] = {}
    with tarfile.open(file, mode="r:") as archive:
        for member in archive:
            if member.isdir():
                continue
            folder, slash, name = member.name.rpartition("/")
            stem, _, suffix = name.partition(".")
            sample, suffix = folder + slash + stem, suffix.lower()
            if f".{suffix}" in IMAGE_SUFFIXES:
                if sample in images:
                    raise UserError(f"{member.name} is a second image of {sample}; leave one out")
                images[sample] = member.name, part, member.offset_data, member.size
            elif PurePosixPath(suffix).suffix in IMAGE_SUFFIXES:
                left_out.append(member.name)
            elif suffix == ending.lower() and (stream := archive.extractfile(member)) is not None:
                content = stream.read().decode()
                value = json.loads(content)[key] if key else content
                labels[sample] = tidied(str(value or "")) if text else read_label(value, member.name)
    for sample, image in images.items():
        yield image[0], labels.get(sample, ""), *image[1:]


def _rows(file: Path, image: str, label: str) -> Iterator[Sample]:
    import pyarrow.parquet

    part = str(file.resolve())
    buffer = pyarrow.memory_map(part).read_buffer()
    is_parquet = file.suffix == ".parquet"
    opened: Any = pyarrow.parquet.ParquetFile(buffer) if is_parquet else pyarrow.ipc.open_stream(buffer)
    schema = opened.schema_arrow if is_parquet else opened.schema
    if absent := [name for name in (image, label) if name not in schema.names]:
        columns = f"there are {', '.join(schema.names)}; set data.params.image and data.params.label"
        raise UserError(f"there is no column {absent[0]!r}: {columns}")
    table = opened.read(columns=[image, label]) if is_parquet else opened.read_all()
    about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    feature = about.get("info", {}).get("features", {}).get(label, {})
    names = feature.get("feature", feature).get("names") or []
    labels = iter(table[label].to_pylist())
    row = 0
    for chunk in table[image].chunks:
        if pyarrow.types.is_struct(chunk.type):
            chunk = chunk.flatten()[chunk.type.get_field_index("bytes")]
        is_narrow = pyarrow.types.is_binary(chunk.type)
        if chunk.null_count or not (is_narrow or pyarrow.types.is_large_binary(chunk.type)):
            rows = f"{chunk.type}, {chunk.null_count:,} rows without a value"
            raise UserError(f"column {image!r} holds {rows}; expected the bytes of an image file in every row")
        _, offsets, values = chunk.buffers()
        ends = np.frombuffer(offsets, np.int32 if is_narrow else np.int64)[chunk.offset :][: len(chunk) + 1].tolist()
        # Values that needed no unpacking lie in the mapped file, at their address less its start.
        first = -1 if values is None else values.address - buffer.address
        where, first = (part, first) if 0 <= first < buffer.size else (values, 0)
        for start, end in pairwise(ends):
            yield f"{row:07d}", read_label(next(labels), f"row {row}", names), where, first + start, end - start
            row += 1
