"""FastAP and the list-wise losses: soft bins of similarities."""

import itertools

import oracles
import pytest
import torch
from oracles import binned as oracles_binned
from pytorch_metric_learning import distances, losses, reducers
from sklearn.metrics import average_precision_score
from testing.equal import batch, check_equal
from torch import Tensor

from aurank.losses import FastAPLoss, ListwiseAPLoss, MultipleLosses, PairLoss
from aurank.losses.ranking.binned_ap import default_limits

BOTH = pytest.mark.parametrize("tie_aware", [False, True])


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


def gradient_of(loss: torch.nn.Module, embeddings: Tensor, labels: Tensor) -> Tensor:
    return torch.autograd.grad(loss(embeddings, labels), embeddings)[0]


@pytest.mark.parametrize("num_bins", [1, 10, 25])
def test_fast_ap_is_pml_s_by_either_distance(num_bins: int) -> None:
    embeddings, labels = batch()
    for given in ({}, {"distance": distances.LpDistance(power=2)}):
        theirs = losses.FastAPLoss(num_bins)(embeddings, labels)
        check_equal(FastAPLoss(num_bins, **given)(embeddings, labels), theirs, embeddings)


def test_official_keeps_the_value_and_makes_the_gradient_that_of_half_the_sum() -> None:
    embeddings, labels = batch()
    official, plain = FastAPLoss(official=True), FastAPLoss()
    assert official(embeddings, labels).equal(plain(embeddings, labels))
    gradient = gradient_of(plain, embeddings, labels)
    queries = 17  # two have no positive
    torch.testing.assert_close(gradient_of(official, embeddings, labels), gradient * queries / 2)
    summed = FastAPLoss(reducer=reducers.SumReducer())
    torch.testing.assert_close(gradient_of(official, embeddings, labels), gradient_of(summed, embeddings, labels) / 2)
    weighted = MultipleLosses([official], weights=[7])  # the authors' backward would ignore the 7
    torch.testing.assert_close(gradient_of(weighted, embeddings, labels), gradient * 7 * queries / 2)


def ranking(loss: PairLoss, scores: list[float], relevant: tuple[int, ...]) -> float:
    """The loss of one query whose references have these similarities."""
    angles = torch.acos(torch.tensor(scores, dtype=torch.float64))
    references = torch.stack([angles.cos(), angles.sin()], dim=1)
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    return loss(query, torch.tensor([1]), ref_emb=references, ref_labels=torch.tensor(relevant)).item()


def exact(relevant: list[int]) -> float:
    hits = [rank for rank, hit in enumerate(relevant, start=1) if hit]
    return sum((found + 1) / rank for found, rank in enumerate(hits)) / len(hits)


@BOTH
@pytest.mark.parametrize("given", [{}, {"num_bins": 2}, {"num_bins": 25, "range": (0, 1)}])
def test_value_and_gradient_equal_the_loop(given: dict[str, object], tie_aware: bool) -> None:
    embeddings, labels = batch()
    oracle = oracles_binned.tie_aware_ap if tie_aware else oracles_binned.binned_ap
    value = oracle(
        oracles.cosine(embeddings),
        *oracles.masks(labels.tolist()),
        number=given.get("num_bins", 20),
        limits=given.get("range", (-1, 1)),
    )
    loss = ListwiseAPLoss(tie_aware=tie_aware, **given)
    check_equal(loss(embeddings, labels), oracles.mean(value), embeddings)


CENTRES = [1.0, 0.5, 0.5, 0.5, 0.0, -0.5, -0.5]  # ties of three and two, whole in one of five bins


@pytest.mark.parametrize("relevant", [r for r in itertools.product([0, 1], repeat=7) if 0 < sum(r) < 7][::5])
def test_of_whole_ties_the_default_counts_negatives_first_and_tie_aware_averages_all_orders(
    relevant: tuple[int, ...],
) -> None:
    threshold = average_precision_score(relevant, CENTRES)
    assert ranking(ListwiseAPLoss(5), CENTRES, relevant) == pytest.approx(1 - threshold, abs=1e-12)
    first, tied, middle, last = relevant[:1], relevant[1:4], relevant[4:5], relevant[5:]
    orders = [
        exact([*first, *upper, *middle, *lower])
        for upper in itertools.permutations(tied)
        for lower in itertools.permutations(last)
    ]
    expected = 1 - sum(orders) / len(orders)
    assert ranking(ListwiseAPLoss(5, tie_aware=True), CENTRES, relevant) == pytest.approx(expected, abs=1e-7)


@BOTH
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_extreme_embeddings_and_unbounded_distances_stay_finite(scale: float, tie_aware: bool) -> None:
    embeddings, labels = batch()
    for distance in (
        None,
        distances.LpDistance(normalize_embeddings=False),
        distances.DotProductSimilarity(normalize_embeddings=False),
    ):
        rows = (embeddings.detach() * scale).float().requires_grad_()
        loss = ListwiseAPLoss(2000, tie_aware=tie_aware, distance=distance)(rows, labels)
        assert 0 <= loss <= 1
        assert torch.autograd.grad(loss, rows)[0].isfinite().all()
