import oracles
import pytest
import torch
from oracles import temperatures as oracles_temperatures
from testing import cases as two_way
from testing.equal import check_equal
from torch import Tensor

from aurank.losses import FastCLIPLoss

QUIET = {"gamma_schedule": "constant"}  # a cosine wants to be told where training stands


def make(version: str, **given: object) -> FastCLIPLoss:
    rho = {"rho": 0.3} if version in ("v2", "v3") else {}
    return FastCLIPLoss(20, version, **{**QUIET, **rho, **given}).double()


@pytest.mark.parametrize("version", ["v0", "v1", "v2", "v3"])
def test_a_first_batch_is_the_sum_of_both_objectives(version: str) -> None:
    given, loss = two_way.batch(), make(version)
    parameters = list(loss.parameters())
    assert len(parameters) == (1 if version in ("v0", "v3") else 0)
    temperature = parameters[0].exp() if parameters else 0.07 if version == "v1" else float(torch.tensor(0.03))
    expected = two_way.both_directions(
        given,
        lambda *sides: oracles_temperatures.robust(
            *sides,
            temperature=temperature,
            rho=0.3 if version in ("v2", "v3") else 0,
            epsilon=1e-14,
            factor=version != "v0",
        ),
    )
    check_equal(loss(**given), expected, given["embeddings"], given["ref_emb"], *parameters)


@pytest.mark.parametrize("version", ["v0", "v3"])
def test_official_counts_what_the_temperature_does_through_the_mean_twice(version: str) -> None:
    """The authors' two losses, whose candidates and anchors are cut off, both have the gradient of the temperature."""
    given = two_way.batch()
    loss = make(version, official=True)
    (parameter,) = loss.parameters()

    def term(*sides: object, live: bool) -> oracles.PerQuery:
        temperature = parameter.exp()
        inside = {"rho": 0, "epsilon": 1e-14, "factor": False}
        logarithms = oracles_temperatures.robust(*sides, temperature=temperature, **inside)
        outer = 1 if version == "v0" else temperature.detach()
        if live:  # what log u and rho add, u being the constant that it is there
            return {row: temperature * (value.detach() + 0.3) for row, value in logarithms.items()}
        return {row: outer * value for row, value in logarithms.items()}

    through = two_way.both_directions(given, lambda *sides: term(*sides, live=False))
    (twice,) = torch.autograd.grad(2 * through, parameter, retain_graph=True)
    if version == "v3":
        outside = two_way.both_directions(given, lambda *sides: term(*sides, live=True))
        twice = twice + torch.autograd.grad(outside, parameter)[0]
    value = loss(**given)
    (found,) = torch.autograd.grad(value, parameter, retain_graph=True)
    torch.testing.assert_close(found, twice, rtol=1e-8, atol=0)
    right = make(version)(**given)
    leaves = given["embeddings"], given["ref_emb"]
    for one, other in zip(torch.autograd.grad(value, leaves), torch.autograd.grad(right, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("weighted_pull", [False, True])
def test_later_batches_weigh_what_a_batch_shows_by_the_normaliser_and_epsilon(weighted_pull: bool) -> None:
    epsilon, loss = 0.5, make("v1", epsilon=0.5, gamma=0.4, two_way=False, weighted_pull=weighted_pull)
    first, second = two_way.batch(0), two_way.batch(1)
    one_way = ("embeddings", "labels", "ids")
    u: dict[int, Tensor] = {}
    for given in (first, second):
        rows = {name: given[name] for name in one_way}
        rows |= {"ref_emb": given["ref_emb"], "ref_labels": given["ref_labels"], "ref_ids": given["ref_ids"] + 9}
        value = loss(**{**rows, "ref_ids": None})
        similarity = oracles.cosine(given["embeddings"], given["ref_emb"])
        masks = oracles.masks(given["labels"].tolist(), given["ref_labels"].tolist())
        values, surrogates = [], []
        for query, sides in oracles.sides(*masks).items():
            pull, key = similarity[query, sides[0]].mean(), int(given["ids"][query])
            g = oracles_temperatures.inner(similarity[query], pull, sides[1], 0.07)
            u[key] = 0.6 * u[key] + 0.4 * g.detach() if key in u else g.detach()
            values.append(0.07 * (epsilon + u[key]).log())
            g = g if weighted_pull else g * ((pull - pull.detach()) / 0.07).exp()  # as if s⁺ did not move
            surrogates.append(0.07 * g / (epsilon + u[key]) - (0 if weighted_pull else pull))
        torch.testing.assert_close(value, torch.stack(values).mean(), rtol=0, atol=1e-10)
        wanted = torch.autograd.grad(torch.stack(surrogates).mean(), given["embeddings"])[0]
        torch.testing.assert_close(torch.autograd.grad(value, given["embeddings"])[0], wanted, rtol=1e-8, atol=1e-10)


def test_versions_have_the_authors_defaults() -> None:
    loss = FastCLIPLoss(20, "v2")
    assert loss.temperatures.shape == (2, 20)
    assert float(loss.temperatures[0, 0]) == pytest.approx(0.03)
    assert (loss.rho, loss.temperature.rate, loss.temperature.clip) == (7.0, 0.0133, 5.0)
    assert loss.temperature.bounds == (0.01, 1.0)
    assert FastCLIPLoss(20).rho == 6.5
    assert float(FastCLIPLoss(20).temperatures) == pytest.approx(0.07)
