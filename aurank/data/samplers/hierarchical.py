"""Batches of few super-categories, with many classes of each."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int64

from aurank.data.samplers._base import Chunks, Rows
from aurank.data.samplers.pk import PKSampler, cut, spread_chunks
from aurank.errors import UserError


@dataclass(repr=False, eq=False)
class HierarchicalSampler(PKSampler):
    """P classes × M images a batch, the classes being of `categories` super-categories: related ones meet.

    The rule:

    - Each super-category's images are packed by PKSampler's rule into blocks of at most batch / `categories` rows, so
      that a block never has more than `per_class` images of a class.
    - A batch is a block of each of `categories` super-categories: of those with the most blocks left, ties at random,
      so that which ones meet changes from epoch to epoch. So every image is seen exactly once an epoch, with
      PKSampler's exceptions.
    - What is left of fewer super-categories in the end are batches of fewer rows. One with a single class is left out.

    Classes of super-category −1, which is none, form one together.

    Args:
        super_labels: super-category of each row; a class lies within one.
        categories: super-categories in a batch.

    Raises:
        UserError: as PKSampler; without super-categories, where there are fewer than `categories`, where a class lies
            in two, or where `batch` is below `categories` × `per_class`.

    Example:
        >>> labels = np.repeat(np.arange(8), 4)
        >>> sampler = HierarchicalSampler(labels, batch=16, super_labels=labels // 2)
        >>> [len(np.unique(labels[rows] // 2)) for rows in sampler.epoch(0)]
        [2, 2]
    """

    super_labels: Int64[np.ndarray, " image"] | None = field(default=None, kw_only=True)
    categories: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.super_labels is None:
            raise UserError("the hierarchical sampler draws super-categories, and the data set has none; use pk")
        if self.categories < 1 or self.batch < self.categories * self.per_class:
            most = self.batch // self.per_class
            raise UserError(f"categories must be from 1 to batch / per_class = {most}, got {self.categories}")
        of_class = [np.unique(self.super_labels[rows]) for rows in self.classes]
        for rows, found in zip(self.classes, of_class, strict=True):
            if len(found) > 1:
                both = f"{found[0]} and {found[1]}"
                raise UserError(f"images of label {self.labels[rows[0]]} have the super-categories {both}: give one")
        names, place = np.unique(np.concatenate(of_class), return_inverse=True)
        if len(names) < self.categories:
            came = f"the training set has {len(names)} super-categories"
            raise UserError(f"{came}; lower sampler.params.categories={self.categories}")
        self._members: list[list[Rows]] = [[] for _ in names]
        for rows, category in zip(self.classes, place.tolist(), strict=True):
            self._members[category].append(rows)

    @property
    def largest_batch(self) -> int:
        """The most rows that a batch can have: a block of each of `categories` super-categories."""
        room = self.batch // self.categories
        blocks = [min(room, sum(min(len(rows), self.per_class) for rows in classes)) for classes in self._members]
        return sum(sorted(blocks)[-self.categories :])

    def global_batches(self, epoch: int) -> list[Chunks]:
        """Return the batches of one epoch, in random order, each as its chunks."""
        generator = self.generator(epoch)
        blocks: list[list[Chunks]] = []
        for classes in self._members:
            chunks = [cut(generator.permutation(rows), self.per_class) for rows in classes]
            packed = spread_chunks(chunks, self.batch // self.categories, self.per_class, generator)
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
