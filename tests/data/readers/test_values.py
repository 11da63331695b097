"""A label, a camera and a missing value are the same in every kind of input."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from testing.inputs import add_to_tar

import aurank
from aurank.data import READERS, Manifest, from_dataset, from_table
from aurank.embedding.embedded import described
from aurank.errors import UserError

Values = list[Any]
MISSING = (None, float("nan"), np.float32("nan"), "", " ", "NaN", "nan")


def photo() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")
    return file.getvalue()


def rows(**columns: Values) -> dict[str, Values]:
    count = len(next(iter(columns.values())))
    return {"path": [f"{row}.png" for row in range(count)], "split": ["test"] * count, **columns}


def folder(root: Path) -> Path:
    for row in range(4):
        (root / f"{row}.png").write_bytes(photo())
    return root


def by_csv(root: Path, **columns: Values) -> Manifest:
    with (root / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*rows(**columns)], *zip(*rows(**columns).values(), strict=True)])
    return READERS["table"](folder(root), file="rows.csv")


def arrow(**columns: Values) -> pa.Table:
    return pa.table({name: pa.array(values, from_pandas=False) for name, values in rows(**columns).items()})


def by_parquet(root: Path, **columns: Values) -> Manifest:
    pq.write_table(arrow(**columns), root / "rows.parquet")
    return READERS["table"](folder(root), file="rows.parquet")


def by_hf(root: Path, *, label: Values) -> Manifest:
    pq.write_table(pa.table({"image": [photo()] * len(label), "label": label}), root / "rows.parquet")
    return READERS["hf"](root)


def archive(root: Path, files: dict[str, bytes], **label: str) -> Manifest:
    (root / "rows.tar").unlink(missing_ok=True)
    add_to_tar(root / "rows.tar", files)
    return READERS["webdataset"](root, **label)


def by_json(root: Path, *, label: Values) -> Manifest:
    plain = [value.item() if hasattr(value, "item") else value for value in label]
    files = {f"{row}.json": json.dumps({"kind": value}).encode() for row, value in enumerate(plain)}
    return archive(root, {f"{row}.png": photo() for row in range(len(label))} | files, label="json.kind")


TABLES: dict[str, Callable[..., Manifest]] = {
    "csv": by_csv,
    "parquet": by_parquet,
    "pandas": lambda root, **columns: from_table(pandas.DataFrame(rows(**columns)), root=folder(root)),
    "polars": lambda root, **columns: from_table(polars.DataFrame(rows(**columns), strict=False), root=folder(root)),
    "pyarrow": lambda root, **columns: from_table(arrow(**columns), root=folder(root)),
}
INPUTS: dict[str, Callable[..., Manifest]] = {
    **TABLES,
    "hf": by_hf,
    "json": by_json,
    "cls": lambda root, label: archive(
        root,
        {f"{row}.png": photo() for row in range(len(label))}
        | {f"{row}.cls": str("" if value is None else value).encode() for row, value in enumerate(label)},
    ),
    "torch": lambda root, label: from_dataset([(np.zeros((4, 4), np.uint8), value) for value in label]),
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("value", MISSING, ids=repr)
def test_a_missing_label_is_refused_and_never_a_class(kind: str, value: Any, tmp_path: Path) -> None:
    others = ["a", "b"] if value is None or isinstance(value, str) else [1.0, 2.0]
    with pytest.raises(UserError, match="label is empty or NaN, and in 1 more; give each image one, or leave such"):
        INPUTS[kind](tmp_path, label=[*others, value, value])


@pytest.mark.parametrize("kind", INPUTS)
def test_a_whole_number_is_one_class_whatever_its_type(kind: str, tmp_path: Path) -> None:
    assert INPUTS[kind](tmp_path, label=[1.0, 2.0, 1.0, 2.5]).classes == ("1", "2", "2.5")
    assert INPUTS[kind](tmp_path, label=[True, False, True]).classes == ("True", "False")
    if kind in ("csv", "cls", "json", "torch"):  # a column of the others has one type
        assert INPUTS[kind](tmp_path, label=[1, 1.0, "1", " 1"]).classes == ("1",)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("none", [-1, -1.0, float("nan"), None, "", "-1", "NaN"], ids=repr)
def test_no_camera_is_one_thing_in_tables_and_arrays(kind: str, none: Any, tmp_path: Path) -> None:
    groups = [none, none, "west", "east"] if isinstance(none, str) else [none, none, 5, 7]
    manifest = TABLES[kind](tmp_path, label=["a"] * 4, group=groups, super_label=groups)
    by_name = ["", "", "west", "east"] if isinstance(none, str) else ["", "", "5", "7"]
    embedded = described(manifest, np.arange(4), np.eye(4, dtype=np.float32))
    assert (manifest.groups < 0).tolist() == (manifest.super_labels < 0).tolist() == [True, True, False, False]
    report = aurank.evaluate(np.eye(4), [0] * 4, groups=groups, super_labels=[0] * 4)
    assert [one.per_query["group"].tolist() for one in (embedded.evaluate(), report)] == [by_name, by_name]


def test_a_key_ends_at_the_first_dot_and_what_has_no_place_is_told(tmp_path: Path) -> None:
    files = {name: photo() for name in ("a.png", "b.v2.png", "c.png", "c.mask.png")}
    files |= {f"{name}.cls": b"x" for name in ("a", "b.v2", "c", "d")}
    told = r"left out as no image of a sample: 2 \(first b\.v2\.png\); a key ends at the first dot of a name"
    with pytest.warns(aurank.errors.AurankWarning, match=told):
        manifest = archive(tmp_path, files)
    assert manifest.paths == ("rows.tar/a.png", "rows.tar/c.png")
