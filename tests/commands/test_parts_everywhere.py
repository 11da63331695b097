"""Wherever saved embeddings are taken, those in parts or in a table give what those of one file give."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from aurank.commands import RunOptions, calibrate_model, embed_to_folder, evaluate_model, examine_embeddings
from aurank.commands.evaluate import saved_embeddings
from aurank.commands.probe import probe_model
from aurank.commands.report import Measurement, examine_measured
from aurank.data.shards import ShardWriter
from aurank.embedding import ImageSelection
from aurank.embedding.embedded import Embedded
from aurank.errors import UserError
from aurank.evaluation import Codes

COUNT, DIM = 60, 16
HOW = RunOptions(device="cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same embeddings in four parts, in a table and in one file, of two splits."""
    folder, chance = tmp_path_factory.mktemp("saved"), np.random.default_rng(0)
    labels = np.arange(COUNT) % 6
    rows = chance.standard_normal((6, DIM))[labels] + chance.standard_normal((COUNT, DIM))
    writer = ShardWriter(folder / "parts")
    for part in np.array_split(rows.astype(np.float32), 4):
        writer.write(part)
    flags = {name: np.ones(COUNT, bool) for name in ("is_query", "is_gallery")}
    columns = {"labels": labels, "ids": np.arange(COUNT), "paths": np.arange(COUNT).astype(str), **flags}
    columns |= {"groups": np.full(COUNT, -1), "splits": np.where(np.arange(COUNT) % 3 == 0, "train", "test")}
    writer.finish({**columns, "classes": np.array(list("abcdef"))})
    for name in ("rows.npz", "rows.parquet"):
        Embedded.load(folder / "parts").save(folder / name)
    return folder


def test_a_table_is_embedded_in_parts_and_is_that_of_the_file(tmp_path):
    model, digits = "timm:test_vit,pretrained=false,input_size=32", ImageSelection("digits:", split="all")
    how = RunOptions(device="cpu", batch=100)
    embed_to_folder(model, digits, out=tmp_path / "rows.npz", running=how)
    embed_to_folder(model, digits, out=tmp_path / "rows.parquet", shard_rows=500, running=how)
    embed_to_folder(f"embeddings:{tmp_path / 'rows.npz'}", ImageSelection(split="all"), out=tmp_path / "again.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.parquet", "rows.npz", "rows.parquet"]
    once = vars(Embedded.load(tmp_path / "rows.npz"))
    for name in ("rows.parquet", "again.parquet"):
        for column, values in vars(Embedded.load(tmp_path / name)).items():
            assert np.array_equal(values, once[column]), column


def test_a_map_has_the_principal_axes_the_nearest_rows_and_the_ap_of_the_report(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("aurank.evaluation.index.overview.importable", lambda name: False)
    embedded = Embedded.load(saved / "parts")
    is_query = np.arange(COUNT) % 2 == 0
    labels = np.where(np.arange(COUNT) == 4, 6, embedded.labels)  # row 4 is alone in its class
    embedded = replace(embedded, is_query=is_query, labels=labels, classes=np.array(list("abcdefg")))
    embedded.save(tmp_path / "rows.npz")
    said: list[str] = []
    how, every = RunOptions(device="cpu", say=said.append), ImageSelection(split="all")
    embed_to_folder(f"embeddings:{tmp_path / 'rows.npz'}", every, out=tmp_path / "map.parquet", map="2d", running=how)
    table = pyarrow.parquet.read_table(tmp_path / "map.parquet")
    assert said == ["x, y: PCA"]

    rows = np.stack(table["vector"].to_numpy()).astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    left, values, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    for axis, name in enumerate("xy"):
        expected = left[:, axis] * values[axis]
        coordinate = table[name].to_numpy()
        np.testing.assert_allclose(coordinate * np.sign(coordinate @ expected), expected, atol=1e-12)

    distances = 1 - rows @ rows.T
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1)[:, :10]
    lists = table["neighbors"].to_pylist()
    assert [each["ids"] for each in lists] == nearest.tolist()
    expected = np.take_along_axis(distances, nearest, axis=1)
    np.testing.assert_allclose([each["distances"] for each in lists], expected, atol=1e-12)

    report = embedded.evaluate()
    expected_ap = dict(zip(np.flatnonzero(is_query)[report.per_query["query"]], report.per_query["ap"], strict=True))
    assert len(expected_ap) == is_query.sum() - 1
    assert table["ap"].to_pylist() == [expected_ap.get(row) for row in range(COUNT)]
    again = vars(Embedded.load(tmp_path / "map.parquet"))
    for name, column in vars(embedded).items():
        assert np.array_equal(again[name], np.asarray(column)) or (again[name] is column is None), name


def test_a_map_of_rows_without_positives_has_no_ap(saved, tmp_path):
    embedded, every = Embedded.load(saved / "parts").select(np.arange(6)), ImageSelection(split="all")  # of 6 classes
    embedded.save(tmp_path / "rows.npz")
    model = f"embeddings:{tmp_path / 'rows.npz'}"
    embed_to_folder(model, every, out=tmp_path / "map.parquet", map="2d", running=HOW)
    table = pyarrow.parquet.read_table(tmp_path / "map.parquet")
    assert table["ap"].null_count == 6
    assert [sorted([row, *each["ids"]]) for row, each in enumerate(table["neighbors"].to_pylist())] == [[*range(6)]] * 6
    with pytest.raises(UserError, match=r"again\.npz is not: give --out FILE\.parquet"):
        embed_to_folder(model, every, out=tmp_path / "new" / "again.npz", map="2d")
    assert not (tmp_path / "new").exists()


def page(path: Path) -> str:
    """What a page says of them; its pictures have names of their own each time."""
    embedded, _ = saved_embeddings(f"embeddings:{path}", str(path), None, ImageSelection())
    found = examine_measured(embedded.evaluate(neighbours=3), Measurement("m", embedded))
    return "\n".join([*map(str, found["findings"]), *found["left_out"]])


def values(path: Path, **options: Any) -> tuple[Any, ...]:
    report = evaluate_model(f"embeddings:{path}", running=HOW, **options)
    near = None if report.neighbours is None else report.neighbours.row.tolist()
    about = {name: value for name, value in (report.approximation or {}).items() if name != "measured"}
    return report.metrics, near, report.codes, report.postprocessing, about


@pytest.mark.parametrize(
    "measure",
    [
        lambda path: values(path, neighbours=4),
        lambda path: values(path, postprocess="query_expansion:k=2, k_reciprocal:k1=4,k2=2"),
        lambda path: values(path, postprocess="center, whiten:dim=8", fit_on=path),
        lambda path: values(path, codes=Codes(dims=(4,), precisions=("int8", "binary"), rescore=5)),
        lambda path: values(path, index="IVF2,Flat"),
        lambda path: str(calibrate_model(f"embeddings:{path}", precision=0.3, running=HOW)),
        lambda path: str(probe_model(f"embeddings:{path}", protocols=["knn"], running=HOW)["knn"]),
        lambda path: [str(one) for one in examine_embeddings(path).findings],
        page,
    ],
    ids=["lists", "reordered", "whitened", "codes", "index", "threshold", "probes", "doctor", "page"],
)
def test_parts_and_a_table_give_what_one_file_gives(saved, measure):
    one = str(measure(saved / "rows.npz"))
    for name in ("parts", "rows.parquet"):
        assert str(measure(saved / name)) == one.replace("rows.npz", name)
