"""The processes that torchrun or Accelerate launched for one command, and how they join."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

from aurank.evaluation.engine.process_group import ProcessGroup
from aurank.launched import launched
from aurank.training.liveness import Liveness

MEET, TIMEOUT = "10min", timedelta(hours=6)  # until all have come, and of one exchange: their shares may differ
REMEDY = (
    "see what it says, then give the same command again, with any number of processes: it takes up what was embedded"
)


@contextmanager
def launched_group() -> Iterator[ProcessGroup]:
    """A context with all processes that were launched for this command; what fails in one of them fails in all.

    Each takes the GPU of its number on its machine. They talk by gloo: embeddings that cross it are few beside the work
    that made them. One that is gone is named by the others at once.

    Raises:
        AurankError: another process is gone, or does not come.

    Example:
        >>> with launched_group() as group:
        ...     group.size
        1
    """
    if launched() == 1:
        yield ProcessGroup(False)
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    with Liveness(MEET, REMEDY, key="") as life:
        distributed.init_process_group("gloo", store=life.store, rank=life.rank, world_size=life.size, timeout=TIMEOUT)
        group = ProcessGroup(None)
        try:
            with group.failing_together():
                yield group
        finally:
            leave(group)


def leave(group: ProcessGroup) -> None:
    """Let this process go on alone, with the rank that it had: nothing from here on waits for others.

    Example:
        >>> with launched_group() as group:
        ...     leave(group)
        >>> group.rank
        0
    """
    if group.size > 1:
        group.size = 1
        distributed.destroy_process_group()
