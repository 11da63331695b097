"""Optimisers, learning-rate schedules and the moving average of the weights."""

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import ParamsT

from aurank.config import LossTerm
from aurank.ranges import Range

Schedule = Callable[[int], float]


def constant(*, steps: int, warmup_steps: int = 0) -> Schedule:
    """Return a factor of 1 after the warm-up."""
    return _with_warmup(lambda step: 1.0, warmup_steps)


def cosine(*, steps: int, warmup_steps: int = 0, final: float = 0.0) -> Schedule:
    """Return half a cosine from 1 after the warm-up to ``final`` at the last step.

    Source: Loshchilov and Hutter, SGDR (ICLR 2017), Eq. 5, https://arxiv.org/abs/1608.03983
    """

    def factor(step: int) -> float:
        progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))

    return _with_warmup(factor, warmup_steps)


def multi_step(*, steps: int, warmup_steps: int = 0, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """Return a factor multiplied by ``gamma`` at each milestone, counted in optimiser steps."""
    return _with_warmup(lambda step: gamma ** sum(step >= milestone for milestone in milestones), warmup_steps)


def _with_warmup(factor: Schedule, warmup_steps: int) -> Schedule:
    # The first step already learns: a warm-up of n steps uses 1/n, 2/n, … of the rate.
    return lambda step: (step + 1) / warmup_steps if step < warmup_steps else factor(step)


SCHEDULES: dict[str, Callable[..., Schedule]] = {"constant": constant, "cosine": cosine, "multi_step": multi_step}

BATCH_RULES: dict[str, Callable[[int], float]] = {
    "none": lambda images: 1.0,
    "linear": lambda images: images / 256,
    "sqrt": lambda images: math.sqrt(images),
}
"""What the rate is multiplied by for an update of so many images: SimCLR, App. B.1, has 0.3 · B / 256 or 0.075 · √B."""


def _of_timm(name: str, params: ParamsT, *, lr: float, **options: Any) -> Optimizer:
    """Return timm's optimiser of that name; LARS and LAMB adapt neither norms nor biases, as in SimCLR."""
    from timm.optim import create_optimizer_v2, get_optimizer_class  # type: ignore[attr-defined]

    groups: list[dict[str, Any]] = [group if isinstance(group, dict) else {"params": [group]} for group in params]
    if "always_adapt" in inspect.signature(get_optimizer_class(name)).parameters:
        for group in groups:
            group.setdefault("always_adapt", all(parameter.ndim > 1 for parameter in group["params"]))
    return create_optimizer_v2(groups, name, lr=lr, **options)


class _Optimisers(dict[str, Callable[..., Optimizer]]):
    """Optimisers by name: those here, and all others of timm, which is imported only where one of its own is named."""

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        from timm.optim import list_optimizers  # type: ignore[attr-defined]

        return name in list_optimizers(exclude_filters=["adahessian"])  # adahessian needs second derivatives

    def __missing__(self, name: str) -> Callable[..., Optimizer]:
        return partial(_of_timm, name)


OPTIMISERS = _Optimisers(  # fused: one pass over a parameter and its state, a fifth of AdamW's time on a CPU
    sgd=partial(SGD, momentum=0.9, nesterov=True, fused=True),
    adam=partial(Adam, fused=True),
    adamw=partial(AdamW, fused=True),
    **{name: partial(_of_timm, name) for name in ("lars", "lamb", "lion")},
)


# Ranges of `lr` that aurank tune searches, where they are not those of Adam.
RATES = {"sgd": Range(1e-3, 3.0, log=True), "lars": Range(1e-2, 10.0, log=True), "lion": Range(1e-6, 3e-3, log=True)}


def loss_groups(name: str, loss: nn.Module, term: LossTerm, *, usual: float) -> list[dict[str, Any]]:
    """Return the parameters of a loss as groups; LARS adapts none, `usual` is the multiplier where none is given."""
    trained = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    multiplier = usual if term.lr_multiplier is None else term.lr_multiplier
    common = {"lr_multiplier": multiplier, "always_adapt": False}  # LARS would tie a temperature's step to its size
    decayed = [parameter for parameter in trained if parameter.ndim > 1 and term.weight_decay]
    plain = [parameter for parameter in trained if parameter.ndim <= 1 or not term.weight_decay]
    groups = [
        {"name": f"{name} decayed", "params": decayed, "weight_decay": term.weight_decay, **common},
        {"name": name, "params": plain, "weight_decay": 0.0, **common},
    ]
    return [group for group in groups if group["params"]]


def set_learning_rate(optimiser: Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate * group["lr_multiplier"]


@torch.no_grad()
def load_state(optimiser: Optimizer, saved: dict[str, Any]) -> None:
    """Load the state of an optimiser, laid out in memory as its parameters are: a run that never stopped has it so."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for number, values in saved["state"].items():
        parameter, state[number] = parameters[number], dict(values)
        for name, value in values.items():
            if name != "step" and isinstance(value, Tensor) and value.shape == parameter.shape:
                state[number][name] = torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
    optimiser.load_state_dict({**saved, "state": state})


def weight_average(model: nn.Module) -> nn.Module:
    from timm.utils import ModelEmaV3  # type: ignore[attr-defined]

    average: nn.Module = ModelEmaV3(model, exclude_buffers=True)
    return average


def update_average(average: Any, model: nn.Module, *, decay: float, step: int) -> None:
    """Take the weights into the average, of which the share ``decay`` is kept; copy the buffers."""
    # The first updates use a smaller decay, so that the average forgets the random start quickly.
    average.decay = min(decay, (1 + step) / (10 + step))
    average.update(model)
