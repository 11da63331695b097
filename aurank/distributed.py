"""Several processes, which torchrun or Accelerate starts, watches and starts again: what they exchange."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Integer

from aurank.errors import AurankError, UserError, first_line
from aurank.sizes import seconds

Item = TypeVar("Item")
# What gloo and NCCL say when a connection is cut or nothing comes.
_LOST = r"pair closure|Connection (closed|reset) by peer|Broken pipe|No route to|unreachable|gloo/|NCCL|waiting \d+ms"


def launched() -> int:
    """Return how many processes torchrun, Accelerate or a script launched to join; 1 for one by itself."""
    is_launched = all(name in os.environ for name in ("RANK", "MASTER_ADDR"))
    return int(os.environ.get("WORLD_SIZE", "1")) if is_launched else 1


@contextmanager
def joined(timeout: str) -> Iterator["ProcessGroup"]:
    """Join the launched processes, each with its GPU; AurankError if another is gone or does not come."""
    if launched() == 1:
        yield ProcessGroup(False)
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    limit = timedelta(seconds=seconds(timeout))
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=limit)
        yield ProcessGroup(None)
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or re.search(_LOST, str(error))):
            raise
        absent = "another rank is gone" if dist.is_initialized() else "another rank did not come"
        reason = first_line(error).rpartition("] ")[2].partition(". ")[0]
        raise AurankError(
            f"rank {os.environ['RANK']} has stopped: {absent} ({reason}); look at that rank's own message, then "
            "give the same command again, aurank train with --resume"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


class ProcessGroup:
    """Processes that share tiles and batches: all of torch.distributed (None, "shards"), or this one alone (False)."""

    def __init__(self, distributed: bool | str | None) -> None:
        if not (distributed is None or distributed is False or distributed == "shards"):
            raise UserError(f'distributed must be None, False or "shards"; got {distributed!r}')
        alone = distributed is False or not (dist.is_available() and dist.is_initialized())
        self.rank, self.size = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
        nccl = self.size > 1 and dist.get_backend() == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def shard(self, items: Sequence[Item]) -> list[Item]:
        return list(items[self.rank :: self.size])

    def barrier(self) -> None:
        self.all_gather(None)

    def all_gather(self, value: Item) -> list[Item]:
        """Return the value of every process, in the order of ranks."""
        gathered: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(gathered, value)
        return gathered

    def all_reduce(self, counts: Integer[np.ndarray, " count"]) -> None:
        if self.size > 1:
            total = torch.from_numpy(counts).to(self.device)
            dist.all_reduce(total)
            counts[:] = total.cpu().numpy()

    def parts(self, rows: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the rows of each process, in the order of ranks; they have one type and width."""
        for rank, length in enumerate(self.all_gather(len(rows))):
            if rank == self.rank:
                part = rows.detach().to(self.device).contiguous()
            else:
                part = torch.empty((length, *rows.shape[1:]), dtype=rows.dtype, device=self.device)
            if self.size > 1:
                dist.broadcast(part, src=rank)
            yield part.to(rows.device)

    def concatenate(self, rows: Any) -> Any:
        """Return the rows of all processes, one after another; they have one type and width."""
        if self.size == 1:
            return rows
        joint = torch.cat(list(self.parts(torch.as_tensor(rows))))
        return joint if isinstance(rows, torch.Tensor) else joint.numpy()

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors if self.size > 1 else ():
            sent = tensor.detach().to(self.device).contiguous()
            dist.broadcast(sent, src=0)
            tensor.detach().copy_(sent)

    def leave(self) -> None:
        """Let this process go on alone, with the rank that it had: nothing from here on waits for others."""
        if self.size > 1:
            self.size = 1
            dist.destroy_process_group()
