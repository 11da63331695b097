"""What the losses of the last steps were: read together, and kept from the weights where one is not finite."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor, distributed
from torch.optim import Optimizer

from aurank.losses.core.common import HostCopy

MOST = 100  # steps from one look to the next: what follows a loss that is not finite is lost
READ_AT_ONCE = ("cpu",)  # devices whose numbers are on the host already
_LAST = 2**31 - 1  # above every number of a batch


@dataclass(frozen=True, eq=False)
class SeenBatch:
    """A batch that was trained on, and its loss.

    Attributes:
        step: that it is part of, counted from 1.
        index: its number in the epoch.
        ids: the images, on the host.
        terms: the weighted losses of a sum, by name.
    """

    step: int
    epoch: int
    index: int
    ids: Int64[Tensor, " image"]
    loss: Float[Tensor, ""]
    terms: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class LossLook:
    """What `LossWatch.look` found.

    Attributes:
        losses: of every batch since the last look, with its terms; the bad one is the last.
        bad: the first batch whose loss was not finite, in this process or in another.
    """

    losses: list[tuple[float, dict[str, float]]]
    bad: SeenBatch | None


class LossWatch:
    """Watches over the losses of the steps without waiting for the device or for other processes.

    Losses stay where they are until `look`. Until then an update is made only if no loss of any process was infinite or
    NaN since the last look: a fused optimiser leaves out an update itself, as it does for a gradient scaler. Where
    numbers are on the host already, or the optimiser cannot leave out an update, `look` is due in every step. Of
    several processes, whether all losses are finite and the signals received go round in one small tensor, sent while
    the backward pass runs.

    Args:
        optimiser: torch's own, without a wrapper.
        every: most steps between looks.
    """

    def __init__(self, device: torch.device, optimiser: Optimizer, *, every: int, processes: int = 1) -> None:
        self.optimiser = optimiser
        self.processes = processes
        self.on_host = device.type in READ_AT_ONCE
        self.every = 1 if self.on_host or not leaves_out_updates(optimiser) else min(every, MOST)
        self.batches: list[SeenBatch] = []
        self.steps: int | None = None  # since the last look; none yet: the first step is looked at
        self.received: int | None = None  # the signal that the processes agreed on
        # How long before _LAST the first bad batch came, 0 without one, and the signal: of both the greatest counts.
        self._flags = torch.zeros(2, dtype=torch.int32, device=device)
        self._sent: HostCopy | None = None
        self._work: distributed.Work | None = None

    def add(self, batch: SeenBatch) -> None:
        """Take a batch in, before its backward pass."""
        self.batches.append(batch)
        mark = _LAST - len(self.batches)
        if not self.on_host:
            torch.maximum(self._flags[0], torch.where(batch.loss.isfinite(), 0, mark), out=self._flags[0])
        elif not math.isfinite(float(batch.loss)) and not self._flags[0]:
            self._flags[0] = mark

    def marked(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the loss, NaN after one that was not finite: a gradient scaler leaves out the update by itself."""
        return loss if self.on_host else loss * torch.where(self._flags[0] > 0, math.nan, 1.0)

    def share(self, signal: int | None) -> None:
        """Let the other processes know, after the last batch of a step and before its backward pass."""
        if self.processes == 1:
            return
        self._flags[1].fill_(signal or 0)
        self._work = distributed.all_reduce(self._flags, distributed.ReduceOp.MAX, async_op=True)

    def guard(self) -> bool:
        """Keep a bad step from the weights, before the update; return whether `look` is due first."""
        if self._work is not None:
            self._work.wait()
            self._work = None
            self._receive()
        self.steps = None if self.steps is None else self.steps + 1
        if self.every > 1:
            self.optimiser.found_inf = (self._flags[0] > 0).float()  # type: ignore[attr-defined]
        return self.every == 1

    def _receive(self) -> None:
        """Take over the signal that was agreed on: where reading it would wait, that of the step before."""
        copy = HostCopy(self._flags)
        ready, self._sent = (copy, None) if self.every == 1 else (self._sent, copy)
        if ready is not None:
            self.received = int(ready.wait()[0][1]) or None

    @property
    def is_due(self) -> bool:
        """Whether so many steps were done since the last look; after the first step, too."""
        return self.steps is None or self.steps >= self.every

    def look(self) -> LossLook:
        """Return the losses since the last look, and the first batch that is not finite: the same in all processes."""
        if not self.batches:
            return LossLook([], None)
        batches, self.batches, self.steps = self.batches, [], 0
        losses = _numbers([one.loss for one in batches])
        terms = {name: _numbers([one.terms[name] for one in batches]) for name in batches[0].terms}
        found = [(loss, {name: terms[name][row] for name in terms}) for row, loss in enumerate(losses)]
        if not (mark := int(self._flags[0])):
            return LossLook(found, None)
        number = _LAST - mark
        return LossLook(found[:number], batches[number - 1])


def _numbers(values: Sequence[Tensor]) -> list[float]:
    """Return numbers of a device, read at once."""
    if len(values) == 1:
        return [float(values[0])]
    numbers: list[float] = torch.stack(list(values)).tolist()
    return numbers


def leaves_out_updates(optimiser: Optimizer) -> bool:
    """Return whether the optimiser takes `found_inf`, by which a gradient scaler tells it to leave out an update."""
    fused = all(group.get("fused") for group in optimiser.param_groups)
    return fused and bool(getattr(optimiser, "_step_supports_amp_scaling", False))


def notice_of_waiting(device: torch.device, optimiser: Optimizer, name: str, *, sharded: bool = False) -> list[str]:
    """Return what to say where every step waits for the device, because the optimiser cannot leave out an update.

    sharded: with train.sharded, for which torch has no fused SGD.
    """
    if device.type in READ_AT_ONCE or leaves_out_updates(optimiser):
        return []
    where, others = (" with train.sharded=true", "adam and adamw") if sharded else (" here", "adam, adamw and sgd")
    return [
        f"optim.name={name} is not fused{where}, so every step waits for the device, to see whether its loss is "
        f"finite; {others} need not"
    ]
