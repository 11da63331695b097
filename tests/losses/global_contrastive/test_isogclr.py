import math
from collections.abc import Iterator

import numpy as np
import oracles
import pytest
import torch
from oracles import temperatures as oracles_temperatures
from pytorch_metric_learning import distances
from testing import cases as two_way
from testing.equal import check_equal
from torch import Tensor

from aurank.losses import ISogCLRLoss

LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4, 4])  # two views each


def views(seed: int = 0, *, spread: float = 1.0) -> Tensor:
    """Two views of each of five images, the closer the smaller the spread."""
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(5, 6, generator=random, dtype=torch.float64)
    noise = torch.randn(len(LABELS), 6, generator=random, dtype=torch.float64)
    return (images[LABELS] + spread * noise).requires_grad_()


def make(**given: object) -> ISogCLRLoss:
    return ISogCLRLoss(8, **given).double()


def parts(embeddings: Tensor) -> Iterator[tuple[int, Tensor, list[int], list[int]]]:
    """Each query's row of similarities, positives and negatives."""
    similarity = oracles.cosine(embeddings)
    for query, sides in oracles.sides(*oracles.masks(LABELS.tolist())).items():
        yield query, similarity[query], *sides


@pytest.mark.parametrize("individual", [True, False])
@pytest.mark.parametrize("weighted_pull", [True, False])
def test_two_ways_are_the_sum_of_both_objectives(individual: bool, weighted_pull: bool) -> None:
    given = two_way.batch()
    loss = ISogCLRLoss(
        20, two_way=True, temperature=0.5, individual=individual, weighted_pull=weighted_pull, gamma=1
    ).double()
    expected = two_way.both_directions(
        given, lambda *sides: oracles_temperatures.robust(*sides, temperature=0.5, rho=0.3)
    )
    check_equal(loss(**given), expected, given["embeddings"], given["ref_emb"])
    if individual:
        assert loss.temperatures.shape == (2, 20)
        moved = loss.temperatures != 0.5
        assert moved[0].nonzero().squeeze(1).tolist() == given["ids"].sort().values.tolist()
        lone = given["ref_ids"][given["ref_labels"] == 5]  # without an image
        assert moved[1].nonzero().squeeze(1).tolist() == sorted(set(given["ref_ids"].tolist()) - set(lone.tolist()))


def test_a_temperature_moves_down_the_finite_difference_of_its_objective() -> None:
    embeddings, rate, step = views().detach(), 0.001, 1e-6
    loss = make(gamma=1, temperature_beta=1, temperature_lr=rate, temperature=0.25)
    loss(embeddings, LABELS)
    sides = oracles.cosine(embeddings), *oracles.masks(LABELS.tolist())
    ahead, behind = (oracles_temperatures.robust(*sides, temperature=0.25 + by, rho=0.3) for by in (step, -step))
    slopes = {query: float(ahead[query] - behind[query]) / (2 * step) for query in ahead}
    for image in range(5):
        expected = np.mean([slopes[row] for row in range(len(LABELS)) if LABELS[row] == image])  # over its views
        found = (0.25 - float(loss.temperatures[image])) / rate
        assert found == pytest.approx(expected, rel=1e-6)


def test_the_gradient_of_one_global_temperature_is_its_finite_difference() -> None:
    loss = make(individual=False, gamma=1, temperature=0.25)
    (parameter,) = loss.parameters()
    (found,) = torch.autograd.grad(loss(views(), LABELS), parameter)
    values = []
    for by in (1e-6, -1e-6):
        parameter.data.fill_(0.25 + by)
        values.append(float(loss(views(), LABELS).detach()))
    assert float(found) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-6)


def inner_values(embeddings: Tensor, temperatures: Tensor) -> tuple[dict[int, float], float]:
    """The value of g of each query, and their geometric mean."""
    found = {
        query: float(oracles_temperatures.inner(row, row[plus].mean(), minus, float(temperatures[LABELS[query]])))
        for query, row, plus, minus in parts(embeddings.detach())
    }
    return found, math.prod(found.values()) ** (1 / len(found))


@pytest.mark.parametrize("average", ["relative", "plain"])
def test_past_batches_enter_through_the_normaliser(average: str) -> None:
    # on a second batch: G = log u + rho - (g / u) E_w[h] / tau, and a gradient tau / u times that of g
    given = {"temperature_beta": 1, "temperature_lr": 0.01, "temperature": 0.25, "weighted_pull": True}
    loss = make(gamma=0.4, average=average, **given)
    loss(views(0), LABELS)
    first, log_u = loss.temperatures.clone(), loss.log_u[0].clone()
    second = views(1)
    value = loss(second, LABELS)
    values, level = inner_values(second, first)
    # what is remembered is over the level of its batch, and the mean weight is 1
    moved = 1.0 if average == "plain" else level / inner_values(views(0), torch.full((8,), 0.25))[1]
    normalizers = {query: 0.6 * moved * float(log_u[LABELS[query]].exp()) + 0.4 * g for query, g in values.items()}
    balance = 1.0 if average == "plain" else sum(values[query] / normalizers[query] for query in values) / len(values)
    losses, slopes, surrogate = [], [[] for _ in range(5)], []
    for query, row, positives, negatives in parts(second):
        image = int(LABELS[query])
        tau = float(first[image])
        h = torch.stack([row[r] - row[positives].mean() for r in negatives])
        g = (h / tau).exp().mean()
        u = torch.tensor(balance * normalizers[query], dtype=torch.float64)
        weights = (h / tau).exp() / (h / tau).exp().sum()
        losses.append(tau * (u.log() + 0.3))
        slopes[image].append(float((u.log() + 0.3 - g / u * (weights * h).sum() / tau).detach()))
        surrogate.append(tau / u * g)
    torch.testing.assert_close(value, torch.stack(losses).mean(), rtol=0, atol=1e-12)
    wanted = torch.autograd.grad(torch.stack(surrogate).mean(), second)[0]
    torch.testing.assert_close(torch.autograd.grad(value, second)[0], wanted, rtol=0, atol=1e-12)
    for image in range(5):
        assert float(loss.temperatures[image]) == pytest.approx(float(first[image]) - 0.01 * np.mean(slopes[image]))


def test_the_pull_has_weight_1_in_later_batches_too_unless_it_is_weighted() -> None:
    # the gradients differ by (g / u - 1) times that of the positives' similarity, and in nothing else
    given = {"gamma": 0.4, "temperature": 0.25, "temperature_lr": 1e-12, "average": "plain"}
    plain, weighted = make(**given), make(weighted_pull=True, **given)
    for loss in (plain, weighted):
        loss(views(0), LABELS)
    log_u, second = plain.log_u[0].clone(), views(1)
    difference = []
    for query, row, positives, negatives in parts(second):
        g = oracles_temperatures.inner(row, row[positives].mean(), negatives, 0.25).detach()
        u = 0.6 * log_u[int(LABELS[query])].exp() + 0.4 * g
        difference.append((1 - g / u) * row[positives].mean())
    one, other = weighted(second, LABELS), plain(second, LABELS)
    assert one == other
    gradients = [torch.autograd.grad(each, second)[0] for each in (one, other, torch.stack(difference).mean())]
    torch.testing.assert_close(gradients[0] - gradients[1], gradients[2], rtol=0, atol=1e-10)


def by_hand(slopes: list[float], update: str) -> list[float]:
    temperature, average, square, found = 0.5, 0.0, 0.0, []
    for step, slope in enumerate(slopes, start=1):
        beta = 0.9 if update == "momentum" else 0.1
        average = (1 - beta) * average + beta * slope
        square = 0.999 * square + 0.001 * slope**2
        if update == "momentum":
            temperature -= 0.01 * average
        else:
            temperature -= 0.01 * (average / (1 - 0.9**step)) / (math.sqrt(square / (1 - 0.999**step)) + 1e-8)
        found.append(temperature)
    return found


@pytest.mark.parametrize("update", ["momentum", "adam"])
def test_steps_are_those_of_the_update(update: str) -> None:
    loss = make(temperature=0.5, temperature_update=update, gamma=1)
    slopes, found = [], []
    for seed in range(4):
        before = float(loss.temperatures[0])
        probe = make(temperature=before, temperature_beta=1, temperature_lr=1e-4, gamma=1)
        probe(views(seed), LABELS)
        slopes.append((float(torch.tensor(before)) - float(probe.temperatures[0])) / 1e-4)
        loss(views(seed), LABELS)
        found.append(float(loss.temperatures[0]))
    assert found == pytest.approx(by_hand(slopes, update), rel=1e-6)


def test_a_clip_bounds_the_gradient_and_the_projection_the_temperature() -> None:
    loss = make(temperature=0.5, temperature_beta=1, temperature_lr=0.1, temperature_clip=0.01)
    loss(views(), LABELS)
    torch.testing.assert_close((loss.temperatures[:5] - 0.5).abs(), torch.full((5,), 0.001).double())
    for start, end in ((0.5, 0.25), (0.28, 0.75)):  # at rest they are 0.3 to 0.5
        loss = make(temperature=start, temperature_lr=100.0, temperature_bounds=(0.25, 0.75))
        loss(views(), LABELS)
        assert loss.temperatures[:5].tolist() == [end] * 5
        torch.testing.assert_close(loss.temperatures[5:], torch.full((3,), start).double(), rtol=1e-7, atol=0)


def test_the_upper_bound_is_that_of_lemma_1_where_similarity_has_bounds() -> None:
    assert make(rho=0.01).temperature.bounds == (0.05, pytest.approx(200.05))
    assert make(rho=0.01, individual=False).temperature.high == pytest.approx(200.05)
    assert make(distance=distances.LpDistance()).temperature.bounds == (0.05, math.inf)


def test_a_rho_that_no_weights_can_reach_is_named_once() -> None:
    loss = ISogCLRLoss(8, rho=2.1)  # 8 negatives, log 8 = 2.08
    with pytest.warns(UserWarning, match=r"rho=2.1 is not below log\(8\) = 2.08"):
        loss(views().float(), LABELS)
    loss(views().float(), LABELS)
    ISogCLRLoss(8, rho=2.0)(views().float(), LABELS)
