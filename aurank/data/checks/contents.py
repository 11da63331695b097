"""What of the images' bytes a resumed run is compared by, without reading all of them."""

import hashlib
import json
import random
import zlib

from aurank.data.manifest import Manifest
from aurank.data.prepared import PreparedRows
from aurank.data.sources import FolderSource, file_marks
from aurank.errors import UserError

_SMALL = 64 << 20  # bytes: of a data set up to this size, every file is read
_SAMPLE = 64  # files read of a larger one, the same ones every time
_Marks = list[int | None]  # of each file, None where it cannot be read


def contents(manifest: Manifest, prepared: PreparedRows | None = None) -> dict[str, str]:
    """Return digests of the bytes of a data set's images, wherever it lies: in a folder, a zip archive or memory.

    "sizes" is of the length of every file, "sample" of the sums (CRC-32) of all files, or of 64 of them, drawn by the
    manifest, where they have more than 64 MiB in all. "sums" is of the sums of all files where they are at hand: in the
    directory of an archive, in memory, and of ``prepared`` images, which remember their originals. So of a large folder
    a file that was replaced by one of the same length is seen only if it is in the sample. "prepared" is how such
    images were made, and "pixels" of them themselves.
    """
    paths = sorted(set(manifest.paths))
    if prepared is None:
        marks = file_marks(manifest.source, paths)
    else:
        known = dict(zip(manifest.paths, prepared.originals, strict=True))
        marks = [known[path] for path in paths]
    sizes: _Marks = [mark and mark.length for mark in marks]
    sums: _Marks = [mark and mark.crc for mark in marks]
    all_known = prepared is not None or not isinstance(manifest.source, FolderSource)
    small = sum(size or 0 for size in sizes) <= _SMALL
    sample = paths if small else random.Random(manifest.sha256).sample(paths, min(_SAMPLE, len(paths)))
    at_hand = dict(zip(paths, sums, strict=True)) if all_known else {path: _sum(manifest, path) for path in sample}
    found = {"sizes": _digest(sizes), "sample": _digest([at_hand[path] for path in sample])}
    if all_known and sums:
        found["sums"] = _digest(sums)
    return found if prepared is None else {**found, "prepared": str(prepared.how), "pixels": prepared.sha256}


def _sum(manifest: Manifest, path: str) -> int | None:
    try:
        return zlib.crc32(manifest.source.read_bytes(path))
    except UserError:
        return None


def _digest(marks: _Marks) -> str:
    return hashlib.sha256(json.dumps(marks).encode()).hexdigest()
