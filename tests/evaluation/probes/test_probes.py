"""The probes: numbers of scikit-learn's estimators, halves of each class, what is left out, what is refused."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from aurank.evaluation import probe
from aurank.evaluation.probes import STRENGTHS, split_labels

Arrays = tuple[np.ndarray, np.ndarray]
knn, linear_probe = (partial(probe, protocol=name) for name in ("knn", "linear_probe"))


def clusters(rows: int, *, classes: int = 6, dim: int = 8, noise: float = 1.0, seed: int = 0) -> Arrays:
    """Rows around the centre of their class, classes of unequal size."""
    centres = np.random.default_rng(100).normal(size=(classes, dim))
    generator = np.random.default_rng(seed)
    labels = 10 * generator.integers(0, classes, rows) + 3
    return (centres[labels // 10] + noise * generator.normal(size=(rows, dim))).astype(np.float32), labels


@pytest.mark.parametrize("k", [1, 20, 80])
def test_knn_is_scikit_learns_with_the_weights_of_the_paper(k: int) -> None:
    train, labels = clusters(80, seed=1)
    test, wanted = clusters(50, seed=2)
    result = knn(train, labels, test, wanted, k=k)
    oracle = KNeighborsClassifier(
        k, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / 0.07)
    ).fit(train.astype(np.float64), labels)
    shares = oracle.predict_proba(test.astype(np.float64))
    own = shares[np.arange(50), np.searchsorted(oracle.classes_, wanted)]
    ranks = (shares >= own[:, None]).sum(axis=1)
    assert result.metrics["top1"] == np.mean(ranks <= 1)
    assert result.metrics["top5"] == np.mean(ranks <= 5)
    assert result.metrics["1nn"] == KNeighborsClassifier(1, metric="cosine").fit(train, labels).score(test, wanted)
    assert (result.num_train, result.num_test, result.num_classes, result.seeds) == (80, 50, 6, [])


def test_a_tie_counts_against_the_right_class() -> None:
    train = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    result = knn(train, [0, 1, 1], np.array([[2, 0], [0, 3]], dtype=np.float32), [0, 1], k=2)
    assert (result.metrics["top1"], result.metrics["top5"]) == (0.5, 1)


@pytest.mark.parametrize("classes", [2, 6])
def test_a_linear_probe_is_scikit_learns_with_the_strength_that_it_names(classes: int) -> None:
    train, labels = clusters(200, classes=classes, seed=1, noise=2.0)
    test, wanted = clusters(100, classes=classes, seed=2, noise=2.0)
    result = linear_probe(train, labels, test, wanted)
    (strength,) = result.settings["strength"]
    assert strength in STRENGTHS
    scaler = StandardScaler().fit(train.astype(np.float64))
    oracle = LogisticRegression(C=1 / (strength * 200), tol=1e-8, max_iter=5000).fit(scaler.transform(train), labels)
    expected = oracle.score(scaler.transform(test.astype(np.float64)), wanted)
    assert result.metrics["top1"] == pytest.approx(expected, abs=0.011)  # one of 100 rows may lie on the border
    assert result.seeds == [0]


def test_a_linear_probe_recovers_what_is_linearly_separable_and_is_at_chance_for_shuffled_labels() -> None:
    # Class = which of three directions is largest, hidden among useless columns of other scales.
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 400)
    rows = 0.3 * generator.normal(size=(400, 10))
    rows[np.arange(400), labels] += 3
    rows *= 10.0 ** np.arange(-5, 5)
    rows[:, 9] = 1e3  # constant
    assert linear_probe(rows[:300], labels[:300], rows[300:], labels[300:]).metrics["top1"] > 0.97
    rows, labels = clusters(900, classes=10, noise=0.3)
    shuffled = np.random.default_rng(1).permutation(labels)
    result = linear_probe(rows, shuffled, seeds=range(3))
    assert abs(result.metrics["top1"] - 0.1) < 0.04
    assert abs(result.metrics["top5"] - 0.5) < 0.08
    assert linear_probe(rows, labels, seeds=[0]).metrics["top1"] > 0.9


def test_halves_are_stratified_and_disjoint_and_leave_out_lone_rows() -> None:
    labels = np.array([5] * 7 + [9] * 2 + [1] + [2] * 4)
    draws, notes = split_labels(labels, seeds=[0, 1])
    for _, train, test in draws:
        assert np.bincount(labels[train], minlength=10)[[5, 9, 2]].tolist() == [4, 1, 2]
        assert sorted([*train, *test]) == [row for row in range(14) if row != 9]
    assert draws[0][1].tolist() != draws[1][1].tolist()
    assert notes == ["left out: 1 of 14 rows, whose class no other row has"]


def test_within_one_set_the_mean_and_spread_over_the_seeds_is_given() -> None:
    rows, labels = clusters(120, noise=1.5)
    labels[0] = 77
    result = knn(rows, labels, k=10, seeds=[3, 4, 5])
    by_hand = [
        knn(rows[train], labels[train], rows[test], labels[test], k=10).metrics["top1"]
        for _, train, test in split_labels(labels, seeds=[3, 4, 5])[0]
    ]
    assert result.per_seed["top1"] == by_hand
    assert result.metrics["top1"] == pytest.approx(np.mean(by_hand))
    assert result.spread["top1"] == pytest.approx(np.std(by_hand, ddof=1))
    assert (result.design, result.seeds) == ("halves", [3, 4, 5])
    assert knn(rows, labels, k=10).seeds == [0, 1, 2]


@pytest.mark.parametrize("measure", [knn, linear_probe], ids=["knn", "linear"])
def test_a_seed_and_any_form_of_the_rows_give_the_same_digits(measure: Any, tmp_path: Path) -> None:
    rows, labels = clusters(160, noise=1.5)
    expected = measure(rows, labels, seeds=[1])
    assert measure(rows, labels, seeds=[1]) == expected
    assert measure(rows, labels, seeds=[2]).metrics != expected.metrics
    np.save(tmp_path / "rows.npy", rows)
    assert measure(np.load(tmp_path / "rows.npy", mmap_mode="r"), labels, seeds=[1]) == expected
    assert measure(torch.from_numpy(rows), torch.from_numpy(labels), seeds=[1]) == expected
    assert measure(rows, labels + 2**60, seeds=[1]) == expected


@pytest.mark.parametrize("measure", [knn, linear_probe], ids=["knn", "linear"])
def test_test_rows_of_unknown_classes_are_left_out_and_counted(measure: Any) -> None:
    train, labels = clusters(60)
    test, wanted = clusters(20, seed=4)
    result = measure(train, labels, np.concatenate([test, test[:3]]), np.concatenate([wanted, [900, 901, 901]]))
    assert result.metrics == measure(train, labels, test, wanted).metrics
    assert result.num_test == 20
    assert result.notes == ["left out: 3 of 23 rows, whose class no other row has"]


ROWS, LABELS = clusters(40)
