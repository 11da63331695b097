import math

import pytest
import torch
from testing.equal import check_equal
from torch.nn.functional import normalize

from aurank.losses import CodingRateLoss, CrossBatchMemory, MultipleLosses, SmoothAPLoss


def batch(number: int, dim: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(number, dim, generator=random, dtype=torch.float64).requires_grad_()
    return rows, torch.randint(4, (number,), generator=random)


def rate(rows: torch.Tensor, variance: float) -> torch.Tensor:
    """By the eigenvalues of ZZᵀ, which are those of ZᵀZ and zeros."""
    unit = torch.stack([row / row.norm() for row in rows])
    values = torch.linalg.eigvalsh(unit @ unit.T).clamp(min=0)
    return torch.log1p(rows.shape[1] / (len(rows) * variance) * values).sum() / 2


@pytest.mark.parametrize(("number", "dim"), [(12, 5), (5, 12), (6, 6)])
def test_value_and_gradient_are_those_of_the_eigenvalues(number: int, dim: int) -> None:
    rows, labels = batch(number, dim)
    check_equal(CodingRateLoss()(rows, labels), -rate(rows, 0.25), rows)
    check_equal(CodingRateLoss(0.3)(rows, labels), -rate(rows, 0.09), rows)


def test_of_classes_it_is_that_of_their_mean_rows() -> None:
    rows, labels = batch(20, 6)
    means = [normalize(rows, dim=1)[labels == label].mean(dim=0) for label in labels.unique()]
    check_equal(CodingRateLoss(of="classes")(rows, labels), -rate(torch.stack(means), 0.25), rows)


def test_it_is_least_where_all_rows_are_orthogonal_and_greatest_where_they_are_one() -> None:
    labels, loss = torch.arange(6), CodingRateLoss()
    values = [loss(rows, labels).item() for rows in (torch.eye(6), batch(6, 6)[0].float(), torch.ones(6, 6))]
    assert values == sorted(values)
    assert values[0] == pytest.approx(-3 * math.log(5))
    assert values[2] == pytest.approx(-math.log(1 + 6 * 4) / 2)


def test_it_stands_beside_another_loss_and_in_a_memory() -> None:
    rows, labels = batch(20, 6)
    loss = MultipleLosses([SmoothAPLoss(), CodingRateLoss()], weights=[1, 0.01])
    wanted = SmoothAPLoss()(rows, labels) - 0.01 * rate(rows, 0.25)
    torch.testing.assert_close(loss(rows, labels), wanted, rtol=0, atol=1e-10)
    memory = CrossBatchMemory(MultipleLosses([CodingRateLoss()]), embedding_size=6, memory_size=40).double()
    torch.testing.assert_close(memory(rows, labels), -rate(rows, 0.25), rtol=0, atol=1e-10)


def test_numbers_are_float32_inside_of_autocast_and_nan_stays_nan() -> None:
    rows, labels = batch(20, 6)
    half = rows.detach().bfloat16()
    plain = CodingRateLoss()(half, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert CodingRateLoss()(half, labels) == plain
    assert plain.dtype == torch.float32
    spoilt = rows.detach().clone()
    spoilt[3] = torch.nan
    for of in ("samples", "classes"):
        assert CodingRateLoss(of=of)(spoilt, labels).isnan()
    assert CodingRateLoss()(rows.detach().to("meta"), labels).is_meta


def test_a_batch_of_one_row_is_a_constant() -> None:
    rows, _ = batch(1, 6)
    (gradient,) = torch.autograd.grad(CodingRateLoss()(rows, torch.tensor([0])), rows)
    assert gradient.abs().max() < 1e-12
