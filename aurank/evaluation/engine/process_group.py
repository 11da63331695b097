"""Who counts together: one process, or all of an initialised `torch.distributed` group."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Int64

from aurank.errors import AurankError, UserError

Item = TypeVar("Item")


class Team:
    """Members that share out tiles and add up counts; by itself, one process that does all."""

    rank, size = 0, 1

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This member's items."""
        return list(items[self.rank :: self.size])

    def part(self, count: int) -> slice:
        """This member's range of so many entries; the ranges of all members, in order, are the whole."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def exchange(self, value: Item) -> list[Item]:
        """What every member gave, in the order of ranks."""
        return [value]

    def meet(self) -> None:
        """Returns when all members are here; AurankError when one is gone."""

    def add(self, counts: Int64[np.ndarray, " count"]) -> None:
        """Replaces the counts by the sums over all members."""

    def gather(self, rows: Any) -> Any:
        """The rows of all members, one after another."""
        return rows


class Group(Team):
    """The processes of torch.distributed."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        nccl = dist.get_backend() == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def exchange(self, value: Item) -> list[Item]:
        """As a Team's."""
        found: list[Any] = [None] * self.size
        with self._whole():
            dist.all_gather_object(found, value)
        return found

    def meet(self) -> None:
        """As a Team's."""
        with self._whole():
            dist.all_reduce(torch.ones(1, dtype=torch.int64, device=self.device))

    def add(self, counts: Int64[np.ndarray, " count"]) -> None:
        """As a Team's."""
        total = torch.from_numpy(counts).to(self.device)
        with self._whole():
            dist.all_reduce(total)
        counts[:] = total.cpu().numpy()

    def gather(self, rows: Any) -> Any:
        """As a Team's; the members' rows have one type and width."""
        mine = torch.from_numpy(np.asarray(rows)) if isinstance(rows, np.ndarray) else rows.detach()
        edges = np.cumsum([0, *self.exchange(len(mine))]).tolist()
        whole = torch.empty((edges[-1], *mine.shape[1:]), dtype=mine.dtype, device=self.device)
        whole[edges[self.rank] : edges[self.rank + 1]] = mine.to(self.device)
        with self._whole():
            for member in range(self.size):
                dist.broadcast(whole[edges[member] : edges[member + 1]], src=member)
        return whole.cpu().numpy() if isinstance(rows, np.ndarray) else whole.to(rows.device)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise AurankError(
                f"evaluation stopped on rank {self.rank} of {self.size}: another rank is gone "
                f"({str(error).splitlines()[0]}); look at that rank's own message, and start again"
            ) from error


def make_team(distributed: bool | str | None) -> Team:
    """All processes of an initialised group unless `distributed` is False; else this one alone."""
    if not (distributed is None or distributed is False or distributed == "shards"):
        raise UserError(f'distributed must be None, False or "shards"; got {distributed!r}')
    if distributed is False or not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return Team()
    return Group()


def bring_together(team: Team, sides: Sequence[Sequence[Any]], *, shards: bool) -> list[list[Any]]:
    """The arrays of both sides (embeddings, labels, ids, groups; None where not given), as if one process had them.

    A side that all members hold alike is taken as it is; else it is in shards, which are put together in the order of
    ranks, as all sides are if `shards`. UserError where members disagree on what is given, its type or its width, and
    where they hold the same labels for other embeddings: copies that differ, which must not pass for shards.
    """
    result = []
    for name, side in zip(("query", "gallery"), sides, strict=True):
        arrays = [array if array is None or hasattr(array, "shape") else np.asarray(array) for array in side]
        kinds = [None if array is None else (str(array.dtype), tuple(array.shape[1:])) for array in arrays]
        _check_equal(team, kinds, f"the types and widths of the {name} side (embeddings, labels, ids, groups)")
        digests = team.exchange([_digest(array) for array in arrays])
        copies = all(other == digests[0] for other in digests)
        if not shards and not copies and all(other[1:] == digests[0][1:] for other in digests):
            raise UserError(
                f"all ranks gave the same {name} labels and ids, but other embeddings: give every rank its own rows, "
                'or all the very same; distributed="shards" says that these are different rows'
            )
        alone = copies and not shards
        result.append([array if array is None or alone else team.gather(array) for array in arrays])
    return result


def agree(team: Team, **settings: Any) -> None:
    """Nothing; UserError where members were called with different settings."""
    for name, value in settings.items():
        plain = value if value is None or isinstance(value, str | int | float | tuple) else _digest(value)
        _check_equal(team, plain, name)


def _check_equal(team: Team, value: Any, what: str) -> None:
    given = team.exchange(value)
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
