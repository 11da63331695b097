"""The probes: k-NN as scikit-learn's, a linear classifier that finds what is there, the same digits for any order."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from aurank.errors import UserError
from aurank.evaluation import ProbeResult, knn, linear_probe
from aurank.evaluation.probes import held_out, split_labels, vote_ranks

Arrays = tuple[np.ndarray, np.ndarray]


def clusters(rows: int, *, classes: int = 6, dim: int = 8, noise: float = 1.0, seed: int = 0) -> Arrays:
    """Rows around the centre of their class, classes of unequal size."""
    centres = np.random.default_rng(100).normal(size=(classes, dim))
    generator = np.random.default_rng(seed)
    labels = 10 * generator.integers(0, classes, rows) + 3
    return (centres[labels // 10] + noise * generator.normal(size=(rows, dim))).astype(np.float32), labels


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.3), (80, 0.01)])
def test_knn_is_scikit_learns_with_the_same_weights(k: int, temperature: float) -> None:
    train, labels = clusters(80, seed=1)
    test, wanted = clusters(50, seed=2)
    found = knn(train, labels, test, wanted, k=k, temperature=temperature)
    oracle = KNeighborsClassifier(
        k, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / temperature)
    ).fit(train.astype(np.float64), labels)
    shares = oracle.predict_proba(test.astype(np.float64))
    own = shares[np.arange(50), np.searchsorted(oracle.classes_, wanted)]
    # Counted against the right class: those that tie with it.
    ranks = (shares >= own[:, None]).sum(axis=1)
    assert found.metrics["top1"] == np.mean(ranks <= 1)
    assert found.metrics["top5"] == np.mean(ranks <= 5)
    assert found.metrics["1nn"] == KNeighborsClassifier(1, metric="cosine").fit(train, labels).score(test, wanted)
    assert (found.num_train, found.num_test, found.num_classes, found.seeds) == (80, 50, 6, [])


def test_votes_by_hand() -> None:
    # exp(s / 1): classes 0 and 1 get e^0.9 and e^0.5 + e^0.4; class 2 gets e^0.1, class 3 nothing, of six classes.
    similarity = np.array([[0.9, 0.5, 0.4, 0.1]] * 4, dtype=np.float32)
    classes = np.array([[0, 1, 1, 2]] * 4)
    assert vote_ranks(classes, similarity, np.array([0, 1, 2, 3]), 1.0, 6).tolist() == [2, 1, 3, 6]
    # So cold that only the nearest counts, and class 2's vote is nothing.
    assert vote_ranks(classes, similarity, np.array([0, 1, 2, 3]), 1e-4, 6).tolist() == [1, 6, 6, 6]


def test_a_tie_counts_against_the_right_class() -> None:
    train = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    test = np.array([[2, 0], [0, 3]], dtype=np.float32)
    found = knn(train, [0, 1, 1], test, [0, 1], k=2)
    assert found.metrics["1nn"] == 0.5
    assert found.metrics["top1"] == 0.5
    assert found.metrics["top5"] == 1
    assert knn(train, [0, 1, 1], test, [1, 1], k=2).metrics["1nn"] == 0.5


def test_k_is_all_training_rows_where_they_are_few_and_says_so() -> None:
    train, labels = clusters(30)
    found = knn(train, labels, train, labels)
    assert found.settings["k"] == 30
    assert "fewer than 200" in found.notes[0]
    assert found.metrics["1nn"] == 1
    assert knn(*clusters(300), train, labels).settings["k"] == 200


def test_a_linear_probe_recovers_what_is_linearly_separable() -> None:
    # Class = which of three directions is largest, hidden among useless columns of other scales.
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 400)
    rows = 0.3 * generator.normal(size=(400, 10))
    rows[np.arange(400), labels] += 3
    rows *= 10.0 ** np.arange(-5, 5)
    rows[:, 9] = 1e3  # constant
    found = linear_probe(rows[:300], labels[:300], rows[300:], labels[300:])
    assert found.metrics["top1"] > 0.97
    assert found.metrics["top5"] == 1


def test_a_linear_probe_is_at_chance_for_shuffled_labels() -> None:
    rows, labels = clusters(900, classes=10, noise=0.3)
    shuffled = np.random.default_rng(1).permutation(labels)
    found = linear_probe(rows, shuffled, seeds=range(3))
    assert abs(found.metrics["top1"] - 0.1) < 0.04
    assert abs(found.metrics["top5"] - 0.5) < 0.08
    assert linear_probe(rows, labels, seeds=[0]).metrics["top1"] > 0.9


@pytest.mark.parametrize("classes", [2, 6])
def test_a_linear_probe_of_one_strength_is_scikit_learns(classes: int) -> None:
    train, labels = clusters(200, classes=classes, seed=1)
    test, wanted = clusters(100, classes=classes, seed=2)
    found = linear_probe(train, labels, test, wanted, strengths=[0.02])
    scaler = StandardScaler().fit(train.astype(np.float64))
    oracle = LogisticRegression(C=1 / (0.02 * 200), tol=1e-8, max_iter=5000).fit(scaler.transform(train), labels)
    assert found.metrics["top1"] == oracle.score(scaler.transform(test), wanted)
    assert found.settings["strength"] == [0.02]
    assert (found.seeds, found.settings["held_out"]) == ([], 0)


def test_the_strength_is_chosen_by_rows_held_out() -> None:
    train, labels = clusters(60, dim=40, noise=2.0, seed=1)
    test, wanted = clusters(400, dim=40, noise=2.0, seed=2)
    scores = {
        strength: linear_probe(train, labels, test, wanted, strengths=[strength]).metrics["top1"]
        for strength in (1e3, 1e-2)
    }
    assert scores[1e3] != scores[1e-2]
    found = linear_probe(train, labels, test, wanted, strengths=[1e-2, 1e3])
    aside = held_out(np.searchsorted(np.unique(labels), labels), seed=0)
    held = {
        strength: linear_probe(train[~aside], labels[~aside], train[aside], labels[aside], strengths=[strength])
        for strength in (1e3, 1e-2)
    }
    best = max(held, key=lambda strength: held[strength].metrics["top1"])
    assert found.settings["strength"] == [best]
    assert found.metrics["top1"] == scores[best]


def test_halves_are_stratified_and_disjoint_and_leave_out_lone_rows() -> None:
    labels = np.array([5] * 7 + [9] * 2 + [1] + [2] * 4)
    plan = split_labels(labels, seeds=[0, 1])
    assert (plan.design, plan.num_classes, plan.num_left_out) == ("halves", 3, 1)
    for draw in plan.draws:
        assert np.bincount(labels[draw.train], minlength=10)[[5, 9, 2]].tolist() == [4, 1, 2]
        assert sorted([*draw.train, *draw.test]) == [row for row in range(14) if row != 9]
        assert np.array_equal(np.array([2, 5, 9])[draw.train_classes], labels[draw.train])
        assert np.array_equal(np.array([2, 5, 9])[draw.test_classes], labels[draw.test])
    assert plan.draws[0].train.tolist() != plan.draws[1].train.tolist()
    assert "left out: 1 of 14 rows" in plan.notes[0]


def test_a_fifth_is_held_out_but_never_a_lone_row() -> None:
    classes = np.repeat([0, 1, 2, 3], [1, 2, 9, 15])
    aside = held_out(classes, seed=3)
    assert np.bincount(classes[aside], minlength=4).tolist() == [0, 1, 1, 3]


def test_within_one_set_the_mean_and_spread_over_the_seeds_is_given() -> None:
    rows, labels = clusters(120, noise=1.5)
    labels[0] = 77
    found = knn(rows, labels, k=10, seeds=[3, 4, 5])
    halves = split_labels(labels, seeds=[3, 4, 5]).draws
    by_hand = [
        knn(rows[draw.train], labels[draw.train], rows[draw.test], labels[draw.test], k=10).metrics["top1"]
        for draw in halves
    ]
    assert found.per_seed["top1"] == by_hand
    assert found.metrics["top1"] == pytest.approx(np.mean(by_hand))
    assert found.spread["top1"] == pytest.approx(np.std(by_hand, ddof=1))
    assert (found.design, found.seeds, found.num_left_out) == ("halves", [3, 4, 5], 1)
    assert knn(rows, labels, k=10).seeds == [0, 1, 2]


@pytest.mark.parametrize("probe", [knn, linear_probe])
def test_a_seed_gives_the_same_digits_again_and_another_seed_others(probe: Any) -> None:
    rows, labels = clusters(160, noise=1.5)
    assert probe(rows, labels, seeds=[1]) == probe(rows, labels, seeds=[1])
    assert probe(rows, labels, seeds=[1]).metrics != probe(rows, labels, seeds=[2]).metrics


@pytest.mark.parametrize("probe", [knn, linear_probe])
def test_with_ids_the_order_of_rows_changes_nothing(probe: Any) -> None:
    rows, labels = clusters(160, noise=1.5)
    ids = 7 * np.arange(160)
    order = np.random.default_rng(0).permutation(160)
    assert probe(rows[order], labels[order], ids=ids[order], seeds=[1]) == probe(rows, labels, ids=ids, seeds=[1])
    test, wanted = clusters(50, seed=2)
    swapped = np.random.default_rng(1).permutation(50)
    again = probe(rows[order], labels[order], test[swapped], wanted[swapped], ids=ids[order])
    assert again == probe(rows, labels, test, wanted, ids=ids)


@pytest.mark.parametrize("probe", [knn, linear_probe])
def test_tensors_mapped_files_and_renamed_labels_are_the_same(probe: Any, tmp_path: Path) -> None:
    rows, labels = clusters(90)
    expected = probe(rows, labels, seeds=[0])
    np.save(tmp_path / "rows.npy", rows)
    assert probe(np.load(tmp_path / "rows.npy", mmap_mode="r"), labels, seeds=[0]) == expected
    assert probe(torch.from_numpy(rows), torch.from_numpy(labels), seeds=[0]) == expected
    assert probe(rows, labels + 2**60, seeds=[0]) == expected


def test_test_rows_of_unknown_classes_are_left_out_and_counted() -> None:
    train, labels = clusters(60)
    test, wanted = clusters(20, seed=4)
    strange = np.concatenate([wanted, [900, 901, 901]])
    more = np.concatenate([test, test[:3]])
    for probe in (knn, linear_probe):
        found, expected = probe(train, labels, more, strange), probe(train, labels, test, wanted)
        assert found.metrics == expected.metrics
        assert (found.num_test, found.num_left_out) == (20, 3)
        assert "3 of 23 test rows, whose 2 classes no training row has" in found.notes[0]


def test_a_strength_at_the_end_is_told() -> None:
    train, labels = clusters(60, dim=40, noise=2.0, seed=1)
    found = linear_probe(train, labels, train, labels, strengths=[1e8, 1e7])
    assert not any("at an end" in note for note in found.notes)
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(300, 5))
    labels = (rows[:, 0] > 1.2).astype(int)  # a constant guess is right in 9 of 10
    found = linear_probe(rows, labels, rows, labels, strengths=[1e5, 1e-2])
    assert found.settings["strength"] == [1e-2]
    assert any("at an end" in note for note in found.notes)


def test_progress_ends_at_its_total_and_that_of_fits_begins_before_the_first() -> None:
    rows, labels = clusters(90)
    for probe in (knn, linear_probe):
        told: list[tuple[int, int]] = []
        probe(rows, labels, seeds=[0, 1], progress=lambda *count, told=told: told.append(count))
        assert told == sorted(told)
        assert told[-1][0] == told[-1][1]
    assert told[0] == (0, told[-1][1])


def test_a_result_is_saved_loaded_and_printed(tmp_path: Path) -> None:
    rows, labels = clusters(90, noise=2.0)
    result = linear_probe(rows, labels)
    result.save(tmp_path / "probe.json")
    assert ProbeResult.load(tmp_path / "probe.json") == result
    text = str(result)
    assert f"top1  {result.metrics['top1']:.4f} ± {result.spread['top1']:.4f}" in text
    assert "halves of each class, mean ± standard deviation over seeds 0, 1, 2" in text
    assert "closed set, seed 0" in str(replace(result, design="closed set", seeds=[0]))
    content = json.loads((tmp_path / "probe.json").read_text())
    assert content["spread"] == result.spread
    for change in ({"format": "other"}, {"num_train": "six"}, {"metrics": {"top1": []}}):
        (tmp_path / "damaged.json").write_text(json.dumps({**content, **change}))
        with pytest.raises(UserError, match=r"damaged\.json"):
            ProbeResult.load(tmp_path / "damaged.json")


ROWS, LABELS = clusters(40)
BAD = np.array(ROWS)
BAD[7, 1] = np.nan


ZERO = np.where(np.arange(40)[:, None] == 3, np.float32(0), ROWS)
OTHERS = (ROWS, LABELS)


@pytest.mark.parametrize(
    ("probe", "arguments", "options", "named"),
    [
        (knn, (ROWS, np.zeros(40, int)), {}, "two classes of two .* there are 1, among 1$"),
        (knn, (ROWS, np.zeros(40, int), *OTHERS), {}, "two classes of training rows: there are 1"),
        (knn, (ROWS, LABELS, ROWS, LABELS + 1), {}, "no class of the test rows occurs"),
        (knn, (ROWS, LABELS[:9]), {}, "the probed labels have shape .9,."),
        (knn, (ROWS, LABELS, ROWS), {}, "test and test_labels"),
        (knn, (ROWS, LABELS, ROWS[:, :3], LABELS), {}, "have 8 columns and the test embeddings 3"),
        (knn, (ROWS, LABELS, BAD, LABELS), {}, r"row 7 of the test embeddings .*holds NaN"),
        (knn, (ZERO, LABELS), {}, r"row 3 of the probed embeddings .* all zeros"),
        (knn, (ROWS, LABELS), {"seeds": [1, 1]}, "seeds must be different whole numbers"),
        (knn, (ROWS, LABELS), {"ids": np.zeros(40, int)}, "name an item twice"),
        (knn, (ROWS, LABELS, *OTHERS), {"k": 41}, "k must be from 1 .*, 40.* got 41"),
        (knn, (ROWS, LABELS, *OTHERS), {"temperature": 0.0}, "temperature .* 0.0"),
        (knn, (ROWS, LABELS, *OTHERS), {"seeds": [0]}, "seeds .0,. have no use"),
        (linear_probe, (BAD, LABELS), {}, r"row 7 of the probed embeddings .*holds NaN"),
        (linear_probe, (ROWS, LABELS), {"strengths": []}, "strengths"),
        (linear_probe, (ROWS, LABELS), {"strengths": [0.0]}, "strengths"),
        (linear_probe, (ROWS, np.arange(40) // 2), {}, "single training row"),
        (linear_probe, (ROWS, LABELS, *OTHERS), {"strengths": [0.1], "seeds": [0]}, "seeds .0,. have no use"),
    ],
)
def test_what_cannot_be_probed_raises(probe: Any, arguments: Any, options: Any, named: str) -> None:
    with pytest.raises(UserError, match=named):
        probe(*arguments, **options)


def test_a_linear_probe_takes_what_knn_cannot() -> None:
    assert linear_probe(ROWS, np.arange(40) // 2, strengths=[0.1]).num_train == 20
    assert linear_probe(ZERO, LABELS, seeds=[0]).num_left_out == 0
