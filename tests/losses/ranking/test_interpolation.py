import oracles
import pytest
import torch

from aurank.losses.ranking.soprc import INTERPOLATIONS

ORACLES = {"quantile": oracles.quantile_scores, "paper": oracles.paper_scores, "official": oracles.official_scores}
UNBOUNDED = (-torch.inf, torch.inf)


def padded(lists: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    count = torch.tensor([len(scores) for scores in lists])
    table = torch.full((len(lists), int(count.max())), torch.inf, dtype=torch.float64)
    for row, scores in enumerate(lists):
        table[row, : len(scores)] = torch.tensor(sorted(scores), dtype=torch.float64)
    return table, count


@pytest.mark.parametrize("name", list(INTERPOLATIONS))
@pytest.mark.parametrize("number", [1, 2, 5, 7, 100])
def test_every_interpolation_equals_its_loop(name: str, number: int) -> None:
    random = torch.Generator().manual_seed(number)
    lists = [(torch.rand(n, generator=random, dtype=torch.float64) * 2 - 1).tolist() for n in (3, 1, 2, 5, 12, 7)]
    scores, count = padded(lists)
    result = INTERPOLATIONS[name](scores, count, num_quantiles=number, bounds=(-1.0, 1.0))
    expected = torch.tensor([ORACLES[name](each, number) for each in lists], dtype=torch.float64)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)


def test_quantiles_are_the_identity_for_as_many_quantiles_as_scores() -> None:
    scores, count = padded([torch.randn(9, dtype=torch.float64).tolist() for _ in range(20)])
    assert INTERPOLATIONS["quantile"](scores, count, num_quantiles=9, bounds=UNBOUNDED).equal(scores)
    single = scores.float()
    assert INTERPOLATIONS["quantile"](single, count, num_quantiles=9, bounds=UNBOUNDED).equal(single)


@pytest.mark.slow
def test_quantiles_are_nearer_to_the_distribution_than_the_official_ones() -> None:
    # 0.017 and 0.029: the errors stated in the docstring, for three scores of N(0.5, 0.1)
    draws = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.1 + 0.5
    scores, count = draws.sort(dim=1).values, torch.full((20_000,), 3)
    place = torch.arange(1, 101, dtype=torch.float64) / 101
    truth = 0.5 + 0.1 * torch.special.ndtri(place)
    error = {}
    for name in ("quantile", "official"):
        values = INTERPOLATIONS[name](scores, count, num_quantiles=100, bounds=(-1.0, 1.0))
        error[name] = float((values.mean(dim=0) - truth).square().mean().sqrt())
    assert error["quantile"] == pytest.approx(0.017, abs=0.001)
    assert error["official"] == pytest.approx(0.029, abs=0.001)
