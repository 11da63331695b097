"""What the papers train on, in the official layouts: lists of ImageNet, torchvision's sets, shards with texts."""

import numpy as np
import pytest
from testing.trees import cc3m_tree, cifar_tree, imagenet_tree, stl10_tree, write_tree
from torchvision.datasets import STL10, cifar, stl10

from aurank.data import READERS
from aurank.data.decode import decode
from aurank.data.readers.folders import read_folder
from aurank.data.readers.given import read_torchvision
from aurank.data.readers.parts import read_webdataset
from aurank.data.sources import open_source
from aurank.errors import UserError


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
    with pytest.raises(UserError, match="'an empty list' is no class folder"):
        read_folder(tmp_path, path="imagenet", subset="list.txt")


def test_a_listed_class_may_have_a_blank_in_its_name(tmp_path):
    write_tree(
        tmp_path / "dogs", [f"{name}/{number}.png" for name in ("golden", "golden retriever") for number in range(4)]
    )
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
    with pytest.raises(UserError, match=r"its labels are no class numbers; give it to aurank\.data"):
        read_torchvision(tmp_path, dataset="CIFAR10")


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
    with pytest.raises(UserError, match=said):
        read_torchvision(tmp_path, **params)


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
