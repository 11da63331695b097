"""Where a run stands, and what a step changes before its loss is known to be finite, to take it back."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from aurank.losses import Undoable
from aurank.training.random_state import random_state, restore_random_state


@dataclass
class Progress:
    """Where a run stands. ``epoch`` and ``batch`` name the next batch to consume; all of it is in the checkpoint.

    ``metrics_sha256`` is of the first ``metrics_bytes`` of metrics.jsonl, ``best_sha256`` the fingerprint of best.pt,
    empty before there is one; None in checkpoints of before these were recorded. ``validation_owed``: one is due at
    this step, and was not done when the checkpoint was written.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    best: dict[str, float] = field(default_factory=dict)
    without_improvement: int = 0
    metrics_bytes: int = 0
    metrics_sha256: str | None = ""
    best_sha256: str | None = ""
    validation_owed: bool = False


class Kept:
    """The state of a loss or a miner: of memories and tables what a step overwrites, of everything else a copy."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.tables: list[Undoable] = []
        state: dict[str, Any] = {}
        for name, part in module.named_modules():
            # a memory, or a table of a row for each sample, remembers by itself what it overwrites
            if isinstance(part, Undoable):
                self.tables.append(part)
                part.mark()
            else:  # part by part, as state_dict would write out the memories too
                part._save_to_state_dict(state, f"{name}." if name else "", keep_vars=False)
        self.state = deepcopy(state)

    @torch.no_grad()
    def restore(self) -> None:
        """Put it back."""
        for table in self.tables:
            table.take_back()
        self.module.load_state_dict(self.state, strict=False)


class Before:
    """The state before a step, as far as a step changes it before its loss is known to be finite.

    A forward pass writes to buffers (statistics of batch norms, averages that a loss keeps, a memory), draws random
    numbers, and the position in the data moves on; weights and optimiser change after the loss has been checked.
    """

    def __init__(
        self, encoder: nn.Module, loss: nn.Module, progress: Progress, *, miner: nn.Module | None = None
    ) -> None:
        self.encoder = encoder
        self.buffers = [value.clone() for value in encoder.buffers()]
        self.kept = [Kept(module) for module in (loss, miner) if module is not None]
        self.random = random_state()
        self.progress = replace(progress)

    @torch.no_grad()
    def restore(self, progress: Progress) -> None:
        """Put all of it back."""
        for buffer, value in zip(self.encoder.buffers(), self.buffers, strict=True):
            buffer.copy_(value)
        for kept in self.kept:
            kept.restore()
        restore_random_state(self.random)
        vars(progress).update(vars(self.progress))
