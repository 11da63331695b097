"""What every sampler does: positions, ranks, state."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from aurank.errors import UserError

Rows = Int64[np.ndarray, " _"]
Chunks = list[Rows]  # pieces of one batch, in its order, that a rank gets whole where that is possible
LEAST = 2  # rows that each rank needs of a batch: for a batch norm, and for a pair


@dataclass(repr=False, eq=False)
class Sampler(ABC):
    """Batches of the rows 0 … len(labels) − 1, over all processes and as one process's part of them.

    Batch k of epoch e is a function of (labels, seed, e, k) and, where a sampler has one, of its state, so any position
    can be returned to. With several processes each batch is dealt out: the parts of the ranks, one after another, are
    the batch that one process would have. A batch with less than two rows for each process is passed over.

    A sampler whose `refresh_every` is not None wants `refresh` to be called before steps 0, `refresh_every`, twice that
    and so on, in all processes; the batches from that position on may then be others.

    Args:
        batch: the number of rows over all processes, and the most that a batch has.

    Example:
        >>> class InOrder(Sampler):
        ...     def global_batches(self, epoch):
        ...         return [[np.arange(start, start + self.batch)] for start in range(0, len(self.labels), self.batch)]
        >>> [rows.tolist() for rows in InOrder(np.zeros(4, np.int64), batch=2).epoch(0)]
        [[0, 1], [2, 3]]
    """

    labels: Int64[np.ndarray, " image"]
    batch: int
    _: KW_ONLY
    seed: int = 0
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UserError(f"seed must be at least 0, got {self.seed}")

    @property
    def refresh_every(self) -> int | None:
        """Steps from one call of `refresh` to the next; None where there is nothing to refresh."""
        return None

    @property
    def largest_batch(self) -> int:
        """The most rows that a batch can have, over all processes: fewer than `batch` where the data has no more."""
        return min(self.batch, len(self.labels))

    @abstractmethod
    def global_batches(self, epoch: int) -> list[Chunks]:
        """Return one epoch's batches, each as the chunks that are dealt to ranks, whatever the number of these is."""

    def epoch(self, epoch: int) -> list[Rows]:
        """Return this rank's part of each batch of one epoch; all ranks have the same number of batches."""
        return [parts[self.rank] for parts in self._dealt(epoch) if len(parts[self.rank])]

    def _dealt(self, epoch: int) -> list[list[Rows]]:
        """Every rank's part of each batch, none of those that are passed over."""
        return [deal(chunks, self.world_size) for chunks in self.global_batches(epoch)]

    def generator(self, epoch: int, *more: int) -> np.random.Generator:
        """Return a generator for one epoch; `more` numbers give others, independent of it."""
        return np.random.default_rng([self.seed, epoch, *more])

    def refresh(self, epoch: int, batch: int) -> None:  # noqa: B027 (most samplers have nothing to do)
        """Look at the data anew, before that batch of that epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return what batches depend on beside the arguments, in plain types and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take over the state of another sampler of the same arguments."""

    def iterate(self, epoch: int = 0, batch: int = 0) -> Iterator[tuple[int, int, Rows]]:
        """Yield (epoch, batch, rows) without end, from a position on: `batch` counts inside of `epoch`."""
        return ((epoch, index, parts[self.rank]) for epoch, index, parts in self.iterate_ranks(epoch, batch))

    def iterate_ranks(self, epoch: int = 0, batch: int = 0) -> Iterator[tuple[int, int, list[Rows]]]:
        """Do as `iterate`, and yield the rows of every rank: each process knows what the others have."""
        passed = False
        while True:
            dealt = self._dealt(epoch)
            if not 0 <= batch <= len(dealt):
                raise UserError(f"epoch {epoch} has {len(dealt)} batches, so it cannot start at batch {batch}")
            for index in range(batch, len(dealt)):
                if len(dealt[index][0]):
                    passed = False
                    yield epoch, index, dealt[index]
            if passed:
                raise UserError(
                    f"no batch of epoch {epoch} has {LEAST} rows for each of {self.world_size} processes; raise "
                    "sampler.batch, or start fewer processes"
                )
            epoch, batch, passed = epoch + 1, 0, True


def deal(chunks: Chunks, ranks: int) -> list[Rows]:
    """Return each rank's rows: one after another they are the chunks. None for a batch that is too small for them.

    Chunks stay whole, each with the rank in whose equal share its middle lies, unless a rank is left with less than two
    rows by that: then rows are counted out.
    """
    whole = np.concatenate(chunks)
    if ranks == 1:
        return [whole]
    if len(whole) < LEAST * ranks:
        return [whole[:0]] * ranks
    sizes = np.array([len(chunk) for chunk in chunks])
    ends = np.cumsum(sizes)
    owner = (2 * ends - sizes) * ranks // (2 * len(whole))
    cuts = np.append(0, ends)[np.searchsorted(owner, np.arange(1, ranks))]
    parts = np.split(whole, cuts)
    return parts if min(map(len, parts)) >= LEAST else np.array_split(whole, ranks)
