"""Which rows make each batch: P classes × M images, or plain shuffled."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from aurank.errors import UserError

Rows = Int64[np.ndarray, " _"]
Chunks = list[Rows]  # pieces of one batch that a rank gets whole


class Sampler(ABC):
    """Batches of the rows 0 … len(labels) − 1, over all processes and as one process's part of them.

    Batch k of epoch e is a function of (labels, seed, e, k) and, where a sampler has one, of its state, so any position
    can be returned to. With several processes each batch is dealt out: the union over the ranks is the batch that one
    process would have. `batch` is the number of rows over all processes, and the most that a batch has.

    A sampler whose `refresh_every` is not None wants `refresh` to be called before steps 0, `refresh_every`, twice that
    and so on, in all processes; the batches from that position on may then be others.
    """

    refresh_every: int | None = None

    def __init__(
        self, labels: Int64[np.ndarray, " image"], batch: int, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        if seed < 0:
            raise UserError(f"seed must be at least 0, got {seed}")
        if not 0 <= rank < world_size:
            raise UserError(f"rank must be at least 0 and below world_size={world_size}, got {rank}")
        self.labels = labels
        self.batch = batch
        self.seed = seed
        self.rank = rank
        self.world_size = world_size

    @property
    def largest_batch(self) -> int:
        """The most rows that a batch can have, over all processes: fewer than `batch` where the data has no more."""
        return min(self.batch, len(self.labels))

    @abstractmethod
    def global_batches(self, epoch: int) -> list[Chunks]:
        """Returns one epoch's batches over all processes, each as the chunks that are dealt to ranks."""

    def epoch(self, epoch: int) -> list[Rows]:
        """Returns this rank's part of each batch of one epoch; all ranks have the same number of batches."""
        return [np.concatenate(deal(chunks, self.world_size)[self.rank]) for chunks in self.global_batches(epoch)]

    def generator(self, epoch: int, *more: int) -> np.random.Generator:
        """Returns a generator for one epoch; `more` numbers give others, independent of it."""
        return np.random.default_rng([self.seed, epoch, *more])

    def refresh(self, epoch: int, batch: int) -> None:  # noqa: B027 (most samplers have nothing to do)
        """Nothing; takes a new look at the data, before that batch of that epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what batches depend on beside the arguments, in plain types and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Nothing; takes over the state of another sampler of the same arguments."""

    def iterate(self, epoch: int = 0, batch: int = 0) -> Iterator[tuple[int, int, Rows]]:
        """Returns (epoch, batch, rows) without end, from a position on: `batch` counts inside of `epoch`."""
        while True:
            batches = self.epoch(epoch)
            if not 0 <= batch <= len(batches):
                raise UserError(f"epoch {epoch} has {len(batches)} batches, so it cannot start at batch {batch}")
            for index in range(batch, len(batches)):
                yield epoch, index, batches[index]
            epoch, batch = epoch + 1, 0


class PKSampler(Sampler):
    """P classes × M images a batch, M = `per_class`, P as many classes as fit; without replacement inside of an epoch.

    The rule:

    - A class's images are shuffled and cut into chunks of `per_class`. What remains is a smaller chunk; a single image
      that remains borrows one from the chunk before, so that it has a positive (if `per_class` is 3 or more). A class
      of one image is a chunk of one: it serves as a negative.
    - The chunks of one class go to different batches, each to the batch with the fewest rows so far, ties at random, so
      the classes that meet change from epoch to epoch. A batch never has more than `per_class` images of a class.
    - The number of batches is the least that holds all images in batches of at most `batch` rows (fewer rows where
      there are fewer than batch / per_class classes), and the batches are nearly equal in size. So every image is seen
      exactly once an epoch, with two exceptions, both for very unequal classes or a very small `batch`:
    - A class with more chunks than there are batches leaves its surplus, drawn at random, for other epochs; and there
      are no more batches than can have half of the classes that fit, so that a huge class cannot thin them out.
    - A batch with a single class has no negatives. It is left out (possible only if `batch` is below 3 × `per_class`);
      its images come in other epochs.

    With several processes whole chunks are dealt out, to the rank with the fewest rows, and a batch has at least one
    chunk for each. Raises UserError when `per_class` is below 2, when there are fewer than two classes for each
    process, when no class has `per_class` images, or when `batch` is below 2 × `per_class` for each process.
    """

    def __init__(
        self,
        labels: Int64[np.ndarray, " image"],
        batch: int,
        *,
        per_class: int = 4,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(labels, batch, seed=seed, rank=rank, world_size=world_size)
        if per_class < 2:
            raise UserError(f"per_class must be at least 2 (an image needs a positive), got {per_class}")
        needed = f" for each of {world_size} processes" if world_size > 1 else ""
        if batch < 2 * per_class * world_size:
            raise UserError(
                f"batch must be at least 2 × per_class{needed} = {2 * per_class * world_size} "
                f"(an image needs a negative), got {batch}; raise sampler.batch or lower per_class"
            )
        order = np.argsort(labels, kind="stable")
        starts = np.flatnonzero(np.diff(labels[order])) + 1
        classes = np.split(order.astype(np.int64), starts) if len(labels) else []
        if len(classes) < 2 * world_size:
            raise UserError(f"the training set has {len(classes)} classes; at least 2{needed} are needed")
        largest = max(len(rows) for rows in classes)
        if largest < per_class:
            raise UserError(
                f"no class has per_class={per_class} images (the largest has {largest}); lower sampler.params.per_class"
            )
        self.per_class = per_class
        self.classes: list[Rows] = classes

    @property
    def largest_batch(self) -> int:
        """The most rows that a batch can have: at most `per_class` of each class."""
        return min(self.batch, sum(min(len(rows), self.per_class) for rows in self.classes))

    def global_batches(self, epoch: int) -> list[Chunks]:
        """Returns the batches of one epoch, in random order, each as its chunks."""
        generator = self.generator(epoch)
        chunks = [cut(generator.permutation(rows), self.per_class) for rows in self.classes]
        number = self.least_batches(chunks)
        while True:
            batches = _pack([pieces[:number] for pieces in chunks], number, generator)
            if max(sum(len(chunk) for chunk in pieces) for pieces in batches) <= self.batch:
                break
            # Chunks of several sizes do not always fill a batch to its last row.
            number = max(number + 1, round(number * 1.01))
        least = max(2, self.world_size)
        batches = [pieces for pieces in batches if len(pieces) >= least]
        return [batches[index] for index in generator.permutation(len(batches))]

    def least_batches(self, chunks: Sequence[Chunks]) -> int:
        """Returns the least number of batches that could hold all chunks, or fewer, to keep each half full."""
        total = sum(len(rows) for rows in self.classes)
        room = self.largest_batch
        full = sum(len(rows) // self.per_class for rows in self.classes)
        number = max(-(-total // room), -(-full // (self.batch // self.per_class)))
        counts = np.array([len(pieces) for pieces in chunks])
        half = max(2, min(self.batch // self.per_class, len(self.classes)) // 2)
        low, high = 1, number  # chunks per batch fall as batches grow in number, so a bisection finds the most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if np.minimum(counts, middle).sum() >= half * middle else (low, middle - 1)
        return low


class ShuffledSampler(Sampler):
    """All rows in random order, cut into batches of nearly equal size, at most `batch`; each row once an epoch.

    Raises UserError when `batch`, or the number of images, is below 2 for each process.
    """

    def __init__(
        self, labels: Int64[np.ndarray, " image"], batch: int, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(labels, batch, seed=seed, rank=rank, world_size=world_size)
        if min(batch, len(labels)) < 2 * world_size:
            raise UserError(
                f"at least {2 * world_size} images a batch are needed, got batch={batch} and {len(labels)} images"
            )

    def global_batches(self, epoch: int) -> list[Chunks]:
        """Returns the batches of one epoch, each cut into one piece for each process."""
        rows = self.generator(epoch).permutation(len(self.labels)).astype(np.int64)
        number = -(-len(rows) // self.batch)
        return [np.array_split(batch, self.world_size) for batch in np.array_split(rows, number)]


def cut(rows: Rows, size: int) -> Chunks:
    """Returns consecutive chunks of `size` rows; a last one of a single row borrows one, if the lender keeps a pair."""
    chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
    if len(chunks) > 1 and len(chunks[-1]) == 1 and size >= 3:
        chunks[-2:] = [chunks[-2][:-1], np.concatenate([chunks[-2][-1:], chunks[-1]])]
    return chunks


def deal(chunks: Chunks, ranks: int) -> list[Chunks]:
    """Returns each rank's chunks: the largest first, each to the rank with the fewest rows."""
    if ranks == 1:
        return [chunks]
    hands: list[Chunks] = [[] for _ in range(ranks)]
    rows = [0] * ranks
    for chunk in sorted(chunks, key=len, reverse=True):
        rank = rows.index(min(rows))
        hands[rank].append(chunk)
        rows[rank] += len(chunk)
    return hands


def _pack(classes: Sequence[Chunks], number: int, generator: np.random.Generator) -> list[Chunks]:
    """Returns `number` batches over which each class's chunks (at most `number`) are spread, no two in one batch."""
    batches: list[Chunks] = [[] for _ in range(number)]
    fill = np.zeros(number)
    size = max(len(chunk) for chunks in classes for chunk in chunks)
    smaller: list[tuple[int, Rows]] = []
    taken: dict[int, list[int]] = {}
    # Full chunks first: each batch then has nearly as many as any other, and smaller ones even out the rest.
    for label in generator.permutation(len(classes)).tolist():
        full = [chunk for chunk in classes[label] if len(chunk) == size]
        smaller += [(label, chunk) for chunk in classes[label] if len(chunk) < size]
        chosen = _emptiest(fill, len(full), generator)
        fill[chosen] += size
        taken[label] = chosen
        for index, chunk in zip(chosen, full, strict=True):
            batches[index].append(chunk)
    for label, chunk in sorted(smaller, key=lambda piece: -len(piece[1])):
        free = fill.copy()
        free[taken[label]] = np.inf
        index = _emptiest(free, 1, generator)[0]
        fill[index] += len(chunk)
        taken[label].append(index)
        batches[index].append(chunk)
    return batches


def _emptiest(fill: np.ndarray, count: int, generator: np.random.Generator) -> list[int]:
    """Returns the `count` batches with the fewest rows, ties at random, in random order."""
    keys = fill + generator.random(len(fill))  # fills are whole numbers, so less than 1 only decides ties
    if count == 0:
        return []
    chosen = np.argpartition(keys, count - 1)[:count]
    # Sorted first: the order inside of a partition differs between processors.
    return [int(index) for index in generator.permutation(np.sort(chosen))]
