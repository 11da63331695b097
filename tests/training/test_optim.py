import copy
import math

import pytest
import torch
from testing.runs import tiny_config
from torch import nn
from torch.optim import Optimizer

from aurank.errors import UserError
from aurank.training import read_config, rehearse
from aurank.training.optim import OPTIMISERS, constant, cosine, load_state, multi_step, update_average, weight_average


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (constant(steps=10, warmup_steps=4), {0: 0.25, 1: 0.5, 2: 0.75, 3: 1, 4: 1, 5: 1}),
        (
            cosine(steps=100, warmup_steps=10, final=0.1),
            {10: 1, 55: 0.55, 99: 0.1 + 0.45 * (1 + math.cos(math.pi * 89 / 90)), 100: 0.1},
        ),
        (multi_step(steps=10, milestones=[3, 6], gamma=0.1), {0: 1, 2: 1, 3: 0.1, 5: 0.1, 6: 0.01, 9: 0.01}),
    ],
    ids=["warm-up", "cosine", "multi-step"],
)
def test_a_schedule_has_the_factors_of_its_formula(schedule, factors):
    assert {step: schedule(step) for step in factors} == pytest.approx(factors)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_steps_in_proportion_to_the_weights_are_of_weights_but_not_of_norms_and_biases(name):
    module = nn.Linear(3, 2)
    groups = [{"params": [module.weight], "weight_decay": 0.1}, {"params": [module.bias], "weight_decay": 0.0}]
    optimiser = OPTIMISERS[name](groups, lr=0.5)
    assert [group["always_adapt"] for group in optimiser.param_groups] == [True, False]
    assert [group["weight_decay"] for group in optimiser.param_groups] == [0.1, 0.0]


def test_a_weight_average_equals_the_recursion_and_copies_buffers():
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    average = weight_average(module)
    expected = torch.tensor(module[0].weight.item())
    for step, value in enumerate([1.0, 2.0, 3.0]):
        module[0].weight.data.fill_(value)
        module[1].running_mean.fill_(value)
        update_average(average, module, decay=0.5, step=step)
        expected.lerp_(torch.tensor(value), 1.0 - min(0.5, (1 + step) / (10 + step)))
    averaged = average.get_submodule("module").state_dict()
    assert averaged["0.weight"].item() == expected.item()
    assert averaged["1.running_mean"].item() == 3.0


def test_any_optimiser_of_timm_is_taken_by_its_name_and_no_other_word_is():
    read_config({**tiny_config(), "optim": {"name": "nadamw", "lr": 0.1, "params": {"betas": [0.8, 0.9]}}})
    for optim, said in (
        ({"name": "nadamv"}, "optim.name: got 'nadamv'.*one of 'sgd', 'adam'"),
        ({"params": {"weight_decay": 0.1}}, "optim.params.weight_decay: unknown key"),
        ({"name": "lars", "params": {"trust": 1}}, "optim.params: .*trust"),
        ({"params": {"betas": [2.0, 0.9]}}, "optim.params: .*betas.*Invalid beta"),
        ({"name": "adahessian"}, "optim.name: got 'adahessian'"),
    ):
        with pytest.raises(UserError, match=said):
            rehearse(read_config(tiny_config(optim=optim)))


@pytest.mark.parametrize("name", ["lamb", "adafactor", "muon"])
def test_optimisers_that_count_in_groups_or_keep_other_sizes_resume(name):
    def build() -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(0)
        module = nn.Linear(4, 130)
        groups = [{"params": [parameter], "lr_multiplier": 1.0} for parameter in module.parameters()]
        return module, OPTIMISERS[name](groups, lr=0.1)

    def step(module: nn.Module, optimiser: Optimizer) -> None:
        module(torch.ones(3, 4)).square().sum().backward()
        optimiser.step()
        optimiser.zero_grad()

    first, second = build(), build()
    for _ in range(2):
        step(*first)
    second[0].load_state_dict(first[0].state_dict())
    load_state(second[1], copy.deepcopy(first[1].state_dict()))
    for _ in range(2):
        step(*first)
        step(*second)
    for one, other in zip(first[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(one, other)
