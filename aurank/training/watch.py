"""What a run watches and logs: losses that are not finite, signs of collapse, metrics.jsonl."""

import contextlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from aurank.losses.core.training_protocols import LearnsTemperature

MOST = 100  # steps from one look to the next: what follows a loss that is not finite is lost
READ_AT_ONCE = ("cpu",)  # devices whose numbers are on the host already
_LAST = 2**31 - 1  # above every number of a batch


@dataclass(frozen=True, eq=False)
class SeenBatch:
    """A batch that was trained on, and its loss; ``step`` counts from 1, ``index`` within the epoch."""

    step: int
    epoch: int
    index: int
    ids: Int64[Tensor, " image"]  # on the host
    loss: Float[Tensor, ""]
    terms: dict[str, Tensor] = field(default_factory=dict)  # the weighted losses of a sum


class HostCopy:
    """A copy of a tensor on the host; a GPU's is sent now and asked for a step later, so that nothing waits."""

    def __init__(self, tensor: Tensor) -> None:
        self.copy = tensor.to("cpu", non_blocking=tensor.is_cuda)  # into pinned memory
        self.event: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record()

    def wait(self) -> Tensor:
        if self.event is not None:
            self.event.synchronize()
        return self.copy


class LossWatch:
    """Watches over the losses of the steps without waiting for the device or for other processes.

    Losses stay where they are until `look`. Until then a fused optimiser leaves out every update after a loss of any
    process that was not finite, as it does for a gradient scaler. Where numbers are on the host already, or the
    optimiser cannot leave out an update, `look` is due in every step. Several processes exchange this, and the signals
    they received, while the backward pass runs.

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
        self.batches.append(batch)
        mark = _LAST - len(self.batches)
        if not self.on_host:
            torch.maximum(self._flags[0], torch.where(batch.loss.isfinite(), 0, mark), out=self._flags[0])
        elif not math.isfinite(float(batch.loss)) and not self._flags[0]:
            self._flags[0] = mark

    def marked(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the loss, NaN after one that was not finite, so that a gradient scaler leaves out the update."""
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
            # The signal agreed on; where reading it would wait for the device, that of the step before.
            copy = HostCopy(self._flags)
            ready, self._sent = (copy, None) if self.every == 1 else (self._sent, copy)
            if ready is not None:
                self.received = int(ready.wait()[1]) or None
        self.steps = None if self.steps is None else self.steps + 1
        if self.every > 1:
            self.optimiser.found_inf = (self._flags[0] > 0).float()  # type: ignore[attr-defined]
        return self.every == 1

    @property
    def is_due(self) -> bool:
        """Whether so many steps were done since the last look; after the first step, too."""
        return self.steps is None or self.steps >= self.every

    def look(self) -> tuple[list[tuple[float, dict[str, float]]], SeenBatch | None]:
        """Return the losses of every batch since the last look, with their terms, and the first that is not finite.

        It is the same in all processes, and the last of the losses is then its.
        """
        if not self.batches:
            return [], None
        batches, self.batches, self.steps = self.batches, [], 0
        losses = _numbers([batch.loss for batch in batches])
        terms = {name: _numbers([batch.terms[name] for batch in batches]) for name in batches[0].terms}
        seen = [(loss, {name: terms[name][row] for name in terms}) for row, loss in enumerate(losses)]
        mark = int(self._flags[0])
        number = _LAST - mark
        return (seen[:number], batches[number - 1]) if mark else (seen, None)


def _numbers(values: Sequence[Tensor]) -> list[float]:
    numbers: list[float] = [float(values[0])] if len(values) == 1 else torch.stack(list(values)).tolist()
    return numbers


def leaves_out_updates(optimiser: Optimizer) -> bool:
    """Return whether the optimiser takes `found_inf`, by which a gradient scaler makes it leave out an update."""
    fused = all(group.get("fused") for group in optimiser.param_groups)
    return fused and bool(getattr(optimiser, "_step_supports_amp_scaling", False))


class MetricsFile:
    """Appends records, without wall-clock values; of an existing file it keeps the first ``keep`` bytes."""

    def __init__(self, path: Path, *, keep: int = 0) -> None:
        path.touch(exist_ok=True)
        os.truncate(path, min(keep, path.stat().st_size))
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; NaN and infinity, which JSON has not, become null."""
        odd = (key for key, value in record.items() if isinstance(value, float) and not math.isfinite(value))
        self._file.write(json.dumps({**record, **dict.fromkeys(odd)}) + "\n")
        self._file.flush()

    def position(self) -> int:
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a record that could not be flushed has raised already
            self._file.close()


def learned_temperature(loss: nn.Module) -> dict[str, float]:
    """Return ``temperature``, the first that the loss learns, the mean of individual ones; empty without one."""
    values = [part.learned_temperature for part in loss.modules() if isinstance(part, LearnsTemperature)]
    learned = [float(value) for value in values if value is not None]
    return {"temperature": learned[0]} if learned else {}


@torch.no_grad()
def collapse_signs(embeddings: Float[Tensor, "batch dim"]) -> dict[str, float]:
    """Return two signs of collapse of unit-length embeddings.

    ``mean_similarity`` is the mean cosine over pairs of different rows. ``effective_rank`` is exp of the entropy of the
    normalised singular values: 1 when all embeddings lie on a line, at most min(batch, dim).

    Source: Roy and Vetterli, The effective rank (EUSIPCO 2007), https://ieeexplore.ieee.org/document/7098875
    """
    rows = embeddings.detach().float()
    count = rows.shape[0]
    total = rows.sum(dim=0)
    similarity = (total @ total - rows.square().sum()) / max(1, count * (count - 1))
    singular = torch.linalg.svdvals(rows)
    share = singular / singular.sum().clamp(min=1e-12)
    entropy = -(share * share.clamp(min=1e-12).log()).sum()
    return {"mean_similarity": float(similarity), "effective_rank": float(entropy.exp())}
