"""Intervals and p-values over seeds and over classes, and ranks, beside slow references and SciPy's tests."""

import numpy as np
import pytest
from oracles import significance as oracle
from scipy.stats import chi2, ttest_rel

from aurank.evaluation.significance import SeedsAndClasses, over_seeds, rank_correlation, rank_over_classes

RANDOM = np.random.default_rng(0)
QUERIES = RANDOM.integers(1, 50, size=9).astype(np.float64)
FIRST, SECOND = RANDOM.random((4, 9)), RANDOM.random((4, 9))


def test_a_class_counts_by_its_queries_as_in_map() -> None:
    answer = SeedsAndClasses(QUERIES, resamples=200).answer(FIRST)
    assert answer.mean == pytest.approx(oracle.weighted_mean(FIRST.tolist(), QUERIES.tolist()), abs=1e-12)


def test_over_seeds_is_students_t_paired() -> None:
    first, second = (values @ QUERIES / QUERIES.sum() for values in (FIRST, SECOND))
    answer = SeedsAndClasses(QUERIES, resamples=200).answer(FIRST - SECOND)
    assert answer.p_seeds == pytest.approx(ttest_rel(first, second).pvalue)
    assert answer.half_width == pytest.approx(oracle.half_width((first - second).tolist(), 3.182446305284263))
    assert over_seeds(np.array([0.5, 0.5, 0.1 + 0.4 + 1e-16]))[1:] == (0.0, None)
    assert over_seeds(np.zeros(3)) == (0.0, 0.0, 1.0)


def test_draws_are_of_classes_and_seeds_with_replacement() -> None:
    draws = SeedsAndClasses(QUERIES, resamples=20_000).draws(FIRST)
    random = np.random.default_rng(1)
    slow = [oracle.resample(FIRST.tolist(), QUERIES.tolist(), random) for _ in range(20_000)]
    points = [0.01, 0.025, 0.25, 0.5, 0.75, 0.975, 0.99]
    np.testing.assert_allclose(np.quantile(draws, points), np.quantile(slow, points), atol=0.006)
    assert SeedsAndClasses(np.ones(9), resamples=5000).draws(np.full((4, 9), 0.3)).std() < 1e-12


def test_a_difference_of_all_classes_is_certain_and_one_of_none_is_not() -> None:
    chances = SeedsAndClasses(QUERIES, resamples=999)
    better, same = chances.answer(0.1 + 0.01 * FIRST), chances.answer(np.zeros((3, 9)))
    assert better.p_classes == pytest.approx(2 / 1000)
    assert better.interval[0] > 0.1
    assert same.p_classes == 1.0
    assert same.interval == (0.0, 0.0)
    alone = SeedsAndClasses(np.array([5.0]), resamples=200).answer(np.array([[0.5]]))
    assert (alone.interval, alone.p_classes, alone.half_width, alone.p_seeds) == (None, None, None, None)


def test_the_interval_covers_the_mean_of_all_classes_as_often_as_it_says() -> None:
    """Classes and seeds are drawn from many; a difference has an effect of each, and noise."""
    random, held = np.random.default_rng(2), 0
    for trial in range(200):
        values = random.normal(size=40) + 0.2 * random.normal(size=(8, 1)) + 0.5 * random.normal(size=(8, 40))
        low, high = SeedsAndClasses(np.ones(40), resamples=400, seed=trial).answer(values).interval or (0, 0)
        held += low <= 0 <= high
    assert 178 <= held <= 199


def test_ranks_share_places_and_the_critical_difference_is_that_of_the_books() -> None:
    values = np.round(RANDOM.random((5, 30)), 1)  # with ties
    ranks, five, _ = rank_over_classes(values)
    assert ranks == pytest.approx(oracle.mean_ranks(values.tolist()))
    # Table 5 of Demšar (2006): q of 5 methods at 0.05 is 2.728, of 10 it is 3.164.
    assert five == pytest.approx(2.728 * np.sqrt(5 * 6 / (6 * 30)), rel=2e-3)
    ten = rank_over_classes(RANDOM.random((10, 30)))[1]
    assert ten == pytest.approx(3.164 * np.sqrt(10 * 11 / (6 * 30)), rel=2e-3)


def test_friedmans_test_is_that_of_the_paper() -> None:
    values = RANDOM.random((4, 25))
    assert rank_over_classes(values)[2] == pytest.approx(chi2.sf(oracle.friedman(values.tolist()), 3))
    assert rank_over_classes(np.ones((3, 5)))[2] == 1.0
    assert rank_over_classes(values[:2])[2] is None


def test_orders_agree_by_the_pairs_that_they_order_alike() -> None:
    left, right = RANDOM.random((2, 7, 101))  # [method, draw]; the first draw is of the means
    taus = [
        np.mean([(a[i] > a[j]) == (b[i] > b[j]) for i in range(7) for j in range(i)]) * 2 - 1
        for a, b in zip(left.T, right.T, strict=True)
    ]
    half_width = 1.96 * np.std(taus[1:])
    assert rank_correlation(left, right) == pytest.approx(
        (taus[0], max(-1, taus[0] - half_width), taus[0] + half_width)
    )
    assert rank_correlation(left, np.exp(3 * left)) == (1, 1, 1)
