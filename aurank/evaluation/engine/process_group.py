"""Who counts together: one process, or all of an initialised `torch.distributed` group."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Integer

from aurank.arrays import MappedRows
from aurank.errors import AurankError, UserError, first_line
from aurank.evaluation.engine.problem import RetrievalProblem

Item = TypeVar("Item")
SENT = 2**25  # bytes of rows that are sent at a time


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
        """Return this process's items."""
        return list(items[self.rank :: self.size])

    def shard_range(self, count: int) -> slice:
        """Return this process's range of so many entries; the ranges of all ranks, in order, are the whole."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def barrier(self) -> None:
        """Return when all processes are here; AurankError when one is gone or has failed."""
        self.all_gather(None)

    def all_gather(self, value: Item) -> list[Item]:
        """Return what every process gave, in the order of ranks; raise the error of one that failed meanwhile."""
        found: list[Any] = [value] * self.size
        if self.size > 1:
            with self._all_present():
                dist.all_gather_object(found, value)
        for rank, one in enumerate(found):
            if isinstance(one, _Failure):
                raise one.error(rank)
        return found

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
        """Send an error to all processes; of one that aurank understands, raise the error that all of them raise."""
        try:
            self.all_gather(_Failure(isinstance(error, UserError), _said(error)))
        except AurankError as common:
            if isinstance(error, AurankError) or isinstance(common, _LostError):
                raise common from None

    def in_first(self, work: Callable[[], Item]) -> Item:
        """Return in all processes what `work` returns in the first; where it fails there, fail in all."""
        with self.failing_together():
            found = work() if self.rank == 0 else None
            return self.all_gather(found)[0]  # type: ignore[return-value]  # of rank 0

    def all_reduce(self, counts: Integer[np.ndarray, " count"]) -> None:
        """Replace the counts by their sums over all processes."""
        if self.size > 1:
            self.barrier()
            total = torch.from_numpy(counts).to(self.device)
            with self._all_present():
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
        """Return where the rows of each process begin, and where the last ones end."""
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
                    with self._all_present():
                        dist.broadcast(sent, src=rank)
                yield place, sent

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace the tensors of all processes by those of rank 0, of the same shapes and types."""
        every = list(tensors) if self.size > 1 else []
        if every:
            self.barrier()
        for tensor in every:
            sent = tensor.detach().to(self.device).contiguous()
            with self._all_present():
                dist.broadcast(sent, src=0)
            tensor.detach().copy_(sent)

    @contextmanager
    def _all_present(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise _LostError(
                f"rank {self.rank} of {self.size} has stopped: another rank is gone ({first_line(error)}); look at "
                "that rank's own message, and start again"
            ) from error


class _LostError(AurankError):
    """Another process of the group is gone."""


@dataclass(frozen=True)
class _Failure:
    """What a process sends in place of a value when it has failed."""

    is_mistake: bool
    text: str

    def error(self, rank: int) -> AurankError:
        """Return the error of that rank, as all raise it."""
        error = (UserError if self.is_mistake else AurankError)(f"rank {rank}: {self.text}" if rank else self.text)
        error.told_by = 0
        return error


def _said(error: Exception) -> str:
    """Return an error that aurank understands as it is; of another its type too."""
    return str(error) if isinstance(error, AurankError) else f"{type(error).__name__}: {first_line(error)}"


def gather_shards(group: ProcessGroup, problem: RetrievalProblem, *, shards: bool) -> RetrievalProblem:
    """Return the problem as if one process had all rows of both sides.

    A side that all processes hold alike is taken as it is; else it is in shards, which are put together in the order of
    ranks, as all sides are if `shards`. UserError where processes disagree on what is given, its type or its width, and
    where they hold the same labels for other embeddings: copies that differ, which must not pass for shards.
    """
    whole: dict[str, Any] = {}
    for side, names in (
        ("query", ("embeddings", "labels", "ids", "groups")),
        ("gallery", ("gallery", "gallery_labels", "gallery_ids", "gallery_groups")),
    ):
        given = [getattr(problem, name) for name in names]
        arrays = [array if array is None or hasattr(array, "shape") else np.asarray(array) for array in given]
        kinds = [None if array is None else (str(array.dtype), tuple(array.shape[1:])) for array in arrays]
        _check_equal(group, kinds, f"the types and widths of the {side} side (embeddings, labels, ids, groups)")
        digests = group.all_gather([_digest(array) for array in arrays])
        copies = all(other == digests[0] for other in digests)
        if not shards and not copies and all(other[1:] == digests[0][1:] for other in digests):
            raise UserError(
                f"all ranks gave the same {side} labels and ids, but other embeddings: give every rank its own rows, "
                'or all the very same; distributed="shards" says that these are different rows'
            )
        for name, array in zip(names, arrays, strict=True):
            whole[name] = array if array is None or (copies and not shards) else group.concatenate(array)
    return replace(problem, **whole)


def require_equal(group: ProcessGroup, **settings: Any) -> None:
    """Raise UserError where processes were called with different settings."""
    for name, value in settings.items():
        plain = value if value is None or isinstance(value, str | int | float | tuple) else _digest(value)
        _check_equal(group, plain, name)


def _check_equal(group: ProcessGroup, value: Any, what: str) -> None:
    given = group.all_gather(value)
    for rank, other in enumerate(given):
        if other != given[0]:
            raise UserError(f"{what} must be the same on all ranks: rank 0 has {given[0]}, rank {rank} has {other}")


def _digest(array: Any) -> str | None:
    if array is None:
        return None
    if isinstance(array, MappedRows):
        return _digest_of_mapped(array)
    plain = array.detach().cpu() if isinstance(array, torch.Tensor) else np.asarray(array)
    bits = plain.contiguous().view(torch.uint8).numpy() if isinstance(plain, torch.Tensor) else plain
    digest = hashlib.sha256(repr((tuple(plain.shape), str(plain.dtype))).encode())
    digest.update(np.ascontiguousarray(bits).data)
    return digest.hexdigest()


def _digest_of_mapped(rows: MappedRows) -> str:
    """Return the digest that the rows have in memory, read a block at a time."""
    digest = hashlib.sha256(repr((tuple(rows.shape), str(rows.dtype))).encode())
    step = max(1, SENT // max(1, rows.shape[1] * rows.itemsize))
    for start in range(0, len(rows), step):
        digest.update(np.ascontiguousarray(rows[start : start + step]).data)
    return digest.hexdigest()
