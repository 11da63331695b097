"""What a data set keeps of images with several labels."""

from typing import Any

import numpy as np
import pytest
from testing.inputs import held_bytes

from aurank.commands import examine_embeddings
from aurank.data import READERS, Manifest, build_manifest
from aurank.data.checks.doctor import examine
from aurank.data.dataset import with_own_labels
from aurank.data.readers.folders import draw_splits
from aurank.data.shards import ShardWriter, read_shards
from aurank.embedding.embedded import Embedded, described
from aurank.embedding.image_text_pairs import texts_of
from aurank.errors import UserError


def test_texts_go_by_one_label():
    manifest = listed([("a", "b"), ("c",)], texts=["one", "two"])
    with pytest.raises(UserError, match="sets has several labels for an image, and texts go by one"):
        texts_of(manifest)


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
