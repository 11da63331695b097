import copy
import math

import pytest
import torch
from oracles.neuclip import LABELS, SETTINGS, TEXT_LABELS, Reference, call, make
from oracles.neuclip import two_sides as sides
from testing.stateful import same_state
from torch import Tensor
from torch.nn.functional import normalize

from aurank.losses.global_contrastive.neuclip import LARGEST_EXCESS, certainty_equivalent


def test_an_alpha_that_is_far_too_small_gives_a_tangent_not_infinity() -> None:
    steps = [LARGEST_EXCESS - 1, LARGEST_EXCESS, LARGEST_EXCESS + 1e-3, 400.0]
    excess = torch.tensor(steps, dtype=torch.float64, requires_grad=True)
    value = certainty_equivalent(excess, torch.zeros(4, dtype=torch.float64)) + 1
    (slope,) = torch.autograd.grad(value.sum(), excess)
    largest = math.exp(LARGEST_EXCESS)
    expected = [largest / math.e, largest, largest * 1.001, largest * (401 - LARGEST_EXCESS)]
    torch.testing.assert_close(value.tolist(), expected)
    torch.testing.assert_close(slope.tolist(), [largest / math.e, largest, largest, largest])


def both(images: Tensor, texts: Tensor) -> list[tuple[Tensor, list[int], Tensor, list[int]]]:
    labels, other = LABELS.tolist(), TEXT_LABELS.tolist()
    return [(images, labels, texts, other), (texts, other, images, labels)]


@pytest.mark.parametrize("detach", [True, False])
def test_prototypes_value_and_gradients_are_those_of_loops_and_torch_s_adagrad(detach: bool) -> None:
    loss = make(restart_every=3, inner_steps=2, inner_lr=0.3, detach_alpha=detach)
    references = [Reference(20, rate=0.3, **SETTINGS) for _ in range(2)]
    temperature = torch.tensor(SETTINGS["temperature"], dtype=torch.float64, requires_grad=True)
    for step in range(5):
        images, texts = sides(step)
        value = call(loss, images, texts)
        expected = torch.zeros((), dtype=torch.float64)
        for reference, (queries, labels, others, other_labels) in zip(references, both(images, texts), strict=True):
            g, pulls = reference.batch(queries, others, labels, other_labels, temperature)
            if step % 3 == 0:
                reference.start(others)
            reference.remember(others)
            for _ in range(2):
                reference.step(g, queries, pulls)
            expected = expected + reference.loss(g, queries, pulls, temperature, detach=detach)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-9)
        found = torch.autograd.grad(value, [loss.temperature.parameter, images, texts])
        for gradient, wanted in zip(found, torch.autograd.grad(expected, [temperature, images, texts]), strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=1e-7, atol=1e-9)
        for network, reference in zip(loss.networks, references, strict=True):
            torch.testing.assert_close(network.prototypes, reference.prototypes.detach(), rtol=0, atol=1e-9)
            sums = reference.optimizer.state[reference.prototypes]["sum"]
            torch.testing.assert_close(network.squares_0[: network.count], sums, rtol=1e-9, atol=1e-12)


def test_a_fixed_temperature_leaves_rho_out() -> None:
    images, texts = sides()
    fixed = make(learn_temperature=False, rho=6.5)
    difference = (call(make(), images, texts) - call(fixed, images, texts)).item()
    assert difference == pytest.approx(2 * SETTINGS["temperature"] * SETTINGS["rho"], abs=1e-12)
    assert list(fixed.parameters()) == []


@pytest.mark.parametrize("every", [1, None])
def test_a_batch_larger_than_the_prototypes_gives_its_first_rows_each_time_or_once(every: int | None) -> None:
    loss = make(num_prototypes=4, inner_steps=0, restart_every=every)
    first = sides(0)
    for step in range(3):
        images, texts = sides(step) if every else first
        call(loss, *sides(step))
        for network, rows in zip(loss.networks, (texts, images), strict=True):
            assert network.prototypes.equal(normalize(rows[:4].detach()))


def test_rows_that_are_not_numbers_leave_the_state_finite() -> None:
    loss = make(restart_every=2)
    for step in range(4):
        images, texts = (each.detach() for each in sides(step))
        images[1], texts[2] = torch.nan, torch.inf
        assert call(loss, images, texts).isnan()
        assert all(buffer.isfinite().all() for buffer in loss.buffers())


def test_evaluation_predicts_with_the_prototypes_as_they_are() -> None:
    loss = make()
    call(loss, *sides(0))
    before = copy.deepcopy(loss.state_dict())
    images, texts = sides(1)
    value = call(loss.eval(), images, texts)
    assert same_state(loss.state_dict(), before)
    expected = 0.0
    for network, (queries, labels, others, other_labels) in zip(loss.networks, both(images, texts), strict=True):
        reference = Reference(20, rate=1.0, **SETTINGS)
        reference.prototypes = network.prototypes
        g, pulls = reference.batch(queries, others, labels, other_labels, SETTINGS["temperature"])
        expected += reference.loss(g, queries, pulls, SETTINGS["temperature"], detach=True)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-11)
