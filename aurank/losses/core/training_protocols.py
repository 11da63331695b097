"""What a loss or a miner may offer the loop that trains with it.

The loop asks every module of the loss and of the miner, so what is inside of a wrapper is found without being passed
on. Nothing has to be inherited: a module that has the attributes of a protocol here offers it. State is no protocol:
what is in `state_dict` is saved with a checkpoint, and `RowTable` keeps it on the host where that was asked for.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor

EmbedByIds = Callable[[Int64[Tensor, " image"]], Float[Tensor, "image dim"]]


@runtime_checkable
class FollowsProgress(Protocol):
    """A module that changes over the training, as a schedule does."""

    def set_progress(self, *, step: int, steps: int, epoch: int, epochs: float) -> None:
        """Take over where training stands, before each step.

        Args:
            step: of `steps`, counted from 0.
            epoch: of `epochs`, counted from 0; the whole run need not be a whole number of epochs.
        """


@runtime_checkable
class Reencodes(Protocol):
    """A module that needs embeddings of images that are not in the batch.

    Attributes:
        wants_reencode: whether the loop shall set `reencode`, where it is still None.
        reencode: embeds images of the training set by their rows (on the host), with the current weights.
    """

    wants_reencode: bool
    reencode: EmbedByIds | None


@runtime_checkable
class LearnsTemperature(Protocol):
    """A module with a temperature that is reported with each step."""

    @property
    def learned_temperature(self) -> Float[Tensor, ""] | None:
        """The current τ, the mean of individual ones, without a gradient; None where it is fixed."""
