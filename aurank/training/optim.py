"""Optimisers and learning-rate schedules, by name."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import ParamsT

from aurank.models import Lars

Schedule = Callable[[int], float]


def constant(*, steps: int, warmup_steps: int = 0) -> Schedule:
    """A factor of 1 after the warm-up."""
    return _with_warmup(lambda step: 1.0, warmup_steps)


def cosine(*, steps: int, warmup_steps: int = 0, final: float = 0.0) -> Schedule:
    """Half a cosine from 1 after the warm-up to ``final`` at the last step (Loshchilov and Hutter 2017, Eq. 5)."""
    _check_fraction("final", final)

    def factor(step: int) -> float:
        progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))

    return _with_warmup(factor, warmup_steps)


def multi_step(*, steps: int, warmup_steps: int = 0, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """A factor multiplied by ``gamma`` at each milestone, counted in optimiser steps."""
    _check_fraction("gamma", gamma)
    if list(milestones) != sorted(set(milestones)) or any(step < 1 for step in milestones):
        raise ValueError(f"milestones must be rising steps ≥ 1, got {list(milestones)}")
    return _with_warmup(lambda step: gamma ** sum(step >= milestone for milestone in milestones), warmup_steps)


def _with_warmup(factor: Schedule, warmup_steps: int) -> Schedule:
    # The first step already learns: a warm-up of n steps uses 1/n, 2/n, … of the rate.
    return lambda step: (step + 1) / warmup_steps if step < warmup_steps else factor(step)


def _check_fraction(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")


def sgd(
    params: ParamsT, *, lr: float, momentum: float = 0.9, nesterov: bool = True, dampening: float = 0.0
) -> Optimizer:
    """SGD, with Nesterov momentum by default."""
    return SGD(params, lr=lr, momentum=momentum, nesterov=nesterov, dampening=dampening)


def adam(params: ParamsT, *, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> Optimizer:
    """Adam; weight decay, where groups ask for it, is the coupled L2 form."""
    return Adam(params, lr=lr, betas=betas, eps=eps)


def adamw(params: ParamsT, *, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> Optimizer:
    """Adam with decoupled weight decay."""
    return AdamW(params, lr=lr, betas=betas, eps=eps)


def lars(
    params: ParamsT, *, lr: float, momentum: float = 0.9, trust_coeff: float = 0.001, nesterov: bool = False
) -> Optimizer:
    """LARS (You, Gitman and Ginsburg, arXiv 1708.03888): each layer's step is in proportion to its own weights.

    As SimCLR uses it: norms and biases are neither decayed nor adapted, and so are plain SGD with momentum, as is every
    group that says so. timm's form, where the momentum is of the adapted gradients and the rate is outside of it (in
    the paper inside, which differs while the rate changes).
    """
    groups: list[dict[str, Any]] = [one if isinstance(one, dict) else {"params": [one]} for one in params]
    for group in groups:
        group.setdefault("always_adapt", all(parameter.ndim > 1 for parameter in group["params"]))
    optimiser: Optimizer = Lars(groups, lr=lr, momentum=momentum, trust_coeff=trust_coeff, nesterov=nesterov)
    return optimiser


OPTIMISERS: dict[str, Callable[..., Optimizer]] = {"sgd": sgd, "adam": adam, "adamw": adamw, "lars": lars}
SCHEDULES: dict[str, Callable[..., Schedule]] = {"constant": constant, "cosine": cosine, "multi_step": multi_step}


BATCH_RULES: dict[str, Callable[[int], float]] = {
    "none": lambda images: 1.0,
    "linear": lambda images: images / 256,
    "sqrt": lambda images: math.sqrt(images),
}
"""What the rate is multiplied by for an update of so many images: SimCLR, App. B.1, has 0.3 · B / 256 or 0.075 · √B."""


def loss_group(loss: torch.nn.Module, *, lr_multiplier: float) -> list[dict[str, Any]]:
    """The optimiser group of a loss's own parameters, such as temperatures; none where it has none.

    Never decayed, and without LARS's trust ratio: both would draw a temperature to zero, or tie its step to its size.
    """
    own = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    group = {"name": "loss", "params": own, "weight_decay": 0.0, "lr_multiplier": lr_multiplier, "always_adapt": False}
    return [group] if own else []


def set_learning_rate(optimiser: Optimizer, rate: float) -> None:
    """Give every group ``rate`` times its own ``lr_multiplier``."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["lr_multiplier"]


class WeightAverage:
    """An exponential moving average of a module's parameters; its buffers are copied.

    Args:
        decay: share of the old average kept at each update, in (0, 1). The first updates keep (1 + n) / (10 + n) at
            most, so that the average leaves its random start quickly.
    """

    def __init__(self, module: torch.nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.values = {name: value.detach().clone() for name, value in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: torch.nn.Module) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        parameters = dict(module.named_parameters())
        for name, value in module.state_dict().items():
            if name in parameters:
                self.values[name].lerp_(value.detach(), 1.0 - decay)
            else:
                self.values[name].copy_(value)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = int(state["updates"])
        for name, value in state["values"].items():
            self.values[name].copy_(value)
