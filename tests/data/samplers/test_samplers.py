import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.sampling import assert_limits_are_kept, cases, equal_batches, labels_that_fit, shuffled_labels

from aurank.data import SAMPLERS, PKSampler, ShuffledSampler
from aurank.data.samplers import cut, deal
from aurank.errors import UserError


def _make(name: str, labels: np.ndarray, batch: int, **options):
    if name == "hard_negative":  # before its first refresh, which a test of its own covers
        options["neighbours"] = lambda count: np.zeros((0, count), dtype=np.int64)
    if name == "hierarchical":
        options["super_labels"] = labels % 2
    return SAMPLERS[name](labels, batch, **options)


@settings(max_examples=60, deadline=None)
@given(case=cases(), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_pk_batches_keep_every_limit(case, seed, epoch):
    sizes, per_class, batch = case
    labels = shuffled_labels(sizes)
    batches = PKSampler(labels, batch, per_class=per_class, seed=seed).epoch(epoch)
    assert_limits_are_kept(batches, labels, batch, per_class)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(8, 60),
    size=st.integers(2, 20),
    per_class=st.integers(2, 5),
    classes=st.integers(3, 30),
    data=st.data(),
)
def test_pk_sees_every_image_exactly_once_an_epoch_when_sizes_allow(count, size, per_class, classes, data):
    labels = labels_that_fit(data, count, size, per_class, classes)
    batches = PKSampler(labels, classes * per_class, per_class=per_class).epoch(0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(labels)))


def test_pk_batches_are_nearly_equal_and_nearly_full():
    for sizes in ([20] * 868, [5, 6, 7, 8] * 100, list(range(2, 30)) * 10):
        labels = shuffled_labels(sizes)
        lengths = [len(rows) for rows in PKSampler(labels, 112).epoch(0)]
        assert max(lengths) - min(lengths) <= 4
        assert len(lengths) <= np.ceil(len(labels) / 112 * 1.05)


@pytest.mark.parametrize(
    ("count", "size", "chunks"),
    [
        (8, 4, [4, 4]),
        (10, 4, [4, 4, 2]),
        (9, 4, [4, 3, 2]),
        (5, 4, [3, 2]),
        (1, 4, [1]),
        (3, 4, [3]),
        (4, 3, [2, 2]),
        (5, 2, [2, 2, 1]),
    ],
)
def test_a_remainder_of_one_borrows_an_image_if_the_lender_keeps_a_pair(count, size, chunks):
    found = cut(np.arange(count), size)
    assert [len(chunk) for chunk in found] == chunks
    assert sorted(np.concatenate(found).tolist()) == list(range(count))


def test_a_class_too_large_for_an_epoch_is_seen_whole_in_time():
    labels = shuffled_labels([200, 8, 8, 8, 8])
    sampler = PKSampler(labels, 20)
    seen: set[int] = set()
    for epoch in range(60):
        batches = sampler.epoch(epoch)
        assert all(len(np.unique(labels[rows])) >= 2 for rows in batches)
        seen.update(np.concatenate(batches).tolist())
    assert len(seen) == len(labels)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_batch_depends_on_seed_epoch_and_place_only(name):
    labels = shuffled_labels([7, 8, 9, 10, 11])
    sampler = _make(name, labels, 16, seed=3)
    later = sampler.epoch(2)
    assert equal_batches(_make(name, labels, 16, seed=3).epoch(2), later)
    assert equal_batches(sampler.epoch(2), later)
    assert not equal_batches(sampler.epoch(1), later)
    assert not equal_batches(_make(name, labels, 16, seed=4).epoch(2), later)


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_epochs_batches_are_the_same_in_every_version(name):
    """A run is resumed by its position, so another order here would break it."""
    rows = _make(name, shuffled_labels([4, 5, 6, 7]), 12, seed=1).epoch(1)
    expected = {
        "pk": "21 1 2 7 11 4 8 20 0 13 3 14; 18 9 19 5 12 15 17 10 6 16",
        "hard_negative": "10 6 16 18 9 19 5 21 1 2 7; 11 4 8 20 3 14 0 13 12 15 17",
        "hierarchical": "19 9 5 18 2 15 1 12 10 6; 11 4 8 20 0 13 7 17 21 14 16 3",
        "shuffled": "18 7 14 6 12 21 4 20 2 16 17; 9 19 1 0 15 3 5 8 11 10 13",
    }
    assert "; ".join(" ".join(map(str, batch)) for batch in rows) == expected[name]


@pytest.mark.parametrize("name", SAMPLERS)
@settings(max_examples=6, deadline=None)
@given(epoch=st.integers(0, 2), batch=st.integers(0, 3), length=st.integers(1, 12))
def test_iteration_from_a_position_continues_as_if_it_had_never_stopped(name, epoch, batch, length):
    labels = shuffled_labels([7, 8, 9, 10, 11])
    whole = _make(name, labels, 16).iterate()
    rest = itertools.dropwhile(lambda at: at[:2] < (epoch, min(batch, 2)), whole)
    again = itertools.islice(_make(name, labels, 16).iterate(epoch, min(batch, 2)), length)
    for (epoch_a, batch_a, rows_a), (epoch_b, batch_b, rows_b) in zip(rest, again, strict=False):
        assert (epoch_a, batch_a) == (epoch_b, batch_b)
        np.testing.assert_array_equal(rows_a, rows_b)


def test_the_end_of_an_epoch_is_the_start_of_the_next():
    sampler = ShuffledSampler(shuffled_labels([5, 5]), 4)
    assert next(sampler.iterate(0, 3))[:2] == (1, 0)
    with pytest.raises(UserError, match="epoch 0 has 3 batches, so it cannot start at batch 4"):
        next(sampler.iterate(0, 4))


@settings(max_examples=20, deadline=None)
@given(case=cases(processes=3), world_size=st.integers(2, 3), seed=st.integers(0, 3))
def test_the_ranks_together_have_the_batches_of_one_process(case, world_size, seed):
    sizes, per_class, batch = case
    labels = shuffled_labels(sizes)
    parts = [
        PKSampler(labels, batch, per_class=per_class, seed=seed, rank=rank, world_size=world_size).epoch(1)
        for rank in range(world_size)
    ]
    one = PKSampler(labels, batch, per_class=per_class, seed=seed).epoch(1)
    whole = [rows for rows in one if len(rows) >= 2 * world_size]
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


@pytest.mark.parametrize(
    ("sizes", "ranks", "parts"),
    [
        ([2, 4, 4, 3, 1], 2, [6, 8]),  # whole chunks
        ([4] * 28, 8, [12, 16] * 4),
        ([4, 4, 4], 2, [4, 8]),
        ([4, 1, 1, 2], 4, [2, 2, 2, 2]),  # too few chunks: rows
        ([8], 3, [3, 3, 2]),
        ([4, 3], 4, [0, 0, 0, 0]),  # too small a batch
    ],
)
def test_whole_chunks_are_dealt_out_in_their_order_or_else_rows(sizes, ranks, parts):
    chunks = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    hands = deal(chunks, ranks)
    assert sorted(map(len, hands)) == sorted(parts)
    if sum(parts):
        assert np.concatenate(hands).tolist() == list(range(sum(sizes)))


class Uneven(ShuffledSampler):
    """Batches of eight, three and eight rows."""

    def global_batches(self, epoch: int) -> list[list[np.ndarray]]:
        return [[rows] for rows in np.split(self.generator(epoch).permutation(19), [8, 11])]


def test_a_batch_too_small_for_the_processes_is_passed_over_and_keeps_its_number():
    labels = np.zeros(19, dtype=np.int64)
    places = [(epoch, index) for epoch, index, _ in itertools.islice(Uneven(labels, 8, world_size=2).iterate(), 4)]
    assert places == [(0, 0), (0, 2), (1, 0), (1, 2)]
    with pytest.raises(UserError, match="no batch of epoch 1 has 2 rows for each of 4 processes"):
        next(ShuffledSampler(labels[:10], 8, world_size=4).iterate())  # batches of five


@pytest.mark.parametrize(
    ("sizes", "batch", "params", "message"),
    [
        ([3, 3, 2], 16, {}, r"no class has per_class=4 images \(the largest has 3\); lower sampler\.params\.per_class"),
        ([8, 8], 7, {}, "batch must be at least 2 × per_class = 8 .*got 7"),
        ([8], 16, {}, "the training set has 1 classes; at least 2 are needed"),
        ([], 16, {}, "the training set has 0 classes"),
        ([8, 8], 16, {"per_class": 1}, "per_class must be at least 2"),
        ([8, 8], 16, {"seed": -1}, "seed must be at least 0, got -1"),
        ([8, 8, 8, 8], 15, {"world_size": 2}, "batch must be at least 2 × per_class for each of 2 processes = 16"),
        ([8, 8, 8], 16, {"world_size": 2}, "has 3 classes; at least 2 for each of 2 processes"),
    ],
)
def test_what_pk_cannot_do_is_refused(sizes, batch, params, message):
    with pytest.raises(UserError, match=message):
        PKSampler(shuffled_labels(sizes), batch, **params)


@pytest.mark.parametrize(("count", "batch"), [(1, 8), (8, 1), (0, 8)])
def test_what_shuffled_cannot_do_is_refused(count, batch):
    with pytest.raises(UserError, match="at least 2 images a batch are needed"):
        ShuffledSampler(np.zeros(count, dtype=np.int64), batch)


@pytest.mark.parametrize(("counts", "most"), [([4, 4], 8), ([9, 9, 1], 9), ([4] * 10, 16)])
def test_the_largest_batch_is_what_the_classes_can_fill(counts, most):
    labels = np.repeat(np.arange(len(counts)), counts)
    sampler = PKSampler(labels, 16)
    assert sampler.largest_batch == most
    assert max(len(rows) for rows in sampler.epoch(0)) <= most
    assert ShuffledSampler(labels, 16).largest_batch == min(16, len(labels))
