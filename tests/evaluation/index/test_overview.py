"""Images to label are those that slow loops choose; a map is that of scikit-learn."""

import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from oracles import selection as oracles
from sklearn.decomposition import PCA
from sklearn.metrics import pairwise_distances, pairwise_distances_argmin_min
from sklearn.preprocessing import normalize

from aurank.arrays import MappedRows, Rows
from aurank.evaluation.index import neighbours, overview
from aurank.evaluation.index.overview import class_cosines, farthest_first, plane


def distance_to_nearest(rows: Rows, centres: np.ndarray) -> np.ndarray:
    return 1 - class_cosines(rows, centres, np.zeros(len(centres), np.int64), 1)[0][:, 0]


@pytest.mark.parametrize("known", [0, 1, 7])
@pytest.mark.parametrize("in_parts", [False, True])
def test_the_farthest_first_are_those_of_a_loop(known: int, in_parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(known)
    rows = (rng.standard_normal((60, 5)) * rng.uniform(0.1, 9, (60, 1))).astype(np.float32)
    centres = rng.standard_normal((known, 5)).astype(np.float32)
    monkeypatch.setattr(neighbours, "BLOCK", 7 * 5)  # in several pieces
    given = MappedRows([rows[:25], rows[25:]]) if in_parts else rows
    covered = distance_to_nearest(given, centres) if known else np.inf
    chosen, distance = farthest_first(given, 20, covered)
    expected, gaps = oracles.farthest_first(rows, 20, centres)
    assert chosen.tolist() == expected
    np.testing.assert_allclose(distance, gaps, atol=1e-14)


def test_every_row_is_chosen_once_even_among_copies() -> None:
    rows = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    chosen, distance = farthest_first(rows, 12)
    assert sorted(chosen.tolist()) == list(range(12))
    assert distance.tolist() == [np.inf, 1, 1, *[0] * 9]


def test_the_distance_to_chosen_rows_is_that_of_sklearn() -> None:
    rows = np.random.default_rng(0).standard_normal((300, 16)).astype(np.float32)
    centres = rows[::11] + np.float32(0.01)
    _, expected = pairwise_distances_argmin_min(rows.astype(np.float64), centres.astype(np.float64), metric="cosine")
    np.testing.assert_allclose(distance_to_nearest(rows, centres), expected, atol=1e-12)


def test_the_coverage_is_at_most_twice_the_best_in_angles_and_below_random_choices() -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((13, 3))
    angles = np.arccos(np.clip(1 - pairwise_distances(rows, metric="cosine"), -1, 1))
    best = min(angles[:, list(three)].min(axis=1).max() for three in itertools.combinations(range(13), 3))
    chosen, _ = farthest_first(rows, 3)
    assert best <= angles[:, chosen].min(axis=1).max() <= 2 * best
    clusters = np.repeat(rows, [100, *[2] * 12], axis=0) + 0.01 * rng.standard_normal((124, 3))
    random = [rng.choice(124, 13, replace=False) for _ in range(20)]
    largest, *others = (
        distance_to_nearest(clusters, clusters[few]).max() for few in [farthest_first(clusters, 13)[0], *random]
    )
    assert largest < 0.01 < min(others)


def test_margins_and_classes_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    rows, gallery = rng.standard_normal((40, 4)), rng.standard_normal((23, 4))
    labels = rng.integers(0, 6, 23) * 7 - 3
    monkeypatch.setattr(overview, "BLOCK", 23 * 9)  # in several pieces
    cosine, nearest = class_cosines(rows, gallery, labels, 2)
    margin = cosine[:, 0] - cosine[:, 1]
    expected = [oracles.class_margin(row, gallery, labels.tolist()) for row in rows]
    np.testing.assert_allclose(margin, [one for one, _ in expected], atol=1e-14)
    assert nearest.tolist() == [classes for _, classes in expected]


def test_a_map_has_the_first_two_principal_components_of_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "importable", lambda name: False)
    rows = np.random.default_rng(1).standard_normal((200, 12)) * np.arange(1, 13)
    coordinates, method = plane(rows)
    expected = PCA(2).fit_transform(normalize(rows))
    assert method == "PCA"
    np.testing.assert_allclose(coordinates * np.sign((coordinates * expected).sum(axis=0)), expected, atol=1e-12)
    assert np.abs(plane(np.array([[3.0], [-1.0]]))[0]).tolist() == [[1, 0], [1, 0]]


def test_a_map_is_by_umap_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class UMAP:
        def __init__(self, **how: object) -> None:
            assert (how["metric"], how["random_state"]) == ("cosine", 0)

        def fit_transform(self, rows: np.ndarray) -> np.ndarray:
            return rows[:, :2] + 1

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=UMAP))
    coordinates, method = plane(2 * np.eye(16))
    assert (coordinates.tolist(), method) == ([[2, 1], [1, 2], *[[1, 1]] * 14], "UMAP")
