import copy
import io

import pytest
import torch

from aurank.losses import RowTable
from aurank.losses.state import mean_by_row


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


def test_a_table_with_a_start_counts_as_seen() -> None:
    table = RowTable(2, 3, start=torch.arange(3.0))
    table.update(torch.tensor([0]), torch.ones(1, 3), rate=0.5)
    assert table.rows.tolist() == [[0.5, 1, 1.5], [0, 1, 2]]


@pytest.mark.parametrize("double", [False, True])
def test_entries_of_one_row_are_averaged(double: bool) -> None:
    index, values = entries()
    table = RowTable(7, 5).double() if double else RowTable(7, 5)
    values = values.to(table.rows.dtype)
    table.update(index, values, rate=0.3)
    for row in range(7):
        expected = values[index == row].double().mean(dim=0).to(table.rows.dtype)
        torch.testing.assert_close(table.rows[row], expected, rtol=1e-15 if double else 1e-7, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_order_of_entries_never_changes_a_bit(scale: float) -> None:
    index, values = entries(500)
    values = values * torch.logspace(-6, 6, 500)[:, None] * scale
    tables = []
    for seed in range(5):
        order = torch.randperm(500, generator=torch.Generator().manual_seed(seed))
        table = RowTable(7, 5)
        table.update(*entries(seed=1), rate=0.3)
        table.update(index[order], values[order], rate=0.3)
        tables.append(table.rows)
    assert all(rows.equal(tables[0]) for rows in tables)


def test_one_entry_is_stored_to_the_last_bit() -> None:
    values = torch.randn(200, 3) * torch.logspace(-8, 8, 200)[:, None]
    table = RowTable(200, 3)
    table.update(torch.arange(200), values, rate=0.5)
    assert table.rows.equal(values)


def test_values_that_are_not_finite_are_left_out() -> None:
    table = RowTable(3, 2)
    values = torch.tensor([[1.0, 1.0], [torch.nan, 5.0], [torch.inf, 5.0], [3.0, 1.0]])
    table.update(torch.tensor([0, 0, 1, 0]), values, rate=0.1)
    assert table.rows.tolist() == [[2, 1], [0, 0], [0, 0]]
    assert table.seen.tolist() == [True, False, False]


def test_no_entries_change_nothing() -> None:
    table = RowTable(3, 2)
    table.update(torch.empty(0, dtype=torch.int64), torch.empty(0, 2), rate=0.5)
    assert not table.rows.any()
    assert not table.seen.any()


def test_state_goes_through_a_file_complete_and_to_the_last_bit() -> None:
    table, restored = RowTable(7, 5), RowTable(7, 5)
    table.update(*entries(number=3), rate=0.1)
    file = io.BytesIO()
    torch.save(table.state_dict(), file)
    file.seek(0)
    restored.load_state_dict(torch.load(file, weights_only=True))
    for each in (table, restored):
        each.update(*entries(seed=2), rate=0.1)
    assert restored.rows.equal(table.rows)
    assert restored.seen.equal(table.seen)


def test_half_precision_leaves_state_in_float32_and_double_makes_it_float64() -> None:
    table = RowTable(7, 5)
    table.update(*entries(), rate=0.1)
    before = table.rows.clone()
    for convert in (table.half, table.bfloat16, lambda: table.to(torch.bfloat16)):
        convert()
        assert table.rows.dtype == torch.float32
        assert table.rows.equal(before)
    assert table.half().to("meta").rows.is_meta
    assert copy.deepcopy(RowTable(7, 5)).double().rows.dtype == torch.float64


def test_a_copy_has_state_of_its_own() -> None:
    table = RowTable(7, 5)
    copied = copy.deepcopy(table)
    copied.update(*entries(), rate=0.1)
    assert not table.seen.any()


def test_means_are_right_for_zeros_and_for_large_counts() -> None:
    mean, finite = mean_by_row(torch.zeros(3, dtype=torch.int64), torch.zeros(3, 2))
    assert mean.tolist() == [[0, 0]] * 3
    assert finite.all()
    values = torch.randn(20_000, 1, dtype=torch.float64)
    mean, _ = mean_by_row(torch.zeros(20_000, dtype=torch.int64), values)
    torch.testing.assert_close(mean[0], values.mean(dim=0), rtol=1e-12, atol=1e-15)
