import math

import pytest
import torch
from testing import cases as two_way
from torch import Tensor, nn
from torch.func import functional_call, grad

from aurank.losses import CLIPLoss, NeuCLIPLoss

BEYOND = {"too low": 0.001, "too high": 3.0}
BOUNDS = (0.01, 1.0)
MADE = {
    "log": lambda: CLIPLoss(temperature_bounds=BOUNDS),
    "linear": lambda: NeuCLIPLoss(5, 8, temperature_bounds=BOUNDS),
}
pytestmark = [
    pytest.mark.parametrize("scale", MADE),
    pytest.mark.parametrize("value", BEYOND.values(), ids=BEYOND.keys()),
]


def beyond(scale: str, value: float) -> tuple[nn.Module, nn.Parameter, float]:
    """A loss whose temperature an optimiser has just taken beyond its bounds, its parameter and what that holds."""
    loss = MADE[scale]().double()
    parameter = loss.temperature.parameter
    parameter.data.fill_(math.log(value) if scale == "log" else value)
    return loss, parameter, parameter.item()


def at_the_bound(scale: str, value: float, *, training: bool) -> tuple[Tensor, Tensor]:
    """Value and gradient of a loss whose parameter is at the bound itself."""
    bound = min(max(value, BOUNDS[0]), BOUNDS[1])
    loss, parameter, _ = beyond(scale, bound)
    found = loss.train(training)(**two_way.batch())
    return found.detach(), *torch.autograd.grad(found, parameter)


def test_evaluation_takes_the_bound_and_leaves_the_parameter(scale: str, value: float) -> None:
    loss, parameter, before = beyond(scale, value)
    found = loss.eval()(**two_way.batch())
    assert parameter.item() == before
    expected, wanted = at_the_bound(scale, value, training=False)
    assert found == expected
    assert torch.autograd.grad(found, parameter)[0] == wanted
    assert loss.temperature().item() == pytest.approx(min(max(value, BOUNDS[0]), BOUNDS[1]), abs=1e-15)


def test_nothing_is_moved_without_gradients(scale: str, value: float) -> None:
    loss, parameter, before = beyond(scale, value)
    with torch.no_grad():
        loss(**two_way.batch())
    assert parameter.item() == before


def test_training_puts_the_parameter_back(scale: str, value: float) -> None:
    loss, parameter, _ = beyond(scale, value)
    found = loss(**two_way.batch())
    bound = min(max(value, BOUNDS[0]), BOUNDS[1])
    assert parameter.item() == (math.log(bound) if scale == "log" else bound)
    expected, wanted = at_the_bound(scale, value, training=True)
    assert found == expected
    assert torch.autograd.grad(found, parameter)[0] == wanted


def test_a_functional_gradient_moves_nothing_and_is_that_of_a_training_step(scale: str, value: float) -> None:
    loss, parameter, before = beyond(scale, value)
    if scale == "linear":  # whose prototypes learn in training mode, of which torch.func knows nothing
        loss.eval()
    given = two_way.batch()
    rows, references = given["embeddings"].detach(), given["ref_emb"].detach()
    others = {name: each for name, each in given.items() if name not in ("embeddings", "ref_emb")}

    def of(weights: dict[str, Tensor], rows: Tensor) -> Tensor:
        return functional_call(loss, weights, (rows,), {**others, "ref_emb": references})

    weights = {name: each.detach().clone() for name, each in loss.named_parameters()}
    found = grad(of)(weights, rows)
    grad(lambda rows: loss(rows, **others, ref_emb=references))(rows)  # the parameter a bystander
    of(weights, rows)  # no transform, tensors of the caller
    assert parameter.item() == before
    assert weights["temperature.parameter"].item() == before
    _, wanted = at_the_bound(scale, value, training=loss.training)
    assert found["temperature.parameter"] == wanted
