"""An index on disk: faiss's own file, and beside it a small JSON file that says what faiss's file must be."""

import hashlib
import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from aurank.errors import UserError
from aurank.evaluation.engine.scores import DISTANCES
from aurank.evaluation.index.faiss_bridge import faiss_library, faiss_says
from aurank.files import checked, read_record, reading, replacing, require_ordinary

FORMAT, VERSION = "aurank.index", 2
PIECE = 2**20
_REMEDY = "build the index again"


class Description(TypedDict):
    """What faiss's file must be."""

    factory: str
    distance: str
    dim: int
    count: int
    sha256: str


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


def read_index(path: Path, *, memory_map: bool = False) -> tuple[Any, Description]:
    """Return the faiss index and its description; UserError unless `write_index` wrote both and no byte has changed.

    The checksum comes first: faiss trusts the sizes that it reads, and damaged ones could take all memory.
    With `memory_map` lists and vectors stay in the file, and are read as searches need them.
    """
    require_ordinary(path)
    with reading(path, "an index", remedy=_REMEDY), path.open("rb") as file:
        description = _read_description(path)
        if hashlib.file_digest(file, "sha256").hexdigest() != description["sha256"]:
            raise ValueError(f"it is damaged, cut short, or not the one that {description_of(path).name} describes")
        file.seek(0)
        faiss = faiss_library()
        with ExitStack() as stack:  # in which no array may be larger than the file
            if hasattr(faiss, "set_deserialization_vector_byte_limit"):  # of newer releases
                before = faiss.get_deserialization_vector_byte_limit()
                stack.callback(faiss.set_deserialization_vector_byte_limit, before)
                faiss.set_deserialization_vector_byte_limit(max(2**20, path.stat().st_size))
            stack.enter_context(faiss_says(f"the index {path} cannot be read: {_REMEDY}"))
            flags = faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE  # larger than a small file, and refused
            if memory_map:
                host = faiss.read_index(str(path), flags | faiss.IO_FLAG_MMAP_IFC)
            else:
                host = faiss.read_index(faiss.PyCallbackIOReader(file.read, PIECE), flags)
            _precompute(host)
        if (host.d, host.ntotal) != (description["dim"], description["count"]):
            raise ValueError(f"it is another index than {description_of(path).name} says")
    return host, description


def _precompute(host: Any) -> None:
    """Make the tables of an IVF-PQ under squared distances, which are not in the file; faiss bounds their size."""
    faiss = faiss_library()
    if (lists := faiss.try_extract_index_ivf(host)) is None:
        return
    lists = faiss.downcast_index(lists)
    if isinstance(lists, faiss.IndexIVFPQ) and lists.metric_type == faiss.METRIC_L2:
        lists.precompute_table()


def _read_description(path: Path) -> Description:
    description = description_of(path)
    if not description.exists():
        raise UserError(
            f"the index {path} has no {description.name} beside it, which Index.save writes: build it again by "
            "Index.build, and write it by save"
        )
    content = read_record(description, "the description of an index", named=FORMAT, versions=(VERSION,), remedy=_REMEDY)
    with reading(description, "the description of an index", remedy=_REMEDY):
        found = checked(content, Description)
        if found["distance"] not in DISTANCES:
            raise ValueError(f"distance {found['distance']!r} is not one of {', '.join(DISTANCES)}")
        return found
