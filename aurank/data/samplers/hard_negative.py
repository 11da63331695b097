"""Batches of classes that look alike, as neighbours mined during training tell."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from aurank.data.samplers._base import Chunks, Rows
from aurank.data.samplers.pk import PKSampler, cut
from aurank.errors import UserError

TRIES = 10  # numbers of batches that are tried


@dataclass(repr=False, eq=False, kw_only=True)
class HardNegativeSampler(PKSampler):
    """P classes × M images a batch, of classes that look alike, so that a batch has hard negatives.

    Every `refresh_every` steps each image's `num_neighbours` nearest other images are mined, over the whole training
    set. Two classes are as near as there are images of either one among the nearest of the other's. The rule:

    - Images are cut into chunks as by PKSampler, and the number of batches is the same. A batch starts with a class
      drawn at random, each as often as it has chunks left; then come its nearest classes, the nearest first, one chunk
      each; where too few of them have chunks left or fit, another class is drawn, and its nearest follow.
    - Before all of them come classes with as many chunks left as there are batches left. What is left in the end, of
      fewer than two classes, goes where there is room, and where there is none the epoch gets more batches. So every
      image is seen exactly once an epoch, with PKSampler's exceptions.
    - A refresh inside of an epoch rearranges what the epoch has not shown yet. Before the first one no class is near
      another, so classes meet at random.

    State: the nearest classes of each class, and the batches that the epoch had shown at the last refresh.

    Args:
        neighbours: called with a number, gives the rows of that many nearest other images for each image, the nearest
            first; −1 where there is none. The same in all processes.

    Example:
        >>> labels = np.repeat(np.arange(4), 4)
        >>> def neighbours(number: int) -> np.ndarray:  # classes 0 and 2 are near, and 1 and 3
        ...     return ((np.arange(16) + 8) % 16)[:, None]
        >>> sampler = HardNegativeSampler(labels, batch=8, neighbours=neighbours)
        >>> sampler.refresh(epoch=0, batch=0)
        >>> sorted(np.unique(labels[rows]).tolist() for rows in sampler.epoch(0))
        [[0, 2], [1, 3]]
    """

    neighbours: Callable[[int], Int64[np.ndarray, "image k"]]
    refresh_every: int = 500
    num_neighbours: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("refresh_every", "num_neighbours"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        self._nearest = np.empty((len(self.classes), 0), dtype=np.int64)
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
        chunks = [cut(generator.permutation(rows), self.per_class) for rows in self.classes]
        least = self.least_batches(chunks)
        shown = self._shown if epoch == self._epoch else []
        seen = {int(chunk[0]) for pieces in shown for chunk in pieces}
        # Chunks of several sizes do not always fill a batch to its last row: the least number may be too few.
        for number in range(least, least + TRIES * max(1, least // 100), max(1, least // 100)):
            left = _Left([[chunk for chunk in pieces[:number] if int(chunk[0]) not in seen] for pieces in chunks])
            batches, rest = self._arrange(left, number - len(shown), self.generator(epoch, len(shown)))
            if not rest:
                break
        return [*shown, *batches]

    def _arrange(self, left: "_Left", number: int, generator: np.random.Generator) -> tuple[list[Chunks], Chunks]:
        """Return batches, about so many, and the chunks that found no place in any."""
        batches: list[Chunks] = []
        while left.rows:
            batches.append(self._take(left, max(1, number - len(batches)), generator))
            if len(batches[-1]) < 2:
                last = [*batches.pop(), *(chunk for pieces in left.chunks for chunk in pieces)]
                return batches, [chunk for chunk in last if not self._place(chunk, batches)]
        return batches, []

    def _place(self, chunk: Rows, batches: list[Chunks]) -> bool:
        """Whether a batch has room for the chunk and not its class; the smallest such one then holds it."""
        label = self.labels[chunk[0]]
        for pieces in sorted(batches, key=lambda pieces: sum(map(len, pieces))):
            if sum(map(len, pieces)) + len(chunk) > self.batch:
                break
            if all(self.labels[other[0]] != label for other in pieces):
                pieces.append(chunk)
                return True
        return False

    def _take(self, left: "_Left", batches_left: int, generator: np.random.Generator) -> Chunks:
        """Return the chunks of the next batch, taken out of those that are left."""
        share = min(self.batch, -(-left.rows // batches_left))  # an equal one, but at least a negative
        smallest = int(min(left.sizes[left.sizes > 0], default=0))
        batch: dict[int, Rows] = {}  # by class

        def room() -> int:
            return (share if len(batch) >= 2 else self.batch) - sum(map(len, batch.values()))

        def take(label: int) -> bool:
            fits = label >= 0 and label not in batch and 0 < int(left.sizes[label]) <= room()
            if fits:
                batch[label] = left.take(label)
            return fits

        counts = left.counts.copy()
        for label in np.flatnonzero(counts >= batches_left).tolist():
            take(label)
        for label in generator.permutation(np.repeat(np.arange(len(counts)), counts)).tolist():
            if room() < smallest:
                break
            if take(label):
                for near in self._nearest[label].tolist():
                    take(near)
        return list(batch.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the nearest classes, and what the epoch of the last refresh had shown by then."""
        shown = [[chunk.tolist() for chunk in pieces] for pieces in self._shown]
        return {"nearest": torch.from_numpy(self._nearest), "epoch": self._epoch, "shown": shown}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the state of another sampler of the same arguments."""
        self._nearest = state["nearest"].numpy()
        self._epoch = int(state["epoch"])
        self._shown = [[np.array(chunk, dtype=np.int64) for chunk in pieces] for pieces in state["shown"]]


class _Left:
    """The chunks of an epoch that are in no batch yet: of each class how many, and the size of the next one."""

    def __init__(self, chunks: list[Chunks]) -> None:
        self.chunks = chunks
        self.counts = np.array([len(pieces) for pieces in chunks])
        self.sizes = np.array([len(pieces[0]) if pieces else 0 for pieces in chunks])
        self.rows = sum(len(chunk) for pieces in chunks for chunk in pieces)

    def take(self, label: int) -> Rows:
        """Return the next chunk of a class."""
        chunk = self.chunks[label].pop(0)
        self.counts[label] -= 1
        self.sizes[label] = len(self.chunks[label][0]) if self.chunks[label] else 0
        self.rows -= len(chunk)
        return chunk


def nearest_classes(
    labels: Int64[np.ndarray, " image"], neighbours: Int64[np.ndarray, "image k"], most: int
) -> Int64[np.ndarray, "class most"]:
    """Return for each class, in the order of their labels, at most `most` others, the nearest first, then −1.

    Two classes are as near as there are images of either one among the neighbours of the other's; among equally near
    ones the lower label comes first. `neighbours` are rows, or −1.
    """
    names, label = np.unique(labels, return_inverse=True)
    own, other = np.repeat(label, neighbours.shape[1]), label[neighbours.ravel()]
    wanted = (neighbours.ravel() >= 0) & (own != other)
    both_ways = np.hstack([own * len(names) + other, other * len(names) + own])[np.tile(wanted, 2)]
    pairs, counts = np.unique(both_ways, return_counts=True)
    own, other = np.divmod(pairs, len(names))
    order = np.lexsort((other, -counts, own))
    own, other = own[order], other[order]
    place = np.arange(len(own)) - np.searchsorted(own, own)
    table = np.full((len(names), most), -1, dtype=np.int64)
    kept = place < most
    table[own[kept], place[kept]] = other[kept]
    return table
