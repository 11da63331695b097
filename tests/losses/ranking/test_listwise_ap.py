import itertools

import oracles
import pytest
import torch
from oracles import binned as oracles_binned
from pytorch_metric_learning import distances
from sklearn.metrics import average_precision_score
from testing.equal import batch, check_equal

from aurank.losses import ListwiseAPLoss

BOTH = pytest.mark.parametrize("tie_aware", [False, True])


def oracle(tie_aware: bool):
    return oracles_binned.tie_aware_ap if tie_aware else oracles_binned.binned_ap


def ranking(scores: list[float], relevant: list[int], **given: object) -> float:
    """The loss of one query whose references have these similarities."""
    angles = torch.acos(torch.tensor(scores, dtype=torch.float64))
    references = torch.stack([angles.cos(), angles.sin()], dim=1)
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    loss = ListwiseAPLoss(**given)
    return loss(query, torch.tensor([1]), ref_emb=references, ref_labels=torch.tensor(relevant)).item()


def exact(relevant: list[int]) -> float:
    hits = [rank for rank, hit in enumerate(relevant, start=1) if hit]
    return sum((found + 1) / rank for found, rank in enumerate(hits)) / len(hits)


@BOTH
@pytest.mark.parametrize("given", [{}, {"num_bins": 2}, {"num_bins": 25, "range": (0, 1)}])
def test_value_and_gradient_equal_the_loop(given: dict[str, object], tie_aware: bool) -> None:
    embeddings, labels = batch()
    value = oracle(tie_aware)(
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
    given = {"num_bins": 5}
    threshold = average_precision_score(relevant, CENTRES)
    assert ranking(CENTRES, list(relevant), **given) == pytest.approx(1 - threshold, abs=1e-12)
    first, tied, middle, last = relevant[:1], relevant[1:4], relevant[4:5], relevant[5:]
    orders = [
        exact([*first, *upper, *middle, *lower])
        for upper in itertools.permutations(tied)
        for lower in itertools.permutations(last)
    ]
    expected = 1 - sum(orders) / len(orders)
    assert ranking(CENTRES, list(relevant), tie_aware=True, **given) == pytest.approx(expected, abs=1e-7)


@pytest.mark.slow
def test_with_ever_more_bins_tie_aware_tends_to_the_exact_average_precision_and_the_default_stays_below() -> None:
    embeddings, labels = batch()
    similarity = oracles.cosine(embeddings.detach()).numpy()
    precisions = []
    for row, label in enumerate(labels.tolist()):
        others = [j for j in range(len(labels)) if j != row]
        if (labels == label).sum() > 1:
            precisions.append(average_precision_score((labels[others] == label).numpy(), similarity[row, others]))
    wanted = 1 - sum(precisions) / len(precisions)
    errors = [abs(ListwiseAPLoss(n, tie_aware=True)(embeddings, labels).item() - wanted) for n in (5, 50, 10**5)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-12
    assert wanted < ListwiseAPLoss(10**5)(embeddings, labels).item() < wanted + 0.2


def test_equal_embeddings_score_the_prevalence_or_the_mean_over_orders() -> None:
    labels, rows = torch.tensor([0, 0, 0, 1, 1, 1]), torch.ones(6, 4)
    assert ListwiseAPLoss()(rows, labels) == pytest.approx(1 - 2 / 5, abs=1e-5)
    orders = [exact(order) for order in itertools.permutations([1, 1, 0, 0, 0])]
    assert ListwiseAPLoss(tie_aware=True)(rows, labels) == pytest.approx(1 - sum(orders) / len(orders), abs=1e-5)


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
