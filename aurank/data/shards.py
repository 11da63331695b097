"""Embeddings in parts: a folder of matrices that are mapped, not read, and one table of what their rows are."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64, Shaped

from aurank.arrays import MappedRows, load_arrays
from aurank.errors import UserError
from aurank.files import checked, content_sha256, file_sha256, reading, replacing, require_writable, write_text

INDEX, JOURNAL = "index.parquet", ".parts.json"
FORMAT = "aurank.embeddings"
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
}
_BLOCK = 2**16  # texts read at a time
_PAIRS = ("positives", "ignored")  # lists of gallery rows, by query


@dataclass(frozen=True)
class EmbeddingPart:
    file: str
    rows: int
    skipped: list[int]
    sha256: str

    def problem(self, folder: Path) -> str | None:
        path = folder / self.file
        try:
            is_whole = file_sha256(path) == self.sha256
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        return None if is_whole else f"{path} is damaged, cut short or another part"


@dataclass(frozen=True)
class _Record:
    """What a folder says of itself: in its table, or, until that is there, in its journal."""

    key: str
    parts: dict[int, EmbeddingPart]
    classes: list[str] | None = None
    made_by: str | None = None
    pace: tuple[int, bool | None] | None = None
    group_names: list[str] | None = None

    @property
    def text(self) -> str:
        content = json.loads(json.dumps(asdict(self)))  # as it is read
        return json.dumps({**content, "checksum": content_sha256(content)})

    @staticmethod
    def read(path: Path) -> "_Record":
        """Return the record in a journal, or in a table; UserError unless it is whole."""
        import pyarrow
        import pyarrow.parquet

        with reading(path, "a table of embeddings", remedy=AGAIN):
            if path.name == INDEX:
                content = json.loads(pyarrow.parquet.read_schema(path).metadata[FORMAT.encode()])
            else:
                content = json.loads(path.read_bytes())
            if content.pop("checksum") != content_sha256(content):
                raise ValueError("its description was changed")
            return checked(content, _Record)


@dataclass
class ShardWriter:
    """Writes a folder of embeddings part by part; `key` is a digest of all that decides the embeddings."""

    folder: Path
    key: str
    count: int
    shard_rows: int = SHARD_ROWS
    parts: dict[int, EmbeddingPart] = field(default_factory=dict, init=False)
    pace: tuple[int, bool | None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        require_folder(self.folder)
        records = []
        for name in (INDEX, JOURNAL):
            with suppress(UserError):
                records.append(_Record.read(self.folder / name))
        if not records:
            return
        if records[0].key != self.key:
            other = "embeddings of another model, of other images or in other parts"
            raise UserError(f"--out {self.folder} holds {other}: name a new folder, or remove this one")
        self.pace = records[0].pace
        self.parts |= {number: part for number, part in records[0].parts.items() if part.problem(self.folder) is None}

    @property
    def missing(self) -> list[int]:
        return [number for number in range(-(-self.count // self.shard_rows)) if number not in self.parts]

    def extent(self, number: int) -> slice:
        return slice(number * self.shard_rows, min((number + 1) * self.shard_rows, self.count))

    def ids(self) -> Int64[np.ndarray, " row"]:
        skipped = [np.array(part.skipped, dtype=np.int64) for part in self.parts.values()]
        return np.setdiff1d(np.arange(self.count), np.concatenate([np.arange(0), *skipped]))

    def write(self, number: int, rows: Int64[np.ndarray, " row"], embeddings: Float32[np.ndarray, "row dim"]) -> None:
        path, everything = self.folder / f"part-{number:05d}.npy", self.extent(number)
        with replacing(path) as file:
            np.save(file, np.ascontiguousarray(embeddings), allow_pickle=False)
        skipped = np.setdiff1d(np.arange(everything.start, everything.stop), rows).tolist()
        self.parts[number] = EmbeddingPart(path.name, len(rows), skipped, file_sha256(path))
        write_text(self.folder / JOURNAL, _Record(self.key, self.parts, pace=self.pace).text)

    def finish(
        self, columns: Mapping[str, np.ndarray], *, classes: Sequence[str] | None = None, made_by: str | None = None
    ) -> None:
        import pyarrow
        import pyarrow.parquet

        parts = dict(sorted(self.parts.items()))
        lengths = [part.rows for part in parts.values()]
        table: dict[str, Any] = {_COLUMNS[name]: columns[name] for name in _COLUMNS if name in columns}
        for name, values in table.items():
            table[name] = storable_texts(values.tolist()) if values.dtype.kind == "U" else values
        table["part"], table["row"] = _part_and_row(lengths)
        for name in _PAIRS:
            if name in columns:
                ordered = columns[name][np.lexsort((columns[name][:, 1], columns[name][:, 0]))]
                offsets = np.searchsorted(ordered[:, 0], np.arange(sum(lengths) + 1))
                table[name] = pyarrow.LargeListArray.from_arrays(offsets, ordered[:, 1])
        cameras = columns["group_names"].tolist() if "group_names" in columns else None
        record = _Record(self.key, parts, None if classes is None else list(classes), made_by, self.pace, cameras)
        arrow = pyarrow.table(table).replace_schema_metadata({FORMAT: record.text})
        with replacing(self.folder / INDEX) as file:
            pyarrow.parquet.write_table(arrow, file, write_page_checksum=True)
        with suppress(OSError):
            (self.folder / JOURNAL).unlink()


def _part_and_row(lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    part = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    return part, np.concatenate([np.arange(0), *map(np.arange, lengths)])


def require_folder(folder: Path) -> None:
    require_writable(folder / INDEX)
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    if odd := [name for name in names if name != INDEX and not name.startswith((".", "part-"))]:
        raise UserError(f"--out {folder} holds other files, such as {min(odd)!r}: name a new folder")


def read_shards(folder: Path) -> dict[str, Any]:
    import pyarrow
    import pyarrow.parquet

    path = folder / INDEX
    record = _Record.read(path) if path.is_file() else None
    parts = list(record.parts.values()) if record is not None else []
    problem = next(filter(None, (part.problem(folder) for part in parts)), None)
    if record is None or problem:
        raise UserError(f"{problem or f'{folder} holds no embeddings, as it has no {INDEX}'}: {AGAIN}")
    with reading(path, "a table of embeddings", remedy=AGAIN):
        table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
        lengths = [part.rows for part in parts]
        rows = zip(("part", "row"), _part_and_row(lengths), strict=True)
        matrices = [load_arrays(folder / part.file)[""] for part in parts if part.rows]
        widths = {matrix.shape[1:] for matrix in matrices}
        if not (
            {"label", "id"} <= set(table.column_names)
            and all(np.array_equal(table[name].to_numpy(), expected) for name, expected in rows)
            and [len(matrix) for matrix in matrices] == list(filter(None, lengths))
            and [*map(len, widths)] == [1]
        ):
            raise UserError(f"{path} does not fit its {len(parts)} parts of {sum(lengths):,} rows: {AGAIN}")
        arrays: dict[str, Any] = {"embeddings": matrices[0] if len(matrices) == 1 else MappedRows(matrices)}
        for name, column in _COLUMNS.items():
            if column in table.column_names:
                values = table[column]
                arrays[name] = _texts(values) if name in ("paths", "splits") else values.to_numpy()
        for name in _PAIRS:
            if name in table.column_names:
                lists = table[name].combine_chunks()
                counts = lists.value_lengths().to_pylist()
                gallery = np.asarray(lists.flatten().to_numpy(zero_copy_only=False), dtype=np.int64)
                arrays[name] = np.stack([np.repeat(np.arange(len(counts)), counts), gallery], axis=1)
    for name, texts in (("classes", record.classes), ("group_names", record.group_names)):
        arrays |= {} if texts is None else {name: np.array(texts, dtype=np.str_)}
    return arrays | ({} if record.made_by is None else {"made_by": np.array(record.made_by)})


def storable_texts(texts: list[str]) -> Sequence[Any]:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return [os.fsencode(text) for text in texts]
    return texts


def _texts(column: Any) -> Shaped[np.ndarray, " row"]:
    starts = range(0, len(column), _BLOCK)
    blocks = [np.array([*map(os.fsdecode, column.slice(start, _BLOCK).to_pylist())]) for start in starts]
    return np.concatenate([np.empty(0, np.str_), *blocks])
