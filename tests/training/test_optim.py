import math

import pytest
import torch
from torch import nn

from aurank.training.optim import OPTIMISERS, WeightAverage, constant, cosine, multi_step, set_learning_rate


def test_warmup_rises_linearly_to_the_schedule() -> None:
    factors = [constant(steps=10, warmup_steps=4)(step) for step in range(6)]
    assert factors == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_falls_from_one_to_final() -> None:
    schedule = cosine(steps=100, warmup_steps=10, final=0.1)
    assert schedule(10) == pytest.approx(1.0)
    assert schedule(55) == pytest.approx(0.55)
    assert schedule(100) == pytest.approx(0.1)
    assert schedule(99) == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi * 89 / 90)))


def test_multi_step_multiplies_at_each_milestone() -> None:
    schedule = multi_step(steps=10, milestones=[3, 6], gamma=0.1)
    assert [round(schedule(step), 6) for step in (0, 2, 3, 5, 6, 9)] == [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    with pytest.raises(ValueError, match="milestones must be rising steps"):
        multi_step(steps=10, milestones=[6, 3])


@pytest.mark.parametrize("name", sorted(OPTIMISERS))
def test_groups_keep_their_multiplier_under_the_schedule(name: str) -> None:
    weight = nn.Parameter(torch.ones(2))
    head = nn.Parameter(torch.ones(2))
    groups = [{"params": [weight], "lr_multiplier": 1.0}, {"params": [head], "lr_multiplier": 5.0}]
    optimiser = OPTIMISERS[name](groups, lr=1.0)
    set_learning_rate(optimiser, 0.5)
    assert [group["lr"] for group in optimiser.param_groups] == [0.5, 2.5]


def test_a_weight_average_equals_the_recursion_and_resumes() -> None:
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    average = WeightAverage(module, 0.5)
    expected = module[0].weight.item()
    for count, value in enumerate([1.0, 2.0, 3.0]):
        with torch.no_grad():
            module[0].weight.fill_(value)
        module[1].running_mean.fill_(value)
        average.update(module)
        decay = min(0.5, (1 + count) / (10 + count))
        expected = decay * expected + (1 - decay) * value
    assert average.values["0.weight"].item() == pytest.approx(expected)
    assert average.values["1.running_mean"].item() == 3.0
    other = WeightAverage(nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)), 0.5)
    other.load_state_dict(average.state_dict())
    assert other.updates == 3
    assert other.values["0.weight"].item() == average.values["0.weight"].item()
