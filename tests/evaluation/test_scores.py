"""The exact score depends on its two rows alone, and a product never strays from it by more than its bound."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from aurank.evaluation import positive_ranks
from aurank.evaluation.scores import exact_block, exact_pairs, full_precision, product_error, tree_sum

CPU = torch.device("cpu")


def rows(count: int, dim: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, dim)))


def lengths(values: Tensor) -> Tensor:
    return tree_sum(values * values).sqrt()


def block(first: Tensor, second: Tensor, tile: int) -> Tensor:
    out = torch.empty(len(first), len(second), dtype=torch.float64)
    exact_block(first, second, lengths(first), lengths(second), tile=tile, out=out)
    return out


def pairs(first: Tensor, second: Tensor) -> Tensor:
    return exact_pairs(first.clone(), second, lengths(first) * lengths(second))


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 7, 64, 100, 129])
def test_blocks_of_any_tile_give_the_digits_of_single_pairs(dim: int) -> None:
    first, second = rows(9, dim), rows(13, dim, seed=1)
    whole = block(first, second, tile=512)
    assert torch.equal(block(first, second, tile=4), whole)
    assert torch.equal(block(second, first, tile=8).T, whole)  # symmetric
    row, column = torch.meshgrid(torch.arange(9), torch.arange(13), indexing="ij")
    assert torch.equal(pairs(first[row.flatten()], second[column.flatten()]).view(9, 13), whole)
    assert torch.equal(pairs(first[2:3], second[5:6])[0], whole[2, 5])


def test_a_score_equals_the_float64_cosine_and_ignores_scaling_by_powers_of_two() -> None:
    first, second = rows(20, 37), rows(20, 37, seed=1)
    expected = torch.nn.functional.cosine_similarity(first, second, dim=1)
    torch.testing.assert_close(pairs(first, second), expected, rtol=0, atol=1e-15)
    assert torch.equal(pairs(first * 2.0**40, second * 2.0**-90), pairs(first, second))


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
def test_a_product_stays_within_its_bound_of_the_exact_score(kind: str, dim: int, dtype: torch.dtype) -> None:
    values = HARD[kind](dim)
    unit = (values / lengths(values)[:, None]).to(dtype)
    with full_precision(CPU):
        strayed = (unit @ unit.T).double() - block(values, values, tile=512)
    assert float(strayed.abs().max()) <= product_error(dim, dtype)


def test_a_width_beyond_what_the_bound_covers_is_left_to_the_next_tier() -> None:
    assert product_error(10**6, torch.float32) == float("inf")
    assert product_error(10**6, torch.float64) < 1e-8


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
            assert (
                torch.ones(2, 2, dtype=torch.float32) @ torch.ones(2, 2, dtype=torch.float32)
            ).dtype == torch.bfloat16
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(before)
    assert np.array_equal(ranks.higher, expected.higher)
    assert np.array_equal(ranks.tied, expected.tied)
