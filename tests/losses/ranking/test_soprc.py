"""SOPRC, its interpolations of quantiles and its semi-variance."""

import numpy as np
import oracles
import pytest
import torch
from testing.equal import batch, check_equal

from aurank.losses import SemiVarianceLoss, SOPRCLoss
from aurank.losses.ranking.soprc import INTERPOLATIONS

COUNTS = [9, 4, 20, 1, 6, 0]


def class_prior(
    kind: str, positive: list[list[bool]], negative: list[list[bool]], labels: list[int]
) -> dict[int, float]:
    prior = {}
    for row, (positives, negatives) in oracles.sides(positive, negative).items():
        count = COUNTS[labels[row]]
        prior[row] = {
            "scaled": 0.2 * count / max(COUNTS),
            "frequency": count / sum(COUNTS),
            "batch": len(positives) / (len(positives) + len(negatives)),
        }[kind]
    return prior


@pytest.mark.parametrize("tpr_gradient", [False, True])
@pytest.mark.parametrize("interpolation", ["quantile", "paper"])
@pytest.mark.parametrize("prior", ["scaled", "frequency", "batch"])
def test_value_and_gradient_equal_the_loop_on_a_class_s_first_batch(
    prior: str, interpolation: str, tpr_gradient: bool
) -> None:
    embeddings, labels = batch()
    similarity, sides = oracles.cosine(embeddings), oracles.masks(labels.tolist())
    interpolate = {"quantile": oracles.quantile_scores, "paper": oracles.paper_scores}[interpolation]
    quantiles = oracles.first_batch_quantiles(similarity, *sides, labels.tolist(), 11, interpolate=interpolate)
    loss = SOPRCLoss(
        COUNTS,
        tau1=0.3,
        tau2=0.2,
        num_quantiles=11,
        prior=prior,
        prior_max=0.2,
        interpolation=interpolation,
        tpr_gradient=tpr_gradient,
        semi_variance=(2, 3),
    ).double()
    ranking = oracles.soprc(
        similarity,
        *sides,
        quantiles=quantiles,
        prior=class_prior(prior, *sides, labels.tolist()),
        tau1=0.3,
        tau2=0.2,
        tpr_gradient=tpr_gradient,
    )
    extra = oracles.semi_variance(similarity, *sides, weights=(2.0, 3.0))
    check_equal(loss(embeddings, labels), oracles.mean(ranking) + oracles.mean(extra), embeddings)
    for row, values in quantiles.items():
        torch.testing.assert_close(loss.v[labels[row]].tolist(), values, rtol=0, atol=1e-12)


def test_v_is_updated_before_it_is_used_and_fixed_for_the_gradient() -> None:
    (first, labels), (second, other) = batch(seed=1), batch(seed=2)
    loss = SOPRCLoss(COUNTS, tau2=0.2, beta=0.3, num_quantiles=5, semi_variance=None).double()
    loss(first, labels)
    value = loss(second, other)
    blended = {}
    similarity, sides = oracles.cosine(second), oracles.masks(other.tolist())
    old = oracles.first_batch_quantiles(oracles.cosine(first), *oracles.masks(labels.tolist()), labels.tolist(), 5)
    new = oracles.first_batch_quantiles(similarity, *sides, other.tolist(), 5)
    for row, values in new.items():
        before = next(old[mate] for mate in old if labels[mate] == other[row])
        blended[row] = [0.7 * a + 0.3 * b for a, b in zip(before, values, strict=True)]
    prior = {row: 0.1 * COUNTS[int(other[row])] / max(COUNTS) for row in new}
    expected = oracles.mean(oracles.soprc(similarity, *sides, quantiles=blended, prior=prior, tau2=0.2))
    check_equal(value, expected, second)


def test_official_does_what_the_authors_code_does() -> None:
    embeddings, labels = batch()
    loss = SOPRCLoss(COUNTS, official=True, beta=0.25, num_quantiles=10).double()
    similarity, sides = oracles.cosine(embeddings), oracles.masks(labels.tolist())
    assert loss.v.tolist() == pytest.approx(np.tile([k / 10 for k in range(10)], (6, 1)))
    value = loss(embeddings, labels)
    quantiles = oracles.official_quantiles(similarity, *sides, labels.tolist(), number=10, beta=0.25)
    for row, values in quantiles.items():
        torch.testing.assert_close(loss.v[labels[row]].tolist(), values, rtol=0, atol=1e-7)
    prior = {row: 0.1 * COUNTS[int(labels[row])] / max(COUNTS) for row in quantiles}
    ranking = oracles.soprc(similarity, *sides, quantiles=quantiles, prior=prior)
    extra = oracles.pooled_semi_variance(similarity, *sides, weights=(1.0, 5.0))
    torch.testing.assert_close(value, oracles.mean(ranking) + extra, rtol=0, atol=1e-5)
    assert loss.interpolation == "official"


def test_the_loss_stays_below_one_where_the_ratio_is_huge() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    rows = torch.tensor([[1.0, 0], [-1, 1e-4], [1, 1e-3], [-1, 0]], requires_grad=True)  # every positive is far away
    loss = SOPRCLoss([1, 1_000_000], semi_variance=None)(rows, labels)
    loss.backward()
    assert 0.9 < loss <= 1
    assert rows.grad.isfinite().all()


def test_class_counts_may_be_an_array_a_tensor_a_list_or_an_iterator() -> None:
    for counts in (np.array([2, 3]), torch.tensor([2, 3]), [2, 3], (2, 3), iter([2, 3])):
        assert SOPRCLoss(counts).class_counts.tolist() == [2, 3]


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


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("weights", [(1.0, 5.0), (2, 0)])
def test_semi_variance_and_its_gradient_equal_the_loop(weights: tuple[float, float], official: bool) -> None:
    embeddings, labels = batch()
    value = SemiVarianceLoss(weights, official)(embeddings, labels)
    given = (oracles.cosine(embeddings), *oracles.masks(labels.tolist()))
    if official:
        expected = oracles.pooled_semi_variance(*given, weights=weights)
    else:
        expected = oracles.mean(oracles.semi_variance(*given, weights=weights))
    check_equal(value, expected, embeddings)


@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0)])
def test_scores_that_are_not_a_number_count_in_either_term_of_semi_variance(
    weights: tuple[float, float], official: bool
) -> None:
    embeddings, labels = batch()
    rows = embeddings.detach().clone()
    rows[labels == 2] = torch.nan
    assert SemiVarianceLoss(weights, official)(rows, labels).isnan()
