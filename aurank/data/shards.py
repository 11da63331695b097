"""Embeddings in parts, which are mapped, and one table of what their rows are; or all in one table for databases."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from aurank.arrays import MappedRows, load_arrays
from aurank.data.manifest import pairs_among
from aurank.errors import UserError
from aurank.files import checked, content_sha256, file_sha256, reading, replacing, require_own_folder, require_writable
from aurank.lazy import import_library, require_libraries

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
TABLE, LANCE = ".parquet", ".lance"  # of embeddings and all that is known of them
_BLOCK = 2**14  # rows of texts read, or of a table written, at a time
PAIRS = ("positives", "ignored")  # lists of gallery rows, by query


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

    def finish(self, arrays: Mapping[str, np.ndarray]) -> None:
        import pyarrow.parquet

        lengths = [rows for rows, _ in self.parts.values()]
        table = _as_table(arrays, np.arange(sum(lengths)), self.parts)
        table = table.append_column("part", [np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)])
        table = table.append_column("row", [np.concatenate([np.arange(0), *map(np.arange, lengths)])])
        with replacing(self.folder / INDEX) as file:
            pyarrow.parquet.write_table(table, file, write_page_checksum=True)


def _as_table(arrays: Mapping[str, Any], ids: np.ndarray, parts: dict[str, tuple[int, str]]) -> Any:
    import pyarrow

    table: dict[str, Any] = {_COLUMNS[name]: arrays[name] for name in _COLUMNS if name in arrays}
    for name, values in table.items():
        table[name] = storable_texts(values.tolist()) if values.dtype.kind == "U" else values
    for name in PAIRS:
        if name in arrays:
            ordered = arrays[name][np.lexsort((arrays[name][:, 1], arrays[name][:, 0]))]
            offsets = np.searchsorted(ordered[:, 0], np.arange(len(ids) + 1))
            table[name] = pyarrow.LargeListArray.from_arrays(offsets, ids[ordered[:, 1]])
    texts = {name: arrays[name].tolist() for name in ("classes", "made_by", "group_names") if name in arrays}
    content = asdict(_Record(parts, **texts, multi_label="multi_label" in arrays))
    text = json.dumps({**content, "checksum": content_sha256(content)})
    return pyarrow.table(table).replace_schema_metadata({FORMAT: text})


def write_saved(path: Path, arrays: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
    """Write saved embeddings as an .npz file, or as one Parquet or Lance table with more columns, in blocks of rows."""
    if path.suffix not in (TABLE, LANCE):
        with replacing(path) as file:
            np.savez(file, **arrays)
        return
    import pyarrow
    import pyarrow.parquet

    # Listed pairs name ids, so that another program may filter or sort the rows.
    rows, table = arrays["embeddings"], _as_table(arrays, arrays["ids"], {})
    if "classes" in arrays:
        classes = pyarrow.array(storable_texts(arrays["classes"].tolist()))
        table = table.append_column("class", classes.take(pyarrow.array(arrays["labels"])))
    for name, values in columns.items():
        table = table.append_column(name, pyarrow.array(values, from_pandas=True))  # NaN is null
    kind = pyarrow.list_(pyarrow.from_numpy_dtype(rows.dtype), rows.shape[1])
    schema = table.schema.append(pyarrow.field("vector", kind))
    starts = range(0, len(table), _BLOCK)
    vectors = (pyarrow.FixedSizeListArray.from_arrays(np.ravel(rows[at : at + _BLOCK]), type=kind) for at in starts)
    blocks = (table.slice(at, _BLOCK).append_column("vector", each) for at, each in zip(starts, vectors, strict=True))
    if path.suffix == LANCE:
        batches = (batch for block in blocks for batch in block.to_batches())
        mode = "overwrite" if path.exists() else "create"  # Lance keeps the version before
        import_library("lance", path.name).write_dataset(batches, path, schema, mode)
        return
    how = {"use_dictionary": table.column_names, "write_page_checksum": True}
    with replacing(path) as file, pyarrow.parquet.ParquetWriter(file, schema, **how) as writer:
        for block in blocks:
            writer.write_table(block)


def require_out(out: Path, *, mapped: bool = False) -> None:
    if mapped and out.suffix not in (TABLE, LANCE):
        raise UserError(f"--map writes columns of a table, which {out} is not: give --out FILE{TABLE}")
    if out.suffix == LANCE:
        require_libraries(out.name, "lance")
        require_writable(out / "data/file")
        if out.exists() and not (out / "_versions").is_dir():
            raise UserError(f"{out} is there and is no Lance table: name a new one")
    elif out.suffix:
        require_writable(out, suffix=TABLE if out.suffix == TABLE else ".npz")
    else:
        require_folder(out)


def require_folder(folder: Path) -> None:
    require_writable(folder / INDEX)
    require_own_folder(folder, "part-")


def read_saved(path: Path) -> dict[str, Any]:
    if path.is_dir() or path.suffix == TABLE:
        return read_shards(path.parent if path.name == INDEX else path)
    return {name or "embeddings": values for name, values in load_arrays(path).items()}  # "" that of an .npy


def read_shards(folder: Path) -> dict[str, Any]:
    import pyarrow.parquet

    if folder.suffix == LANCE:
        raise UserError(f"{folder} is a Lance table, which aurank writes but does not read: take --out FILE{TABLE}")
    is_table = folder.suffix == TABLE  # perhaps of other programs, which may write a folder of that name
    path = folder if is_table else folder / INDEX
    if not is_table and not path.is_file():
        raise UserError(f"{folder} holds no embeddings, as it has no {INDEX}: {AGAIN}")
    with reading(path, "a table of embeddings", remedy="name one with vector and label" if is_table else AGAIN):
        files = pyarrow.parquet.ParquetDataset(path, page_checksum_verification=True, pre_buffer=False)
        table = files.read([name for name in files.schema.names if name != "vector"])
        content = json.loads((table.schema.metadata or {}).get(FORMAT.encode(), '{"parts": {}}'))
        checksum = content.pop("checksum", content_sha256(content))
        record = checked(content, _Record)
        problem = next((file for file, (_, sha256) in record.parts.items() if file_sha256(folder / file) != sha256), "")
        count = len(table) if is_table else sum(rows for rows, _ in record.parts.values())
        if checksum != content_sha256(content) or len(table) != count:
            problem = "its description, or one of its rows,"
        if problem:
            raise ValueError(f"{problem} is damaged, cut short or another one")
        matrices = [load_arrays(folder / file)[""] for file, (rows, _) in record.parts.items() if rows]
        if is_table:
            batches = (file.to_batches(columns=["vector"], use_threads=False) for file in files.fragments)
            vectors = (batch["vector"].to_numpy(zero_copy_only=False) for each in batches for batch in each)
            matrices = [np.concatenate([np.stack(rows) for rows in vectors if len(rows)])]
        arrays: dict[str, Any] = {"embeddings": matrices[0] if len(matrices) == 1 else MappedRows(matrices)}
        for name, column in _COLUMNS.items():
            if column in table.column_names:
                values, starts = table[column], range(0, len(table), _BLOCK)
                if not pyarrow.types.is_primitive(values.type):
                    blocks = [np.array([*map(os.fsdecode, values.slice(at, _BLOCK).to_pylist())]) for at in starts]
                    arrays[name] = np.concatenate([np.empty(0, np.str_), *blocks])
                else:
                    arrays[name] = values.to_numpy()
        for name in PAIRS:
            if name in table.column_names:
                lists = table[name].combine_chunks()
                counts = lists.value_lengths().to_pylist()
                gallery = np.asarray(lists.flatten().to_numpy(zero_copy_only=False), dtype=np.int64)
                ids = arrays["ids"] if is_table else np.arange(len(table))
                names, numbers = np.unique(np.concatenate([ids, gallery]), return_inverse=True)  # ids may be huge
                queries = np.repeat(numbers[: len(ids)], counts)
                pairs = np.stack([queries, numbers[len(ids) :]], axis=1)
                arrays[name] = pairs_among(pairs, numbers[: len(ids)], len(names))
    texts = {name: getattr(record, name) for name in ("classes", "made_by", "group_names")}
    arrays |= {name: np.array(text, dtype=np.str_) for name, text in texts.items() if text is not None}
    return arrays | ({"multi_label": np.array(True)} if record.multi_label else {})


def storable_texts(texts: list[str]) -> Sequence[Any]:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return [os.fsencode(text) for text in texts]
    return texts
