"""The exact score depends on its two rows alone, and a product never strays from it by more than its bound."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from aurank.evaluation import positive_ranks
from aurank.evaluation.engine.scores import (
    DISTANCES,
    Distance,
    ExactScores,
    Vectors,
    full_precision,
    make_distance,
    row_lengths,
    tree_sum,
)


def rows(count: int, dim: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, dim)))


def lengths(values: Tensor) -> Tensor:
    return tree_sum(values * values).sqrt()


def sides(first: Tensor, second: Tensor, name: str) -> tuple[Vectors, Vectors, Distance]:
    distance = make_distance(name, float(lengths(first).max()), float(lengths(second).max()))
    queries, gallery = (
        Vectors(side, lengths(side), order=np.arange(len(side)), distance=distance) for side in (first, second)
    )
    return queries, gallery, distance


def block(first: Tensor, second: Tensor, name: str = "cosine", *, compiled: bool = False) -> Tensor:
    queries, gallery, _ = sides(first, second, name)
    out = torch.empty(len(first), len(second), dtype=torch.float64)
    ExactScores(queries, gallery, compiled=compiled).tile(slice(0, len(first)), slice(0, len(second)), out)
    return out


def pairs(first: Tensor, second: Tensor, name: str = "cosine", *, compiled: bool = False) -> Tensor:
    queries, gallery, _ = sides(first, second, name)
    every = np.arange(len(first))
    return torch.from_numpy(ExactScores(queries, gallery, compiled=compiled).pairs(every, every))


@pytest.mark.parametrize(("scale", "kind"), [(2.0, torch.float32), (2.0**20, torch.float64), (2.0**25, None)])
@pytest.mark.parametrize("name", DISTANCES)
def test_tiles_of_whole_numbers_are_products_with_the_digits_of_single_pairs(
    name: str, scale: float, kind: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (rows(9, 7) * scale).round(), (rows(13, 7, seed=1) * scale).round()
    queries, gallery, _ = sides(first, second, name)
    assert ExactScores(queries, gallery, compiled=False).product_type == kind
    row, column = torch.meshgrid(torch.arange(9), torch.arange(13), indexing="ij")
    single = pairs(first[row.flatten()], second[column.flatten()], name).view(9, 13)
    if kind is not None:
        monkeypatch.setattr(ExactScores, "pairs", None)
    assert torch.equal(block(first, second, name), single)


def test_codes_of_one_bit_rank_as_by_single_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, labels = torch.sign(rows(300, 16)), np.arange(300) // 3
    found = positive_ranks(codes, labels)
    assert found.num_rechecked == 0
    monkeypatch.setattr(ExactScores, "product_type", None)
    single = positive_ranks(codes, labels)
    assert single.num_rechecked > 0
    for field in ("higher", "tied", "at_least", "positive"):
        assert np.array_equal(getattr(found, field), getattr(single, field))


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 7, 64, 100, 129])
@pytest.mark.parametrize("name", DISTANCES)
def test_tiles_and_single_pairs_have_the_same_digits_compiled_or_not(dim: int, name: str) -> None:
    first, second = rows(9, dim), rows(13, dim, seed=1)
    whole = block(first, second, name)
    assert torch.equal(block(first, second, name, compiled=True), whole)
    assert torch.equal(block(second, first, name).T, whole)  # symmetric
    row, column = torch.meshgrid(torch.arange(9), torch.arange(13), indexing="ij")
    for compiled in (False, True):
        single = pairs(first[row.flatten()], second[column.flatten()], name, compiled=compiled)
        assert torch.equal(single.view(9, 13), whole)
    assert torch.equal(pairs(first[2:3], second[5:6], name)[0], whole[2, 5])
    for values in (first, first.float()):
        compiled_lengths = row_lengths(values, side="query", distance=name, compiled=True)
        assert torch.equal(compiled_lengths, row_lengths(values, side="query", distance=name, compiled=False))


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
@pytest.mark.parametrize("name", DISTANCES)
def test_a_product_stays_within_its_bound_of_the_exact_score(
    kind: str, dim: int, dtype: torch.dtype, name: str
) -> None:
    values = HARD[kind](dim)
    queries, gallery, distance = sides(values, values, name)
    left = queries.features(slice(0, 60), dtype, gallery=False)
    right = gallery.features(slice(0, 60), dtype, gallery=True)
    with full_precision():
        truth = block(values, values, name) / distance.factor
        strayed, wide = (left @ right.T).double() - truth, left.double() @ right.double().T - truth
    assert float(strayed.abs().max()) <= distance.error(dim, dtype)
    assert float(wide.abs().max()) <= distance.feature_error(dim)


def test_a_width_beyond_what_the_bound_covers_is_left_to_the_next_tier() -> None:
    assert Distance("cosine").error(10**6, torch.float32) == float("inf")
    assert Distance("cosine").error(10**6, torch.float64) < 1e-8


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
