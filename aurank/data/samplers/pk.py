"""Batches of P classes × M images."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aurank.data.samplers._base import Chunks, Rows, Sampler
from aurank.errors import UserError


@dataclass(repr=False, eq=False)
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

    With several processes whole chunks are dealt out, in their order; rows where there are too few chunks.

    Raises:
        UserError: when `per_class` is below 2, when there are fewer than two classes for each process, when no class
            has `per_class` images, or when `batch` is below 2 × `per_class` for each process.

    Example:
        >>> labels = np.repeat(np.arange(6), 4)
        >>> sampler = PKSampler(labels, batch=8, per_class=4)
        >>> [np.unique(labels[rows], return_counts=True)[1].tolist() for rows in sampler.epoch(0)]
        [[4, 4], [4, 4], [4, 4]]
    """

    per_class: int = field(default=4, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        per_class, processes, least = self.per_class, self.world_size, 2 * self.per_class * self.world_size
        if per_class < 2:
            raise UserError(f"per_class must be at least 2 (an image needs a positive), got {per_class}")
        needed = f" for each of {processes} processes" if processes > 1 else ""
        if self.batch < least:
            came = (
                f"batch must be at least 2 × per_class{needed} = {least} (an image needs a negative), got {self.batch}"
            )
            raise UserError(f"{came}; raise sampler.batch or lower per_class")
        order = np.argsort(self.labels, kind="stable")
        starts = np.flatnonzero(np.diff(self.labels[order])) + 1
        self.classes: list[Rows] = np.split(order.astype(np.int64), starts) if len(order) else []
        if len(self.classes) < 2 * processes:
            raise UserError(f"the training set has {len(self.classes)} classes; at least 2{needed} are needed")
        if (largest := max(map(len, self.classes))) < per_class:
            came = f"no class has per_class={per_class} images (the largest has {largest})"
            raise UserError(f"{came}; lower sampler.params.per_class")

    @property
    def largest_batch(self) -> int:
        """The most rows that a batch can have: at most `per_class` of each class."""
        return min(self.batch, sum(min(len(rows), self.per_class) for rows in self.classes))

    def global_batches(self, epoch: int) -> list[Chunks]:
        """Return the batches of one epoch, in random order, each as its chunks."""
        generator = self.generator(epoch)
        chunks = [cut(generator.permutation(rows), self.per_class) for rows in self.classes]
        batches = spread_chunks(chunks, self.batch, self.per_class, generator)
        batches = [pieces for pieces in batches if len(pieces) >= 2]
        return [batches[index] for index in generator.permutation(len(batches))]

    def least_batches(self, chunks: Sequence[Chunks]) -> int:
        """Return the least number of batches that could hold all chunks, or fewer, to keep each half full."""
        return least_number(chunks, self.batch, self.per_class)


def least_number(chunks: Sequence[Chunks], batch: int, per_class: int) -> int:
    """Return the least number of batches that could hold each class's chunks, or fewer, to keep each half full."""
    sizes = [sum(map(len, pieces)) for pieces in chunks]
    largest = min(batch, sum(min(size, per_class) for size in sizes))
    full = sum(size // per_class for size in sizes)
    number = max(-(-sum(sizes) // largest), -(-full // (batch // per_class)))
    counts = np.array([len(pieces) for pieces in chunks])
    half = max(2, min(batch // per_class, len(sizes)) // 2)
    low, high = 1, number  # chunks per batch fall as batches grow in number, so a bisection finds the most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(counts, middle).sum() >= half * middle else (low, middle - 1)
    return low


def spread_chunks(chunks: Sequence[Chunks], batch: int, per_class: int, generator: np.random.Generator) -> list[Chunks]:
    """Return batches of at most so many rows, each class's chunks in different ones, no more than there is room for."""
    number = least_number(chunks, batch, per_class)
    while True:
        batches = _pack([pieces[:number] for pieces in chunks], number, generator)
        if max(sum(map(len, pieces)) for pieces in batches) <= batch:
            return batches
        # Chunks of several sizes do not always fill a batch to its last row.
        number = max(number + 1, round(number * 1.01))


def cut(rows: Rows, size: int) -> Chunks:
    """Return consecutive chunks of `size` rows; a last one of a single row borrows one, if the lender keeps a pair."""
    chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
    if len(chunks) > 1 and len(chunks[-1]) == 1 and size >= 3:
        chunks[-2:] = [chunks[-2][:-1], np.concatenate([chunks[-2][-1:], chunks[-1]])]
    return chunks


def _pack(classes: Sequence[Chunks], number: int, generator: np.random.Generator) -> list[Chunks]:
    """Return `number` batches over which each class's chunks (at most `number`) are spread, no two in one batch."""
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
    """Return the `count` batches with the fewest rows, ties at random, in random order."""
    keys = fill + generator.random(len(fill))  # fills are whole numbers, so less than 1 only decides ties
    if count == 0:
        return []
    chosen = np.argpartition(keys, count - 1)[:count]
    # Sorted first: the order inside of a partition differs between processors.
    return [int(index) for index in generator.permutation(np.sort(chosen))]
