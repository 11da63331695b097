"""Embeddings in parts: a folder of matrices that are mapped, not read, and one table of what their rows are."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64, Shaped
from typing_extensions import TypedDict

from aurank.arrays import MappedRows, load_arrays
from aurank.errors import UserError
from aurank.files import (
    checked,
    content_sha256,
    file_sha256,
    reading,
    replacing,
    require_version,
    require_writable,
    write_text,
)

INDEX, JOURNAL = "index.parquet", ".parts.json"
FORMAT, VERSION = "aurank.embeddings", 1
SHARD_ROWS = 2**18  # of a part, unless said otherwise
AGAIN = "give the aurank embed command that wrote it again, which makes anew what is missing"
_COLUMNS = {  # array of a file of saved embeddings: column of the table
    "paths": "path",
    "labels": "label",
    "ids": "id",
    "splits": "split",
    "groups": "group",
    "is_query": "is_query",
    "is_gallery": "is_gallery",
    "super_labels": "super_label",
    "marks": "mark",
}
_BLOCK = 2**16  # texts read at a time
_WHAT = "a table of embeddings"
_PAIRS = ("positives", "ignored")  # lists of gallery rows, by query


@dataclass(frozen=True)
class EmbeddingPart:
    """A file of embeddings: how many rows it has, which rows of the data set it lacks, and its digest."""

    file: str
    rows: int
    skipped: list[int]
    sha256: str

    def trouble(self, folder: Path) -> str | None:
        """Return what is wrong with the file, None where it is what was written."""
        path = folder / self.file
        try:
            if not path.is_file():
                return f"{path} is missing"
            is_whole = file_sha256(path) == self.sha256
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        return None if is_whole else f"{path} is damaged, cut short or another part"


class _Record(TypedDict):
    """What the table of a folder says of itself."""

    key: str
    parts: list[EmbeddingPart]
    classes: list[str] | None
    made_by: str | None


class _Journal(TypedDict):
    """What a folder that is not finished says of the parts that are there, by their numbers."""

    key: str
    parts: dict[int, EmbeddingPart]


@dataclass
class ShardWriter:
    """Writes a folder of embeddings part by part: what is there already of the same embeddings is left as it is.

    Args:
        folder: new, or with parts that a run which was broken off left, or finished.
        key: digest of all that decides the embeddings.
        count: rows of the data set.
        shard_rows: rows of the data set in each part.

    Raises:
        UserError: the folder holds anything else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     writer = ShardWriter(Path(folder), "of these", count=3, shard_rows=2)
        ...     for number in writer.missing:
        ...         rows = np.arange(3)[writer.extent(number)]
        ...         writer.write(number, rows, np.eye(3, dtype=np.float32)[rows])
        ...     writer.finish({"labels": np.array([0, 1, 1]), "ids": writer.ids()}, classes=["cat", "dog"])
        ...     read_shards(Path(folder))["embeddings"].shape
        (3, 3)
    """

    folder: Path
    key: str
    count: int
    shard_rows: int = SHARD_ROWS
    parts: dict[int, EmbeddingPart] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Look at what is there."""
        if self.shard_rows < 1:
            raise UserError(f"a part needs at least 1 row, got {self.shard_rows}")
        require_folder(self.folder)
        known = filter(None, (self._of_index(), self._of_journal()))
        parts = next((self._own(*one) for one in known), {})
        self.parts = {number: part for number, part in parts.items() if part.trouble(self.folder) is None}

    @property
    def missing(self) -> list[int]:
        """Numbers of the parts that are still to be written."""
        return [number for number in range(-(-self.count // self.shard_rows)) if number not in self.parts]

    def extent(self, number: int) -> slice:
        """Return the rows of the data set that a part is of."""
        return slice(number * self.shard_rows, min((number + 1) * self.shard_rows, self.count))

    def ids(self) -> Int64[np.ndarray, " row"]:
        """Return the rows of the data set that all parts together hold."""
        kept = np.ones(self.count, dtype=np.bool_)
        for part in self.parts.values():
            kept[part.skipped] = False
        return np.flatnonzero(kept)

    def write(self, number: int, rows: Int64[np.ndarray, " row"], embeddings: Float32[np.ndarray, "row dim"]) -> None:
        """Write the embeddings of the rows that could be read of a part, whole or not at all."""
        path, everything = self.folder / f"part-{number:05d}.npy", self.extent(number)
        with replacing(path) as file:
            np.save(file, np.ascontiguousarray(embeddings), allow_pickle=False)
        skipped = np.setdiff1d(np.arange(everything.start, everything.stop), rows).tolist()
        self.parts[number] = EmbeddingPart(path.name, len(rows), skipped, file_sha256(path))
        parts = {str(one): vars(part) for one, part in self.parts.items()}
        content = {"format": FORMAT, "version": VERSION, "key": self.key, "parts": parts}
        write_text(self.folder / JOURNAL, json.dumps(content) + "\n")

    def finish(
        self, columns: Mapping[str, np.ndarray], *, classes: Sequence[str] | None = None, made_by: str | None = None
    ) -> None:
        """Write the table, which makes the folder one of embeddings; all parts are there.

        Args:
            columns: arrays of a file of saved embeddings, by name.
        """
        import pyarrow
        import pyarrow.parquet

        parts = [self.parts[number] for number in sorted(self.parts)]
        lengths = [part.rows for part in parts]
        table: dict[str, Any] = {_COLUMNS[name]: columns[name] for name in _COLUMNS if name in columns}
        for name, values in table.items():
            table[name] = storable_texts(values.tolist()) if values.dtype.kind == "U" else values
        table["part"] = np.repeat(np.arange(len(parts), dtype=np.int32), lengths)
        table["row"] = np.concatenate([np.arange(length) for length in lengths])
        for name in _PAIRS:
            if name in columns:
                table[name] = _lists(columns[name], sum(lengths))
        content = {"format": FORMAT, "version": VERSION, "key": self.key, "parts": [vars(part) for part in parts]}
        content |= {"classes": None if classes is None else list(classes), "made_by": made_by}
        content["checksum"] = content_sha256(content)
        arrow = pyarrow.table(table).replace_schema_metadata({FORMAT: json.dumps(content)})
        with replacing(self.folder / INDEX) as file:
            pyarrow.parquet.write_table(arrow, file, write_page_checksum=True)
        with suppress(OSError):
            (self.folder / JOURNAL).unlink()

    def _own(self, key: str, parts: dict[int, EmbeddingPart]) -> dict[int, EmbeddingPart]:
        """Return the parts that a record names; UserError where they are of other embeddings."""
        if key != self.key:
            what = "embeddings of another model, of other images or in other parts"
            raise UserError(f"--out {self.folder} holds {what}: name a new folder, or remove this one")
        return parts

    def _of_index(self) -> tuple[str, dict[int, EmbeddingPart]] | None:
        """Return key and parts of the table; of a damaged one nothing is known, and all is written anew."""
        with suppress(UserError):
            record = _described(self.folder / INDEX)
            return record["key"], dict(enumerate(record["parts"]))
        return None

    def _of_journal(self) -> tuple[str, dict[int, EmbeddingPart]] | None:
        path = self.folder / JOURNAL
        with suppress(UserError), reading(path, "a journal of parts"):
            journal = checked(json.loads(path.read_bytes()), _Journal)
            return journal["key"], journal["parts"]
        return None


def require_folder(folder: Path) -> None:
    """Raise UserError where a folder for parts is a file, or holds other files.

    Example:
        >>> require_folder(Path("a_new_folder"))
    """
    require_writable(folder / INDEX)
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    if odd := [name for name in names if name != INDEX and not name.startswith((".", "part-"))]:
        raise UserError(f"--out {folder} holds other files, such as {min(odd)!r}: name a new folder")


def read_shards(folder: Path) -> dict[str, Any]:
    """Return the arrays of a folder of embeddings by name, as of a file of them; the embeddings stay in their files.

    Raises:
        UserError: a part that is missing, cut short or another one, or a table that does not fit the parts.
    """
    import pyarrow
    import pyarrow.parquet

    path = folder / INDEX
    record = _described(path)
    parts = record["parts"]
    for part in parts:
        if (trouble := part.trouble(folder)) is not None:
            raise UserError(f"{trouble}: {AGAIN}")
    with reading(path, _WHAT, remedy=AGAIN):
        table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
        lengths = [part.rows for part in parts]
        if not (
            sum(lengths) == table.num_rows
            and {"label", "id"} <= set(table.column_names)
            and np.array_equal(table["part"].to_numpy(), np.repeat(np.arange(len(parts)), lengths))
            and np.array_equal(table["row"].to_numpy(), np.concatenate([np.arange(length) for length in lengths]))
        ):
            raise UserError(f"{path} does not fit its {len(parts)} parts of {sum(lengths):,} rows: {AGAIN}")
        matrices = [load_arrays(folder / part.file)[""] for part in parts if part.rows]
        if [len(matrix) for matrix in matrices] != [length for length in lengths if length]:
            raise ValueError("its parts have other lengths")
        if any(matrix.ndim != 2 or matrix.shape[1:] != matrices[0].shape[1:] for matrix in matrices):
            raise ValueError("its parts are no matrices of one width")
        found: dict[str, Any] = {"embeddings": matrices[0] if len(matrices) == 1 else MappedRows(matrices)}
        for name, column in _COLUMNS.items():
            if column in table.column_names:
                values = table[column]
                found[name] = _texts(values) if name in ("paths", "splits") else values.to_numpy()
        for name in _PAIRS:
            if name in table.column_names:
                found[name] = _pairs(table[name])
    found |= {} if record["classes"] is None else {"classes": np.array(record["classes"], dtype=np.str_)}
    return found | ({} if record["made_by"] is None else {"made_by": np.array(record["made_by"])})


def storable_texts(texts: list[str]) -> Sequence[Any]:
    """Return texts as parquet holds them, or their bytes where a name of a file is no UTF-8.

    Example:
        >>> storable_texts(["a.png", "\\udcff.png"])
        [b'a.png', b'\\xff.png']
    """
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return [os.fsencode(text) for text in texts]
    return texts


def _described(path: Path) -> _Record:
    """Return what the table says of itself; UserError unless `finish` wrote it."""
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise UserError(f"{path.parent} holds no embeddings, as it has no {INDEX}: {AGAIN}")
    with reading(path, _WHAT, remedy=AGAIN):
        metadata = pyarrow.parquet.read_schema(path).metadata or {}
        content = json.loads(metadata[FORMAT.encode()])
        require_version(content, path, _WHAT, named=FORMAT, versions=(VERSION,), remedy=AGAIN)
        if content["checksum"] != content_sha256(content):
            raise ValueError("its description was changed")
        return checked(content, _Record)


def _texts(column: Any) -> Shaped[np.ndarray, " row"]:
    """Return a column of texts, made a block at a time: as objects they take far more memory than as an array."""
    starts = range(0, len(column), _BLOCK)
    blocks = [np.array([os.fsdecode(one) for one in column.slice(start, _BLOCK).to_pylist()]) for start in starts]
    return np.concatenate([np.empty(0, np.str_), *blocks])


def _lists(pairs: Int64[np.ndarray, "pair 2"], count: int) -> Any:
    """Return the gallery rows of each query's pairs."""
    import pyarrow

    ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    offsets = np.searchsorted(ordered[:, 0], np.arange(count + 1))
    return pyarrow.LargeListArray.from_arrays(offsets, ordered[:, 1])


def _pairs(column: Any) -> Int64[np.ndarray, "pair 2"]:
    lists = column.combine_chunks()
    lengths = np.array([len(one) for one in lists.to_pylist()], dtype=np.int64)
    gallery = np.asarray(lists.flatten().to_numpy(zero_copy_only=False), dtype=np.int64)
    return np.stack([np.repeat(np.arange(len(lengths)), lengths), gallery], axis=1)
