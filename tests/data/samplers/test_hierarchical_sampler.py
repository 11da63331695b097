import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.sampling import shuffled_labels

from aurank.data import HierarchicalSampler
from aurank.errors import UserError


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=6, max_size=40),
    names=st.integers(2, 6),
    categories=st.integers(1, 2),
    per_class=st.integers(2, 4),
    blocks=st.integers(2, 6),
    epoch=st.integers(0, 2),
)
def test_a_batch_is_of_few_super_categories_and_few_images_of_a_class(
    sizes, names, categories, per_class, blocks, epoch
):
    labels = shuffled_labels([per_class, per_class, *sizes])
    super_labels = labels % names
    batch = max(categories * per_class * blocks, 2 * per_class)
    given = {"per_class": per_class, "super_labels": super_labels, "categories": categories}
    seen: list[int] = []
    for rows in HierarchicalSampler(labels, batch, **given).epoch(epoch):
        assert len(rows) <= batch
        assert len(np.unique(super_labels[rows])) <= categories
        assert len(np.unique(labels[rows])) >= 2
        assert np.unique(labels[rows], return_counts=True)[1].max() <= per_class
        seen += rows.tolist()
    assert len(seen) == len(set(seen))


def test_equal_super_categories_give_full_batches_of_each_image_once():
    labels = shuffled_labels([8] * 48)
    super_labels = labels // 8
    batches = HierarchicalSampler(labels, 32, super_labels=super_labels).epoch(0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(labels)))
    met = set()
    for rows in batches:
        names, counts = np.unique(super_labels[rows], return_counts=True)
        assert counts.tolist() == [16, 16]
        assert (np.unique(labels[rows], return_counts=True)[1] == 4).all()
        met.add(tuple(names.tolist()))
    assert len(met) > 5


@pytest.mark.parametrize(("batch", "categories", "most"), [(32, 2, 32), (80, 2, 56), (112, 3, 76), (30, 3, 30)])
def test_the_largest_batch_is_what_the_largest_super_categories_have_room_for(batch, categories, most):
    labels = shuffled_labels([8] * 24)
    super_labels = np.searchsorted([5, 13, 18], labels, side="right")  # of 5, 8, 5 and 6 classes
    sampler = HierarchicalSampler(labels, batch, super_labels=super_labels, categories=categories)
    assert sampler.largest_batch == most
    assert max(map(len, sampler.epoch(0))) <= most


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "draws super-categories, and the data set has none; use pk"),
        ({"super_labels": np.repeat(np.arange(8), 4) // 8}, "the training set has 1 super-categories"),
        ({"super_labels": np.arange(32) // 3}, "images of label 0 have the super-categories 0 and 1: give one"),
        ({"super_labels": np.repeat(np.arange(8), 4), "categories": 5}, "from 1 to batch / per_class = 4, got 5"),
        ({"super_labels": np.repeat(np.arange(8), 4), "categories": 0}, "from 1 to batch / per_class = 4, got 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(given, message):
    with pytest.raises(UserError, match=message):
        HierarchicalSampler(np.repeat(np.arange(8), 4), 16, **given)
