"""An index in one file: a line that says what it is, the bytes of faiss, and a checksum of both."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from aurank.errors import UserError, first_line
from aurank.evaluation.engine.scores import DISTANCES
from aurank.evaluation.index.faiss_bridge import faiss_library, faiss_says, sizes_bounded
from aurank.files import replacing, require_ordinary

FORMAT, VERSION = "aurank.index", 1
LONGEST_HEADER = 4096
DIGEST = hashlib.sha256().digest_size
PIECE = 2**20


@dataclass(frozen=True)
class Header:
    """What the first line of the file says; `count` is the number of rows."""

    factory: str
    distance: str
    dim: int
    count: int
    format: str = FORMAT
    version: int = VERSION


def write_index(host: Any, path: Path, *, factory: str, distance: str) -> None:
    """Writes a faiss index under this header; a file that is there stays whole until the new one is."""
    faiss = faiss_library()
    header = Header(factory=factory, distance=distance, dim=int(host.d), count=int(host.ntotal))
    digest = hashlib.sha256()
    with replacing(path) as file:

        def write(piece: bytes) -> None:
            digest.update(piece)
            file.write(piece)

        write((json.dumps(asdict(header)) + "\n").encode())
        # Unbuffered: faiss's own buffer is emptied by a destructor, from which no error returns.
        faiss.write_index(host, faiss.PyCallbackIOWriter(write, PIECE))
        file.write(digest.digest())


def read_index(path: Path) -> tuple[Any, Header]:
    """The faiss index and the header of a file; UserError unless `write_index` wrote it and no byte has changed.

    The checksum comes first: faiss trusts the sizes that it reads, and damaged ones could take all memory.
    """
    faiss = faiss_library()
    require_ordinary(path)
    try:
        with path.open("rb") as file:
            header = _read_header(file, path)
            start = file.tell()
            _check_digest(file, path)
            file.seek(start)
            at_most = max(2**20, path.stat().st_size)
            with sizes_bounded(at_most), faiss_says(f"{path} cannot be read: build the index again"):
                host = faiss.read_index(faiss.PyCallbackIOReader(file.read, PIECE))
    except OSError as error:
        raise UserError(f"cannot read the index {path}: {error.strerror}") from error
    if (host.d, host.ntotal) != (header.dim, header.count) or header.count < 0:
        raise UserError(f"{path} holds another index than its first line says: build the index again")
    return host, header


def _read_header(file: BinaryIO, path: Path) -> Header:
    try:
        content = json.loads(file.readline(LONGEST_HEADER))
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} is not an index of aurank: build one with Index.build and write it with save")
    if content.get("version") != VERSION:
        raise UserError(
            f"{path} is an index of version {content.get('version')}, and this aurank reads version {VERSION}: "
            "update aurank, or build the index again"
        )
    try:
        header = Header(**content)
    except TypeError as error:
        raise UserError(f"{path} is a damaged index ({first_line(error)}): build it again") from error
    for name, kind in Header.__annotations__.items():
        if type(value := getattr(header, name)) is not kind:
            raise UserError(f"{path} is a damaged index ({name} is {value!r}, no {kind.__name__}): build it again")
    if header.distance not in DISTANCES:
        raise UserError(f"{path} is an index for the distance {header.distance!r}, which this aurank does not know")
    return header


def _check_digest(file: BinaryIO, path: Path) -> None:
    file.seek(0)
    left = path.stat().st_size - DIGEST
    digest = hashlib.sha256()
    while left > 0 and (piece := file.read(min(PIECE, left))):
        digest.update(piece)
        left -= len(piece)
    if digest.digest() != file.read(DIGEST):
        raise UserError(f"{path} is damaged or cut short: build the index again")
