import pytest
from pytorch_metric_learning import distances

from aurank.losses.ranking.binned_ap import default_limits


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
