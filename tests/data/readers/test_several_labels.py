"""Images with several labels, from every input that can say so, and what of it a data set keeps."""

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from testing.inputs import held_bytes
from testing.trees import pixels
from torch.utils.data import Subset

from aurank.commands import examine_embeddings
from aurank.data import READERS, Manifest, build_manifest, from_dataset, from_table
from aurank.data.checks.doctor import examine
from aurank.data.dataset import with_own_labels
from aurank.data.readers.folders import draw_splits
from aurank.data.shards import ShardWriter, read_shards
from aurank.embedding.embedded import Embedded, described
from aurank.embedding.image_text_pairs import texts_of
from aurank.errors import AurankWarning, UserError

SETS = [["sofa", "cat"], ["cat"], ["cat", "sofa"], ["dog", "cat"]]
CLASSES, TAGS = ("cat|sofa", "cat", "cat|dog"), ("cat", "dog", "sofa")
GREY = np.zeros((4, 4), np.uint8)


def write_images(root: Path) -> list[str]:
    paths = [f"{row}.png" for row in range(len(SETS))]
    for row, path in enumerate(paths):
        Image.fromarray(pixels(row)).save(root / path)
    return paths


def columns(root: Path, labels: Any) -> dict[str, Any]:
    return {"path": write_images(root), "label": labels, "split": ["train"] * len(SETS)}


def csv(root: Path, sign: str = "|") -> Manifest:
    lines = [f"{path},{sign.join(tags)},test" for path, tags in zip(write_images(root), SETS, strict=True)]
    (root / "rows.csv").write_text("\n".join(["path,label,split", *lines]))
    return READERS["table"](root, file="rows.csv", separator=sign)


def parquet(root: Path) -> Manifest:
    pq.write_table(pa.table(columns(root, SETS)), root / "rows.parquet")
    return READERS["table"](root, file="rows.parquet")


def hugging_face(root: Path) -> Any:
    import datasets

    names = datasets.ClassLabel(names=[*TAGS])
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Sequence(names)})
    rows = [{"image": pixels(row), "label": tags} for row, tags in enumerate(SETS)]
    datasets.disable_progress_bars()
    return datasets.Dataset.from_list(rows, features=features)


def saved_hf(root: Path, kind: str) -> Manifest:
    data = hugging_face(root)
    data.save_to_disk(str(root / "saved")) if kind == "arrow" else data.to_parquet(str(root / "saved.parquet"))
    return READERS["hf"](root, path="saved" if kind == "arrow" else "saved.parquet")


def flags(kind: Callable[[Any], Any]) -> Any:
    return [(GREY, kind([name in tags for name in TAGS])) for tags in SETS]


class Vision(torch.utils.data.Dataset[Any]):
    classes, targets = TAGS, torch.tensor([[name in tags for name in TAGS] for tags in SETS])

    def __len__(self) -> int:
        return len(SETS)

    def __getitem__(self, row: int) -> Any:
        return GREY, self.targets[row]


INPUTS: dict[str, Callable[[Path], Manifest]] = {
    "csv": csv,
    "csv ;": lambda root: csv(root, ";"),
    "parquet": parquet,
    "pandas": lambda root: from_table(pandas.DataFrame(columns(root, SETS)), root=root),
    "polars": lambda root: from_table(polars.DataFrame(columns(root, SETS)), root=root),
    "frame": lambda root: from_table(
        pa.table(columns(root, ["+".join(each) for each in SETS])), root=root, separator="+"
    ),
    "lists": lambda root: from_dataset([(GREY, tags) for tags in SETS]),
    "mapping": lambda root: from_dataset([{"image": GREY, "label": tuple(tags)} for tags in SETS]),
    "subset": lambda root: from_dataset(Subset([(GREY, tags) for tags in SETS], range(4))),
    "torchvision": lambda root: from_dataset(Vision()),
    "hugging face": lambda root: from_dataset(hugging_face(root)),
    "hf arrow": lambda root: saved_hf(root, "arrow"),
    "hf parquet": lambda root: saved_hf(root, "parquet"),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_a_list_of_labels_is_a_class_of_its_own_whatever_their_order(kind: str, tmp_path: Path) -> None:
    manifest = INPUTS[kind](tmp_path)
    assert manifest.classes == CLASSES
    assert manifest.labels.tolist() == [0, 1, 0, 2]
    assert manifest.class_sets.tolist() == [[True, False, True], [True, False, False], [True, True, False]]


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_truth_values_say_which_labels_there_are(kind: Callable[[Any], Any]) -> None:
    manifest = from_dataset(flags(kind))
    assert manifest.classes == ("0|2", "0", "0|1")


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ([], "label is empty or NaN"),
        (np.zeros(3, bool), "label is empty or NaN"),
        ([0, 1, 0], "item 0: a label must be a number or text, or a list that has each once, without"),
        (np.array([0, 1, 0]), "item 0: a label must be a number or text, or a list that has each once"),
        (["a", None], "a list that has each once"),
        (["a|b", "c"], r"a list that has each once, without \|"),
        ([["a"], ["b"]], "a list that has each once"),
        ({"a": 1}, "a list that has each once"),
    ],
)
def test_what_is_no_set_of_labels_is_refused_in_a_line(label: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        from_dataset([(GREY, label), (GREY, label)])
    assert "\n" not in str(caught.value)


def test_an_empty_label_and_an_empty_part_are_refused(tmp_path: Path) -> None:
    frame = pa.table(columns(tmp_path, ["a;b", "a", "b", "c"]))
    with pytest.raises(UserError, match=r"table, line 1: a label must be .* a list that has each once"):
        from_table(pa.table(columns(tmp_path, ["a||b", "a", "b", "c"])), root=tmp_path, separator="|")
    with pytest.raises(UserError, match="label is empty or NaN"):
        from_table(pa.table(columns(tmp_path, ["a|b", "", "b", "c"])), root=tmp_path, separator="|")
    assert from_table(frame, root=tmp_path).class_sets is None


def test_a_separator_that_no_label_holds_is_told(tmp_path: Path) -> None:
    for labels, sign in ((["a;b", "a", "b", "c"], "|"), ([1, 2, 2, 1], ";")):
        with pytest.warns(AurankWarning, match=re.escape(f"table: no label holds the separator {sign!r}")):
            from_table(pa.table(columns(tmp_path, labels)), root=tmp_path, separator=sign)
    texts = pa.table(columns(tmp_path, SETS) | {"text": [*"abcd"]}).drop(["label"])
    with pytest.warns(AurankWarning, match="no label holds the separator '|'"):
        from_table(texts, root=tmp_path, separator="")


def test_texts_go_by_one_label() -> None:
    manifest = listed([("a", "b"), ("c",)], texts=["one", "two"])
    with pytest.raises(UserError, match="sets has several labels for an image, and texts go by one"):
        texts_of(manifest)


def listed(labels: Any, **more: Any) -> Manifest:
    rows = len(labels)
    splits = more.pop("splits", ["train"] * rows)
    paths = [str(row) for row in range(rows)]
    return build_manifest("sets", held_bytes(b""), paths=paths, labels=labels, splits=splits, **more)


def test_rows_keep_their_labels_through_select_and_lose_them_with_labels_of_their_own() -> None:
    manifest = listed([("a", "b"), ("c",), ("b", "c"), ("c",), ("a",)])
    chosen = manifest.select([3, 2])
    assert chosen.classes == ("c", "b|c")
    assert chosen.class_sets.tolist() == [[False, True], [True, True]]
    assert listed([("a", "b"), ("c",)]).sha256 != listed(["a|b", "c"]).sha256
    assert with_own_labels(manifest).class_sets is None
    assert listed([("a", "b"), "c"]).class_sets.tolist() == listed([("a", "b"), ("c",)]).class_sets.tolist()


def test_classes_that_share_a_label_are_held_out_together() -> None:
    names = [(f"{group}{one}", f"{group}{two}") for group in "abcdef" for one, two in ((0, 1), (1, 2), (2, 0))]
    manifest = listed(names * 2)
    held = manifest.split_validation(0.5, seed=0)
    groups = {
        split: {name[0] for row in np.flatnonzero(held.splits == split) for name in (names * 2)[row]}
        for split in ("train", "val")
    }
    assert len(groups["train"]) == len(groups["val"]) == 3
    assert not groups["train"] & groups["val"]
    with pytest.raises(
        UserError, match=r"has 1 training classes without a common label, too few .* or name a split val"
    ):
        listed([("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")]).split_validation(0.5, seed=0)
    with_texts = listed([("a", "b"), ("c",), ("b",), ("d",)], texts=["x"] * 4)
    assert np.unique(with_texts.units("class", np.ones(4, bool)), return_inverse=True)[1].tolist() == [0, 1, 0, 2]


def test_a_fraction_of_the_combinations_is_drawn_for_the_test() -> None:
    labels = [("a", "b"), "c", ("b", "c"), ("a",)] * 3
    splits = draw_splits(labels, 0.5, seed=1)
    assert [*map(splits.count, ("train", "test"))] == [6, 6]
    assert len({*zip(splits, labels, strict=True)}) == len({*labels})  # each combination is in one split


def test_a_label_that_another_combination_has_leaves_no_image_alone() -> None:
    report = examine(listed([("a", "b"), ("b", "c"), ("d",)]), contents=False)
    lone = [finding for finding in report.findings if finding.check == "classes with one image in their split"]
    assert [finding.examples for finding in lone] == [("d in train",)]
    assert report.counts == {"images": 3, "labels": 4, "train images": 3, "train labels": 4}


def test_saved_embeddings_keep_the_labels_in_a_file_and_in_parts(tmp_path: Path) -> None:
    manifest = listed([("a", "b"), ("c",), ("b", "c"), ("c",)], splits=["train", "test"] * 2)
    embedded = described(manifest, np.arange(4), np.eye(4, dtype=np.float32))
    embedded.save(tmp_path / "rows.npz")
    embedded.save(tmp_path / "rows.parquet")
    assert examine_embeddings(tmp_path / "rows.npz").counts == {"embeddings": 4, "dimensions": 4, "labels": 3}
    writer = ShardWriter(tmp_path / "parts")
    writer.write(np.eye(4, dtype=np.float32))
    arrays = {name: values for name, values in vars(embedded).items() if values is not None}
    writer.finish(arrays)
    assert read_shards(tmp_path / "parts")["multi_label"]
    for name in ("rows.npz", "rows.parquet", "parts"):
        again = READERS["embeddings"](tmp_path, file=name)
        assert again.classes == manifest.classes
        assert again.class_sets.tolist() == manifest.class_sets.tolist()
        assert Embedded.load(tmp_path / name).evaluate().metrics == embedded.evaluate().metrics


def test_json_beside_a_picture_may_hold_a_list(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "more.tar", "w") as archive:
        for row, tags in enumerate(SETS):
            image = (tmp_path / write_images(tmp_path)[row]).read_bytes()
            for suffix, data in {"png": image, "json": json.dumps({"name": tags}).encode()}.items():
                member = tarfile.TarInfo(f"{row}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    assert READERS["webdataset"](tmp_path, path="more.tar", label="json.name").classes == CLASSES
