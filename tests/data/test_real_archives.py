"""The readers on the real archives, where they are there."""

import numpy as np
import pytest
from testing.trees import real_archive

from aurank.data import Manifest
from aurank.data.checks.doctor import examine
from aurank.data.readers import READERS
from aurank.data.readers.folders import read_omniglot

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def drawings() -> Manifest:
    return read_omniglot(real_archive("omniglot_full.zip"))


@pytest.fixture(scope="module")
def groceries() -> Manifest:
    return READERS["grocery"](real_archive("GroceryStoreDataset-master.zip"))


def test_groceries_are_named_by_their_folders_and_recognised_as_ever(groceries):
    assert {"Golden-Delicious", "Avocado", "Kiwi"} < set(groceries.classes)
    # That of the lists of products on which older results stand.
    assert groceries.sha256 == "1f6d4fa5d7492200a816489df4ca4d4ed2f620d459b9be1d0627ea75db2d09df"


@pytest.mark.slow
def test_omniglot_has_its_published_sizes(drawings):
    assert drawings.split_sizes == {"train": 19280, "test": 13180}
    assert len(drawings.split("train").classes) == 964
    assert len(drawings.split("test").classes) == 659
    assert (drawings.class_counts == 20).all()
    assert len(np.unique(drawings.super_labels)) == 50
    assert examine(drawings, contents=False).findings == ()


@pytest.mark.slow
def test_omniglots_one_repeated_image_is_found(drawings):
    braille = drawings.select(np.array(["/Braille/" in path for path in drawings.paths]))
    folder = "images_background/Braille/character01"
    repeated = f"same image more than once in a split: 1 ({folder}/0192_03.png = {folder}/0192_19.png)"
    assert [one for one in examine(braille).warnings if one.startswith("same image")] == [repeated]


def test_groceries_have_their_sizes_and_disjoint_classes(groceries):
    assert groceries.split_sizes == {"train": 2478, "test": 2943}
    assert len(groceries.split("train").classes) == 35
    assert len(groceries.split("test").classes) == 46
    assert examine(groceries, contents=False).findings == ()
    assert len(np.unique(groceries.super_labels)) == 43
