"""The samplers: limits of a batch, every image once an epoch, ranks, positions and state."""

import io
import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from testing.refusals import refused

from aurank.data import SAMPLERS, HardNegativeSampler, HierarchicalSampler, PKSampler, ShuffledSampler
from aurank.data.samplers import nearest_classes


def shuffled_labels(sizes: list[int]) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int64)


def equal_batches(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return len(first) == len(second) and all(map(np.array_equal, first, second))


def random_neighbours(labels: np.ndarray, seed: int = 0):
    """A callable that finds other rows each time, −1 among them."""
    generator = np.random.default_rng(seed)
    return lambda count: generator.integers(-1, len(labels), (len(labels), count))


def make(name: str, labels: np.ndarray, batch: int, **options):
    if name == "hard_negative":
        options.setdefault("neighbours", lambda count: np.zeros((0, count), dtype=np.int64))
    if name == "hierarchical":
        options.setdefault("super_labels", labels % 2)
    return SAMPLERS[name](labels, batch, **options)


@st.composite
def cases(draw, processes: int = 1, most: int = 25, classes: int = 14):
    """Class sizes, per_class and batch for which a sampler of so many processes can be made."""
    per_class = draw(st.integers(2, 5))
    sizes = draw(st.lists(st.integers(1, most), min_size=2 * processes, max_size=classes))
    assume(max(sizes) >= per_class)
    return sizes, per_class, draw(st.integers(2 * per_class * processes, 60 + 2 * per_class * processes))


def assert_limits_are_kept(batches: list[np.ndarray], labels: np.ndarray, batch: int, per_class: int) -> None:
    seen = np.concatenate(batches)
    assert len(np.unique(seen)) == len(seen)  # so no image twice in an epoch, nor in a batch
    for rows in batches:
        counts = np.bincount(labels[rows])
        assert len(rows) <= batch
        assert counts.max() <= per_class
        assert np.count_nonzero(counts) >= 2


@settings(max_examples=40, deadline=None)
@given(case=cases(), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_pk_batches_keep_every_limit(case, seed, epoch):
    sizes, per_class, batch = case
    labels = shuffled_labels(sizes)
    batches = PKSampler(labels, batch, per_class=per_class, seed=seed).epoch(epoch)
    assert_limits_are_kept(batches, labels, batch, per_class)
    if per_class >= 3:
        for label, count in ((label, n) for rows in batches for label, n in enumerate(np.bincount(labels[rows]))):
            assert count != 1 or sizes[label] == 1  # an image has a positive


@settings(max_examples=40, deadline=None)
@given(
    sets=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True), min_size=3, max_size=12),
    images=st.integers(24, 90),
    per_class=st.integers(2, 4),
    seed=st.integers(0, 5),
)
def test_pk_draws_images_by_any_of_their_labels(sets, images, per_class, seed):
    class_sets = np.array([[tag in tags for tag in range(8)] for tags in sets])  # no image has the last
    labels = np.random.default_rng(seed).integers(0, len(sets), images)
    counts = class_sets[labels].sum(axis=0)
    assume((counts >= per_class).sum() >= 2)
    sampler = PKSampler(labels, 8 * per_class, per_class=per_class, seed=seed, class_sets=class_sets)
    for epoch in (0, 1):
        chunks = [chunk for pieces in sampler.global_batches(epoch) for chunk in pieces]
        seen = np.concatenate([*chunks, np.zeros(0, np.int64)])
        assert len(np.unique(seen)) == len(seen)
        assert all(class_sets[labels[chunk]].all(axis=0).any() for chunk in chunks)  # one label that all of it have
        assert max(map(len, chunks), default=0) <= per_class
        assert sum(len(chunk) < per_class for chunk in chunks) <= 2 * np.count_nonzero(counts)
        for pieces in sampler.global_batches(epoch):
            assert len(pieces) >= 2
            assert sum(map(len, pieces)) <= 8 * per_class


def test_over_epochs_an_image_counts_to_each_of_its_labels():
    class_sets, labels = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], bool), np.arange(60) % 3
    sampler = PKSampler(labels, 20, per_class=5, class_sets=class_sets)
    assert {row for epoch in range(4) for rows in sampler.epoch(epoch) for row in rows.tolist()} == {*range(60)}
    together = np.zeros((3, 3), int)
    for epoch in range(3):
        for chunk in itertools.chain(*sampler.global_batches(epoch)):
            together[np.ix_(np.unique(labels[chunk]), np.unique(labels[chunk]))] += 1
    assert (together > 0).all()
    plain = PKSampler(labels, 20, per_class=5)
    assert {len(np.unique(labels[chunk])) for chunk in itertools.chain(*plain.global_batches(0))} == {1}
    for name in ("hard_negative", "hierarchical"):
        said = "draws images of one label each, and these have several; use pk"
        refused(said, make, name, labels, 20, per_class=5, class_sets=class_sets)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(case=cases(), seed=st.integers(0, 5), refreshes=st.lists(st.integers(0, 9), max_size=3))
def test_batches_keep_every_limit_whenever_neighbours_are_mined(case, seed, refreshes):
    sizes, per_class, batch = case
    labels = shuffled_labels(sizes)
    sampler = HardNegativeSampler(labels, batch, neighbours=random_neighbours(labels), per_class=per_class, seed=seed)
    for position in sorted(refreshes):
        before = sampler.epoch(1)[:position]
        sampler.refresh(1, len(before))
        assert equal_batches(sampler.epoch(1)[: len(before)], before)  # what was shown stays
    assert_limits_are_kept(sampler.epoch(1), labels, batch, per_class)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=6, max_size=40),
    names=st.integers(2, 6),
    categories=st.integers(1, 2),
    per_class=st.integers(2, 4),
    blocks=st.integers(2, 6),
)
def test_a_batch_is_of_few_super_categories_and_few_images_of_a_class(sizes, names, categories, per_class, blocks):
    labels = shuffled_labels([per_class, per_class, *sizes])
    batch = max(categories * per_class * blocks, 2 * per_class)
    given = {"per_class": per_class, "super_labels": labels % names, "categories": categories}
    batches = HierarchicalSampler(labels, batch, **given).epoch(1)
    assert_limits_are_kept(batches, labels, batch, per_class)
    assert max(len(np.unique(labels[rows] % names)) for rows in batches) <= categories


@pytest.mark.parametrize("name", ["pk", "hard_negative"])
@settings(max_examples=10, deadline=None)
@given(
    count=st.integers(8, 25),
    size=st.integers(2, 12),
    per_class=st.integers(2, 5),
    classes=st.integers(3, 12),
    data=st.data(),
)
def test_every_image_is_seen_exactly_once_an_epoch_when_sizes_allow(name, count, size, per_class, classes, data):
    assume(size >= per_class and classes <= count)
    spread = data.draw(st.lists(st.integers(-1, 1), min_size=count, max_size=count))
    labels = shuffled_labels([max(per_class, size + change) for change in spread])
    # Enough batches for the chunks of the largest class.
    assume(-(-len(labels) // (classes * per_class)) >= -(-(size + 1) // per_class))
    options = {"neighbours": random_neighbours(labels)} if name == "hard_negative" else {}
    sampler = make(name, labels, classes * per_class, per_class=per_class, **options)
    sampler.refresh(0, 0)
    sampler.refresh(0, min(3, len(sampler.epoch(0))))
    assert sorted(np.concatenate(sampler.epoch(0)).tolist()) == list(range(len(labels)))


@pytest.mark.parametrize("name", ["pk", "hard_negative", "hierarchical"])
@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 13), min_size=4, max_size=40), per_class=st.integers(2, 5), seed=st.integers(0, 3))
def test_a_class_has_exactly_per_class_images_where_remainders_are_repeated_or_dropped(name, sizes, per_class, seed):
    labels = shuffled_labels([per_class, per_class, *sizes])
    for remainder, most in (("repeat", 13 * per_class), ("drop", 1)):
        sampler = make(name, labels, 4 * per_class, per_class=per_class, remainder=remainder, seed=seed)
        batches = sampler.epoch(1)
        for rows in batches:
            counts = np.unique(labels[rows], return_counts=True)[1]
            assert {*counts} == {per_class}
            assert len(rows) <= sampler.largest_batch
        times = np.bincount(np.concatenate([*batches, np.zeros(0, np.int64)]), minlength=len(labels))
        assert times.max(initial=0) <= most
        if remainder == "repeat":
            for chunk in itertools.chain(*sampler.global_batches(1)):
                assert len(np.unique(chunk)) == min(per_class, np.count_nonzero(labels == labels[chunk[0]]))


@pytest.mark.parametrize("sizes", [[20] * 300, [5, 6, 7, 8] * 50, list(range(2, 30)) * 3])
def test_batches_are_nearly_equal_and_nearly_full(sizes):
    labels = shuffled_labels(sizes)
    lengths = [len(rows) for rows in PKSampler(labels, 112).epoch(0)]
    assert max(lengths) - min(lengths) <= 4
    sampler = HardNegativeSampler(labels, 112, neighbours=random_neighbours(labels), num_neighbours=5)
    sampler.refresh(0, 0)
    mined = [len(rows) for rows in sampler.epoch(0)]
    assert min(mined[:-3]) >= 100
    assert max(len(lengths), len(mined)) <= np.ceil(len(labels) / 112 * 1.05)


def test_a_class_too_large_for_an_epoch_is_seen_whole_in_time_and_does_not_thin_out_the_batches():
    labels = shuffled_labels([200, 8, 8, 8, 8])
    sampler = PKSampler(labels, 20)
    epochs = [sampler.epoch(epoch) for epoch in range(60)]
    assert all(len(np.unique(labels[rows])) >= 2 for batches in epochs for rows in batches)
    assert len(np.unique(np.concatenate([rows for batches in epochs for rows in batches]))) == len(labels)


def test_classes_that_are_near_meet_and_they_alone_where_sizes_fit():
    labels = shuffled_labels([20] * 20)

    def alike(count: int) -> np.ndarray:
        """Four consecutive labels are near to each other only."""
        found = np.full((len(labels), count), -1, dtype=np.int64)
        for row, label in enumerate(labels):
            others = np.flatnonzero((labels // 4 == label // 4) & (np.arange(len(labels)) != row))
            found[row, : len(others[:count])] = np.random.default_rng(row).permutation(others)[:count]
        return found

    def shared(batches: list[np.ndarray]) -> float:
        """How many of the pairs of classes that meet are of one group."""
        groups = [np.unique(labels[rows]) // 4 for rows in batches]
        same = sum(int((each[:, None] == each).sum()) - len(each) for each in groups)
        return same / sum(len(each) * (len(each) - 1) for each in groups)

    sampler = HardNegativeSampler(labels, 16, neighbours=alike, num_neighbours=10)
    assert shared(sampler.epoch(0)) == pytest.approx(3 / 19, abs=0.05)  # nothing is mined yet
    sampler.refresh(0, 0)
    for epoch in range(2):
        assert shared(sampler.epoch(epoch)) == 1
        assert sorted(np.concatenate(sampler.epoch(epoch)).tolist()) == list(range(400))


def test_classes_are_as_near_as_images_of_either_are_among_the_neighbours_of_the_other():
    labels = np.array([10, 10, 20, 20, 30, 40])
    neighbours = np.array([[1, 2], [0, 4], [3, 4], [5, 4], [0, -1], [-1, -1]])
    # 10-20: row 0 finds 2. 10-30: row 1 finds 4 and row 4 finds 0. 20-30: rows 2 and 3 find 4. 20-40: row 3 finds 5.
    expected = [[2, 1, -1], [2, 0, 3], [0, 1, -1], [1, -1, -1]]
    assert nearest_classes(labels, neighbours, 3).tolist() == expected
    assert nearest_classes(labels, neighbours, 1).tolist() == [row[:1] for row in expected]


def test_a_sampler_continues_from_its_saved_state_as_if_it_had_never_stopped():
    labels = shuffled_labels([7, 8, 9, 10, 11] * 4)
    whole, again = (HardNegativeSampler(labels, 16, neighbours=random_neighbours(labels, seed=4)) for _ in range(2))
    whole.refresh(0, 0)
    whole.refresh(1, 2)
    assert not equal_batches(whole.epoch(1), again.epoch(1))
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    for epoch in (1, 2):
        assert equal_batches(again.epoch(epoch), whole.epoch(epoch))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_batch_depends_on_seed_epoch_and_place_only_and_is_the_same_in_every_version(name):
    """A run is resumed by its position, so another order here would break it."""
    labels = shuffled_labels([4, 5, 6, 7])
    sampler = make(name, labels, 12, seed=1)
    rows = sampler.epoch(1)
    assert equal_batches(make(name, labels, 12, seed=1).epoch(1), rows)
    assert not equal_batches(sampler.epoch(2), rows)
    assert not equal_batches(make(name, labels, 12, seed=2).epoch(1), rows)
    expected = {
        "pk": "21 1 2 7 11 4 8 20 0 13 3 14; 18 9 19 5 12 15 17 10 6 16",
        "hard_negative": "10 6 16 18 9 19 5 21 1 2 7; 11 4 8 20 3 14 0 13 12 15 17",
        "hierarchical": "19 9 5 18 2 15 1 12 10 6; 11 4 8 20 0 13 7 17 21 14 16 3",
        "shuffled": "18 7 14 6 12 21 4 20 2 16 17; 9 19 1 0 15 3 5 8 11 10 13",
    }
    assert "; ".join(" ".join(map(str, batch)) for batch in rows) == expected[name]


@pytest.mark.parametrize("name", SAMPLERS)
def test_iteration_from_a_position_continues_as_if_it_had_never_stopped(name):
    labels = shuffled_labels([7, 8, 9, 10, 11])
    whole = list(itertools.islice(make(name, labels, 16).iterate(), 9))
    for start in range(6):
        again = itertools.islice(make(name, labels, 16).iterate(*whole[start][:2]), 3)
        for one, other in zip(whole[start : start + 3], again, strict=True):
            assert one[:2] == other[:2]
            np.testing.assert_array_equal(one[2], other[2])
    sampler = ShuffledSampler(shuffled_labels([5, 5]), 4)
    assert next(sampler.iterate(0, 3))[:2] == (1, 0)  # the end of an epoch is the start of the next


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pk", "hard_negative", "hierarchical"])
@settings(max_examples=8, deadline=None)
@given(case=cases(processes=3), world_size=st.integers(2, 3), seed=st.integers(0, 3))
def test_the_ranks_together_have_the_batches_of_one_process(name, case, world_size, seed):
    sizes, per_class, batch = case
    labels = shuffled_labels(sizes)

    def epoch(**place) -> list[np.ndarray]:
        options = {"neighbours": random_neighbours(labels)} if name == "hard_negative" else {}
        sampler = make(name, labels, batch, per_class=per_class, seed=seed, **options, **place)
        sampler.refresh(1, 0)
        return sampler.epoch(1)

    parts = [epoch(rank=rank, world_size=world_size) for rank in range(world_size)]
    whole = [rows for rows in epoch() if len(rows) >= 2 * world_size]
    assert equal_batches([np.concatenate(rows) for rows in zip(*parts, strict=True)], whole)
    for rows in zip(*parts, strict=True):
        assert min(map(len, rows)) >= 2
        assert max(map(len, rows)) - min(map(len, rows)) <= 2 * per_class


@settings(max_examples=20, deadline=None)
@given(count=st.integers(2, 200), batch=st.integers(2, 50))
def test_shuffled_sees_every_image_once_in_nearly_equal_batches(count, batch):
    batches = ShuffledSampler(np.zeros(count, dtype=np.int64), batch).epoch(0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    assert max(map(len, batches)) <= batch
    assert max(map(len, batches)) - min(map(len, batches)) <= 1
    assert len(batches) == -(-count // batch)


class Uneven(ShuffledSampler):
    def global_batches(self, epoch: int) -> list[list[np.ndarray]]:
        return [[rows] for rows in np.split(self.generator(epoch).permutation(19), [8, 11])]


def test_a_batch_too_small_for_the_processes_is_passed_over_and_keeps_its_number():
    labels = np.zeros(19, dtype=np.int64)
    places = [(epoch, index) for epoch, index, _ in itertools.islice(Uneven(labels, 8, world_size=2).iterate(), 4)]
    assert places == [(0, 0), (0, 2), (1, 0), (1, 2)]


@pytest.mark.parametrize(("batch", "categories", "most"), [(32, 2, 32), (80, 2, 56), (112, 3, 76), (30, 3, 30)])
def test_the_largest_batch_is_what_the_largest_super_categories_have_room_for(batch, categories, most):
    labels = shuffled_labels([8] * 24)
    super_labels = np.searchsorted([5, 13, 18], labels, side="right")  # of 5, 8, 5 and 6 classes
    sampler = HierarchicalSampler(labels, batch, super_labels=super_labels, categories=categories)
    assert sampler.largest_batch == most
    assert max(map(len, sampler.epoch(0))) <= most
