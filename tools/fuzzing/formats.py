"""Files as trees of plain values and arrays, so that one kind of damage fits them all."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from ruamel.yaml import YAML
from scipy.io import loadmat, savemat

Read, Write = Callable[[bytes], Any], Callable[[Any, bytes], bytes]
"""The tree of a file; and the file of a tree, given the bytes that were opened. Either may raise anything."""


def _loaded(texts: Mapping[Any, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in texts.items():
        name, text = (one.decode() if isinstance(one, bytes) else one for one in (name, text))
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def _dumped(values: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def _read_safetensors(content: bytes) -> Any:
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return {**header, "__metadata__": _loaded(header.get("__metadata__", {}))}


def _write_safetensors(tree: Any, content: bytes) -> bytes:
    if isinstance(tree.get("__metadata__"), dict):
        tree = {**tree, "__metadata__": _dumped(tree["__metadata__"])}
    header = json.dumps(tree).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + int.from_bytes(content[:8], "little") :]


def _table(content: bytes) -> Any:
    source = pyarrow.BufferReader(content)
    return pyarrow.parquet.read_table(source) if content[:4] == b"PAR1" else pyarrow.ipc.open_stream(source).read_all()


def _read_table(content: bytes) -> Any:
    table = _table(content)
    return {"about": _loaded(table.schema.metadata or {}), "columns": table.to_pydict()}


def _written(tree: Any, content: bytes) -> Any:
    schema = _table(content).schema if content else pyarrow.schema([])
    same = {name: schema.field(name).type if name in schema.names else None for name in tree["columns"]}
    columns = {name: _column(values, same[name]) for name, values in tree["columns"].items()}
    return pyarrow.table(columns).replace_schema_metadata(_dumped(tree["about"]))


def _write_parquet(tree: Any, content: bytes) -> bytes:
    table, sink = _written(tree, content), pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, write_page_checksum=True)
    return bytes(sink.getvalue())


def _write_arrow(tree: Any, content: bytes) -> bytes:
    table, sink = _written(tree, content), pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _column(values: Any, kind: Any) -> Any:
    try:
        return pyarrow.array(values, kind)
    except pyarrow.ArrowException:
        return pyarrow.array(values)


def _read_npz(content: bytes) -> Any:
    with np.load(io.BytesIO(content)) as arrays:
        return dict(arrays)


def _into_file(write: Callable[[Any, Any], object]) -> Write:
    """What writes a tree, given a file to write it to."""

    def written(tree: Any, content: bytes) -> bytes:
        buffer = io.BytesIO()
        write(buffer, tree)
        return buffer.getvalue()

    return written


def _read_graph(content: bytes) -> Any:
    import onnx

    graph = onnx.load_from_string(content)
    (shape,) = (one.type.tensor_type.shape.dim for one in graph.graph.input)
    return {
        "about": _loaded({one.key: one.value for one in graph.metadata_props}),
        "shape": [d.dim_value for d in shape],
    }


def _write_graph(tree: Any, content: bytes) -> bytes:
    import onnx

    graph = onnx.load_from_string(content)
    onnx.helper.set_model_props(graph, _dumped(tree["about"]))
    for dim, value in zip(graph.graph.input[0].type.tensor_type.shape.dim, tree["shape"], strict=True):
        dim.dim_value = value
    return bytes(graph.SerializeToString())


def _read_zip(content: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return _loaded({name: archive.read(name).decode("latin-1") for name in archive.namelist()})


def _write_zip(tree: Any, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in _dumped(tree).items():
            archive.writestr(name, text.encode("latin-1", "replace"))
    return buffer.getvalue()


def _read_matlab(content: bytes) -> Any:
    found = loadmat(io.BytesIO(content), simplify_cells=True)
    return {name: _listed(value) for name, value in found.items() if not name.startswith("__")}


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [_listed(one) for one in value]
    return [_listed(one) for one in value] if isinstance(value, list) else value


def _write_json(tree: Any, content: bytes) -> bytes:
    return json.dumps(tree, default=str).encode()


def _read_lines(content: bytes) -> Any:
    return [json.loads(line) for line in content.splitlines()]


def _write_lines(tree: Any, content: bytes) -> bytes:
    return b"\n".join(_write_json(line, content) for line in tree) + b"\n"


FORMATS: dict[str, tuple[Read, Write]] = {
    ".json": (json.loads, _write_json),
    ".yaml": (lambda content: YAML(typ="safe", pure=True).load(content.decode()), _write_json),
    ".safetensors": (_read_safetensors, _write_safetensors),
    ".parquet": (_read_table, _write_parquet),
    ".arrow": (_read_table, _write_arrow),
    ".jsonl": (_read_lines, _write_lines),
    ".log": (_read_lines, _write_lines),
    ".npz": (_read_npz, _into_file(lambda file, tree: np.savez(file, **tree))),
    ".npy": (
        lambda content: {"array": np.load(io.BytesIO(content))},
        _into_file(lambda file, tree: np.save(file, tree["array"])),
    ),
    ".pt": (
        lambda content: torch.load(io.BytesIO(content), weights_only=True),
        _into_file(lambda file, tree: torch.save(tree, file)),
    ),
    ".onnx": (_read_graph, _write_graph),
    ".pt2": (_read_zip, _write_zip),
    ".zip": (_read_zip, _write_zip),
    ".mat": (_read_matlab, _into_file(savemat)),
}
TEXTS = (".json", ".yaml", ".csv", ".txt", ".jsonl", ".log")
"""Formats whose words and lines are damaged too."""
