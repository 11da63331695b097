"""Labels and batches of the samplers' tests."""

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st


def shuffled_labels(sizes: list[int]) -> np.ndarray:
    """Returns shuffled labels of classes of these sizes."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int64)


def equal_batches(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return len(first) == len(second) and all(map(np.array_equal, first, second))


@st.composite
def cases(draw, processes: int = 1, most: int = 40, classes: int = 20):
    """Returns class sizes, per_class and batch for which a sampler of so many processes can be made."""
    per_class = draw(st.integers(2, 5))
    sizes = draw(st.lists(st.integers(1, most), min_size=2 * processes, max_size=classes))
    assume(max(sizes) >= per_class)
    return sizes, per_class, draw(st.integers(2 * per_class * processes, 60 + 2 * per_class * processes))


def labels_that_fit(data, count: int, size: int, per_class: int, classes: int) -> np.ndarray:
    """Draws labels of `count` classes of about `size` images of which every one can be seen once an epoch."""
    assume(size >= per_class and classes <= count)
    spread = data.draw(st.lists(st.integers(-1, 1), min_size=count, max_size=count))
    labels = shuffled_labels([max(per_class, size + change) for change in spread])
    # Enough batches for the chunks of the largest class.
    assume(-(-len(labels) // (classes * per_class)) >= -(-(size + 1) // per_class))
    return labels


def assert_limits_are_kept(batches: list[np.ndarray], labels: np.ndarray, batch: int, per_class: int) -> None:
    assert batches
    seen = np.concatenate(batches)
    assert len(np.unique(seen)) == len(seen)  # so no image twice in an epoch, nor in a batch
    for rows in batches:
        counts = np.bincount(labels[rows])
        assert len(rows) <= batch
        assert counts.max() <= per_class
        assert np.count_nonzero(counts) >= 2
