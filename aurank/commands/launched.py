"""The processes that torchrun or Accelerate launched for one command, and how they join."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

from aurank.errors import AurankError, first_line
from aurank.evaluation.engine.process_group import ProcessGroup

TIMEOUT = timedelta(hours=6)  # of a process that is stopped; one that has ended is noticed at once


@contextmanager
def launched_group() -> Iterator[ProcessGroup]:
    """A context with all processes that were launched for this command; what fails in one of them fails in all.

    Each takes the GPU of its number on its machine. They talk by gloo, which tells at once of a process that has ended;
    embeddings that cross it are few beside the work that made them.

    Raises:
        AurankError: the others do not come.

    Example:
        >>> with launched_group() as group:
        ...     group.size
        1
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ProcessGroup(False)
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        distributed.init_process_group("gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise AurankError(
            f"the {size} processes that were launched do not meet ({first_line(error)}): look at what the others say, "
            "and whether MASTER_ADDR can be reached"
        ) from error
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
