import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.sampling import assert_limits_are_kept, cases, equal_batches, labels_that_fit, shuffled_labels

from aurank.data import HardNegativeSampler
from aurank.data.samplers import nearest_classes


def _random_neighbours(labels: np.ndarray, seed: int = 0):
    """Returns a callable that finds other rows each time, −1 among them."""
    generator = np.random.default_rng(seed)
    return lambda count: generator.integers(-1, len(labels), (len(labels), count))


def _alike(labels: np.ndarray, group: int):
    """Returns a callable for which classes of one group (as many consecutive labels) are near to each other only."""

    def neighbours(count: int) -> np.ndarray:
        found = np.full((len(labels), count), -1, dtype=np.int64)
        for row, label in enumerate(labels):
            others = np.flatnonzero((labels // group == label // group) & (np.arange(len(labels)) != row))
            found[row, : len(others[:count])] = np.random.default_rng(row).permutation(others)[:count]
        return found

    return neighbours


def _shared(batches: list[np.ndarray], labels: np.ndarray, group: int) -> float:
    """Returns how many of the pairs of classes that meet are of one group."""
    same = total = 0
    for rows in batches:
        groups = np.unique(labels[rows]) // group
        same += int((groups[:, None] == groups).sum()) - len(groups)
        total += len(groups) * (len(groups) - 1)
    return same / total


def test_classes_that_are_near_meet_and_they_alone_where_sizes_fit():
    labels = shuffled_labels([20] * 20)
    sampler = HardNegativeSampler(labels, 16, neighbours=_alike(labels, 4), num_neighbours=10)
    chance = 3 / 19
    assert _shared(sampler.epoch(0), labels, 4) == pytest.approx(chance, abs=0.05)  # nothing is mined yet
    sampler.refresh(0, 0)
    for epoch in range(2):
        assert _shared(sampler.epoch(epoch), labels, 4) == 1
        assert sorted(np.concatenate(sampler.epoch(epoch)).tolist()) == list(range(400))


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    case=cases(processes=3, most=20, classes=12),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 2),
    refreshes=st.lists(st.integers(0, 9), max_size=3),
)
def test_batches_keep_every_limit_whenever_neighbours_are_mined(case, seed, epoch, refreshes):
    sizes, per_class, batch = case
    labels = shuffled_labels(sizes)
    sampler = HardNegativeSampler(labels, batch, neighbours=_random_neighbours(labels), per_class=per_class, seed=seed)
    for position in sorted(refreshes):
        before = sampler.epoch(epoch)[:position]
        sampler.refresh(epoch, len(before))
        assert equal_batches(sampler.epoch(epoch)[: len(before)], before)  # what was shown stays
    batches = sampler.epoch(epoch)
    assert_limits_are_kept(batches, labels, batch, per_class)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    count=st.integers(8, 25),
    size=st.integers(2, 12),
    per_class=st.integers(2, 5),
    classes=st.integers(3, 12),
    position=st.integers(0, 5),
    data=st.data(),
)
def test_every_image_is_seen_exactly_once_an_epoch_when_sizes_allow(count, size, per_class, classes, position, data):
    labels = labels_that_fit(data, count, size, per_class, classes)
    sampler = HardNegativeSampler(
        labels, classes * per_class, neighbours=_random_neighbours(labels), per_class=per_class
    )
    sampler.refresh(0, 0)
    sampler.refresh(0, min(position, len(sampler.epoch(0))))
    assert sorted(np.concatenate(sampler.epoch(0)).tolist()) == list(range(len(labels)))


def test_batches_are_nearly_full_and_no_more_than_a_few_above_those_of_pk():
    for sizes in ([20] * 100, [5, 6, 7, 8] * 50, list(range(2, 30)) * 3):
        labels = shuffled_labels(sizes)
        sampler = HardNegativeSampler(labels, 112, neighbours=_random_neighbours(labels), num_neighbours=5)
        sampler.refresh(0, 0)
        lengths = [len(rows) for rows in sampler.epoch(0)]
        assert min(lengths[:-3]) >= 100
        assert len(lengths) <= np.ceil(len(labels) / 112 * 1.05)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(case=cases(processes=3, most=20, classes=12), world_size=st.integers(2, 3), position=st.integers(0, 4))
def test_the_ranks_together_have_the_batches_of_one_process(case, world_size, position):
    sizes, per_class, batch = case
    labels = shuffled_labels(sizes)

    def epochs(rank: int, world_size: int) -> list[np.ndarray]:
        sampler = HardNegativeSampler(
            labels, batch, neighbours=_random_neighbours(labels), per_class=per_class, rank=rank, world_size=world_size
        )
        sampler.refresh(0, 0)
        sampler.refresh(0, min(position, len(sampler.epoch(0))))
        return sampler.epoch(0)

    parts = [epochs(rank, world_size) for rank in range(world_size)]
    assert len({len(part) for part in parts}) == 1
    together = [np.concatenate(rows).tolist() for rows in zip(*parts, strict=True)]
    assert together == [rows.tolist() for rows in epochs(0, 1) if len(rows) >= 2 * world_size]


def test_a_sampler_continues_from_its_saved_state_as_if_it_had_never_stopped():
    labels = shuffled_labels([7, 8, 9, 10, 11] * 4)

    def make(**options):
        return HardNegativeSampler(labels, 16, neighbours=_random_neighbours(labels, seed=4), **options)

    whole, again, other = make(), make(), make(seed=1)
    whole.refresh(0, 0)
    whole.refresh(1, 2)
    assert not equal_batches(whole.epoch(1), again.epoch(1))
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    again.load_state_dict(state)
    other.load_state_dict(state)
    for epoch in (1, 2):
        assert equal_batches(again.epoch(epoch), whole.epoch(epoch))
    assert not equal_batches(other.epoch(2), whole.epoch(2))


def test_classes_are_as_near_as_images_of_either_are_among_the_neighbours_of_the_other():
    labels = np.array([10, 10, 20, 20, 30, 40])
    neighbours = np.array([[1, 2], [0, 4], [3, 4], [5, 4], [0, -1], [-1, -1]])
    # 10-20: row 0 finds 2. 10-30: row 1 finds 4 and row 4 finds 0. 20-30: rows 2 and 3 find 4. 20-40: row 3 finds 5.
    expected = [[2, 1, -1], [2, 0, 3], [0, 1, -1], [1, -1, -1]]
    assert nearest_classes(labels, neighbours, 3).tolist() == expected
    assert nearest_classes(labels, neighbours, 1).tolist() == [row[:1] for row in expected]
