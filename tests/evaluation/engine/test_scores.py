"""The exact score depends on its two rows alone, and a product never strays from it by more than its bound."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from aurank.evaluation import RetrievalProblem, positive_ranks
from aurank.evaluation.engine.scores import DISTANCES, ExactScores, full_precision


def rows(count: int, dim: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, dim)))


def exact_scores(first: Tensor, second: Tensor, name: str = "cosine", *, compiled: bool = False) -> ExactScores:
    orders = np.arange(len(first)), np.arange(len(second))
    return ExactScores(RetrievalProblem(first, [], second, []), *orders, distance=name, compiled=compiled)


def block(first: Tensor, second: Tensor, name: str = "cosine", *, compiled: bool = False) -> Tensor:
    row, column = np.divmod(np.arange(len(first) * len(second)), len(second))
    scores = exact_scores(first, second, name, compiled=compiled).pairs(row, column)
    return torch.from_numpy(scores).view(len(first), len(second))


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 7, 64, 100, 129])
@pytest.mark.parametrize("name", DISTANCES)
def test_pairs_have_the_same_digits_compiled_or_not_together_or_alone(dim: int, name: str) -> None:
    first, second = rows(9, dim), rows(13, dim, seed=1)
    whole = block(first, second, name)
    assert torch.equal(block(first, second, name, compiled=True), whole)
    assert torch.equal(block(second, first, name).T, whole)  # symmetric
    assert torch.equal(block(first[2:3], second[5:6], name)[0, 0], whole[2, 5])


@pytest.mark.parametrize(("scale", "are_whole"), [(2.0, True), (2.0**20, True), (2.0**25, False)])
@pytest.mark.parametrize("name", DISTANCES)
def test_products_of_whole_numbers_have_the_digits_of_single_pairs(name: str, scale: float, are_whole: bool) -> None:
    first, second = (rows(9, 7) * scale).round(), (rows(13, 7, seed=1) * scale).round()
    exact, found = exact_scores(first, second, name), torch.empty(9, 13, dtype=torch.float64)
    assert exact.are_whole == are_whole
    if are_whole:
        exact.write_products(slice(0, 9), slice(0, 13), found)
        assert torch.equal(found, block(first, second, name))


HARD: dict[str, Callable[[int], Tensor]] = {
    "normal": lambda dim: rows(60, dim),
    # All terms of one sign, so that rounding errors of a running sum do not cancel.
    "positive": lambda dim: rows(60, dim).abs() + 1,
    "collapsed": lambda dim: torch.ones(60, dim, dtype=torch.float64) / 3 + 1e-7 * rows(60, dim),
    "one large": lambda dim: torch.cat([1e6 * torch.ones(60, 1, dtype=torch.float64), rows(60, dim - 1)], dim=1),
    "tiny": lambda dim: 1e-30 * rows(60, dim),
}


@pytest.mark.parametrize("kind", list(HARD))
@pytest.mark.parametrize("dim", [2, 33, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DISTANCES)
def test_a_product_stays_within_its_bound_of_the_exact_score(
    kind: str, dim: int, dtype: torch.dtype, name: str
) -> None:
    values = HARD[kind](dim)
    exact = exact_scores(values, values, name)
    left, right = (exact.features(slice(0, 60), dtype, gallery=gallery) for gallery in (False, True))
    with full_precision():
        truth = block(values, values, name) / exact.factor
        strayed = (left @ right.T).double() - truth
    assert float(strayed.abs().max()) <= exact.error(dtype)


def test_a_width_beyond_what_the_bound_covers_decides_nothing() -> None:
    wide = exact_scores(*(torch.ones(1, 10**6) for _ in range(2)))
    assert wide.error(torch.float32) > 1e9
    assert wide.error(torch.float64) < 1e-8


def test_the_callers_precision_settings_change_nothing_and_come_back() -> None:
    values = HARD["collapsed"](96).float().numpy()
    labels = np.arange(60) % 7
    expected = positive_ranks(values, labels)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.use_deterministic_algorithms(True)
        torch.set_default_dtype(torch.float64)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ranks = positive_ranks(torch.from_numpy(values), labels)
            single = torch.ones(2, 2, dtype=torch.float32)
            assert (single @ single).dtype == torch.bfloat16
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(before)
    assert np.array_equal(ranks.higher, expected.higher)
    assert np.array_equal(ranks.tied, expected.tied)
