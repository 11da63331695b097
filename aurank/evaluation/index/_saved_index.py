"""An index on disk: faiss's own file, and beside it a small JSON file that says what faiss's file must be."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict

from aurank.evaluation.index.faiss_bridge import faiss_library, faiss_says
from aurank.files import checked, read_record, reading, replacing, require_ordinary

FORMAT, VERSION = "aurank.index", 3
PIECE = 2**20
_REMEDY = "build the index again"


class Description(TypedDict):
    """What faiss's file must be."""

    factory: str
    distance: Literal["cosine", "dot", "euclidean"]
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
        content |= {"sha256": digest.hexdigest()}
        description.write((json.dumps(content, indent=2) + "\n").encode())
        description.flush()
        os.fsync(description.fileno())  # before faiss's file gets its name: a full disk then leaves both old files


def read_index(path: Path, *, memory_map: bool = False) -> tuple[Any, Description]:
    """Return the faiss index and its description; UserError unless `write_index` wrote both and no byte has changed.

    The checksum comes first, because faiss trusts the sizes that it reads.
    With `memory_map` lists and vectors stay in the file, and are read as searches need them.
    """
    require_ordinary(path)
    description = description_of(path)
    content = read_record(description, "the description of an index", named=FORMAT, versions=(VERSION,), remedy=_REMEDY)
    with reading(description, "the description of an index", remedy=_REMEDY):
        kept: Description = checked({name: content[name] for name in Description.__annotations__}, Description)
    with reading(path, "an index", remedy=_REMEDY), path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != kept["sha256"]:
            raise ValueError(f"it is damaged, cut short, or not the one that {description.name} describes")
        file.seek(0)
        faiss = faiss_library()
        with faiss_says(f"the index {path} cannot be read: {_REMEDY}"):
            flags = faiss.IO_FLAG_SKIP_PRECOMPUTE_TABLE  # larger than a small file
            if memory_map:
                host = faiss.read_index(str(path), flags | faiss.IO_FLAG_MMAP_IFC)
            else:
                host = faiss.read_index(faiss.PyCallbackIOReader(file.read, PIECE), flags)
            # The tables of an IVF-PQ under squared distances are not in the file; faiss bounds their size.
            lists = faiss.downcast_index(faiss.try_extract_index_ivf(host))
            if isinstance(lists, faiss.IndexIVFPQ) and lists.metric_type == faiss.METRIC_L2:
                lists.precompute_table()
    return host, kept
