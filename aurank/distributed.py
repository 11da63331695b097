"""Several processes: how they join, share work and exchange what they have, over torch.distributed.

torchrun (or Accelerate) starts them, ends the others when one has failed, and starts them again (--max-restarts).
"""

import math
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Integer

from aurank.errors import AurankError, UserError, first_line
from aurank.sizes import seconds

Item = TypeVar("Item")
SENT = 2**25  # bytes of rows that are sent at a time
# What gloo and NCCL say where a connection is cut or nothing comes.
_LOST = r"pair closure|Connection (closed|reset) by peer|Broken pipe|No route to|unreachable|gloo/|NCCL|waiting \d+ms"


def launched() -> int:
    """Return how many processes torchrun, Accelerate or a script launched to join; 1 for one by itself."""
    is_launched = all(name in os.environ for name in ("RANK", "MASTER_ADDR"))
    return int(os.environ.get("WORLD_SIZE", "1")) if is_launched else 1


@contextmanager
def joined(timeout: str) -> Iterator["ProcessGroup"]:
    """Join the processes that were launched while the context lasts; of one alone, do nothing.

    Each takes the GPU of its number on its machine.

    Args:
        timeout: until all have come, and of one exchange, as "30min".

    Raises:
        AurankError: another process is gone, or does not come.
    """
    if launched() == 1:
        yield ProcessGroup(False)
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    limit = timedelta(seconds=seconds(timeout))
    try:
        left = _reach_store(limit)
        store, rank, size = next(dist.rendezvous("env://", timeout=left))  # type: ignore[attr-defined]
        # torchrun keeps its store when it restarts, with the addresses of processes that are gone. Agents of several
        # machines do not count alike.
        is_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_one_machine else "0"
        store = dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    except (RuntimeError, ValueError, OSError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '')}"
        raise AurankError(
            f"rank {os.environ['RANK']} did not meet the other {launched() - 1} processes at {place} within {timeout} "
            f"({first_line(error)}); look at what they say, or unset WORLD_SIZE where there are none"
        ) from error
    try:
        with _explained():
            yield ProcessGroup(None)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _reach_store(limit: timedelta) -> timedelta:
    """Return what is left of `limit` once rank 0 answers; torch itself would try for twice as long."""
    deadline = time.monotonic() + limit.total_seconds()
    while os.environ["RANK"] != "0" and "MASTER_PORT" in os.environ:
        try:
            address = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
            socket.create_connection(address, timeout=1).close()
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    return timedelta(seconds=max(1.0, deadline - time.monotonic()))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or re.search(_LOST, str(error))):
            raise
        rank = dist.get_rank() if dist.is_initialized() else os.environ.get("RANK")
        said = first_line(error).rpartition("] ")[2].partition(". ")[0]
        raise _LostError(
            f"rank {rank} has stopped: another rank is gone ({said}); look at that rank's own message, then "
            "give the same command again, aurank train with --resume"
        ) from error


class ProcessGroup:
    """Processes that share out tiles and add up counts: all of torch.distributed, or this one alone.

    Every exchange begins with `all_gather`: one that has failed sends its failure there, whatever the others send.

    Args:
        distributed: None or "shards" for all processes of an initialised group; False for this process by itself.
    """

    def __init__(self, distributed: bool | str | None) -> None:
        if not (distributed is None or distributed is False or distributed == "shards"):
            raise UserError(f'distributed must be None, False or "shards"; got {distributed!r}')
        alone = distributed is False or not (dist.is_available() and dist.is_initialized())
        self.rank, self.size = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
        nccl = self.size > 1 and dist.get_backend() == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def shard(self, items: Sequence[Item]) -> list[Item]:
        return list(items[self.rank :: self.size])

    def shard_range(self, count: int) -> slice:
        """Return this process's range of so many entries; the ranges of all ranks, in order, are the whole."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def barrier(self) -> None:
        """Return when all processes are here; AurankError when one is gone or has failed."""
        self.all_gather(None)

    def all_gather(self, value: Item) -> list[Item]:
        """Return what every process gave, in the order of ranks; raise the error of one that failed meanwhile."""
        gathered: list[Any] = [value] * self.size
        if self.size > 1:
            with _explained():
                dist.all_gather_object(gathered, value)
        for failure in gathered:
            if isinstance(failure, AurankError):
                raise failure
        return gathered

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """A context in which what fails in one process fails in all of them, where they next gather.

        The error then carries the message of the first process that failed; all but rank 0 leave it to that to tell.
        """
        try:
            yield
        except Exception as error:
            is_known = isinstance(error, _LostError) or getattr(error, "told_by", None) is not None
            if self.size > 1 and not is_known:
                with suppress(_LostError):
                    self._tell(error)
                with suppress(AttributeError):  # told once: a context around this one leaves it alone
                    error.told_by = self.rank  # type: ignore[attr-defined]
            raise

    def _tell(self, error: Exception) -> None:
        kind = UserError if isinstance(error, UserError) else AurankError
        text = str(error) if isinstance(error, AurankError) else f"{type(error).__name__}: {first_line(error)}"
        sent = kind(f"rank {self.rank}: {text}" if self.rank else text)
        sent.told_by = 0
        try:
            self.all_gather(sent)
        except AurankError as common:
            if isinstance(error, AurankError) or isinstance(common, _LostError):
                raise common from None

    def together(self, work: Callable[[], Item]) -> Item:
        """Return what ``work`` returns; where it fails in one process, fail in all, with its message."""
        with self.failing_together():
            result = work()
            self.barrier()
            return result

    def in_first(self, work: Callable[[], Item]) -> Item:
        """Return in all processes what `work` returns in the first; where it fails there, fail in all."""
        with self.failing_together():
            found = work() if self.rank == 0 else None
            return self.all_gather(found)[0]  # type: ignore[return-value]  # of rank 0

    def all_reduce(self, counts: Integer[np.ndarray, " count"]) -> None:
        if self.size > 1:
            self.barrier()
            total = torch.from_numpy(counts).to(self.device)
            with _explained():
                dist.all_reduce(total)
            counts[:] = total.cpu().numpy()

    def concatenate(self, rows: Any) -> Any:
        """Return the rows of all processes, one after another; they have one type and width."""
        if self.size == 1:
            return rows
        own = torch.from_numpy(np.asarray(rows)) if isinstance(rows, np.ndarray) else rows.detach()
        edges = self._edges(len(own))
        whole = torch.empty((edges[-1], *own.shape[1:]), dtype=own.dtype, device=own.device)
        for place, part in self._parts(own, edges):
            whole[place] = part
        return whole.numpy() if isinstance(rows, np.ndarray) else whole

    def parts(self, rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield what `concatenate` returns in parts, with the place of each; each part holds until the next."""
        own = torch.from_numpy(rows)
        for place, part in self._parts(own, self._edges(len(own))):
            yield place, part.cpu().numpy()

    def _edges(self, length: int) -> list[int]:
        edges: list[int] = np.cumsum([0, *self.all_gather(length)]).tolist()
        return edges

    def _parts(self, own: torch.Tensor, edges: list[int]) -> Iterator[tuple[slice, torch.Tensor]]:
        step = max(1, SENT // max(1, own.element_size() * math.prod(own.shape[1:])))
        for rank in range(self.size):
            for start in range(edges[rank], edges[rank + 1], step):
                place = slice(start, min(start + step, edges[rank + 1]))
                if rank == self.rank:
                    sent = own[start - edges[rank] : place.stop - edges[rank]].to(self.device).contiguous()
                else:
                    sent = torch.empty((place.stop - start, *own.shape[1:]), dtype=own.dtype, device=self.device)
                if self.size > 1:
                    self.barrier()  # nobody has failed on the part before, or has no room for this one
                    with _explained():
                        dist.broadcast(sent, src=rank)
                yield place, sent

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        every = list(tensors) if self.size > 1 else []
        if every:
            self.barrier()
        for tensor in every:
            sent = tensor.detach().to(self.device).contiguous()
            with _explained():
                dist.broadcast(sent, src=0)
            tensor.detach().copy_(sent)

    def leave(self) -> None:
        """Let this process go on alone, with the rank that it had: nothing from here on waits for others."""
        if self.size > 1:
            self.size = 1
            dist.destroy_process_group()


class _LostError(AurankError):
    """Another process of the group is gone."""
