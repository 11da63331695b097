"""Wherever saved embeddings are taken, those in parts or in a table give what those of one file give."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aurank.commands import (
    RunOptions,
    calibrate_model,
    embed_to_folder,
    evaluate_model,
    examine_embeddings,
    probe_model,
)
from aurank.commands.evaluate import saved_embeddings
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


def test_a_table_is_embedded_in_parts_and_is_that_of_the_file(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match="no model 'embeddings:"):
        embed_to_folder(f"embeddings:{tmp_path / 'rows.npz'}", out=tmp_path / "parts")


def page(path: Path) -> str:
    """What a page says of them; its pictures have names of their own each time."""
    embedded, _ = saved_embeddings(f"embeddings:{path}", str(path), None, ImageSelection())
    measured = Measurement("m", embedded)
    found = examine_measured(embedded.evaluate(neighbours=3), measured)
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
def test_parts_and_a_table_give_what_one_file_gives(saved: Path, measure: Callable[[Path], object]) -> None:
    one = str(measure(saved / "rows.npz"))
    for name in ("parts", "rows.parquet"):
        assert str(measure(saved / name)) == one.replace("rows.npz", name)
