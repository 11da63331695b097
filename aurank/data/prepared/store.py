"""A folder of prepared images: one file that all processes map, and an index of records of one length.

`prepared.json` says how they were made. `images.bin` holds one image after the other, `index.bin` a record for each:
its place and sum, and the length, time and sum of its original. Both files only grow, and a record is written after
what it points to: whatever ends the writing, all that the index names is whole, and who reads meanwhile is not
disturbed. Of several records of an image the last one counts.
"""

import dataclasses
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Int64, UInt8

from aurank.data.manifest import Manifest
from aurank.data.sources import FileMark, file_marks
from aurank.data.transforms.base import AREA, INTERPOLATIONS, resize_shorter
from aurank.errors import AurankError, UserError, first_line
from aurank.files import EXACT, checked, content_sha256, reading, write_text

SETTINGS, INDEX, IMAGES = "prepared.json", "index.bin", "images.bin"
RECORD = np.dtype(
    [
        ("key", "V16"),  # digest of the path, and of the box where there is one
        ("offset", "<u8"),
        ("length", "<u4"),  # 0: the original could not be read
        ("height", "<u4"),
        ("width", "<u4"),
        ("crc", "<u4"),
        ("original_length", "<i8"),
        ("original_modified", "<i8"),  # 0 of what is in no folder
        ("original_crc", "<u4"),
        ("unused", "<u4"),
    ]
)
QUALITY = 95
_FORMAT = 1
COMPARED = 64  # originals with another time, but the same length, that a run reads before it begins
_LONGEST = 65_500  # side of a JPEG
Pixels = UInt8[np.ndarray, "_ _ channel"]


@dataclass(frozen=True)
class Preparation:
    """How images are prepared.

    Attributes:
        short_side: larger images are reduced to it.
        raw: keep their pixels; otherwise JPEGs of quality 95 in all colours, a fifth as large and slower to read.

    Example:
        >>> str(Preparation(short_side=256, channels=3))
        'shorter side 256, 3 channels, by area, raw'
    """

    __pydantic_config__ = EXACT

    short_side: int
    channels: int
    interpolation: str = AREA
    raw: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.short_side < 2**16 or self.channels < 1 or self.interpolation not in INTERPOLATIONS:
            raise UserError(f"images cannot be prepared with {self}")
        if not self.raw and self.channels not in (1, 3):
            raise UserError(f"a JPEG holds 1 or 3 channels, not data.channels={self.channels}; leave out --jpeg")

    def __str__(self) -> str:
        kind = "raw" if self.raw else f"JPEG of quality {QUALITY}"
        channels = "1 channel" if self.channels == 1 else f"{self.channels} channels"
        return f"shorter side {self.short_side}, {channels}, by {self.interpolation}, {kind}"

    def shrink(self, image: Pixels) -> Pixels:
        """Return the image as it is kept: a smaller one stays as it is."""
        if min(image.shape[:2]) <= self.short_side:
            return image
        return resize_shorter(image, self.short_side, self.interpolation)

    def encode(self, image: Pixels) -> bytes:
        """Return the bytes that `decode` takes; UserError for what no JPEG holds."""
        if self.raw:
            return image.tobytes()
        if max(image.shape[:2]) > _LONGEST:
            raise UserError(
                f"{image.shape[1]:,} × {image.shape[0]:,} pixels are more than a JPEG holds; leave out --jpeg"
            )
        options = [cv2.IMWRITE_JPEG_QUALITY, QUALITY]
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
        given = image if self.channels == 1 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        return bytes(cv2.imencode(".jpg", given, options)[1].data)

    def decode(self, content: UInt8[np.ndarray, " byte"], height: int, width: int) -> Pixels | None:
        """Return the image that was encoded, as an array of its own; None where the bytes are not one."""
        shape, size = (height, width, self.channels), height * width * self.channels
        if self.raw:
            return np.array(content).reshape(shape) if len(content) == size else None
        try:
            found = cv2.imdecode(content, cv2.IMREAD_GRAYSCALE if self.channels == 1 else cv2.IMREAD_COLOR)
        except cv2.error:  # of more pixels than OpenCV takes
            found = None
        if found is not None and self.channels == 3:
            found = cv2.cvtColor(found, cv2.COLOR_BGR2RGB, dst=found)
        return None if found is None or found.size != size else np.asarray(found).reshape(shape)

    def save(self, folder: Path) -> None:
        """Write the settings of a folder."""
        content = {"format": _FORMAT, **dataclasses.asdict(self)}
        write_text(folder / SETTINGS, json.dumps({**content, "checksum": content_sha256(content)}, indent=1) + "\n")

    @staticmethod
    def load(folder: Path) -> "Preparation":
        """Return the settings of a folder; UserError where it holds no prepared images."""
        path = folder / SETTINGS
        if not path.is_file():
            where = f"{folder} holds no prepared images" if folder.is_dir() else f"there is no folder {folder}"
            raise UserError(f"data.prepared: {where}; {remedy_for(folder)}, or set data.prepared=null")
        with _reading(path):
            content: Any = json.loads(path.read_bytes())
            if content["checksum"] != content_sha256(content):
                raise ValueError("it is damaged, or was changed by hand")
            del content["checksum"]
            if content.pop("format") != _FORMAT:
                raise ValueError("it is of another format")
            return checked(content, Preparation)


def remedy_for(folder: Path) -> str:
    """Return the remedy for what a folder lacks."""
    return f"give aurank data prepare CONFIG --out {folder} again"


def _reading(path: Path) -> AbstractContextManager[None]:
    remedy = f"{remedy_for(path.parent)}, or set data.prepared=null"
    return reading(f"data.prepared: {path}", "prepared images", remedy=remedy)


def region_keys(regions: Iterable[str]) -> list[bytes]:
    """Return the key of each row of a manifest, by its path and its box (`Manifest.regions`)."""
    return [hashlib.blake2b(one.encode("utf-8", "backslashreplace"), digest_size=16).digest() for one in regions]


def read_records(folder: Path) -> np.ndarray:
    """Return the whole records of an index, none where there is no file."""
    path = folder / INDEX
    content = path.read_bytes() if path.exists() else b""
    return np.frombuffer(content[: len(content) // RECORD.itemsize * RECORD.itemsize], RECORD)


def last_places(records: np.ndarray) -> dict[bytes, int]:
    """Return where the record of each key is, the last of several."""
    keys = records["key"].tobytes()
    return {keys[16 * place : 16 * place + 16]: place for place in range(len(records))}


def lie_within(records: np.ndarray, size: int) -> Bool[np.ndarray, " record"]:
    """Return for each record whether its image ends within a file of so many bytes; damaged sums of both may wrap."""
    offsets, lengths = records["offset"], records["length"]
    return np.asarray((offsets <= size) & (lengths <= np.uint64(size) - np.minimum(offsets, np.uint64(size))))


def are_whole(folder: Path, records: np.ndarray) -> Iterator[bool]:
    """Yield for each record whether its image is in the file as it was written."""
    size = (folder / IMAGES).stat().st_size
    mapped: Any = np.memmap(folder / IMAGES, mode="r") if size else b""
    for record, is_there in zip(records, lie_within(records, size).tolist(), strict=True):
        begin, length = int(record["offset"]), int(record["length"])
        yield is_there and zlib.crc32(mapped[begin : begin + length]) == record["crc"]


class Unfit(NamedTuple):
    """Rows of a manifest for which prepared images cannot be used: not there, or with a changed original."""

    missing: Int64[np.ndarray, " missing"]
    changed: Int64[np.ndarray, " changed"]


class PreparedImages:
    """The images of a folder that `prepare_images` wrote.

    Raises:
        UserError: there are none, or the file was cut short.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.how = Preparation.load(folder)
        path = folder / IMAGES
        with _reading(folder / INDEX):
            self.records = read_records(folder)
            self._is_fit = np.zeros(len(self.records), dtype=np.bool_)  # given out by `rows_of` before
            with ExitStack() as opened:  # what may not be read is told before a run begins
                size = os.fstat(opened.enter_context(path.open("rb")).fileno()).st_size if path.exists() else 0
        if lost := int((~lie_within(self.records, size)).sum()):
            raise UserError(
                f"data.prepared: {path} was cut short, or {INDEX} is damaged: {lost:,} images lie beyond its "
                f"{size:,} bytes; {remedy_for(folder)}, which mends it"
            )

    def places(self, manifest: Manifest) -> Int64[np.ndarray, " image"]:
        """Return the record of each row, −1 where there is none."""
        known = last_places(self.records)
        return np.array([known.get(key, -1) for key in region_keys(manifest.regions)], dtype=np.int64)

    def unfit(self, manifest: Manifest, places: Int64[np.ndarray, " image"], at_most: int | None = COMPARED) -> Unfit:
        """Return the rows that are not there or whose original is another now; an original that is gone is not.

        Originals of rows that `rows_of` returned before are not looked at again.

        `at_most`: how many originals are read, see `compare_originals`.
        """
        held = np.flatnonzero(places >= 0)
        held = held[~self._is_fit[places[held]]]
        changed, _ = compare_originals(manifest, held, self.records[places[held]], at_most=at_most)
        return Unfit(np.flatnonzero(places < 0), held[changed])

    def rows_of(self, manifest: Manifest, channels: int, *, on_error: str = "raise") -> "PreparedRows":
        """Return the images of a manifest; UserError names the first that is not there, or is of another original.

        `on_error`: "raise" that too where an original could not be read, or "skip" it later.
        """
        if channels != self.how.channels:
            raise UserError(
                f"data.prepared: the images in {self.folder} have {self.how.channels} channels, not data.channels="
                f"{channels}; prepare them into another folder"
            )
        places = self.places(manifest)
        missing, other = self.unfit(manifest, places)
        for rows, said in ((missing, "are not in"), (other, "were changed after they were prepared in")):
            if len(rows):
                first = manifest.regions[rows[0]]
                raise UserError(
                    f"data.prepared: {len(rows):,} of {len(manifest):,} images of {manifest.name} {said} {self.folder} "
                    f"(first: {first!r}); {remedy_for(self.folder)}, which takes those only"
                )
        unreadable = np.flatnonzero(self.records["length"][places] == 0)
        if on_error == "raise" and len(unreadable):
            raise UserError(
                f"data.prepared: {len(unreadable):,} of {len(manifest):,} images of {manifest.name} could not be read "
                f"when they were prepared in {self.folder} (first: {manifest.regions[unreadable[0]]!r}); replace them "
                f"and {remedy_for(self.folder)}, or set data.on_error=skip"
            )
        self._is_fit[places] = True
        return PreparedRows(self, manifest, places)


def compare_originals(
    manifest: Manifest,
    rows: Sequence[int] | np.ndarray,
    records: np.ndarray,
    *,
    at_most: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Bool[np.ndarray, " row"], dict[int, int]]:
    """Return for each row, with its record, whether its original is another now than when it was prepared.

    Originals with another time but the same length, as in a copied folder, are read, or ``at_most`` so many of them;
    `progress` is given how many have been, of how many.
    Also returned: the time now of those that were read and are the same, by their place among the rows.
    """
    source, paths = manifest.source, [manifest.paths[row] for row in rows]
    found, doubtful = np.zeros(len(paths), dtype=np.bool_), {}
    lengths, times = records["original_length"].tolist(), records["original_modified"].tolist()
    sums = records["original_crc"].tolist()
    for place, mark in enumerate(file_marks(source, paths)):
        if mark is None:
            continue
        if mark.length != lengths[place] or (mark.crc is not None and mark.crc != sums[place]):
            found[place] = True
        elif mark.modified is not None and mark.modified != times[place]:
            doubtful[place] = mark.modified
    chosen = list(doubtful)
    if at_most is not None and len(chosen) > at_most:
        chosen = [chosen[at] for at in np.linspace(0, len(chosen) - 1, at_most, dtype=np.int64).tolist()]
    for done, place in enumerate(chosen, start=1):
        found[place] = zlib.crc32(source.read_bytes(paths[place])) != sums[place]
        if progress is not None:
            progress(done, len(chosen))
    return found, {place: doubtful[place] for place in chosen if not found[place]}


class PreparedRows:
    """The prepared images of a manifest, by row. The file is mapped in each process that reads from it."""

    def __init__(self, images: PreparedImages, manifest: Manifest, places: Int64[np.ndarray, " image"]) -> None:
        self.folder, self.how, self._names = images.folder, images.how, manifest.regions
        self._records = images.records[places]
        # Shared memory: a sum is compared once in a run, by whichever worker comes first.
        self._verified = torch.zeros(len(manifest), dtype=torch.bool).share_memory_()  # type: ignore[no-untyped-call]
        self._mapped = self._map() if self._records["length"].any() else None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    @property
    def sha256(self) -> str:
        """Digest of the sums of the images kept and of their originals, which tells other pixels at the same paths."""
        return hashlib.sha256(self._records["crc"].tobytes() + self._records["original_crc"].tobytes()).hexdigest()

    @property
    def originals(self) -> list[FileMark]:
        """What the original of each row is known by, as it was when it was prepared."""
        lengths, sums = (self._records[name].tolist() for name in ("original_length", "original_crc"))
        return [FileMark(length, None, crc) for length, crc in zip(lengths, sums, strict=True)]

    @property
    def marks(self) -> list[FileMark]:
        """What the image kept of each row is known by."""
        lengths, sums = (self._records[name].tolist() for name in ("length", "crc"))
        return [FileMark(length, None, crc) for length, crc in zip(lengths, sums, strict=True)]

    def _map(self) -> np.ndarray:
        try:
            return np.memmap(self.folder / IMAGES, mode="r")
        except (OSError, ValueError) as error:  # gone since the run began; none of its images is to be skipped for that
            said = f"{self.folder / IMAGES} cannot be read any more ({first_line(error)})"
            raise AurankError(f"data.prepared: {said}; put it back, or {remedy_for(self.folder)}") from error

    def read(self, row: int) -> Pixels:
        """Return the pixels of a row; UserError where the original could not be read, or the file is damaged."""
        record = self._records[row]
        if not record["length"]:
            raise UserError(f"image {self._names[row]!r} could not be read when it was prepared in {self.folder}")
        if self._mapped is None:
            self._mapped = self._map()
        begin = int(record["offset"])
        content: Any = np.asarray(self._mapped[begin : begin + int(record["length"])])
        image = None
        if self._verified[row] or zlib.crc32(content) == record["crc"]:
            self._verified[row] = True
            image = self.how.decode(content, int(record["height"]), int(record["width"]))
        if image is None:
            raise UserError(
                f"image {self._names[row]!r} is damaged in {self.folder / IMAGES}: its bytes are not those that were "
                f"written; {remedy_for(self.folder)}, which mends it"
            )
        return image
