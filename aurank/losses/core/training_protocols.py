"""What a loss or a miner may offer the loop that trains with it."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor

EmbedByIds = Callable[[Int64[Tensor, " image"]], Float[Tensor, "image dim"]]


@runtime_checkable
class FollowsProgress(Protocol):
    """A module that changes over the training, as a schedule does."""

    def set_progress(self, *, step: int, steps: int, epoch: int, epochs: float) -> None:
        """Take over where training stands, before each step."""


@runtime_checkable
class Reencodes(Protocol):
    """A module that needs embeddings of images that are not in the batch."""

    wants_reencode: bool
    reencode: EmbedByIds | None


@runtime_checkable
class LearnsTemperature(Protocol):
    """A module with a temperature that is reported with each step."""

    @property
    def learned_temperature(self) -> Float[Tensor, ""] | None:
        """The current τ, the mean of individual ones, without a gradient; None where it is fixed."""
