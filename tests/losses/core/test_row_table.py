import math

import pytest
import torch

from aurank.losses import RowTable
from aurank.losses.core.row_table import mean_by_row


def entries(number: int = 40, rows: int = 7, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(rows, (number,), generator=random), torch.randn(number, 5, generator=random)


def test_first_value_is_copied_and_later_ones_blend_in() -> None:
    table = RowTable(3, 2)
    table.update(torch.tensor([1]), torch.tensor([[0.5, -2.0]]), rate=0.1)
    assert table.rows.tolist() == [[0, 0], [0.5, -2], [0, 0]]
    assert table.seen.tolist() == [False, True, False]
    table.update(torch.tensor([1]), torch.tensor([[1.5, -1.0]]), rate=0.1)
    torch.testing.assert_close(table.rows[1], torch.tensor([0.6, -1.9]))


@pytest.mark.parametrize("double", [False, True])
def test_entries_of_one_row_are_averaged(double: bool) -> None:
    index, values = entries()
    table = RowTable(7, 5).double() if double else RowTable(7, 5)
    values = values.to(table.rows.dtype)
    table.update(index, values, rate=0.3)
    for row in range(7):
        expected = values[index == row].double().mean(dim=0).to(table.rows.dtype)
        torch.testing.assert_close(table.rows[row], expected, rtol=1e-15 if double else 1e-7, atol=0)


@pytest.mark.parametrize(("scale", "logarithms"), [(1e-30, False), (1.0, False), (1e30, False), (1.0, True)])
def test_the_order_of_entries_never_changes_a_bit(scale: float, logarithms: bool) -> None:
    index, values = entries(500)
    values = values * torch.logspace(-6, 6, 500)[:, None] * scale
    tables = []
    for seed in range(5):
        order = torch.randperm(500, generator=torch.Generator().manual_seed(seed))
        table = RowTable(7, 5, logarithms=logarithms)
        table.update(*entries(seed=1), rate=0.3)
        table.update(index[order], values[order], rate=0.3)
        tables.append(table.rows)
    assert all(rows.equal(tables[0]) for rows in tables)


def test_values_that_are_not_finite_are_left_out() -> None:
    table = RowTable(3, 2)
    values = torch.tensor([[1.0, 1.0], [torch.nan, 5.0], [torch.inf, 5.0], [3.0, 1.0]])
    table.update(torch.tensor([0, 0, 1, 0]), values, rate=0.1)
    assert table.rows.tolist() == [[2, 1], [0, 0], [0, 0]]
    assert table.seen.tolist() == [True, False, False]


def test_means_are_right_for_zeros_and_for_large_counts() -> None:
    mean, finite = mean_by_row(torch.zeros(3, dtype=torch.int64), torch.zeros(3, 2))
    assert mean.tolist() == [[0, 0]] * 3
    assert finite.all()
    values = torch.randn(20_000, 1, dtype=torch.float64)
    mean, _ = mean_by_row(torch.zeros(20_000, dtype=torch.int64), values)
    torch.testing.assert_close(mean[0], values.mean(dim=0), rtol=1e-12, atol=1e-15)


def test_logarithms_average_what_they_are_logarithms_of() -> None:
    index, values = entries(number=30)
    plain, logs = RowTable(7, 5).double(), RowTable(7, 5, logarithms=True).double()
    for seed in range(3):
        given = values.double().abs() * (1 + seed) + 0.1
        plain.update(index, given, rate=0.3)
        logs.update(index, given.log(), rate=0.3)
        plain.update(index[:4], given[:4], rate=1.0)
        logs.update(index[:4], given[:4].log(), rate=1.0)
    torch.testing.assert_close(logs.rows[logs.seen].exp(), plain.rows[plain.seen], rtol=1e-13, atol=0)
    assert logs.seen.equal(plain.seen)


def test_logarithms_far_beyond_what_exp_can_hold_are_averaged_right() -> None:
    table = RowTable(2, 1, logarithms=True)
    table.update(torch.tensor([0, 0, 1]), torch.tensor([[900.0], [900.0], [-900.0]]), rate=0.5)
    assert table.rows.tolist() == [[900], [-900]]
    table.update(torch.tensor([0, 1, 1]), torch.tensor([[-900.0], [torch.nan], [-torch.inf]]), rate=0.5)
    torch.testing.assert_close(table.rows, torch.tensor([[900 - torch.log(torch.tensor(2.0))], [-900.0]]))


def test_a_table_that_starts_at_zero_asks_the_batches_of_all_ranks_whether_it_is_new():
    table = RowTable(4, 1, logarithms=True, starts_at_zero=True)
    table.update(torch.tensor([0]), torch.zeros(1, 1), rate=0.5)
    new, of_all = torch.tensor([1]), torch.tensor([0, 1])
    assert table.blended(new, torch.zeros(1, 1), rate=0.5).item() == 0
    assert table.blended(new, torch.zeros(1, 1), rate=0.5, batch=of_all).item() == pytest.approx(math.log(0.5))
