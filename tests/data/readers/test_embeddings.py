"""Saved embeddings as a data set."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testing.galleries import rows, write_rows
from testing.refusals import refused

from aurank.data import READERS
from aurank.data.prepared import contents
from aurank.data.saved_embeddings import EmbeddingDataset, EmbeddingSource


def read(path: Path, **params: Any) -> Any:
    return READERS["embeddings"](path.parent, file=path.name, **params)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_rows_labels_paths_and_splits_are_those_of_the_file(tmp_path, kind):
    held = rows(classes=np.array([f"kind {label}" for label in range(12)]), super_labels=np.repeat([0, 1], 36))
    held["embeddings"] = held["embeddings"].astype(kind)
    np.savez(tmp_path / "rows.npz", **held)
    manifest = read(tmp_path / "rows.npz")
    assert manifest.split_sizes == {"train": 48, "test": 24}
    assert list(manifest.paths) == held["paths"].tolist()
    assert [manifest.classes[label] for label in manifest.labels] == [f"kind {one}" for one in held["labels"]]
    assert manifest.super_labels.tolist() == [0] * 36 + [1] * 36
    test = EmbeddingDataset(manifest.split("test"))
    batch = test.__getitems__([3, (0, 5, 1)])
    assert batch.image.dtype == torch.float32
    np.testing.assert_array_equal(batch.image.numpy(), held["embeddings"][[51, 48]].astype(np.float32))
    assert batch.id.tolist() == [3, 0]
    assert test.skipped == []
    assert test.cached_bytes == 24 * 16 * 4


@pytest.mark.parametrize("none", [-1, -1.0, np.nan, "", "-1"], ids=repr)
def test_a_missing_camera_or_super_label_is_none(tmp_path, none):
    groups = np.array([none, 5, 7]).repeat(24)
    manifest = read(write_rows(tmp_path / "rows.npz", groups=groups, super_labels=groups))
    for numbers in (manifest.groups, manifest.super_labels):
        assert (numbers < 0).tolist() == [True] * 24 + [False] * 48
        assert len(set(numbers.tolist())) == 3


def test_an_npy_with_files_of_labels_and_splits_is_the_same_data(tmp_path):
    held = rows()
    for name in ("embeddings", "labels", "splits"):
        np.save(tmp_path / f"{name}.npy", held[name])
    manifest = read(tmp_path / "embeddings.npy", labels="labels.npy", splits="splits.npy")
    assert manifest.split_sizes == {"train": 48, "test": 24}
    assert manifest.paths[:2] == ("row 0", "row 1")
    source = manifest.source
    assert isinstance(source, EmbeddingSource)
    assert isinstance(source.rows, np.memmap)


def test_a_changed_number_changes_the_contents_that_a_resumed_run_is_compared_by(tmp_path):
    embeddings = rows()["embeddings"]
    before = contents(read(write_rows(tmp_path / "rows.npz")))
    embeddings[70, 3] += 1e-6
    assert contents(read(write_rows(tmp_path / "rows.npz", embeddings=embeddings)))["sums"] != before["sums"]


def spoiled(row: int, value: float) -> np.ndarray:
    embeddings = rows()["embeddings"]
    embeddings[row, 2] = value
    return embeddings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"splits": None}, r"holds no array 'splits', .* aurank embed --split all, or name .* data.params.splits"),
        ({"splits": np.array(["training"] * 72)}, "split 'training' is not known; expected one of train, val, test"),
        ({"labels": None}, "holds no array 'labels'"),
        ({"embeddings": spoiled(50, np.nan)}, r"row 50 \('8/50.png'\) holds NaN or infinity; .*aurank doctor"),
        ({"embeddings": rows()["embeddings"].astype(np.float64) * 1e200}, "holds NaN or infinity"),
        ({"embeddings": np.array([["a"]] * 72)}, "embeddings has shape .* expected a matrix of numbers"),
        ({"paths": np.array(["same"] * 72)}, "holds image 'same' twice"),
        ({"made_by": np.array("{}")}, "embeddings with made_by"),
    ],
)
def test_files_that_cannot_be_trained_on_are_refused_in_one_line(tmp_path, changes, message):
    path = write_rows(tmp_path / "rows.npz", **changes)
    assert str(path) in refused(message, read, path)
