import pytest
import torch
from pytorch_metric_learning import distances

from aurank.errors import UserError
from aurank.losses import FastAPLoss, ListwiseAPLoss
from aurank.losses.ranking.binned_ap import (
    bin_position,
    default_limits,
    histogram_average_precision,
    soft_histogram,
)

WANTED = torch.ones(1, 1, dtype=torch.bool)


def shares(score: float, *, num_bins: int, limits: tuple[float, float], dtype: torch.dtype = torch.float64) -> list:
    row = torch.tensor([[score]], dtype=dtype)
    return soft_histogram(row, WANTED, num_bins=num_bins, limits=limits)[0].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limits", [(-1.0, 1.0), (-4.0, 0.0), (0.3, 0.7)])
def test_ends_and_whatever_lies_beyond_them_count_whole_in_the_last_bin(
    limits: tuple[float, float], dtype: torch.dtype
) -> None:
    for number in (2, 11, 20, 25):
        alone = [1.0] + [0.0] * (number - 1)
        for score in (limits[1], limits[1] + 1e-6, 1e30, float("inf")):
            assert shares(score, num_bins=number, limits=limits, dtype=dtype) == alone
        for score in (limits[0], limits[0] - 1e-6, -1e30, float("-inf")):
            assert shares(score, num_bins=number, limits=limits, dtype=dtype) == alone[::-1]


def test_a_score_counts_in_the_two_bins_it_lies_between_by_nearness() -> None:
    assert shares(0.5, num_bins=5, limits=(-1.0, 1.0)) == [0, 1, 0, 0, 0]  # a centre
    assert shares(0.375, num_bins=5, limits=(-1.0, 1.0)) == [0, 0.75, 0.25, 0, 0]
    assert shares(-3, num_bins=3, limits=(-4.0, 0.0)) == [0, 0.5, 0.5]


def test_shares_add_up_to_the_number_wanted_and_the_rest_is_not_counted() -> None:
    random = torch.Generator().manual_seed(0)
    scores = (torch.randn(7, 30, generator=random, dtype=torch.float64) * 0.7).requires_grad_()
    wanted = torch.rand(7, 30, generator=random) < 0.4
    for number in (2, 11, 2000):
        bins = soft_histogram(scores, wanted, num_bins=number, limits=(-1.0, 1.0))
        assert bins.shape == (7, number)
        torch.testing.assert_close(bins.sum(dim=1), wanted.sum(dim=1).double(), rtol=0, atol=1e-12)
        place = torch.arange(number, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((bins * place).sum(), scores)
        inside = wanted & (scores.abs() < 1)
        torch.testing.assert_close(gradient, inside.double() * -(number - 1) / 2, rtol=1e-10, atol=1e-10)


def test_what_is_not_a_number_stays_one_and_indexes_a_bin() -> None:
    scores = torch.tensor([[float("nan"), 0.5]])
    first, _ = bin_position(scores, num_bins=4, limits=(-1.0, 1.0))
    assert 0 <= int(first.min()) <= int(first.max()) <= 2
    assert soft_histogram(scores, torch.tensor([[True, True]]), num_bins=4, limits=(-1.0, 1.0)).isnan().any()
    assert shares(0.5, num_bins=4, limits=(-1.0, 1.0)) == [0.25, 0.75, 0, 0]


def test_average_precision_of_counts_by_hand_with_empty_bins_and_specks() -> None:
    zeros = [0.0, 0.0, 0.0]
    positives = torch.tensor([[1.0, 0, 2], [0, 0, 1], zeros, [1e-38, 1, 0]], requires_grad=True)
    negatives = torch.tensor([[1.0, 4, 0], zeros, [1, 1, 1], [0, 0, 3]], requires_grad=True)
    value = histogram_average_precision(positives, negatives, torch.tensor([3, 1, 0, 1]))
    torch.testing.assert_close(value, torch.tensor([(1 / 2 + 2 * 3 / 8) / 3, 1, 0, 1]))
    for gradient in torch.autograd.grad(value.sum(), (positives, negatives)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("distance", "limits"),
    [
        (distances.CosineSimilarity(), (-1, 1)),
        (distances.LpDistance(), (-2, 0)),
        (distances.LpDistance(power=2), (-4, 0)),
        (distances.DotProductSimilarity(), (-1, 1)),
        (distances.SNRDistance(), (-4, 0)),
    ],
)
def test_limits_are_the_similarities_of_opposite_and_equal_unit_vectors(
    distance: distances.BaseDistance, limits: tuple[float, float]
) -> None:
    assert default_limits(distance) == limits


def test_what_is_no_number_of_bins_or_no_range_is_refused() -> None:
    class Nothing(distances.BaseDistance):
        def compute_mat(self, query: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(query), len(reference))

    with pytest.raises(UserError, match=r"Nothing .* as range"):
        default_limits(Nothing())
    for loss, least in ((FastAPLoss, 1), (ListwiseAPLoss, 2)):
        for number in (least - 1, -1, True):
            with pytest.raises(UserError, match=f"num_bins must be a whole number >= {least}"):
                loss(number)
    for limits in ((1, -1), (0, 0), (0,), (0, 1, 2), (0, float("inf")), (float("nan"), 1), (False, True)):
        with pytest.raises(UserError, match="range"):
            ListwiseAPLoss(range=limits)
