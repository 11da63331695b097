import pytest
import torch
from pytorch_metric_learning import distances

from aurank.errors import UserError
from aurank.losses import FastAPLoss, ListwiseAPLoss
from aurank.losses.ranking.binned_ap import (
    default_limits,
)


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
