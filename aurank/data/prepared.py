"""A folder of prepared images: decoded and reduced once, in one Arrow stream that all processes map.

The stream begins with how the images were made. Its batches hold images with their sums, and the length, time and sum
of their originals. What a killed preparation left behind the last whole batch is cut off; the last record counts.
"""

import copy
import dataclasses
import functools
import hashlib
import json
import math
import os
import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from jaxtyping import Int64

from aurank.data.decode import MAX_PIXELS, Pixels, crop, decode, quiet_decoding
from aurank.data.manifest import Manifest
from aurank.data.sources import Mark, PartsSource
from aurank.data.transforms.base import AREA, resize_whole
from aurank.errors import AurankError, UserError
from aurank.files import EXACT, checked, content_sha256, reading, replacing, require_own_folder
from aurank.sizes import as_text

IMAGES = "images.arrow"
COMPARED = 64  # originals with another time, but the same length, that a run reads before it begins
_ABOUT = b"aurank.prepared"
_KEPT_EVERY, _KEPT_BYTES = 256, 2**26  # images, and their bytes, after which what was made stays
_PORTION = 8  # images for each thread that are made at a time
_SMALL = 64 << 20  # bytes: of a data set up to this size, `contents` reads every file
_SAMPLE = 64  # files that it reads of a larger one, the same ones every time
_NUMBERS = {
    "height": "<u4",
    "width": "<u4",
    "crc": "<u4",
    "original_length": "<i8",
    "original_modified": "<i8",  # 0 of what is in no folder
    "original_crc": "<u4",
}
# Of an image: its key, a digest of path and box; where it is in the file; a length of 0 if it could not be read.
RECORD = np.dtype([("key", "V16"), ("offset", "<i8"), ("length", "<i8"), *_NUMBERS.items()])


@dataclass(frozen=True)
class Preparation:
    """How images are prepared: reduced to `short_side`, and kept as raw pixels."""

    __pydantic_config__ = EXACT

    short_side: int
    channels: int
    interpolation: str = AREA

    def __str__(self) -> str:
        channels = "1 channel" if self.channels == 1 else f"{self.channels} channels"
        return f"shorter side {self.short_side}, {channels}, by {self.interpolation}, raw"


def _schema(how: Preparation) -> Any:
    import pyarrow

    numbers = [(name, pyarrow.from_numpy_dtype(np.dtype(kind))) for name, kind in _NUMBERS.items()]
    columns = [("key", pyarrow.binary(16)), ("image", pyarrow.large_binary()), *numbers]
    content = dataclasses.asdict(how)
    about = json.dumps({**content, "checksum": content_sha256(content)})
    return pyarrow.schema(columns, metadata={_ABOUT: about})


def _region_keys(regions: Iterable[str]) -> list[bytes]:
    return [hashlib.blake2b(region.encode("utf-8", "backslashreplace"), digest_size=16).digest() for region in regions]


class PreparedImages:
    """The images in a folder that ``aurank data prepare`` wrote."""

    def __init__(self, folder: Path) -> None:
        import pyarrow

        self.folder, path = folder, folder / IMAGES
        self.remedy = f"give aurank data prepare CONFIG --out {folder} again"
        remedy, parts = f"{self.remedy}, or set data.prepared=null", [np.zeros(0, RECORD)]
        with reading(path, "prepared images", remedy=remedy), pyarrow.memory_map(str(path)) as mapped:
            base = mapped.read_buffer(1).address
            mapped.seek(0)
            stream = pyarrow.ipc.open_stream(mapped)
            content = json.loads((stream.schema.metadata or {})[_ABOUT])
            content.pop("checksum")
            self.how = checked(content, Preparation)
            if not stream.schema.equals(_schema(self.how), check_metadata=True):
                raise ValueError("its description was changed, or it has other columns")
            self.end = mapped.tell()
            with suppress(StopIteration, pyarrow.ArrowException, OSError):  # the end, or what a killed process left
                while True:
                    batch = stream.read_next_batch()
                    batch.validate(full=True)
                    records = np.zeros(len(batch), RECORD)
                    _, ends, images = batch["image"].buffers()
                    offsets = np.frombuffer(ends, "<i8", len(batch) + 1)
                    records["key"] = np.frombuffer(batch["key"].buffers()[1], "V16", len(batch))
                    records["offset"] = offsets[:-1] + (images.address - base if images is not None else 0)
                    records["length"] = np.diff(offsets)
                    for name in _NUMBERS:
                        records[name] = batch[name].to_numpy()
                    parts.append(records)
                    self.end = mapped.tell()
        self.records = np.concatenate(parts)
        self._names: Sequence[str] = ()
        self._verified = torch.zeros(0, dtype=torch.bool)
        self._compared = np.zeros(0, np.int64)  # records whose originals `rows_of` looked at
        self._position_of = {record.tobytes(): position for position, record in enumerate(self.records["key"])}

    def positions(self, manifest: Manifest) -> Int64[np.ndarray, " image"]:
        """Return the record of each row; −1 where there is none."""
        keys = _region_keys(manifest.regions)
        return np.array([self._position_of.get(key, -1) for key in keys], dtype=np.int64)

    def changed(
        self, manifest: Manifest, positions: Int64[np.ndarray, " image"], *, at_most: int | None = COMPARED
    ) -> Int64[np.ndarray, " changed"]:
        """Return the rows whose original is another now, not gone; `at_most` doubtful originals are read."""
        rows = np.flatnonzero(positions >= 0)
        records = self.records[positions[rows]]
        marks = manifest.source.marks([manifest.paths[row] for row in rows.tolist()])
        changed, doubtful, has_times = [], [], manifest.source.has_times
        stamp = "original_modified" if has_times else "original_crc"
        for row, record, mark in zip(rows.tolist(), records, marks, strict=True):
            if mark is None or mark == (record["original_length"], record[stamp]):
                continue
            if mark[0] != record["original_length"] or not has_times:
                changed.append(row)
            else:
                doubtful.append((row, record["original_crc"]))
        if at_most is not None and len(doubtful) > at_most:
            doubtful = [doubtful[at] for at in np.linspace(0, len(doubtful) - 1, at_most, dtype=np.int64).tolist()]
        changed += [row for row, crc in doubtful if zlib.crc32(manifest.source.read_bytes(manifest.paths[row])) != crc]
        return np.array(sorted(changed), dtype=np.int64)

    def rows_of(self, manifest: Manifest, channels: int, *, on_error: str = "raise") -> "PreparedImages":
        """Return the images of a manifest, by row; UserError for one that is missing or was changed."""
        if self.how.channels != channels:
            raise UserError(
                f"data.prepared: the images in {self.folder} have {self.how.channels} channels, not data.channels="
                f"{channels}; prepare them into another folder"
            )
        positions = self.positions(manifest)
        unreadable = np.flatnonzero((self.records["length"] == 0) & (on_error == "raise"))
        changed = self.changed(manifest, np.where(np.isin(positions, self._compared), -1, positions))
        lost = np.flatnonzero(np.isin(positions, unreadable))
        for rows, problem, remedy in (
            (np.flatnonzero(positions < 0), "are not in", ""),
            (changed, "were changed after they were prepared in", ""),
            (lost, "could not be read when they were prepared in", ", or set data.on_error=skip"),
        ):
            if len(rows):
                images = f"{len(rows):,} of {len(manifest):,} images of {manifest.name}"
                raise UserError(
                    f"data.prepared: {images} {problem} {self.folder} (first: {manifest.regions[rows[0]]!r}); "
                    f"{self.remedy}, which takes those only{remedy}"
                )
        self._compared = np.union1d(self._compared, positions)
        part = copy.copy(self)
        part.records, part._names = self.records[positions], manifest.regions
        # Shared memory: a sum is compared once in a run, by whichever worker comes first.
        part._verified = torch.zeros(len(manifest), dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call]
        return part

    @property
    def sha256(self) -> str:
        """Digest of the sums of the images kept and of their originals, which tells other pixels at the same paths."""
        return hashlib.sha256(self.records["crc"].tobytes() + self.records["original_crc"].tobytes()).hexdigest()

    @functools.cached_property
    def pixels(self) -> Any:
        """The whole file, mapped."""
        return np.asarray(np.memmap(self.folder / IMAGES, mode="r"))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("pixels", "_position_of")}

    def read(self, row: int) -> Pixels:
        """Return the pixels of a row; UserError where the original could not be read, or the file is damaged."""
        record = self.records[row]
        content = self.pixels[int(record["offset"]) :][: int(record["length"])]
        if record["length"] and (self._verified[row] or zlib.crc32(content) == record["crc"]):
            self._verified[row] = True
            shape = int(record["height"]), int(record["width"]), self.how.channels
            if len(content) == math.prod(shape):
                return np.array(content).reshape(shape)
        problem = f"could not be read when it was prepared in {self.folder}"
        if record["length"]:
            problem = f"is damaged in {self.folder / IMAGES}; {self.remedy}, which mends it"
        raise UserError(f"image {self._names[row]!r} {problem}")


def contents(manifest: Manifest, prepared: PreparedImages | None = None) -> dict[str, str]:
    """Return digests of the bytes of a data set's images, wherever it lies, by which a resumed run is compared.

    "sizes" is of the length of every file, "sample" of the sums (CRC-32) of all files, or of 64 of them, drawn by the
    manifest, where they have more than 64 MiB in all. "sums" is of the sums of all files where they are at hand: in an
    archive, in memory, and of ``prepared`` images, which remember their originals. "prepared" is how such images were
    made, and "pixels" of them themselves.
    """
    paths, source = sorted(set(manifest.paths)), manifest.source
    marks: Sequence[Mark | None] = [None] * len(paths)
    if prepared is not None:
        columns = prepared.records["original_length"].tolist(), prepared.records["original_crc"].tolist()
        of_path = dict(zip(manifest.paths, zip(*columns, strict=True), strict=True))
        marks = [of_path[path] for path in paths]
    elif not source.is_read_to_mark:
        marks = source.marks(paths)
    has_sums = prepared is not None or not source.has_times
    sizes = [mark and mark[0] for mark in marks]
    sums = {path: mark[1] if mark and has_sums else None for path, mark in zip(paths, marks, strict=True)}
    is_complete = prepared is not None or None not in sums.values()
    is_small = 0 < sum(size or 0 for size in sizes) <= _SMALL
    sample = paths if is_small else random.Random(manifest.sha256).sample(paths, min(_SAMPLE, len(paths)))
    if not is_complete:
        for path in sample:
            with suppress(UserError):
                sums[path] = zlib.crc32(source.read_bytes(path))
    numbers = {"sizes": sizes, "sample": [sums[path] for path in sample]}
    if is_complete and sums:
        numbers["sums"] = [*sums.values()]
    digests = {name: hashlib.sha256(json.dumps(listed).encode()).hexdigest() for name, listed in numbers.items()}
    return digests if prepared is None else {**digests, "prepared": str(prepared.how), "pixels": prepared.sha256}


@dataclass(frozen=True)
class PreparedResult:
    folder: Path
    how: Preparation
    images: int
    written: int
    unreadable: tuple[str, ...]
    num_bytes: int

    def __str__(self) -> str:
        before = f", {self.images - self.written:,} of them from before" if self.images > self.written else ""
        text = f"{self.images:,} images in {self.folder} ({self.how}; {as_text(self.num_bytes)}){before}"
        if not self.unreadable:
            return text
        more = ", …" if len(self.unreadable) > 3 else ""
        return f"{text}\nskipped, unreadable: {len(self.unreadable):,} ({', '.join(self.unreadable[:3])}{more})"


def prepare_images(
    manifest: Manifest,
    folder: Path,
    how: Preparation,
    *,
    on_error: str = "raise",
    max_pixels: int = MAX_PIXELS,
    progress: Callable[[str, int, int], None] | None = None,
) -> PreparedResult:
    first: dict[str, int] = {}
    for row, region in enumerate(manifest.regions):  # of texts and roles, an image may have several rows
        first.setdefault(region, row)
    once, keys = manifest.select(list(first.values())), _region_keys(first)
    try:
        if not (folder / IMAGES).exists():
            require_own_folder(folder)
            with replacing(folder / IMAGES) as file:
                file.write(_schema(how).serialize())
        stored = PreparedImages(folder)
        if stored.how != how:
            raise UserError(
                f"--out {folder} holds images prepared otherwise ({stored.how}; asked for: {how}); name another folder"
            )
        positions = stored.positions(once)
        is_there = positions >= 0
        needed = ~is_there
        needed[stored.changed(once, positions, at_most=None)] = True
        for row in np.flatnonzero(is_there).tolist():
            record = stored.records[positions[row]]
            content = stored.pixels[int(record["offset"]) :][: int(record["length"])]
            is_lost = on_error == "raise" and not record["length"]  # then it says why
            needed[row] |= is_lost or zlib.crc32(content) != record["crc"]
        todo = np.flatnonzero(needed).tolist()
        marks = manifest.source.marks([once.paths[row] for row in todo])  # before they are read
        make = partial(_make, once, how, on_error=on_error, max_pixels=max_pixels)
        threads = min(32, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        waiting: list[dict[str, Any]] = []
        with (
            (folder / IMAGES).open("ab") as file,
            quiet_decoding(),
            ThreadPoolExecutor(threads) as pool,
        ):
            file.truncate(stored.end)
            try:
                for start in range(0, len(todo), portion := _PORTION * threads):
                    rows = todo[start : start + portion]
                    made = pool.map(make, rows, marks[start : start + portion])
                    for done, (row, image) in enumerate(zip(rows, made, strict=True), start=start + 1):
                        waiting.append({"key": keys[row], **image})
                        if len(waiting) >= _KEPT_EVERY or sum(len(each["image"]) for each in waiting) >= _KEPT_BYTES:
                            _append(file, waiting, how)
                        if progress is not None:
                            progress("preparing", done, len(todo))
            finally:
                _append(file, waiting, how)
    except OSError as error:
        raise AurankError(
            f"cannot write prepared images into {folder}: {error.strerror or error}; what was prepared stays: give the "
            "command again when there is room"
        ) from error
    stored = PreparedImages(folder)
    is_lost = stored.records["length"][stored.positions(once)] == 0
    unreadable = tuple(once.regions[row] for row in np.flatnonzero(is_lost).tolist())
    return PreparedResult(folder, how, len(once), len(todo), unreadable, (folder / IMAGES).stat().st_size)


def _append(file: BinaryIO, waiting: list[dict[str, Any]], how: Preparation) -> None:
    import pyarrow

    images, waiting[:] = list(waiting), []
    if images:
        file.write(pyarrow.RecordBatch.from_pylist(images, schema=_schema(how)).serialize())
        file.flush()
        os.fsync(file.fileno())


def _make(
    manifest: Manifest, how: Preparation, row: int, mark: Mark | None, *, on_error: str, max_pixels: int
) -> Mapping[str, Any]:
    path, content, original, shape = manifest.paths[row], b"", b"", [0, 0]
    try:
        original = manifest.source.read_bytes(path)
        source = PartsSource([original], {path: (0, 0, len(original))}, where=manifest.source.where)
        image = decode(source, path, how.channels, max_pixels=max_pixels)
        if manifest.boxes is not None and manifest.boxes[row, 0] >= 0:
            image = crop(image, manifest.boxes[row].tolist(), path)
        if min(image.shape[:2]) > how.short_side:
            image = resize_whole(image, (how.short_side,) * 2, "crop", how.interpolation)
        content, shape = image.tobytes(), list(image.shape[:2])
    except UserError:
        if on_error == "raise":
            raise
    return {
        "image": content,
        "height": shape[0],
        "width": shape[1],
        "crc": zlib.crc32(content),
        "original_length": len(original),
        "original_modified": mark[1] if mark and manifest.source.has_times else 0,
        "original_crc": zlib.crc32(original),
    }
