"""Where a run stands, and what a step changes before its loss is known to be finite, to take it back."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from aurank.losses import CrossBatchMemory, Undoable
from aurank.training.checkpoint import random_state, restore_random_state


@dataclass
class Progress:
    """Where a run stands. ``epoch`` and ``batch`` name the next batch to consume; all of it is in the checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    best: dict[str, float] = field(default_factory=dict)
    without_improvement: int = 0
    metrics_bytes: int = 0


class Kept:
    """The state of a loss or a miner: of a memory the rows to be written, of tables what they overwrite, else copies.

    Args:
        rows: most rows, over all processes, that are written to a memory: no others are kept of one.
    """

    def __init__(self, module: nn.Module, *, rows: int) -> None:
        self.module = module
        self.memory: dict[str, Tensor] = {}
        if isinstance(module, CrossBatchMemory):
            next_rows = torch.arange(min(rows, module.memory_size)) + module.position
            self.rows = (next_rows % module.memory_size).to(module.embeddings.device)
            self.memory = {name: value[self.rows] for name, value in module.named_buffers(recurse=False)}
        # a table of a row for each sample remembers by itself which ones it overwrites
        self.tables = {name: part for name, part in module.named_modules() if isinstance(part, Undoable)}
        for table in self.tables.values():
            table.mark()
        own = tuple(f"{name}." if name else "" for name in self.tables)
        self.state: dict[str, Any] = {
            name: deepcopy(value)
            for name, value in module.state_dict().items()
            if name not in self.memory and not name.startswith(own)
        }

    @torch.no_grad()
    def restore(self) -> None:
        """Put it back."""
        for name, value in self.memory.items():
            self.module.get_buffer(name)[self.rows] = value
        for table in self.tables.values():
            table.take_back()
        self.module.load_state_dict(self.state, strict=False)


class Before:
    """The state before a step, as far as a step changes it before its loss is known to be finite.

    A forward pass writes to buffers (statistics of batch norms, averages that a loss keeps, a memory), draws random
    numbers, and the position in the data moves on; weights and optimiser change after the loss has been checked.

    Args:
        rows: most rows, over all processes, that the step writes to a loss's memory.
    """

    def __init__(
        self, encoder: nn.Module, loss: nn.Module, progress: Progress, *, rows: int, miner: nn.Module | None = None
    ) -> None:
        self.encoder = encoder
        self.buffers = [value.clone() for value in encoder.buffers()]
        self.kept = [Kept(module, rows=rows) for module in (loss, miner) if module is not None]
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
