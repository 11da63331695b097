"""Data sets given from Python, tables as frames, images inside larger files, addresses: what they refuse, in a line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from testing.inputs import Vision, add_to_tar, columns, items, of_hugging_face, saved, tars, write_photos
from torch.utils.data import IterableDataset, Subset

from aurank.data import READERS, Manifest, from_dataset, from_table
from aurank.data.readers.parts import read_hf, read_webdataset
from aurank.data.sources import PartsSource
from aurank.errors import AurankWarning, UserError

GREY = np.zeros((4, 4), np.uint8)


class Unsteady(Vision):
    def __getitem__(self, row: int) -> tuple[Any, int]:
        return np.random.default_rng().integers(0, 255, (4, 4, 3), np.uint8), 0


class Unlabelled(Vision):
    def __init__(self, split: str) -> None:
        super().__init__(split)
        self.targets = [-1] * len(self)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_a_subset_has_the_labels_of_its_rows() -> None:
    manifest = from_dataset(Subset(Vision("train"), [19, 0]), test_fraction=0.5)
    assert [manifest.classes[label] for label in manifest.labels.tolist()] == ["c4", "c0"]
    assert manifest.split_sizes == {"train": 1, "test": 1}


def test_an_array_of_one_number_is_a_label() -> None:
    labels = (np.array([2]), torch.tensor([2]), np.array(2), 2)
    assert from_dataset([(GREY, label) for label in labels]).classes == ("2",)


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Stream(), "object of type 'Stream' has no len()"),
        ([], "dataset: no images"),
        ([1, 2], "dataset: cannot be read as a data set"),
        ([("a.png", "x")], "image '0000000': it is a str, expected an image of Pillow"),
        ([(torch.randn(3, 4, 4), 1)], "image '0000000': its numbers are not from 0 to 1; leave out the normalisation"),
        ([(GREY, {1: 2})], r"a label must be a number or text, or a list that has each once.*; got {1: 2}"),
        ([{"photo": GREY, "label": 1}], "image '0000000'.*'image' is missing"),
        ({"trian": [(GREY, 1)]}, "split 'trian' is not known"),
        (Unlabelled("train"), "label -1 is none of the 10 classes that are named"),
        (Unsteady("train"), "reading image '0000000' twice gave different pixels; leave out the random transform"),
    ],
)
def test_what_is_no_data_set_is_refused_in_a_line(dataset: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        from_dataset(dataset)


def test_an_item_that_fails_is_named() -> None:
    def fails(image: np.ndarray) -> np.ndarray:
        raise OSError("the disk is on fire")

    dataset = Vision("train", fails)
    dataset.change = lambda image: image
    manifest = from_dataset(dataset)
    dataset.change = fails
    with pytest.raises(UserError, match=r"dataset, image '0000007': .*the disk is on fire"):
        manifest.source.read_bytes("0000007")


def test_a_named_label_comes_before_the_targets_of_a_data_set() -> None:
    class WithTargets(list[Any]):
        targets = (0, 0)

    given = WithTargets((np.full((8, 8, 3), row, np.uint8), 0, name) for row, name in enumerate(("cat", "owl")))
    assert len({*from_dataset(given, label=2).labels}) == 2
    assert len({*from_dataset(given).labels}) == 1


def test_keys_name_the_image_and_the_label_of_an_item() -> None:
    manifest = from_dataset(
        [{"photo": GREY, "kind": "cat"}, {"photo": GREY, "kind": "dog"}], image="photo", label="kind"
    )
    assert manifest.classes == ("cat", "dog")


def test_a_frame_is_read_as_the_table_that_it_is_written_to(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns(write_photos(tmp_path / "photos"))).astype({"label": "category"})
    frame["group"] = [None, *range(39)]
    frame.to_csv(tmp_path / "table.csv", index=False)
    expected = READERS["table"](tmp_path, file="table.csv", path="photos")
    assert from_table(frame.iloc[::-1].iloc[::-1], root=tmp_path / "photos").sha256 == expected.sha256
    with pytest.warns(AurankWarning, match="table: ignored columns: 'mine'"):
        from_table(frame.assign(mine=1), root=tmp_path / "photos")
    frame.loc[3, "split"] = "tset"
    with pytest.raises(UserError, match="table: split 'tset' is not known"):
        from_table(frame, root=tmp_path / "photos")
    with pytest.raises(UserError, match="table: cannot be read as a data frame"):
        from_table("table.csv")


def test_a_saved_data_set_has_the_bytes_that_its_library_reads(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    given = {f"{split}": part for split, part in of_hugging_face().items()}
    for kind in ("arrow", "parquet"):
        _ = saved(tmp_path / kind, kind)
        manifest = read_hf(tmp_path, path=kind)
        assert isinstance(manifest.source, PartsSource)
        in_files = {isinstance(part, str) for part in manifest.source.parts}
        assert in_files == {kind == "arrow"}  # read where they lie, not held in memory
        for split, part in given.items():
            rows = manifest.split(split)
            raw = part.with_format("arrow")[:]["image"].to_pylist()
            assert [rows.source.read_bytes(path) for path in rows.paths] == [one["bytes"] for one in raw]
    (tmp_path / "arrow/train").rename(tmp_path / "arrow/more")
    with pytest.raises(UserError, match=r"'more/data-00000-of-00002\.arrow' in .* names no split, and others do"):
        read_hf(tmp_path / "arrow")
    (tmp_path / "arrow/more").rename(tmp_path / "arrow/train")
    assert read_hf(tmp_path, path="arrow/{test,train}").split_sizes == {"train": 20, "test": 20}
    with pytest.raises(UserError, match=r"there is no column 'fine': there are image, label; set data\.params\.image"):
        read_hf(tmp_path, path="arrow", label="fine")
    with pytest.raises(UserError, match="column 'label' holds int64, 0 rows"):
        read_hf(tmp_path, path="parquet", image="label")
    rows = pa.table({"image": pa.array([b"x", None], pa.binary()), "label": ["a", "b"]})
    pq.write_table(rows, tmp_path / "train.parquet")
    with pytest.raises(UserError, match="column 'image' holds binary, 1 rows without a value"):
        read_hf(tmp_path, path="train.parquet")


def test_shards_are_named_by_braces_and_labels_by_an_ending_or_a_key(tmp_path: Path) -> None:
    tars(write_photos(tmp_path / "photos"), tmp_path)
    by_folder, by_key = read_webdataset(tmp_path), read_webdataset(tmp_path, label="json.name")
    by_pattern = read_webdataset(tmp_path, path="{train-00{0..4},test-00{5..9}}.tar")
    assert by_folder.split_sizes == {"train": 20, "test": 20}
    assert {*by_pattern.paths} == {*by_folder.paths}
    assert by_key.classes == by_folder.classes
    drawn = read_webdataset(tmp_path, path="train-000.tar", test_fraction=1)
    assert drawn.split_sizes == {"train": 4}
    with pytest.raises(UserError, match=r"test-005\.tar/c5/0\.png: label is empty or NaN, and in 39 more"):
        read_webdataset(tmp_path, label="txt")
    with pytest.raises(UserError, match="cannot be read as a pattern of files"):
        read_webdataset(tmp_path, path="{0..x}.tar")
    with pytest.raises(UserError, match=r"train-009\.tar: cannot be read as a \.tar file"):
        read_webdataset(tmp_path, path="train-00{0,9}.tar")
    add_to_tar(tmp_path / "two-train.tar", dict.fromkeys(("0.jpg", "0.png", "0.cls"), b""))
    with pytest.raises(UserError, match=r"two-train\.tar: 0\.png is a second image of 0; leave one out"):
        read_webdataset(tmp_path, path="two-train.tar")
    (tmp_path / "two-train.tar").unlink()
    (tmp_path / "more.tar").write_bytes((tmp_path / "train-000.tar").read_bytes())
    with pytest.raises(UserError, match=r"'more\.tar' in .* names no split, and others do"):
        read_webdataset(tmp_path)


@pytest.mark.parametrize("name", ["bad.tar", "bad.arrow", "bad.parquet"])
def test_a_damaged_part_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"nothing of the kind " * 50)
    reader = read_webdataset if name.endswith("tar") else read_hf
    with pytest.raises(UserError, match=rf"{name}: cannot be read as a \.\w+ file"):
        reader(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match="no images in "):
        reader(tmp_path)


def test_an_image_cut_off_with_its_archive_is_named(tmp_path: Path) -> None:
    add_to_tar(tmp_path / "train.tar", {"one.cls": b"cat", "one.jpg": b"no image"})
    manifest = read_webdataset(tmp_path)
    (tmp_path / "train.tar").unlink()
    with pytest.raises(UserError, match=r"image 'train\.tar/one\.jpg' is not in "):
        manifest.source.read_bytes(manifest.paths[0])


def test_a_given_data_set_is_not_found_again_by_a_name() -> None:
    with pytest.raises(UserError, match=r"given from Python.*aurank\.train\(…, dataset=…\)"):
        READERS["given"](Path())
    assert isinstance(from_dataset({"train": items("train")}), Manifest)
