"""What of the images' bytes a resumed run is compared by, without reading all of them."""

import contextlib
import hashlib
import json
import random
import zipfile
import zlib

from aurank.data.manifest import Manifest
from aurank.data.sources import FolderSource, ZipSource
from aurank.errors import UserError

_SMALL = 64 << 20  # bytes: of a data set up to this size, every file is read
_SAMPLE = 64  # files read of a larger one, the same ones every time
_Marks = list[int | None]  # of each file, None where it cannot be read


def contents(manifest: Manifest) -> dict[str, str]:
    """Return digests of the bytes of a data set's images, wherever it lies: in a folder, a zip archive or memory.

    "sizes" is of the length of every file, "sample" of the sums (CRC-32) of all files, or of 64 of them, drawn by the
    manifest, where they have more than 64 MiB in all. "sums" is of the sums of all files where they are at hand: in the
    directory of an archive, and in memory. So of a large folder a file that was replaced by one of the same length is
    seen only if it is in the sample.
    """
    paths = sorted(set(manifest.paths))
    sizes, sums = _marks(manifest, paths)
    small = sum(size or 0 for size in sizes) <= _SMALL
    sample = paths if small else random.Random(manifest.sha256).sample(paths, min(_SAMPLE, len(paths)))
    at_hand = dict(zip(paths, sums, strict=True)) if sums else {path: _sum(manifest, path) for path in sample}
    found = {"sizes": _digest(sizes), "sample": _digest([at_hand[path] for path in sample])}
    return {**found, "sums": _digest(sums)} if sums else found


def _marks(manifest: Manifest, paths: list[str]) -> tuple[_Marks, _Marks]:
    """Return the length of every file, and its sum where that is at hand for all, else nothing."""
    source = manifest.source
    if isinstance(source, FolderSource):
        sizes: _Marks = [None] * len(paths)
        for number, path in enumerate(paths):
            with contextlib.suppress(OSError, ValueError):  # a zero byte in the name
                sizes[number] = (source.root / path).stat().st_size
        return sizes, []
    if isinstance(source, ZipSource):
        with zipfile.ZipFile(source.file) as archive:
            members = {info.filename: info for info in archive.infolist()}
        held = [members.get(source.prefix + path) for path in paths]
        return [info.file_size if info else None for info in held], [info.CRC if info else None for info in held]
    data = [source.read_bytes(path) for path in paths]
    return list(map(len, data)), list(map(zlib.crc32, data))


def _sum(manifest: Manifest, path: str) -> int | None:
    try:
        return zlib.crc32(manifest.source.read_bytes(path))
    except UserError:
        return None


def _digest(marks: _Marks) -> str:
    return hashlib.sha256(json.dumps(marks).encode()).hexdigest()
