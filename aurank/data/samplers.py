"""Which images make each batch; SAMPLERS names all samplers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Int64

from aurank.data.checks.negatives import mined_neighbours, read_negatives
from aurank.errors import UserError, refuse_first
from aurank.names import require_choice
from aurank.ranges import Range

Remainder = Literal["keep", "repeat", "drop"]
Rows = Int64[np.ndarray, " _"]
Chunks = list[Rows]  # pieces of one batch, in its order, that a rank gets whole where that is possible
LEAST = 2  # rows that each rank needs of a batch: for a batch norm, and for a pair
TRIES = 10  # numbers of batches that the hard-negative sampler tries


@dataclass(repr=False, eq=False)
class Sampler(ABC):
    """Batches of the rows 0 … len(labels) − 1, over all processes and as one process's part of them.

    Batch k of epoch e depends on (labels, seed, e, k) and on the sampler's state alone. The parts of the ranks, one
    after another, are the batch that one process would have; a batch with less than two rows a process is passed over.

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
        refuse_first(self.problems())

    def problems(self) -> Iterator[str]:
        """Yield what makes batches of these arguments impossible; the first is raised as a UserError."""
        return iter(())

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
        dealt = (deal(chunks, self.world_size) for chunks in self.global_batches(epoch))
        return [parts[self.rank] for parts in dealt if len(parts[self.rank])]

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
        is_first = True
        while True:
            dealt = [deal(chunks, self.world_size) for chunks in self.global_batches(epoch)]
            assert 0 <= batch <= len(dealt), f"epoch {epoch} has {len(dealt)} batches, so none is {batch}"
            batches = [(epoch, index, dealt[index]) for index in range(batch, len(dealt)) if len(dealt[index][0])]
            if not (batches or is_first):
                raise UserError(
                    f"no batch of epoch {epoch} has {LEAST} rows for each of {self.world_size} processes, as where one "
                    "class has most images; start fewer processes, or raise sampler.params.per_class or sampler.batch"
                )
            yield from batches
            epoch, batch, is_first = epoch + 1, 0, False


def deal(chunks: Chunks, ranks: int) -> list[Rows]:
    """Return each rank's rows: one after another they are the chunks. None for a batch that is too small for them."""
    rows = np.concatenate(chunks)
    if ranks == 1:
        return [rows]
    if len(rows) < LEAST * ranks:
        return [rows[:0]] * ranks
    sizes = np.array([len(chunk) for chunk in chunks])
    ends = np.cumsum(sizes)
    owner = (2 * ends - sizes) * ranks // (2 * len(rows))
    parts = np.split(rows, np.append(0, ends)[np.searchsorted(owner, np.arange(1, ranks))])
    return parts if min(map(len, parts)) >= LEAST else np.array_split(rows, ranks)


@dataclass(repr=False, eq=False)
class ShuffledSampler(Sampler):
    """All rows in random order, cut into batches of nearly equal size, at most `batch`; each row once an epoch.

    Example:
        >>> sampler = ShuffledSampler(np.arange(10), batch=4)
        >>> [len(rows) for rows in sampler.epoch(0)]
        [4, 3, 3]
    """

    def problems(self) -> Iterator[str]:
        least, images = LEAST * self.world_size, len(self.labels)
        if min(self.batch, images) < least:
            yield f"at least {least} images a batch are needed, got batch={self.batch} and {images} images"

    def global_batches(self, epoch: int) -> list[Chunks]:
        """Return the batches of one epoch, each in one piece."""
        rows = self.generator(epoch).permutation(len(self.labels)).astype(np.int64)
        return [[batch] for batch in np.array_split(rows, -(-len(rows) // self.batch))]


@dataclass(repr=False, eq=False)
class PKSampler(Sampler):
    """P classes × M images a batch, M = `per_class`, P as many classes as fit; without replacement inside of an epoch.

    - A class's images are shuffled and cut into chunks of `per_class`. `remainder` says what becomes of the last ones,
      which are fewer: "keep" makes a smaller chunk of them, where a single one borrows an image from the chunk before
      (if `per_class` is 3 or more). "repeat" fills the chunk up with images of the class that other chunks have, or, in
      a class of fewer than `per_class` images, with other views of its own. "drop" leaves them out of the epoch, so
      that smaller classes never train. By the latter two every class of a batch has exactly `per_class` images.
      A class of one image serves as a negative; under "repeat" its copies are positives of each other.
    - The chunks of one class go to different batches, each to the batch with the fewest rows so far, ties at random.
    - The batches are as few and as equal as hold all chunks, so every image is seen once an epoch, except: a class with
      more chunks than there are batches leaves its surplus for other epochs; there are no more batches than can have
      half of the classes that fit; and a batch with a single class is left out.
    - With `class_sets`, the single labels of each label, an image counts to one of its own, drawn anew in each epoch.

    With several processes whole chunks are dealt out, in their order; rows where there are too few chunks.

    Raises:
        UserError: where no batch has a positive and a negative for each process.

    Example:
        >>> labels = np.repeat(np.arange(6), 4)
        >>> sampler = PKSampler(labels, batch=8, per_class=4)
        >>> [np.unique(labels[rows], return_counts=True)[1].tolist() for rows in sampler.epoch(0)]
        [[4, 4], [4, 4], [4, 4]]
    """

    per_class: Annotated[int, Range(choices=(2, 4, 8))] = field(default=4, kw_only=True)
    remainder: Remainder = field(default="keep", kw_only=True)
    class_sets: Bool[np.ndarray, "label tag"] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        of_tags = [] if self.class_sets is None else map(np.flatnonzero, self.class_sets[self.labels].T)
        self.classes = [rows for rows in of_tags if len(rows)] or rows_by_label(self.labels)
        require_choice("remainder", self.remainder, get_args(Remainder))
        super().__post_init__()

    def problems(self) -> Iterator[str]:
        if self.class_sets is not None and type(self) is not PKSampler:
            yield "the sampler draws images of one label each, and these have several; use pk or shuffled"
        least = 2 * self.per_class * self.world_size
        needed = f" for each of {self.world_size} processes" if self.world_size > 1 else ""
        if self.per_class < 2:
            yield f"per_class must be at least 2 (an image needs a positive), got {self.per_class}"
        if self.batch < least:
            expected = f"batch must be at least 2 × per_class{needed} = {least} (an image needs a negative)"
            yield f"{expected}, got {self.batch}; raise sampler.batch or lower per_class"
        if len(self.classes) < 2 * self.world_size:
            yield f"the training set has {len(self.classes)} classes; at least 2{needed} are needed"
        if (largest := max(map(len, self.classes))) < self.per_class:
            remedy = (
                "set sampler.params.per_class=2" if largest > 1 else "data.train_labels=image trains without classes"
            )
            yield f"no class has per_class={self.per_class} images (the largest has {largest}); {remedy}"
        left = sum(len(rows) >= self.per_class for rows in self.classes)
        if self.remainder == "drop" and left < 2 * self.world_size:
            few = f"remainder=drop leaves {left} of {len(self.classes)} classes, and at least 2{needed} are needed"
            yield f"{few}; set sampler.params.remainder=repeat or lower sampler.params.per_class"

    @property
    def largest_batch(self) -> int:
        """The most rows that a batch can have: at most `per_class` of each class."""
        return min(self.batch, sum(max(map(len, self._cut(rows)), default=0) for rows in self.classes))

    def global_batches(self, epoch: int) -> list[Chunks]:
        """Return the batches of one epoch, in random order, each as its chunks."""
        generator, classes = self.generator(epoch), self.classes
        if self.class_sets is not None:
            label, tag = np.nonzero(self.class_sets)
            first = np.searchsorted(label, self.labels)
            classes = rows_by_label(tag[first + generator.integers(self.class_sets.sum(axis=1)[self.labels])])
        batches = self._packed(classes, self.batch, generator)
        batches = [pieces for pieces in batches if len(pieces) >= 2]
        return [batches[index] for index in generator.permutation(len(batches))]

    def _packed(self, classes: Sequence[Rows], batch: int, generator: np.random.Generator) -> list[Chunks]:
        chunks = [pieces for rows in classes if (pieces := self._cut(generator.permutation(rows)))]
        if not chunks:
            return []
        number = least_number(chunks, batch, self.per_class)
        while True:
            batches = _pack([pieces[:number] for pieces in chunks], number, generator)
            if max(sum(map(len, pieces)) for pieces in batches) <= batch:
                return batches
            # Chunks of several sizes do not always fill a batch to its last row.
            number = max(number + 1, round(number * 1.01))

    def _cut(self, rows: Rows) -> Chunks:
        """Return the rows of a class in chunks of `per_class`; the last may be smaller where `remainder` keeps it."""
        size = self.per_class
        if self.remainder == "repeat":
            rows = np.resize(rows, -(-len(rows) // size) * size)  # from the first one again
        elif self.remainder == "drop":
            rows = rows[: len(rows) // size * size]
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        if len(chunks) > 1 and len(chunks[-1]) == 1 and size >= 3:
            chunks[-2:] = [chunks[-2][:-1], np.concatenate([chunks[-2][-1:], chunks[-1]])]
        return chunks


def rows_by_label(labels: Int64[np.ndarray, " image"]) -> list[Rows]:
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order])) + 1
    return np.split(order.astype(np.int64), starts) if len(order) else []


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


def _pack(classes: Sequence[Chunks], number: int, generator: np.random.Generator) -> list[Chunks]:
    def emptiest(fill: np.ndarray, count: int) -> list[int]:
        keys = fill + generator.random(len(fill))  # fills are whole numbers, so less than 1 only decides ties
        # Sorted first: the order inside of a partition differs between processors.
        return generator.permutation(np.sort(np.argpartition(keys, count - 1)[:count])).tolist() if count else []

    batches: list[Chunks] = [[] for _ in range(number)]
    fill = np.zeros(number)
    size = max(len(chunk) for chunks in classes for chunk in chunks)
    smaller: list[tuple[int, Rows]] = []
    taken: dict[int, list[int]] = {}
    # Full chunks first: each batch then has nearly as many as any other, and smaller ones even out the rest.
    for label in generator.permutation(len(classes)).tolist():
        full = [chunk for chunk in classes[label] if len(chunk) == size]
        smaller += [(label, chunk) for chunk in classes[label] if len(chunk) < size]
        chosen = emptiest(fill, len(full))
        fill[chosen] += size
        taken[label] = chosen
        for index, chunk in zip(chosen, full, strict=True):
            batches[index].append(chunk)
    for label, chunk in sorted(smaller, key=lambda piece: -len(piece[1])):
        free = fill.copy()
        free[taken[label]] = np.inf
        (index,) = emptiest(free, 1)
        fill[index] += len(chunk)
        taken[label].append(index)
        batches[index].append(chunk)
    return batches


@dataclass(repr=False, eq=False)
class HierarchicalSampler(PKSampler):
    """P classes × M images a batch, the classes being of `categories` super-categories: related ones meet.

    Each super-category's images are packed by PKSampler's rule into blocks of at most batch / `categories` rows. A
    batch is a block of each of `categories` super-categories: of those with the most blocks left, ties at random. What
    is left of fewer super-categories in the end are smaller batches. Classes of super-category −1 form one.

    Args:
        super_labels: super-category of each row; a class lies within one.
        categories: super-categories in a batch.

    Raises:
        UserError: as PKSampler; without enough super-categories, or where a class lies in two.

    Example:
        >>> labels = np.repeat(np.arange(8), 4)
        >>> sampler = HierarchicalSampler(labels, batch=16, super_labels=labels // 2)
        >>> [len(np.unique(labels[rows] // 2)) for rows in sampler.epoch(0)]
        [2, 2]
    """

    super_labels: Int64[np.ndarray, " image"] | None = field(default=None, kw_only=True)
    categories: int = field(default=2, kw_only=True)

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.super_labels is None:
            yield "the hierarchical sampler draws super-categories, and the data set has none; use pk"
        assert self.super_labels is not None
        most, number = self.batch // self.per_class, len(np.unique(self.super_labels))
        if not 1 <= self.categories <= most:
            yield f"categories must be from 1 to batch / per_class = {most}, got {self.categories}"
        for rows in self.classes:
            if len(np.unique(self.super_labels[rows])) > 1:
                yield f"images of label {self.labels[rows[0]]} have several super-categories: give one"
        if number < self.categories:
            yield f"the training set has {number} super-categories; lower sampler.params.categories={self.categories}"

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.super_labels is not None
        members: dict[int, list[Rows]] = {}
        for rows in self.classes:
            members.setdefault(int(self.super_labels[rows[0]]), []).append(rows)
        self._members = [members[name] for name in sorted(members)]

    @property
    def largest_batch(self) -> int:
        """The most rows that a batch can have: a block of each of `categories` super-categories."""
        room = self.batch // self.categories
        blocks = [
            min(room, sum(max(map(len, self._cut(rows)), default=0) for rows in classes)) for classes in self._members
        ]
        return sum(sorted(blocks)[-self.categories :])

    def global_batches(self, epoch: int) -> list[Chunks]:
        """Return the batches of one epoch, in random order, each as its chunks."""
        generator = self.generator(epoch)
        blocks: list[list[Chunks]] = []
        for classes in self._members:
            packed = self._packed(classes, self.batch // self.categories, generator)
            blocks.append([packed[index] for index in generator.permutation(len(packed))])
        batches: list[Chunks] = []
        left = np.array([len(each) for each in blocks])
        while left.any():
            most_first = np.argsort(-(left + generator.random(len(left))))  # less than 1 only decides ties
            chosen = [category for category in most_first[: self.categories].tolist() if left[category]]
            batches.append([chunk for category in chosen for chunk in blocks[category].pop()])
            left[chosen] -= 1
        batches = [pieces for pieces in batches if len(pieces) >= 2]
        return [batches[index] for index in generator.permutation(len(batches))]


@dataclass(repr=False, eq=False, kw_only=True)
class HardNegativeSampler(PKSampler):
    """P classes × M images a batch, of classes that look alike, so that a batch has hard negatives.

    Every `refresh_every` steps each image's `num_neighbours` nearest other images are mined, over the whole training
    set. Two classes are as near as there are images of either one among the nearest of the other's. Chunks and the
    number of batches are PKSampler's.

    - A batch starts with the classes that have as many chunks left as there are batches left, and a class drawn at
      random, as often as it has chunks left; its nearest follow, one chunk each; then another is drawn.
    - What is left in the end goes where there is room, or the epoch gets more batches: every image is seen once.
    - A refresh inside of an epoch rearranges what it has not shown yet. Before the first one classes meet by chance.

    Args:
        neighbours: called with a number, gives the rows of that many nearest other images for each image, the nearest
            first; −1 where there is none. The same in all processes.
        negatives: a table that ``aurank mine`` wrote, whose pairs say for the whole run which classes are near, but
            for suspect images; nothing is mined anew.
        paths: of the images, by which the table names them.

    Example:
        >>> labels = np.repeat(np.arange(4), 4)
        >>> near = ((np.arange(16) + 8) % 16)[:, None]  # of classes 0 and 2, and of 1 and 3
        >>> sampler = HardNegativeSampler(labels, batch=8, neighbours=lambda number: near)
        >>> sampler.refresh(epoch=0, batch=0)
        >>> sorted(np.unique(labels[rows]).tolist() for rows in sampler.epoch(0))
        [[0, 2], [1, 3]]
    """

    neighbours: Callable[[int], Int64[np.ndarray, "image k"]]
    refresh_every: int | None = 500
    num_neighbours: int = 50
    negatives: str | None = None
    paths: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._nearest = np.empty((len(self.classes), 0), dtype=np.int64)
        if self.negatives is not None:
            near = mined_neighbours(read_negatives(Path(self.negatives)), self.paths)
            self._nearest, self.refresh_every = nearest_classes(self.labels, near, self.num_neighbours), None
        self._epoch = 0
        self._shown: list[Chunks] = []  # of that epoch, before the last refresh

    def refresh(self, epoch: int, batch: int) -> None:
        """Mine neighbours, by which the batches from that position on are made."""
        shown = self.global_batches(epoch)[:batch]
        self._nearest = nearest_classes(self.labels, self.neighbours(self.num_neighbours), self.num_neighbours)
        self._epoch, self._shown = epoch, shown

    def global_batches(self, epoch: int) -> list[Chunks]:
        """Return the batches of one epoch: those shown before the last refresh, then as the neighbours want them."""
        generator = self.generator(epoch)
        chunks = [self._cut(generator.permutation(rows)) for rows in self.classes]
        least = least_number(chunks, self.batch, self.per_class)
        shown = self._shown if epoch == self._epoch else []
        seen = {int(chunk[0]) for pieces in shown for chunk in pieces}
        # Chunks of several sizes do not always fill a batch to its last row: the least number may be too few.
        for number in range(least, least + TRIES * max(1, least // 100), max(1, least // 100)):
            left = [[chunk for chunk in pieces[:number] if int(chunk[0]) not in seen] for pieces in chunks]
            batches, surplus = self._arrange(left, number - len(shown), self.generator(epoch, len(shown)))
            if not surplus:
                break
        return [*shown, *batches]

    def _arrange(
        self, chunks: list[Chunks], number: int, generator: np.random.Generator
    ) -> tuple[list[Chunks], Chunks]:
        """Return batches, about so many, of each class's chunks, which are taken out; and those that found no place."""
        counts = np.array([len(pieces) for pieces in chunks])
        sizes = np.array([len(pieces[0]) if pieces else 0 for pieces in chunks])  # of the next one

        def next_batch(rows: int, batches_left: int) -> dict[int, Rows]:
            share = min(self.batch, -(-rows // batches_left))  # an equal one, but at least a negative
            smallest = int(min(sizes[sizes > 0], default=0))
            batch: dict[int, Rows] = {}  # by class

            def room() -> int:
                return (share if len(batch) >= 2 else self.batch) - sum(map(len, batch.values()))

            def take(label: int) -> bool:
                fits = label >= 0 and label not in batch and 0 < int(sizes[label]) <= room()
                if fits:
                    batch[label] = chunks[label].pop(0)
                    counts[label] -= 1
                    sizes[label] = len(chunks[label][0]) if chunks[label] else 0
                return fits

            drawn = counts.copy()
            for label in np.flatnonzero(drawn >= batches_left).tolist():
                take(label)
            for label in generator.permutation(np.repeat(np.arange(len(drawn)), drawn)).tolist():
                if room() < smallest:
                    break
                if take(label):
                    for near in self._nearest[label].tolist():
                        take(near)
            return batch

        rows = sum(len(chunk) for pieces in chunks for chunk in pieces)
        batches: list[Chunks] = []
        while rows:
            batch = next_batch(rows, max(1, number - len(batches)))
            rows -= sum(map(len, batch.values()))
            if len(batch) < 2:
                last = [*batch.values(), *(chunk for pieces in chunks for chunk in pieces)]
                return batches, [chunk for chunk in last if not self._add(chunk, batches)]
            batches.append(list(batch.values()))
        return batches, []

    def _add(self, chunk: Rows, batches: list[Chunks]) -> bool:
        """Add the chunk to the smallest batch with room for it and without its class; return whether there is one."""
        label = self.labels[chunk[0]]
        for pieces in sorted(batches, key=lambda pieces: sum(map(len, pieces))):
            if sum(map(len, pieces)) + len(chunk) > self.batch:
                break
            if all(self.labels[member[0]] != label for member in pieces):
                pieces.append(chunk)
                return True
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the nearest classes, and what the epoch of the last refresh had shown by then."""
        import torch

        shown = [[chunk.tolist() for chunk in pieces] for pieces in self._shown]
        return {"nearest": torch.from_numpy(self._nearest), "epoch": self._epoch, "shown": shown}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of another sampler of the same arguments."""
        self._nearest = state["nearest"].numpy()
        self._epoch = int(state["epoch"])
        self._shown = [[np.array(chunk, dtype=np.int64) for chunk in pieces] for pieces in state["shown"]]


def nearest_classes(
    labels: Int64[np.ndarray, " image"], neighbours: Int64[np.ndarray, "image k"], most: int
) -> Int64[np.ndarray, "class most"]:
    """Return for each class, in the order of their labels, at most `most` others, the nearest first, then −1."""
    names, label = np.unique(labels, return_inverse=True)
    first, second = np.repeat(label, neighbours.shape[1]), label[neighbours.ravel()]
    is_pair = (neighbours.ravel() >= 0) & (first != second)
    first, second = first[is_pair], second[is_pair]
    both_ways = np.concatenate([first * len(names) + second, second * len(names) + first])
    pairs, counts = np.unique(both_ways, return_counts=True)
    first, second = np.divmod(pairs, len(names))
    order = np.lexsort((second, -counts, first))
    first, second = first[order], second[order]
    rank = np.arange(len(first)) - np.searchsorted(first, first)
    table = np.full((len(names), most), -1, dtype=np.int64)
    is_near = rank < most
    table[first[is_near], rank[is_near]] = second[is_near]
    return table


SAMPLERS: dict[str, type[Sampler]] = {
    "pk": PKSampler,
    "hard_negative": HardNegativeSampler,
    "hierarchical": HierarchicalSampler,
    "shuffled": ShuffledSampler,
}
