"""Temperatures of a loss: one, fixed or learned within bounds, and the log mean of exp(s/τ) that they scale."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aurank.losses.core.checks import Number, require_number, require_pair, require_within
from aurank.losses.core.pairs import Pairs
from aurank.losses.core.row_table import FullPrecision, writes
from aurank.names import require_choice

Scale = Literal["linear", "log"]


class Temperature(FullPrecision):
    def __init__(
        self,
        temperature: Number,
        *,
        learnable: bool = False,
        bounds: Sequence[Number | None] = (0.01, None),
        scale: Scale = "linear",
    ) -> None:
        super().__init__()
        self.start = require_number("temperature", temperature)
        self.scale = require_choice("scale", scale, get_args(Scale))
        self.low, self.high = require_bounds("temperature_bounds", bounds)
        self.parameter: nn.Parameter | None = None
        if learnable:
            require_within("temperature", self.start, (self.low, self.high))
            self.parameter = nn.Parameter(torch.tensor(self._stored(self.start)))

    def forward(self) -> Float[Tensor, ""] | float:
        if (parameter := self.parameter) is None:
            return self.start
        # torch.func has to know of every change
        transformed = torch._C._are_functorch_transforms_active()
        if writes(self) and isinstance(parameter, nn.Parameter) and not transformed:
            # Not in place by autograd's count: one step may ask several times, and only the first can change anything.
            parameter.data.clamp_(self._stored(self.low), self._stored(self.high))
        return self._bounded(parameter - parameter.detach())  # plus 0, which has the gradient

    @property
    def learned_temperature(self) -> Float[Tensor, ""] | None:
        return None if self.parameter is None else self._bounded(0)

    def _bounded(self, zero: Tensor | int) -> Tensor:
        assert self.parameter is not None
        bounded = self.parameter.detach().clamp(self._stored(self.low), self._stored(self.high)) + zero
        return bounded.exp() if self.scale == "log" else bounded

    def _stored(self, value: float) -> float:
        return (math.log(value) if value < math.inf else math.inf) if self.scale == "log" else value


def require_bounds(name: str, bounds: Sequence[Number | None]) -> tuple[float, float]:
    numbers = [math.inf if each is None else each for each in bounds]
    return require_pair(name, numbers, "(0, inf]", rising=True)


AnyTemperature = Float[Tensor, ""] | Float[Tensor, " query"] | float


def attraction(pairs: Pairs) -> Float[Tensor, " query"]:
    return pairs.positives.mean(pairs.positives.similarity)


def log_mean_exp(
    pairs: Pairs, temperature: AnyTemperature, *, relative: bool = False, with_positives: bool = False
) -> Float[Tensor, " query"]:
    temperature = column(temperature)
    counted = pairs.negative | pairs.positive if with_positives else pairs.negative
    similarity = pairs.similarity - attraction(pairs)[:, None] if relative else pairs.similarity
    count = counted.sum(dim=1)
    # A query without any: its row of minus infinities would have no gradient that is a number.
    scores = (similarity / temperature).masked_fill(~counted & (count > 0)[:, None], -torch.inf)
    log_mean = torch.logsumexp(scores, dim=1) - count.clamp(min=1).to(similarity.dtype).log()
    return torch.where(count > 0, log_mean, 0)


def add_epsilon(log_value: Float[Tensor, " query"], epsilon: float) -> Float[Tensor, " query"]:
    return torch.logaddexp(log_value, torch.full_like(log_value, math.log(epsilon))) if epsilon else log_value


def column(temperature: AnyTemperature) -> Tensor | float:
    return temperature[:, None] if isinstance(temperature, Tensor) and temperature.ndim == 1 else temperature
