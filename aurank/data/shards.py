"""Embeddings in parts: a folder of matrices that are mapped, not read, and one table of what their rows are."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from aurank.arrays import MappedRows, load_arrays
from aurank.errors import UserError
from aurank.files import checked, content_sha256, file_sha256, reading, replacing, require_own_folder, require_writable

INDEX = "index.parquet"
FORMAT = "aurank.embeddings"
SHARD_ROWS = 2**18  # of a part, unless said otherwise
AGAIN = "remove the folder, and give the aurank embed command that wrote it again"
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
class _Record:
    """What a table says of its folder; of each part, by its file, the number of rows and the SHA-256."""

    parts: dict[str, tuple[int, str]]
    classes: list[str] | None = None
    made_by: str | None = None
    group_names: list[str] | None = None
    multi_label: bool = False


@dataclass
class ShardWriter:
    """Writes a folder of embeddings part by part, the table last."""

    folder: Path
    parts: dict[str, tuple[int, str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        require_folder(self.folder)
        for path in self.folder.glob("part-*"):  # of a run that was killed
            path.unlink()

    def write(self, embeddings: Float32[np.ndarray, "row dim"]) -> None:
        path = self.folder / f"part-{len(self.parts):05d}.npy"
        with replacing(path) as file:
            np.save(file, np.ascontiguousarray(embeddings), allow_pickle=False)
        self.parts[path.name] = len(embeddings), file_sha256(path)

    def finish(
        self, columns: Mapping[str, np.ndarray], *, classes: Sequence[str] | None = None, made_by: str | None = None
    ) -> None:
        import pyarrow
        import pyarrow.parquet

        lengths = [rows for rows, _ in self.parts.values()]
        table: dict[str, Any] = {_COLUMNS[name]: columns[name] for name in _COLUMNS if name in columns}
        for name, values in table.items():
            table[name] = storable_texts(values.tolist()) if values.dtype.kind == "U" else values
        table["part"] = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        table["row"] = np.concatenate([np.arange(0), *map(np.arange, lengths)])
        for name in _PAIRS:
            if name in columns:
                ordered = columns[name][np.lexsort((columns[name][:, 1], columns[name][:, 0]))]
                offsets = np.searchsorted(ordered[:, 0], np.arange(sum(lengths) + 1))
                table[name] = pyarrow.LargeListArray.from_arrays(offsets, ordered[:, 1])
        cameras = columns["group_names"].tolist() if "group_names" in columns else None
        names = None if classes is None else list(classes)
        content = asdict(_Record(self.parts, names, made_by, cameras, "multi_label" in columns))
        text = json.dumps({**content, "checksum": content_sha256(content)})
        with replacing(self.folder / INDEX) as file:
            arrow = pyarrow.table(table).replace_schema_metadata({FORMAT: text})
            pyarrow.parquet.write_table(arrow, file, write_page_checksum=True)


def require_folder(folder: Path) -> None:
    require_writable(folder / INDEX)
    require_own_folder(folder, "part-")


def read_shards(folder: Path) -> dict[str, Any]:
    import pyarrow
    import pyarrow.parquet

    path = folder / INDEX
    if not path.is_file():
        raise UserError(f"{folder} holds no embeddings, as it has no {INDEX}: {AGAIN}")
    with reading(path, "a table of embeddings", remedy=AGAIN):
        table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
        content = json.loads(table.schema.metadata[FORMAT.encode()])
        checksum = content.pop("checksum")
        record = checked(content, _Record)
        sums = {file: sha256 for file, (_, sha256) in record.parts.items()}
        problem = next((file for file, sha256 in sums.items() if file_sha256(folder / file) != sha256), "")
        if checksum != content_sha256(content) or len(table) != sum(rows for rows, _ in record.parts.values()):
            problem = "its description, or one of its rows,"
        if problem:
            raise ValueError(f"{problem} is damaged, cut short or another one")
        matrices = [load_arrays(folder / file)[""] for file, (rows, _) in record.parts.items() if rows]
        arrays: dict[str, Any] = {"embeddings": matrices[0] if len(matrices) == 1 else MappedRows(matrices)}
        for name, column in _COLUMNS.items():
            if column in table.column_names:
                values, starts = table[column], range(0, len(table), _BLOCK)
                if name in ("paths", "splits"):
                    blocks = [np.array([*map(os.fsdecode, values.slice(at, _BLOCK).to_pylist())]) for at in starts]
                    arrays[name] = np.concatenate([np.empty(0, np.str_), *blocks])
                else:
                    arrays[name] = values.to_numpy()
        for name in _PAIRS:
            if name in table.column_names:
                lists = table[name].combine_chunks()
                counts = lists.value_lengths().to_pylist()
                gallery = np.asarray(lists.flatten().to_numpy(zero_copy_only=False), dtype=np.int64)
                arrays[name] = np.stack([np.repeat(np.arange(len(counts)), counts), gallery], axis=1)
    for name, texts in (("classes", record.classes), ("group_names", record.group_names)):
        arrays |= {} if texts is None else {name: np.array(texts, dtype=np.str_)}
    arrays |= {"multi_label": np.array(True)} if record.multi_label else {}
    return arrays | ({} if record.made_by is None else {"made_by": np.array(record.made_by)})


def storable_texts(texts: list[str]) -> Sequence[Any]:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return [os.fsencode(text) for text in texts]
    return texts
