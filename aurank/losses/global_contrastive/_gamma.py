"""The rate of the moving averages that stand for a normaliser, constant or falling over the training."""

import math
import warnings
from typing import Literal, get_args

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from aurank.errors import AurankWarning, UserError
from aurank.losses.core.checks import Number, require_choice, require_fraction

Schedule = Literal["constant", "cosine"]
Every = Literal["epoch", "step"]


class Gamma(nn.Module):
    """γ of u ← (1 − γ)·u + γ·new, the share of the new value; 1 keeps nothing of the past.

    gamma: its value, under "cosine" the last one: γ(t) = γ + ½(1 − γ)(1 + cos(π·t/T)) falls from 1, until T, a share
        `decay` of the training, and stays there (FastCLIP).
    every: "epoch" counts t in whole epochs, as the authors do; "step" in steps.

    A training loop has to say where it stands: `set_progress`, as `aurank train` does before each step.
    """

    def __init__(self, gamma: Number, schedule: Schedule = "constant", *, decay: Number = 0.5, every: Every = "epoch"):
        super().__init__()
        self.last = require_fraction("gamma", gamma, one=True)
        self.schedule = require_choice("gamma_schedule", schedule, get_args(Schedule))
        self.every = require_choice("gamma_every", every, get_args(Every))
        self.decay = require_fraction("gamma_decay", decay, one=True)
        self.value = self.last if schedule == "constant" else 1.0
        self.told = schedule == "constant"

    def set_progress(self, *, step: int, steps: int, epoch: int, epochs: float) -> None:
        """Nothing; γ becomes that of this step (of `steps`) and epoch (of `epochs`), both counted from 0."""
        self.told = True
        if self.schedule == "constant":
            return
        if steps < 1 or epochs <= 0:
            raise UserError(f"steps and epochs must be above 0, got steps={steps}, epochs={epochs}")
        done = step / steps if self.every == "step" else epoch / epochs
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, done / self.decay)))
        self.value = self.last + (1 - self.last) * fall

    def forward(self) -> float:
        """γ now."""
        if not self.told and self.training:
            self.told = True  # once is enough
            warnings.warn(
                "gamma_schedule='cosine' stays at 1, the loss of each batch alone, until the training loop calls "
                "set_progress(step=, steps=, epoch=, epochs=) of the loss's gamma",
                AurankWarning,
                stacklevel=2,
            )
        return self.value

    def get_extra_state(self) -> Float64[Tensor, ""]:
        """γ, for `state_dict`."""
        return torch.tensor(self.value, dtype=torch.float64)

    def set_extra_state(self, state: Tensor | float) -> None:
        """Nothing; γ goes on from there, unless it is constant, which is for the constructor to say."""
        if self.schedule != "constant":
            self.value = float(state)
