"""What every sampler does: positions, ranks, state."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from aurank.errors import UserError

Rows = Int64[np.ndarray, " _"]
Chunks = list[Rows]  # pieces of one batch that a rank gets whole


@dataclass(repr=False, eq=False)
class Sampler(ABC):
    """Batches of the rows 0 … len(labels) − 1, over all processes and as one process's part of them.

    Batch k of epoch e is a function of (labels, seed, e, k) and, where a sampler has one, of its state, so any position
    can be returned to. With several processes each batch is dealt out: the union over the ranks is the batch that one
    process would have.

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
        if not 0 <= self.rank < self.world_size:
            raise UserError(f"rank must be at least 0 and below world_size={self.world_size}, got {self.rank}")

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
        """Return one epoch's batches over all processes, each as the chunks that are dealt to ranks."""

    def epoch(self, epoch: int) -> list[Rows]:
        """Return this rank's part of each batch of one epoch; all ranks have the same number of batches."""
        return [np.concatenate(deal(chunks, self.world_size)[self.rank]) for chunks in self.global_batches(epoch)]

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
        while True:
            batches = self.epoch(epoch)
            if not 0 <= batch <= len(batches):
                raise UserError(f"epoch {epoch} has {len(batches)} batches, so it cannot start at batch {batch}")
            for index in range(batch, len(batches)):
                yield epoch, index, batches[index]
            epoch, batch = epoch + 1, 0


def deal(chunks: Chunks, ranks: int) -> list[Chunks]:
    """Return each rank's chunks: the largest first, each to the rank with the fewest rows."""
    if ranks == 1:
        return [chunks]
    hands: list[Chunks] = [[] for _ in range(ranks)]
    rows = [0] * ranks
    for chunk in sorted(chunks, key=len, reverse=True):
        rank = rows.index(min(rows))
        hands[rank].append(chunk)
        rows[rank] += len(chunk)
    return hands
