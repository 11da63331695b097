"""What a run watches: losses that are not finite, learned temperatures, signs of collapse."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

MOST = 100  # most steps between two looks; steps after a non-finite loss are lost
READ_AT_ONCE = ("cpu",)  # devices whose values can be read without waiting
_LAST = 2**31 - 1  # greater than any batch number


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
        # Such an optimiser takes `found_inf`, by which a gradient scaler makes it leave out an update.
        is_fused = all(group.get("fused") for group in optimiser.param_groups)
        leaves_out = is_fused and getattr(optimiser, "_step_supports_amp_scaling", False)
        self.every = 1 if self.on_host or not leaves_out else min(every, MOST)
        self.losses: list[Tensor] = []
        self.terms: list[dict[str, Tensor]] = []  # terms of each step, of a sum of losses
        self.steps: int | None = None  # steps since the last look; None: look at the first step
        self.received: int | None = None  # signal that all processes agreed on
        # [_LAST - first bad batch, or 0; the signal, or 0]: combined over processes by maximum.
        self._flags = torch.zeros(2, dtype=torch.int32, device=device)
        self._sent: tuple[Tensor, torch.cuda.Event | None] | None = None  # flags on the host; when they arrive
        self._work: distributed.Work | None = None

    def add(self, loss: Float[Tensor, ""], terms: dict[str, Tensor]) -> None:
        self.losses.append(loss)
        self.terms.append(terms)
        mark = _LAST - len(self.losses)
        if not self.on_host:
            torch.maximum(self._flags[0], torch.where(loss.isfinite(), 0, mark), out=self._flags[0])
        elif not math.isfinite(float(loss)) and not self._flags[0]:
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
            if self.every == 1:
                self.received = int(self._flags[1]) or None
            else:  # reading now would wait for the device: use the flags of the step before
                if self._sent is not None:
                    flags, event = self._sent
                    if event is not None:
                        event.synchronize()
                    self.received = int(flags[1]) or None
                is_cuda = self._flags.is_cuda
                copy = self._flags.to("cpu", non_blocking=is_cuda)  # pinned memory
                self._sent = copy, torch.cuda.current_stream().record_event() if is_cuda else None
        self.steps = None if self.steps is None else self.steps + 1
        if self.every > 1:
            self.optimiser.found_inf = (self._flags[0] > 0).float()  # type: ignore[attr-defined]
        return self.every == 1

    def look(self) -> tuple[list[float], dict[str, list[float]], bool]:
        """Return losses since the last look, up to one that is not finite, their terms, and whether one is."""
        if not self.losses:
            return [], {}, False
        losses, terms, mark = self.losses, self.terms, int(self._flags[0])
        self.losses, self.terms, self.steps = [], [], 0
        stop = _LAST - mark if mark else len(losses)
        numbers = {name: torch.stack([each[name] for each in terms[:stop]]).tolist() for name in terms[0]}
        return torch.stack(losses[:stop]).tolist(), numbers, mark > 0


def learned_temperature(loss: nn.Module) -> dict[str, float]:
    """Return ``temperature``, the first that the loss learns, the mean of individual ones; empty without one."""
    values = [getattr(part, "learned_temperature", None) for part in loss.modules()]
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
