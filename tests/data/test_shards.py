"""Embeddings in parts or in a table: the arrays of one file; what does not fit is named."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from testing.refusals import refused

from aurank.arrays import MappedRows, select_rows
from aurank.data.saved_embeddings import read_arrays
from aurank.data.shards import ShardWriter, read_shards
from aurank.embedding.embedded import Embedded
from aurank.evaluation import evaluate

COUNT, DIM = 23, 5
ROWS = np.random.default_rng(0).standard_normal((COUNT, DIM)).astype(np.float32)
COLUMNS = {
    "labels": np.arange(COUNT) % 4,
    "paths": np.array([f"class {row % 4}/{row}.png" for row in range(COUNT - 1)] + ["a\udcff.png"]),
    "splits": np.array(["test"] * 14 + ["train"] * 9),
    "groups": np.arange(COUNT) % 3 - 1,
    "is_query": np.arange(COUNT) % 2 == 0,
    "is_gallery": np.arange(COUNT) % 5 > 0,
    "super_labels": np.arange(COUNT) % 2,
    "positives": np.array([[0, 1], [0, 4], [6, 2], [22, 8]]),
    "ignored": np.empty((0, 2), np.int64),
}
CAMERAS = np.array(["west", "east"])
TEXTS = {"classes": np.array(["ape", "bee", "cat", "dog"]), "made_by": np.array("by a model")}


def write(folder: Path) -> Path:
    """Write three parts, without row 12, and the table, and return the folder."""
    writer, kept = ShardWriter(folder), np.delete(np.arange(COUNT), 12)
    for rows in (kept[:10], kept[10:19], kept[19:]):
        writer.write(ROWS[rows])
    held = {name: value if name in ("positives", "ignored") else value[kept] for name, value in COLUMNS.items()}
    held["positives"] = held["positives"] - (held["positives"] > 12)
    writer.finish({**held, **TEXTS, "ids": kept, "group_names": CAMERAS})
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_parts_hold_the_arrays_of_one_file(tmp_path):
    write(tmp_path / "rows")
    assert names(tmp_path / "rows") == ["index.parquet", "part-00000.npy", "part-00001.npy", "part-00002.npy"]
    kept = np.delete(np.arange(COUNT), 12)
    for path in (tmp_path / "rows", tmp_path / "rows" / "index.parquet"):
        found = read_arrays(path)
        assert found.pop("group_names").tolist() == CAMERAS.tolist()
        assert isinstance(found["embeddings"], MappedRows)
        assert all(isinstance(part, np.memmap) for part in found["embeddings"].parts)
        assert np.array_equal(found.pop("embeddings"), ROWS[kept])
        assert found.pop("classes").tolist() == TEXTS["classes"].tolist()
        assert str(found.pop("made_by")) == "by a model"
        assert found.pop("ids").tolist() == kept.tolist()
        assert found.pop("positives").tolist() == [[0, 1], [0, 4], [6, 2], [21, 8]]
        assert found.pop("ignored").shape == (0, 2)
        assert found.keys() == COLUMNS.keys() - {"positives", "ignored"}
        for name, values in found.items():
            assert values.tolist() == COLUMNS[name][kept].tolist(), name
    one = Embedded.load(tmp_path / "rows")
    one.save(tmp_path / "one.npz")
    whole = Embedded.load(tmp_path / "one.npz")
    assert_equal(one, whole)
    assert one.evaluate(recall_at=(1,)).metrics == whole.evaluate(recall_at=(1,)).metrics
    chosen = one.splits == "test"
    assert one.select(chosen).evaluate(recall_at=(1,)).metrics == whole.select(chosen).evaluate(recall_at=(1,)).metrics


def assert_equal(first: Embedded, second: Embedded) -> None:
    others = vars(second)
    for name, values in vars(first).items():
        assert np.array_equal(others[name], np.asarray(values)) or (others[name] is values is None), name


@pytest.mark.parametrize("block", [7, 2**14])
def test_a_table_holds_the_arrays_and_a_vector_of_fixed_size(tmp_path, block, monkeypatch):
    monkeypatch.setattr("aurank.data.shards._BLOCK", block)
    embedded = Embedded.load(write(tmp_path / "rows"))
    embedded.save(tmp_path / "rows.parquet")
    file = pyarrow.parquet.ParquetFile(tmp_path / "rows.parquet")
    assert file.num_row_groups == -(-22 // block)
    assert file.schema_arrow.field("vector").type == pyarrow.list_(pyarrow.float32(), DIM)
    assert file.read()["class"].to_pylist() == TEXTS["classes"][embedded.labels].tolist()
    assert_equal(embedded, Embedded.load(tmp_path / "rows.parquet"))


def test_a_lance_table_has_the_rows_of_the_parquet_table(tmp_path):
    lance = pytest.importorskip("lance")  # pip install pylance
    write(tmp_path / "rows")
    for name in ("rows.parquet", "rows.lance", "rows.lance"):
        Embedded.load(tmp_path / "rows").save(tmp_path / name)
    table = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    written = lance.dataset(tmp_path / "rows.lance")
    assert (len(written.versions()), written.to_table().to_pylist()) == (2, table.to_pylist())


def test_a_table_that_another_program_filtered_and_sorted_keeps_its_pairs(tmp_path):
    embedded = Embedded.load(write(tmp_path / "rows"))
    embedded.save(tmp_path / "rows.parquet")
    table, kept = pyarrow.parquet.read_table(tmp_path / "rows.parquet"), np.array([21, 4, 0, 6, 2])
    pyarrow.parquet.write_table(table.take(kept), tmp_path / "some.parquet")
    some = Embedded.load(tmp_path / "some.parquet")
    assert some.positives is not None
    named = some.ids[some.positives]
    assert sorted(named.tolist()) == [[0, 4], [6, 2]]
    assert np.array_equal(some.embeddings, embedded.embeddings[kept])


def test_a_table_of_another_program_needs_vectors_and_labels(tmp_path):
    rows = {"vector": ROWS.tolist(), "label": [f"name {row % 4}" for row in range(COUNT)], "price": [*range(COUNT)]}
    (tmp_path / "rows.parquet").mkdir()
    pyarrow.parquet.write_table(pyarrow.table(rows).slice(0, 9), tmp_path / "rows.parquet" / "0.parquet")
    pyarrow.parquet.write_table(pyarrow.table(rows).slice(9), tmp_path / "rows.parquet" / "1.parquet")
    embedded = Embedded.load(tmp_path / "rows.parquet")
    assert np.allclose(embedded.embeddings, ROWS)
    assert embedded.evaluate(recall_at=(1,)).metrics == evaluate(ROWS, COLUMNS["labels"], recall_at=(1,)).metrics
    uneven = {**rows, "vector": [[1.0], *ROWS[1:].tolist()]}
    lacking = (({"label": [0]}, r"No match for FieldRef\.Name\(vector\)"), ({"vector": [[1.0]]}, "'labels'"))
    for odd, said in ((uneven, "vector and label"), *lacking):
        pyarrow.parquet.write_table(pyarrow.table(odd), tmp_path / "odd.parquet")
        refused(rf"odd\.parquet.*{said}", Embedded.load, tmp_path / "odd.parquet")


def test_rows_are_those_of_the_whole_matrix(tmp_path):
    rows, whole = read_shards(write(tmp_path / "rows"))["embeddings"], np.delete(ROWS, 12, axis=0)
    chance = np.random.default_rng(1)
    places = chance.integers(0, 22, 50)
    assert rows.shape == whole.shape
    assert (rows.ndim, rows.dtype, len(rows), rows.size, rows.itemsize) == (2, np.float32, 22, 110, 4)
    slices = (slice(2, 9), slice(8, 21), slice(None), slice(20, 2, -3), slice(4, 4))
    arrays = (places, places.reshape(5, 10), np.arange(22) % 3 == 0, [1, 2], np.empty(0, np.int64))
    for one in (3, -1, *slices, *arrays):
        assert np.array_equal(rows[one], whole[one]), one
    for wrong in (22, [0, -23], (1, 2), np.ones(21, bool)):
        with pytest.raises(IndexError):
            rows[wrong]
    chosen = select_rows(select_rows(rows, places), slice(10, 40))
    assert isinstance(chosen, MappedRows)
    assert np.array_equal(chosen, whole[places][10:40])
    assert np.array_equal(chosen[[3, 0]], whole[places][10:40][[3, 0]])
    first = np.load(tmp_path / "rows" / "part-00000.npy", mmap_mode="r")
    assert select_rows(first, [2])[:].tolist() == [ROWS[2].tolist()]


def test_a_broken_off_folder_begins_anew_and_a_finished_one_is_left_alone(tmp_path):
    folder = tmp_path / "rows"
    killed = ShardWriter(folder)
    for number in range(8):
        killed.write(ROWS[number:])
    refused(r"no embeddings, as it has no index\.parquet: remove the folder, and give", read_shards, folder)
    write(folder)
    assert names(folder) == ["index.parquet", "part-00000.npy", "part-00001.npy", "part-00002.npy"]
    refused(r"holds other files, such as 'index\.parquet': name a new folder", ShardWriter, folder)


def exchange(folder: Path) -> None:
    (folder / "part-00001.npy").rename(folder / "other")
    (folder / "part-00002.npy").rename(folder / "part-00001.npy")
    (folder / "other").rename(folder / "part-00002.npy")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def damaged_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(4, len(content) // 2, 97):
        content[place] ^= 255
    path.write_bytes(content)


def another_table(folder: Path) -> None:
    table = pyarrow.parquet.read_table(folder / "index.parquet")
    pyarrow.parquet.write_table(table.slice(0, 9), folder / "index.parquet")


def changed(path: Path) -> None:
    table = pyarrow.parquet.read_table(path)
    texts = {name: text.replace(b"[10, ", b"[11, ") for name, text in table.schema.metadata.items()}
    pyarrow.parquet.write_table(table.replace_schema_metadata(texts), path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "part-00001.npy").unlink(), "part-00001.npy"),
        (lambda folder: cut(folder / "part-00002.npy"), "part-00002.npy is damaged, cut short or another one"),
        (exchange, "part-00001.npy is damaged, cut short or another one"),
        (lambda folder: cut(folder / "index.parquet"), "index.parquet: cannot be read as a table of embeddings"),
        (lambda folder: changed(folder / "index.parquet"), "index.parquet: cannot be read as a table of embeddings"),
        (lambda folder: damaged_pages(folder / "index.parquet"), "index.parquet: "),
        (another_table, "index.parquet: cannot be read as a table of embeddings"),
        (lambda folder: shutil.rmtree(folder), "No such file or directory"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line_with_the_remedy(tmp_path, damage, said):
    folder = write(tmp_path / "rows")
    damage(folder)  # type: ignore[operator]
    refused(said, Embedded.load, folder)
