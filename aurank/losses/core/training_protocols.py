"""What a loss or a miner may offer the loop that trains with it."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor

EmbedByIds = Callable[[Int64[Tensor, " image"]], Float[Tensor, "image dim"]]


@runtime_checkable
class FollowsProgress(Protocol):
    def set_progress(self, *, step: int, steps: int, epoch: int, epochs: float) -> None:
        """Take over where training stands, before each step."""


@runtime_checkable
class Reencodes(Protocol):
    wants_reencode: bool
    reencode: EmbedByIds | None


@runtime_checkable
class LearnsTemperature(Protocol):
    @property
    def learned_temperature(self) -> Float[Tensor, ""] | None:
        """The current τ, the mean of individual ones, without a gradient; None where it is fixed."""
