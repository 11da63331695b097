"""An index on disk: faiss's own file, and beside it a small JSON file that says what faiss's file must be."""

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from aurank.errors import UserError
from aurank.evaluation.engine.scores import DISTANCES
from aurank.evaluation.index.faiss_bridge import faiss_library, faiss_says
from aurank.files import replacing, require_ordinary

FORMAT, VERSION = "aurank.index", 2
FIELDS = {"factory": str, "distance": str, "dim": int, "count": int, "sha256": str}
LONGEST_DESCRIPTION = 4096
PIECE = 2**20


def description_of(path: Path) -> Path:
    """Return where the description of a saved index stands."""
    return path.with_name(path.name + ".json")


def write_index(host: Any, path: Path, *, factory: str, distance: str) -> None:
    """Write a faiss index and its description; what was there before stays until both are complete.

    A crash between the two last steps, which give both their names, leaves a pair that `read_index` refuses.
    """
    faiss, digest = faiss_library(), hashlib.sha256()
    with replacing(description_of(path)) as description, replacing(path) as file:

        def write(piece: bytes) -> None:
            digest.update(piece)
            file.write(piece)

        # Unbuffered: faiss's own buffer is emptied by a destructor, from which no error returns.
        faiss.write_index(host, faiss.PyCallbackIOWriter(write, PIECE))
        content = {"format": FORMAT, "version": VERSION, "factory": factory, "distance": distance}
        content |= {"dim": int(host.d), "count": int(host.ntotal), "sha256": digest.hexdigest()}
        description.write((json.dumps(content, indent=2) + "\n").encode())
        description.flush()
        os.fsync(description.fileno())  # before faiss's file gets its name: a full disk then leaves both old files


def read_index(path: Path, *, memory_map: bool = False) -> tuple[Any, dict[str, Any]]:
    """Return the faiss index and its description; UserError unless `write_index` wrote both and no byte has changed.

    The checksum comes first: faiss trusts the sizes that it reads, and damaged ones could take all memory.
    With `memory_map` lists and vectors stay in the file, and are read as searches need them.
    """
    require_ordinary(path)
    require_ordinary(description_of(path))
    try:
        with path.open("rb") as file:
            description = _read_description(path, file)
            file.seek(0)
            if hashlib.file_digest(file, "sha256").hexdigest() != description["sha256"]:
                raise UserError(
                    f"the index {path} is damaged, cut short, or not the one that {description_of(path).name} "
                    "describes: build the index again"
                )
            file.seek(0)
            faiss = faiss_library()
            with ExitStack() as stack:  # in which no array may be larger than the file
                if hasattr(faiss, "set_deserialization_vector_byte_limit"):  # of newer releases
                    before = faiss.get_deserialization_vector_byte_limit()
                    stack.callback(faiss.set_deserialization_vector_byte_limit, before)
                    faiss.set_deserialization_vector_byte_limit(max(2**20, path.stat().st_size))
                stack.enter_context(faiss_says(f"the index {path} cannot be read: build the index again"))
                flags = faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE  # larger than a small file, and refused
                if memory_map:
                    host = faiss.read_index(str(path), flags | faiss.IO_FLAG_MMAP_IFC)
                else:
                    host = faiss.read_index(faiss.PyCallbackIOReader(file.read, PIECE), flags)
                _precompute(host)
    except OSError as error:
        raise UserError(f"cannot read the index {path}: {error.strerror}") from error
    if (host.d, host.ntotal) != (description["dim"], description["count"]):
        raise UserError(f"{path} holds another index than {description_of(path).name} says: build the index again")
    return host, description


def _precompute(host: Any) -> None:
    """Make the tables of an IVF-PQ under squared distances, which are not in the file; faiss bounds their size."""
    faiss = faiss_library()
    if (lists := faiss.try_extract_index_ivf(host)) is None:
        return
    lists = faiss.downcast_index(lists)
    if isinstance(lists, faiss.IndexIVFPQ) and lists.metric_type == faiss.METRIC_L2:
        lists.precompute_table()


def _read_description(path: Path, file: BinaryIO) -> dict[str, Any]:
    description = description_of(path)
    if not description.exists():
        reason = f"has no {description.name} beside it, which Index.save writes"
        if f'"format": "{FORMAT}"'.encode() in file.readline(LONGEST_DESCRIPTION):
            reason = "is an index file of version 1, which this aurank does not read"
        raise UserError(f"the index {path} {reason}: build the index again with Index.build and write it with save")
    try:
        with description.open("rb") as text:
            content = json.loads(text.read(LONGEST_DESCRIPTION))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{description} does not describe an index: build the index again")
    if content.get("version") != VERSION:
        raise UserError(
            f"{description} describes an index of version {content.get('version')}, and this aurank reads version "
            f"{VERSION}: update aurank, or build the index again"
        )
    for name, kind in FIELDS.items():
        if type(value := content.get(name)) is not kind:
            raise UserError(f"{description} is damaged, {name} is {value!r}, no {kind.__name__}: build the index again")
    if content["distance"] not in DISTANCES:
        known = ", ".join(DISTANCES)
        named = f"{description} names the distance {content['distance']!r}"
        raise UserError(f"{named}, not one of {known}: build the index again")
    return content
