"""A label, several labels, a camera and a missing value are the same in every kind of input."""

import csv
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from testing.inputs import add_to_tar, held_bytes
from testing.refusals import refused
from testing.trees import png, write_tree
from torch.utils.data import Subset

import aurank
from aurank.commands import examine_embeddings
from aurank.data import READERS, Manifest, build_manifest, from_dataset, from_table
from aurank.data.checks.doctor import examine
from aurank.data.dataset import with_own_labels
from aurank.data.readers.folders import draw_splits
from aurank.data.shards import ShardWriter, read_shards
from aurank.embedding.embedded import Embedded, described
from aurank.embedding.image_text_pairs import texts_of
from aurank.errors import AurankWarning, UserError

Values = list[Any]
GREY = np.zeros((4, 4), np.uint8)
MISSING = (None, float("nan"), np.float32("nan"), "", " ", "NaN", "nan")


def rows(**columns: Values) -> dict[str, Values]:
    count = len(next(iter(columns.values())))
    return {"path": [f"{row}.png" for row in range(count)], "split": ["test"] * count, **columns}


def folder(root: Path) -> Path:
    return write_tree(root, [f"{row}.png" for row in range(4)])


def by_csv(root: Path, *, separator: str | None = None, **columns: Values) -> Manifest:
    with (root / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*rows(**columns)], *zip(*rows(**columns).values(), strict=True)])
    return READERS["table"](folder(root), file="rows.csv", separator=separator)


def arrow(columns: dict[str, Values]) -> pa.Table:
    return pa.table({name: pa.array(values, from_pandas=False) for name, values in columns.items()})


def by_parquet(root: Path, **columns: Values) -> Manifest:
    pq.write_table(arrow(rows(**columns)), root / "rows.parquet")
    return READERS["table"](folder(root), file="rows.parquet")


def by_frame(make: Callable[..., Any], root: Path, *, separator: str | None = None, **columns: Values) -> Manifest:
    return from_table(make(rows(**columns)), root=folder(root), separator=separator)


def by_hf(root: Path, *, label: Values) -> Manifest:
    pq.write_table(pa.table({"image": [png(0)] * len(label), "label": label}), root / "rows.parquet")
    return READERS["hf"](root)


def archive(root: Path, files: dict[str, bytes], **label: str) -> Manifest:
    (root / "rows.tar").unlink(missing_ok=True)
    add_to_tar(root / "rows.tar", files)
    return READERS["webdataset"](root, **label)


def by_json(root: Path, *, label: Values) -> Manifest:
    plain = [value.item() if hasattr(value, "item") else value for value in label]
    files = {f"{row}.json": json.dumps({"kind": value}).encode() for row, value in enumerate(plain)}
    return archive(root, {f"{row}.png": png(0) for row in range(len(label))} | files, label="json.kind")


TABLES: dict[str, Callable[..., Manifest]] = {
    "csv": by_csv,
    "parquet": by_parquet,
    "pandas": partial(by_frame, pandas.DataFrame),
    "polars": partial(by_frame, partial(polars.DataFrame, strict=False)),
    "pyarrow": partial(by_frame, arrow),
}
INPUTS: dict[str, Callable[..., Manifest]] = {
    **TABLES,
    "hf": by_hf,
    "json": by_json,
    "cls": lambda root, label: archive(
        root,
        {f"{row}.png": png(0) for row in range(len(label))}
        | {f"{row}.cls": str("" if value is None else value).encode() for row, value in enumerate(label)},
    ),
    "torch": lambda root, label: from_dataset([(GREY, value) for value in label]),
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
    files = {name: png(0) for name in ("a.png", "b.v2.png", "c.png", "c.mask.png")}
    files |= {f"{name}.cls": b"x" for name in ("a", "b.v2", "c", "d")}
    told = r"left out as no image of a sample: 2 \(first b\.v2\.png\); a key ends at the first dot of a name"
    with pytest.warns(aurank.errors.AurankWarning, match=told):
        manifest = archive(tmp_path, files)
    assert manifest.paths == ("rows.tar/a.png", "rows.tar/c.png")


SETS = [["sofa", "cat"], ["cat"], ["cat", "sofa"], ["dog", "cat"]]
TAGS = ("cat", "dog", "sofa")
FLAGS = [[name in tags for name in TAGS] for tags in SETS]


class Vision(torch.utils.data.Dataset[Any]):
    classes, targets = TAGS, torch.tensor(FLAGS)

    def __len__(self) -> int:
        return len(SETS)

    def __getitem__(self, row: int) -> Any:
        return GREY, self.targets[row]


def of_named(root: Path, kind: str = "given") -> Manifest:
    """As a data set of Hugging Face whose labels are numbers with names, saved or as it is."""
    datasets = pytest.importorskip("datasets")
    features = {"image": datasets.Image(), "label": datasets.Sequence(datasets.ClassLabel(names=[*TAGS]))}
    datasets.disable_progress_bars()
    given = [{"image": GREY, "label": tags} for tags in SETS]
    data = datasets.Dataset.from_list(given, features=datasets.Features(features))
    if kind == "given":
        return from_dataset(data)
    data.save_to_disk(str(root / "saved")) if kind == "arrow" else data.to_parquet(str(root / "saved.parquet"))
    return READERS["hf"](root, path="saved" if kind == "arrow" else "saved.parquet")


SEVERAL: dict[str, Callable[[Path], Manifest]] = {
    **{kind: partial(INPUTS[kind], label=SETS) for kind in INPUTS if kind not in ("csv", "cls")},
    "csv": lambda root: by_csv(root, label=["|".join(tags) for tags in SETS], separator="|"),
    "csv ;": lambda root: by_csv(root, label=[";".join(tags) for tags in SETS], separator=";"),
    "frame": lambda root: by_frame(arrow, root, label=["+".join(tags) for tags in SETS], separator="+"),
    "mapping": lambda root: from_dataset([{"image": GREY, "label": tuple(tags)} for tags in SETS]),
    "subset": lambda root: from_dataset(Subset([(GREY, tags) for tags in SETS], range(4))),
    "torchvision": lambda root: from_dataset(Vision()),
    "hugging face": of_named,
    "hf arrow": lambda root: of_named(root, "arrow"),
    "hf parquet": lambda root: of_named(root, "parquet"),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_a_list_of_labels_is_a_class_of_its_own_whatever_their_order(kind: str, tmp_path: Path) -> None:
    manifest = SEVERAL[kind](tmp_path)
    assert manifest.classes == ("cat|sofa", "cat", "cat|dog")
    assert manifest.labels.tolist() == [0, 1, 0, 2]
    assert manifest.class_sets.tolist() == [[True, False, True], [True, False, False], [True, True, False]]


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_truth_values_say_which_labels_there_are(kind: Callable[[Any], Any]) -> None:
    assert from_dataset([(GREY, kind(flags)) for flags in FLAGS]).classes == ("0|2", "0", "0|1")


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
    refused(said, from_dataset, [(GREY, label), (GREY, label)])


def test_a_separator_makes_several_labels_none_of_which_is_empty_and_is_missed(tmp_path: Path) -> None:
    make = partial(by_frame, arrow, tmp_path)
    with pytest.raises(UserError, match=r"table, line 1: a label must be .* a list that has each once"):
        make(label=["a||b", "a", "b", "c"], separator="|")
    refused("label is empty or NaN", make, label=["a|b", "", "b", "c"], separator="|")
    assert make(label=["a;b", "a", "b", "c"]).class_sets is None
    texts = {"text": [*"abcd"]}
    for given, sign in (({"label": ["a;b", "a", "b", "c"]}, "|"), ({"label": [1, 2, 2, 1]}, ";"), (texts, "")):
        with pytest.warns(AurankWarning, match=re.escape(f"table: no label holds the separator {sign or '|'!r}")):
            make(**given, separator=sign)


# -- What a data set keeps of images with several labels


def test_texts_go_by_one_label():
    manifest = listed([("a", "b"), ("c",)], texts=["one", "two"])
    refused("sets has several labels for an image, and texts go by one", texts_of, manifest)


def listed(labels: Any, **more: Any) -> Manifest:
    rows = len(labels)
    splits = more.pop("splits", ["train"] * rows)
    paths = [str(row) for row in range(rows)]
    return build_manifest("sets", held_bytes(b""), paths=paths, labels=labels, splits=splits, **more)


def test_rows_keep_their_labels_through_select_and_lose_them_with_labels_of_their_own():
    manifest = listed([("a", "b"), ("c",), ("b", "c"), ("c",), ("a",)])
    chosen = manifest.select([3, 2])
    assert chosen.classes == ("c", "b|c")
    assert chosen.class_sets.tolist() == [[False, True], [True, True]]
    assert listed([("a", "b"), ("c",)]).sha256 != listed(["a|b", "c"]).sha256
    assert with_own_labels(manifest).class_sets is None
    assert listed([("a", "b"), "c"]).class_sets.tolist() == listed([("a", "b"), ("c",)]).class_sets.tolist()


def test_classes_that_share_a_label_are_held_out_together():
    names = [(f"{group}{one}", f"{group}{two}") for group in "abcdef" for one, two in ((0, 1), (1, 2), (2, 0))]
    manifest = listed(names * 2)
    held = manifest.split_validation(0.5, seed=0)
    groups = {
        split: {name[0] for row in np.flatnonzero(held.splits == split) for name in (names * 2)[row]}
        for split in ("train", "val")
    }
    assert len(groups["train"]) == len(groups["val"]) == 3
    assert not groups["train"] & groups["val"]
    with pytest.raises(UserError, match=r"1 training classes without a common label, too few .* or name a split val"):
        listed([("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")]).split_validation(0.5, seed=0)
    with_texts = listed([("a", "b"), ("c",), ("b",), ("d",)], texts=["x"] * 4)
    assert np.unique(with_texts.units("class", np.ones(4, bool)), return_inverse=True)[1].tolist() == [0, 1, 0, 2]


def test_a_fraction_of_the_combinations_is_drawn_for_the_test():
    labels = [("a", "b"), "c", ("b", "c"), ("a",)] * 3
    splits = draw_splits(labels, 0.5, seed=1)
    assert [*map(splits.count, ("train", "test"))] == [6, 6]
    assert len({*zip(splits, labels, strict=True)}) == len({*labels})  # each combination is in one split


def test_a_label_that_another_combination_has_leaves_no_image_alone():
    report = examine(listed([("a", "b"), ("b", "c"), ("d",)]), contents=False)
    lone = [finding for finding in report.findings if finding.check == "classes with one image in their split"]
    assert [finding.examples for finding in lone] == [("d in train",)]
    assert report.counts == {"images": 3, "labels": 4, "train images": 3, "train labels": 4}


def test_saved_embeddings_keep_the_labels_in_a_file_and_in_parts(tmp_path):
    manifest = listed([("a", "b"), ("c",), ("b", "c"), ("c",)], splits=["train", "test"] * 2)
    embedded = described(manifest, np.arange(4), np.eye(4, dtype=np.float32))
    embedded.save(tmp_path / "rows.npz")
    embedded.save(tmp_path / "rows.parquet")
    assert examine_embeddings(tmp_path / "rows.npz").counts == {"embeddings": 4, "dimensions": 4, "labels": 3}
    writer = ShardWriter(tmp_path / "parts")
    writer.write(np.eye(4, dtype=np.float32))
    writer.finish({name: values for name, values in vars(embedded).items() if values is not None})
    assert read_shards(tmp_path / "parts")["multi_label"]
    for name in ("rows.npz", "rows.parquet", "parts"):
        again = READERS["embeddings"](tmp_path, file=name)
        assert again.classes == manifest.classes
        assert again.class_sets.tolist() == manifest.class_sets.tolist()
        assert Embedded.load(tmp_path / name).evaluate().metrics == embedded.evaluate().metrics
