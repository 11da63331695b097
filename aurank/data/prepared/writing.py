"""Writing a folder of prepared images: what is there and whole stays, the rest is made by threads, in order."""

import os
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aurank.data.decode import MAX_PIXELS, crop, decode, quiet_decoding
from aurank.data.manifest import Manifest
from aurank.data.prepared.store import (
    IMAGES,
    INDEX,
    RECORD,
    SETTINGS,
    Preparation,
    are_whole,
    compare_originals,
    last_places,
    lie_within,
    read_records,
    region_keys,
)
from aurank.data.sources import FileMark, ImageSource, file_marks
from aurank.errors import AurankError, UserError
from aurank.files import replacing
from aurank.sizes import as_text

_KEPT_EVERY = 256  # images, after which what was made stays, whatever happens
_TRIED = 16  # images by which the room that all take is estimated
_AHEAD = 4  # images for each thread that are made before they are written

_Original = tuple[int, FileMark | None]  # the row, and what its file is known by
Progress = Callable[[str, int, int], None]
"""Called with a stage, how much of it is done and how much there is."""


@dataclass(frozen=True)
class PreparedResult:
    """What a folder of prepared images holds now.

    Attributes:
        images: of the data set, in the folder.
        written: of these, those that were prepared this time.
        unreadable: the names of those that cannot be decoded (data.on_error=skip).
        num_bytes: of the file of images.

    Example:
        >>> how = Preparation(256, 3)
        >>> print(PreparedResult(Path("p"), how, images=10, written=4, unreadable=("a.jpg",), num_bytes=0))
        10 images in p (shorter side 256, 3 channels, by area, raw; 0.0 B), 6 of them from before
        skipped, unreadable: 1 (a.jpg)
    """

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
    progress: Progress | None = None,
) -> PreparedResult:
    """Prepare the images of a manifest, those of them that are not in the folder yet, or changed, or damaged there.

    One process at a time may write into a folder; a killed one is gone on with.

    Args:
        on_error: "raise" a UserError naming an image that cannot be read, or "skip" it: it counts as unreadable then.

    Raises:
        UserError: the folder holds other things, or images prepared otherwise; or there is too little room.
        AurankError: a full disk; what was prepared stays.

    Example:
        >>> import tempfile
        >>> from aurank.data import READERS
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = prepare_images(READERS["digits"](None), Path(folder, "prepared"), Preparation(8, 1))
        >>> result.images, result.num_bytes
        (1797, 115008)
    """
    report: Progress = progress or (lambda stage, done, total: None)
    _require_fitting(folder, how)
    first: dict[str, int] = {}
    for row, region in enumerate(manifest.regions):  # of texts and roles, an image may have several rows
        first.setdefault(region, row)
    rows, keys = np.array(list(first.values()), dtype=np.int64), region_keys(first)
    try:
        if not (folder / SETTINGS).exists():
            how.save(folder)
        needed, same = _needed(manifest, rows, keys, folder, on_error, report)
        todo = np.flatnonzero(needed).tolist()
        with _Writer(folder) as writer:
            writer.renew(same)
            make = partial(_make, manifest, how, on_error=on_error, max_pixels=max_pixels)
            marks = file_marks(manifest.source, [manifest.paths[row] for row in rows[todo]])  # before they are read
            originals = list(zip(rows[todo].tolist(), marks, strict=True))
            _require_room(folder, make, originals, how)
            made = _in_order(make, originals)
            for done, (place, (record, content)) in enumerate(zip(todo, made, strict=True), start=1):
                record["key"] = np.frombuffer(keys[place], "V16")[0]
                writer.add(record, content)
                report("preparing", done, len(todo))
    except OSError as error:
        raise AurankError(
            f"cannot write prepared images into {folder}: {error.strerror or error}; what was prepared stays: give the "
            "command again when there is room"
        ) from error
    records = read_records(folder)
    known = last_places(records)
    unreadable = [
        manifest.regions[row] for row, key in zip(rows, keys, strict=True) if not records[known[key]]["length"]
    ]
    size = (folder / IMAGES).stat().st_size
    return PreparedResult(folder, how, len(rows), len(todo), tuple(unreadable), size)


def _require_fitting(folder: Path, how: Preparation) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"--out {folder} is a file; name a folder")
    if not (folder / SETTINGS).exists():
        if any(not path.name.startswith(".") for path in folder.iterdir()):
            raise UserError(f"--out {folder} is not empty and holds no prepared images; name another folder")
        return
    held = Preparation.load(folder)
    if held != how:
        raise UserError(
            f"--out {folder} holds images prepared otherwise ({held}; asked for: {how}); name another folder"
        )


def _needed(
    manifest: Manifest, rows: np.ndarray, keys: Sequence[bytes], folder: Path, on_error: str, report: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows are to be prepared: not there, with another original now, or damaged.

    Also returned: of originals that have another time only, the records with that time, so that they are read once.
    """
    records, needed = read_records(folder), np.ones(len(rows), dtype=np.bool_)
    known = last_places(records)
    held = np.array([place for place, key in enumerate(keys) if key in known], dtype=np.int64)
    if not len(held) or not (folder / IMAGES).exists():
        return needed, records[:0]
    own = records[[known[keys[place]] for place in held]]
    needed[held], times = compare_originals(manifest, rows[held], own, progress=partial(report, "comparing originals"))
    if on_error == "raise":  # then it says why
        needed[held[own["length"] == 0]] = True
    for done, (place, is_whole) in enumerate(zip(held.tolist(), are_whole(folder, own), strict=True), start=1):
        needed[place] |= not is_whole
        report("verifying", done, len(held))
    renewed = own[list(times)]
    renewed["original_modified"] = list(times.values())
    return needed, renewed[~needed[held[list(times)]]]


def _require_room(
    folder: Path,
    make: Callable[[_Original], tuple[np.ndarray, bytes]],
    originals: Sequence[_Original],
    how: Preparation,
) -> None:
    """Raise UserError where the disk has less room than the images will take, by a few of them."""
    places = np.linspace(0, len(originals) - 1, min(_TRIED, len(originals)), dtype=np.int64).tolist()
    with quiet_decoding():
        lengths = [len(make(originals[place])[1]) for place in places]
    needed, free = int(np.mean(lengths) * len(originals)) if lengths else 0, shutil.disk_usage(folder).free
    if needed > free:
        smaller = ", or prepare JPEGs (--jpeg), which take about a fifth" if how.raw else ""
        room = f"take about {needed / 2**30:.2f} GiB, and {free / 2**30:.2f} GiB are free there"
        raise UserError(f"--out {folder}: the images {room}; make room, name another folder{smaller}")


class _Writer:
    """Appends images, and their records after them.

    What stands behind the last image that the index names stays: a killed process left it, or the index was cut, and
    somebody may read it whose index still names it. Records of images that are not in the file are left out: it was cut
    short, or they are damaged.
    """

    def __init__(self, folder: Path) -> None:
        records, self._folder = read_records(folder), folder
        self._waiting: list[np.ndarray] = []
        if not len(records):
            (folder / IMAGES).unlink(missing_ok=True)  # the index was lost: who still reads keeps the old file
        with ExitStack() as stack:
            self._images = stack.enter_context((folder / IMAGES).open("ab", buffering=0))
            self._begin = self._end = os.fstat(self._images.fileno()).st_size
            is_there = lie_within(records, self._end)
            if not is_there.all():
                records = records[is_there]
                with replacing(folder / INDEX) as file:
                    file.write(records.tobytes())
            self._index = stack.enter_context((folder / INDEX).open("ab", buffering=0))
            self._index.truncate(len(records) * RECORD.itemsize)
            self._files = stack.pop_all()

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *error: object) -> None:
        with self._files:
            if error[0] is None:
                self._keep()
                return
            with suppress(OSError):  # of a full disk: the index may still find room
                self._keep()
            with suppress(OSError):  # what was written, and no index has ever named
                self._images.truncate(max(self._begin, _end(read_records(self._folder))))

    def add(self, record: np.ndarray, content: bytes) -> None:
        record["offset"] = self._end
        _write_all(self._images, content)
        self._end += len(content)
        self._waiting.append(record)
        if len(self._waiting) >= _KEPT_EVERY:
            self._keep()

    def renew(self, records: np.ndarray) -> None:
        """Write other records of images that stay where they are."""
        if len(records):
            self._waiting.append(records)

    def _keep(self) -> None:
        """Write the records of what is on disk."""
        os.fsync(self._images.fileno())
        waiting, self._waiting = self._waiting, []
        _write_all(self._index, b"".join(record.tobytes() for record in waiting))
        os.fsync(self._index.fileno())


def _end(records: np.ndarray) -> int:
    """Return where the last image that an index names ends."""
    return int((records["offset"] + records["length"]).max(initial=0))


def _write_all(file: Any, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _make(
    manifest: Manifest, how: Preparation, image_of: _Original, *, on_error: str, max_pixels: int
) -> tuple[np.ndarray, bytes]:
    """Return the record of a row, without key and offset, and the bytes to keep."""
    row, mark = image_of
    path, record = manifest.paths[row], np.zeros((), RECORD)
    content, original = b"", b""
    try:
        original = manifest.source.read_bytes(path)
        record["original_modified"] = (mark and mark.modified) or 0
        image = decode(_Held(manifest.source, original), path, how.channels, max_pixels=max_pixels)
        if manifest.boxes is not None and manifest.boxes[row, 0] >= 0:
            image = crop(image, manifest.boxes[row].tolist(), path)
        image = how.shrink(image)
        try:
            content = how.encode(image)
        except UserError as error:
            raise UserError(f"image {path!r} in {manifest.source.where}: {error}, or set data.on_error=skip") from None
        record["height"], record["width"] = image.shape[:2]
    except UserError:
        if on_error == "raise":
            raise
    record["length"], record["crc"] = len(content), zlib.crc32(content)
    record["original_length"], record["original_crc"] = len(original), zlib.crc32(original)
    return record, content


@dataclass(frozen=True, eq=False)
class _Held:
    """The bytes of one image, read already, as the source they come from."""

    source: ImageSource
    content: bytes

    @property
    def where(self) -> str:
        return self.source.where

    def read_bytes(self, path: str) -> bytes:
        return self.content

    def exists(self, path: str) -> bool:
        return True

    def names(self) -> list[str]:
        return []


def _in_order(
    make: Callable[[_Original], tuple[np.ndarray, bytes]], originals: Sequence[_Original]
) -> Iterator[tuple[np.ndarray, bytes]]:
    """Yield what is made of each original, in their order, by threads that run a little ahead."""
    threads = min(32, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    waiting: deque[Future[tuple[np.ndarray, bytes]]] = deque()
    with quiet_decoding(), ThreadPoolExecutor(threads) as pool:
        try:
            for original in originals:
                waiting.append(pool.submit(make, original))
                if len(waiting) > _AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
