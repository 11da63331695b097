"""Who counts together: one process, or all of an initialised `torch.distributed` group."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Integer

from aurank.errors import AurankError, UserError
from aurank.evaluation.engine.problem import RetrievalProblem

Item = TypeVar("Item")


class ProcessGroup:
    """Processes that share out tiles and add up counts: all of torch.distributed, or this one alone.

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
        """Return when all processes are here; AurankError when one is gone."""
        self.all_reduce(np.ones(1, np.int64))

    def all_gather(self, value: Item) -> list[Item]:
        """Return what every process gave, in the order of ranks."""
        found: list[Any] = [value] * self.size
        if self.size > 1:
            with self._all_present():
                dist.all_gather_object(found, value)
        return found

    def all_reduce(self, counts: Integer[np.ndarray, " count"]) -> None:
        """Replace the counts by their sums over all processes."""
        if self.size > 1:
            total = torch.from_numpy(counts).to(self.device)
            with self._all_present():
                dist.all_reduce(total)
            counts[:] = total.cpu().numpy()

    def concatenate(self, rows: Any) -> Any:
        """Return the rows of all processes, one after another; they have one type and width."""
        if self.size == 1:
            return rows
        own = torch.from_numpy(np.asarray(rows)) if isinstance(rows, np.ndarray) else rows.detach()
        edges = np.cumsum([0, *self.all_gather(len(own))]).tolist()
        whole = torch.empty((edges[-1], *own.shape[1:]), dtype=own.dtype, device=self.device)
        whole[edges[self.rank] : edges[self.rank + 1]] = own.to(self.device)
        with self._all_present():
            for rank in range(self.size):
                dist.broadcast(whole[edges[rank] : edges[rank + 1]], src=rank)
        return whole.cpu().numpy() if isinstance(rows, np.ndarray) else whole.to(rows.device)

    @contextmanager
    def _all_present(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise AurankError(
                f"evaluation stopped on rank {self.rank} of {self.size}: another rank is gone "
                f"({str(error).splitlines()[0]}); look at that rank's own message, and start again"
            ) from error


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
    plain = array.detach().cpu() if isinstance(array, torch.Tensor) else np.asarray(array)
    bits = plain.contiguous().view(torch.uint8).numpy() if isinstance(plain, torch.Tensor) else plain
    digest = hashlib.sha256(repr((tuple(plain.shape), str(plain.dtype))).encode())
    digest.update(np.ascontiguousarray(bits).data)
    return digest.hexdigest()
