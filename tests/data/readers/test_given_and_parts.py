"""Data sets given from Python, tables as frames, images inside larger files, addresses: what they refuse, in a line."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from testing.inputs import Vision, add_to_tar, columns, of_hugging_face, saved, tars, write_photos
from testing.refusals import refused
from testing.trees import cc3m_tree, cifar_tree, imagenet_tree, stl10_tree, write_tree
from torch.utils.data import IterableDataset, Subset
from torchvision.datasets import STL10, cifar, stl10

from aurank.data import READERS, from_dataset, from_table
from aurank.data.decode import decode
from aurank.data.readers.folders import read_folder
from aurank.data.readers.given import read_torchvision
from aurank.data.readers.parts import read_hf, read_webdataset
from aurank.data.sources import PartsSource, open_source
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


def test_a_subset_has_the_labels_of_its_rows():
    manifest = from_dataset(Subset(Vision("train"), [19, 0]), test_fraction=0.5)
    assert [manifest.classes[label] for label in manifest.labels.tolist()] == ["c4", "c0"]
    assert manifest.split_sizes == {"train": 1, "test": 1}


def test_an_array_of_one_number_is_a_label():
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
def test_what_is_no_data_set_is_refused_in_a_line(dataset, said):
    refused(said, from_dataset, dataset)


def test_an_item_that_fails_is_named():
    def fails(image: np.ndarray) -> np.ndarray:
        raise OSError("the disk is on fire")

    dataset = Vision("train", fails)
    dataset.change = lambda image: image
    manifest = from_dataset(dataset)
    dataset.change = fails
    refused(r"dataset, image '0000007': .*the disk is on fire", manifest.source.read_bytes, "0000007")


def test_keys_name_the_image_and_the_label_of_an_item_which_comes_before_the_targets_of_a_data_set():
    rows = [{"photo": GREY, "kind": "cat"}, {"photo": GREY, "kind": "dog"}]
    assert from_dataset(rows, image="photo", label="kind").classes == ("cat", "dog")

    class WithTargets(list[Any]):
        targets = (0, 0)

    given = WithTargets((np.full((8, 8, 3), row, np.uint8), 0, name) for row, name in enumerate(("cat", "owl")))
    assert len({*from_dataset(given, label=2).labels}) == 2
    assert len({*from_dataset(given).labels}) == 1


def test_a_frame_is_read_as_the_table_that_it_is_written_to(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(columns(write_photos(tmp_path / "photos"))).astype({"label": "category"})
    frame["group"] = [None, *range(39)]
    frame.to_csv(tmp_path / "table.csv", index=False)
    expected = READERS["table"](tmp_path, file="table.csv", path="photos")
    assert from_table(frame.iloc[::-1].iloc[::-1], root=tmp_path / "photos").sha256 == expected.sha256
    with pytest.warns(AurankWarning, match="table: ignored columns: 'mine'"):
        from_table(frame.assign(mine=1), root=tmp_path / "photos")
    frame.loc[3, "split"] = "tset"
    refused("table: split 'tset' is not known", from_table, frame, root=tmp_path / "photos")
    refused("table: cannot be read as a data frame", from_table, "table.csv")


def test_a_saved_data_set_has_the_bytes_that_its_library_reads(tmp_path):
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
    refused(r"'more/data-00000-of-00002\.arrow' in .* names no split, and others do", read_hf, tmp_path / "arrow")
    (tmp_path / "arrow/more").rename(tmp_path / "arrow/train")
    assert read_hf(tmp_path, path="arrow/{test,train}").split_sizes == {"train": 20, "test": 20}
    with pytest.raises(UserError, match=r"there is no column 'fine': there are image, label; set data\.params\.image"):
        read_hf(tmp_path, path="arrow", label="fine")
    refused("column 'label' holds int64, 0 rows", read_hf, tmp_path, path="parquet", image="label")
    rows = pa.table({"image": pa.array([b"x", None], pa.binary()), "label": ["a", "b"]})
    pq.write_table(rows, tmp_path / "train.parquet")
    refused("column 'image' holds binary, 1 rows without a value", read_hf, tmp_path, path="train.parquet")


def test_shards_are_named_by_braces_and_labels_by_an_ending_or_a_key(tmp_path):
    tars(write_photos(tmp_path / "photos"), tmp_path)
    by_folder, by_key = read_webdataset(tmp_path), read_webdataset(tmp_path, label="json.name")
    by_pattern = read_webdataset(tmp_path, path="{train-00{0..4},test-00{5..9}}.tar")
    assert by_folder.split_sizes == {"train": 20, "test": 20}
    assert {*by_pattern.paths} == {*by_folder.paths}
    assert by_key.classes == by_folder.classes
    drawn = read_webdataset(tmp_path, path="train-000.tar", test_fraction=1)
    assert drawn.split_sizes == {"train": 4}
    refused(r"test-005\.tar/c5/0\.png: label is empty or NaN, and in 39 more", read_webdataset, tmp_path, label="txt")
    refused("cannot be read as a pattern of files", read_webdataset, tmp_path, path="{0..x}.tar")
    refused(r"train-009\.tar: cannot be read as a \.tar file", read_webdataset, tmp_path, path="train-00{0,9}.tar")
    add_to_tar(tmp_path / "two-train.tar", dict.fromkeys(("0.jpg", "0.png", "0.cls"), b""))
    with pytest.raises(UserError, match=r"two-train\.tar: 0\.png is a second image of 0; leave one out"):
        read_webdataset(tmp_path, path="two-train.tar")
    (tmp_path / "two-train.tar").unlink()
    (tmp_path / "more.tar").write_bytes((tmp_path / "train-000.tar").read_bytes())
    refused(r"'more\.tar' in .* names no split, and others do", read_webdataset, tmp_path)


@pytest.mark.parametrize("name", ["bad.tar", "bad.arrow", "bad.parquet"])
def test_a_damaged_part_is_named(name, tmp_path):
    (tmp_path / name).write_bytes(b"nothing of the kind " * 50)
    reader = read_webdataset if name.endswith("tar") else read_hf
    refused(rf"{name}: cannot be read as a \.\w+ file", reader, tmp_path)
    (tmp_path / name).unlink()
    refused("no images in ", reader, tmp_path)


def test_an_image_cut_off_with_its_archive_is_named(tmp_path):
    add_to_tar(tmp_path / "train.tar", {"one.cls": b"cat", "one.jpg": b"no image"})
    manifest = read_webdataset(tmp_path)
    (tmp_path / "train.tar").unlink()
    refused(r"image 'train\.tar/one\.jpg' is not in ", manifest.source.read_bytes, manifest.paths[0])


# -- What the papers train on, in the official layouts: lists of ImageNet, torchvision's sets, shards with texts


@pytest.fixture
def unchecked(monkeypatch):
    """Drawn files have other checksums."""
    for module in (cifar, stl10):
        monkeypatch.setattr(module, "check_integrity", lambda path, md5: True)


@pytest.mark.parametrize(
    ("lines", "sizes"),
    [
        ("n01440764\nn01484850\n", {"train": 16, "val": 16}),  # as imagenet100.txt
        ("train/n01440764/n01440764_3.JPEG 0\ntrain/n01443537/n01443537_1.JPEG 1\n", {"train": 2, "val": 24}),
    ],
)
def test_a_list_says_which_classes_or_images_of_imagenet_are_read(tmp_path, lines, sizes):
    imagenet_tree(tmp_path)
    (tmp_path / "list.txt").write_text(lines)
    manifest = read_folder(tmp_path, path="imagenet", subset="list.txt")
    assert manifest.split_sizes == sizes
    assert {line.split()[0] for line in lines.splitlines()} <= {*manifest.paths, *manifest.classes}
    (tmp_path / "list.txt").write_text(lines + "n02123045\n")
    with pytest.raises(UserError, match=r"list\.txt: 'n02123045' is no class folder and no image of .*imagenet"):
        read_folder(tmp_path, path="imagenet", subset="list.txt")
    (tmp_path / "list.txt").write_text("\n")
    refused("'an empty list' is no class folder", read_folder, tmp_path, path="imagenet", subset="list.txt")


def test_a_listed_class_may_have_a_blank_in_its_name(tmp_path):
    classes = ("golden", "golden retriever")
    write_tree(tmp_path / "dogs", [f"{name}/{number}.png" for name in classes for number in range(4)])
    (tmp_path / "list.txt").write_text("golden retriever\n")
    assert read_folder(tmp_path, path="dogs", subset="list.txt").classes == ("golden retriever",)


@pytest.mark.usefixtures("unchecked")
def test_synonyms_of_a_class_are_one_name_and_labels_that_are_no_numbers_are_refused(tmp_path, monkeypatch):
    cifar_tree(tmp_path)
    load = cifar.CIFAR10._load_meta

    def named_twice(dataset):
        load(dataset)
        dataset.classes = [(name, "thing") for name in dataset.classes]

    monkeypatch.setattr(cifar.CIFAR10, "_load_meta", named_twice)
    manifest = read_torchvision(tmp_path, dataset="CIFAR10")
    assert {*manifest.classes} == {f"class{number}, thing" for number in range(10)}
    assert not manifest.multi_label
    vectors = np.ones((100, 2))
    monkeypatch.setattr(cifar.CIFAR10, "_load_meta", lambda dataset: setattr(dataset, "targets", vectors))
    refused(r"its labels are no class numbers; give it to aurank\.data", read_torchvision, tmp_path, dataset="CIFAR10")


def published_long_tail(labels, imbalance):
    """Rows by LDAM-DRW's imbalance_cifar.py."""
    random, rows = np.random.RandomState(0), []
    for number in range(10):
        members = np.where(labels == number)[0]
        random.shuffle(members)
        rows += members[: int(len(labels) / 10 * (1 / imbalance) ** (number / 9.0))].tolist()
    return rows


@pytest.mark.usefixtures("unchecked")
def test_a_long_tail_of_cifar_has_the_published_images(tmp_path):
    cifar_tree(tmp_path)
    whole, tail = (read_torchvision(tmp_path, dataset="CIFAR10", imbalance=ratio) for ratio in (1, 10))
    assert whole.split_sizes == {"train": 100, "test": 20}
    assert np.unique(tail.split("train").labels, return_counts=True)[1].tolist() == [10, 7, 5, 4, 3, 2, 2, 1, 1, 1]
    assert tail.split_sizes["test"] == 20
    numbers = np.array([int(whole.classes[label].removeprefix("class")) for label in whole.labels[:100]])
    for row, source_row in enumerate(published_long_tail(numbers, 10)):
        paths = tail.paths[row], whole.paths[source_row]
        np.testing.assert_array_equal(decode(tail.source, paths[0], 3), decode(whole.source, paths[1], 3))
        assert tail.classes[tail.labels[row]] == whole.classes[whole.labels[source_row]]


@pytest.mark.usefixtures("unchecked")
def test_images_of_stl10_without_a_label_have_one_of_their_own(tmp_path):
    stl10_tree(tmp_path)
    manifest = read_torchvision(tmp_path, dataset="STL10", splits={"train": "unlabeled", "test": "test"})
    assert manifest.split_sizes == {"train": 20, "test": 20}
    assert len(manifest.split("train").classes) == 20
    assert manifest.split("test").classes == tuple(f"class{label}" for label in range(10))
    expected = np.asarray(STL10(tmp_path, "unlabeled")[7][0])
    np.testing.assert_array_equal(decode(manifest.source, manifest.paths[7], 3), expected)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"dataset": "CIFAR"}, r"data\.params\.dataset must be one of .*did you mean 'CIFAR10'"),
        ({"dataset": "CIFAR10"}, "CIFAR10, 'train', in .*not found or corrupted.*set data.root or data.params.path"),
        ({"dataset": "CIFAR10", "splits": {"train": "all"}}, "data.params.splits must be one of train, test"),
        ({"dataset": "STL10", "splits": {"train": "all"}}, "STL10, 'all', in .*Unknown value 'all'"),
        ({"dataset": "EuroSAT"}, r"EuroSAT has no splits; give it to aurank\.data\.from_dataset"),
    ],
)
def test_a_set_of_torchvision_that_is_not_there_is_refused_in_a_line(tmp_path, params, said):
    refused(said, read_torchvision, tmp_path, **params)


def test_shards_with_texts_have_the_classes_of_a_table_of_them(tmp_path):
    folder = cc3m_tree(tmp_path)
    manifest = read_webdataset(tmp_path, path="cc3m", text="txt")
    assert manifest.split_sizes == {"train": 20, "val": 10}
    by_key = read_webdataset(tmp_path, path="cc3m", text="json.caption")
    rows = zip(manifest.paths, manifest.texts, manifest.splits, strict=True)
    (tmp_path / "table.csv").write_text("path,text,split\n" + "".join(f"{','.join(row)}\n" for row in rows))
    for name in manifest.paths:  # the table's reader wants them on the disk
        (tmp_path / "unpacked" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "unpacked" / name).write_bytes(manifest.source.read_bytes(name))
    table = READERS["table"](tmp_path, file="table.csv", path="unpacked")
    assert manifest.sha256 == by_key.sha256 == table.sha256
    assert len(manifest.classes) == 15
    assert sorted(open_source(folder).names()) == ["cc3m_train/00000.tar", "cc3m_train/00001.tar", "cc3m_val/00000.tar"]
    with pytest.raises(UserError, match=r"cc3m_train/00000\.tar/000000000\.jpg: text is empty or NaN, and in 29 more"):
        read_webdataset(tmp_path, path="cc3m", text="caption")


def test_a_given_data_set_is_not_found_again_by_a_name(tmp_path):
    refused(r"given from Python.*aurank\.train\(…, dataset=…\)", READERS["given"], tmp_path)
