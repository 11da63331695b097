import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.trees import array_manifest, pixels

from aurank.data import ArraySource, Manifest, build_manifest


def _manifest(**columns: object) -> Manifest:
    images = {str(row): pixels(row) for row in range(6)}
    labels, splits = ["cat", "dog", "cat", "owl", "dog", "owl"], ["train"] * 3 + ["test", "train", "test"]
    return build_manifest("six", ArraySource(images), paths=[*images], labels=labels, splits=splits, **columns)


@settings(max_examples=50, deadline=None)
@given(names=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30), data=st.data())
def test_selected_rows_keep_their_names_and_have_contiguous_labels(names, data):
    count = len(names)
    columns = {"labels": names, "splits": ["test"] * count, "groups": list(range(count))}
    paths, texts = ([f"{kind}{row}" for row in range(count)] for kind in ("", "text "))
    manifest = build_manifest("random", ArraySource({}), paths=paths, texts=texts, **columns)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    rows = np.flatnonzero(mask)
    for chosen in (manifest.select(mask), manifest.select(rows), manifest.select(rows.tolist())):
        assert [chosen.classes[label] for label in chosen.labels] == [names[row] for row in rows]
        assert chosen.paths == tuple(str(row) for row in rows)
        assert chosen.groups.tolist() == rows.tolist()
        assert chosen.texts == tuple(f"text {row}" for row in rows)
        assert set(chosen.labels.tolist()) == set(range(len(chosen.classes)))


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5])
def test_validation_takes_whole_training_classes_by_seed(fraction):
    manifest = array_manifest({"train": [3] * 20, "test": [2] * 5})
    parts = manifest.split_validation(fraction, seed=1)
    training, validation, test = (parts.split(name) for name in ("train", "val", "test"))
    assert len(validation.classes) == fraction * 20
    assert not set(training.classes) & set(validation.classes)
    assert set(training.classes) | set(validation.classes) == set(manifest.split("train").classes)
    assert test.sha256 == manifest.split("test").sha256
    assert parts.sha256 == manifest.split_validation(fraction, seed=1).sha256
    assert parts.sha256 != manifest.split_validation(fraction, seed=2).sha256


def test_validation_leaves_a_manifest_with_its_own_alone_and_takes_and_leaves_two_classes():
    manifest = array_manifest({"train": [2] * 6, "val": [2] * 2, "test": [2] * 2})
    assert manifest.split_validation(0.5, seed=0) is manifest
    assert array_manifest({"train": [2] * 6}).split_validation(0, seed=0).split_sizes == {"train": 12}
    assert array_manifest({"test": [2] * 6}).split_validation(0.5, seed=0).split_sizes == {"test": 12}
    parts = array_manifest({"train": [2] * 4}).split_validation(0.01, seed=0)
    assert len(parts.split("val").classes) == len(parts.split("train").classes) == 2


@pytest.mark.parametrize("seed", range(5))
def test_validation_takes_whole_super_categories_that_fit(seed):
    super_labels = np.arange(6).repeat([5, 3, 2, 2, 1, 7]).repeat(2)  # of 20 classes of two images
    manifest = dataclasses.replace(array_manifest({"train": [2] * 20}), super_labels=super_labels)
    parts, again = (manifest.split_validation(0.4, seed=seed, by="super_category") for _ in range(2))
    training, validation = parts.split("train"), parts.split("val")
    assert parts.sha256 == again.sha256
    assert not set(training.super_labels) & set(validation.super_labels)
    assert 2 <= len(validation.classes) <= 8
    assert len(training.classes) + len(validation.classes) == 20


def test_the_digest_follows_the_content_but_neither_source_nor_name():
    manifest = _manifest(groups=[0] * 6)
    same = dataclasses.replace(manifest, source=ArraySource({}), name="elsewhere")
    assert same.sha256 == manifest.sha256
    changes = [
        {"paths": (*manifest.paths[:5], "other")},
        {"classes": ("cat", "dog", "eagle")},
        {"labels": manifest.labels[::-1].copy()},
        {"splits": np.array(["train"] * 6)},
        {"is_query": ~manifest.is_query},
        {"is_gallery": ~manifest.is_gallery},
        {"groups": manifest.labels},
        {"groups": None},
        {"super_labels": manifest.labels},
        {"texts": manifest.paths},
        {"texts": manifest.paths[::-1]},
    ]
    digests = {dataclasses.replace(manifest, **change).sha256 for change in changes}
    assert len(digests) == len(changes)
    assert manifest.sha256 not in digests


def test_columns_not_given_have_their_defaults_and_the_digest_is_the_same_in_every_version():
    """A checkpoint refuses another digest, so a change here breaks resuming."""
    manifest = _manifest()
    assert manifest.labels.tolist() == [0, 1, 0, 2, 1, 2]  # numbered as first seen
    assert (manifest.class_counts.tolist(), manifest.split_sizes) == ([2, 2, 2], {"train": 4, "test": 2})
    assert (manifest.is_query & manifest.is_gallery).all()
    assert manifest.sha256 == "d034a394e58b79c31a9fe8dc09f95480f821510c9db2419a6f24cddae8bed0d8"


@pytest.mark.parametrize("seed", range(5))
def test_validation_shares_no_image_with_training_where_an_image_has_several_texts(seed):
    # Texts 0-1-2 are tied by images a and b, 3-4 by c; 5, 6 and 7 stand alone: five units.
    paths, texts = list("aabbccdef"), list("011234567")
    columns = {"paths": paths, "labels": texts, "splits": ["train"] * len(paths), "texts": texts}
    parts = build_manifest("texts", ArraySource({}), **columns).split_validation(0.4, seed=seed)
    training, validation = parts.split("train"), parts.split("val")
    assert not set(training.paths) & set(validation.paths)
    assert not set(training.classes) & set(validation.classes)
    assert len({frozenset(unit) for unit in ("012", "34", "5", "6", "7") if set(unit) & set(validation.classes)}) == 2
