"""Batches of all images in random order."""

from dataclasses import dataclass

import numpy as np

from aurank.data.samplers._base import Chunks, Sampler
from aurank.errors import UserError


@dataclass(repr=False, eq=False)
class ShuffledSampler(Sampler):
    """All rows in random order, cut into batches of nearly equal size, at most `batch`; each row once an epoch.

    Raises:
        UserError: when `batch`, or the number of images, is below 2 for each process.

    Example:
        >>> sampler = ShuffledSampler(np.arange(10), batch=4)
        >>> [len(rows) for rows in sampler.epoch(0)]
        [4, 3, 3]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        least, images = 2 * self.world_size, len(self.labels)
        if min(self.batch, images) < least:
            raise UserError(f"at least {least} images a batch are needed, got batch={self.batch} and {images} images")

    def global_batches(self, epoch: int) -> list[Chunks]:
        """Return the batches of one epoch, each in one piece."""
        rows = self.generator(epoch).permutation(len(self.labels)).astype(np.int64)
        number = -(-len(rows) // self.batch)
        return [[batch] for batch in np.array_split(rows, number)]
