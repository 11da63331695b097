"""Batches of classes that look alike, as neighbours mined during training tell."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from aurank.data.samplers import Chunks, PKSampler, cut
from aurank.errors import UserError


class HardNegativeSampler(PKSampler):
    """P classes × M images a batch, of classes that look alike, so that a batch has hard negatives.

    Every `refresh_every` steps each image's `num_neighbours` nearest other images are mined, over the whole training
    set. Two classes are as near as there are images of either one among the nearest of the other's. The rule:

    - Images are cut into chunks as by PKSampler, and the number of batches is the same. A batch starts with a class
      drawn at random, each as often as it has chunks left; then come its nearest classes, the nearest first, one chunk
      each; where too few of them have chunks left or fit, another class is drawn, and its nearest follow.
    - Before all of them come classes with as many chunks left as there are batches left. So every image is seen exactly
      once an epoch, with PKSampler's exceptions. Chunks of several sizes may take a few batches more.
    - A refresh inside of an epoch rearranges what the epoch has not shown yet. Before the first one no class is near
      another, so classes meet at random.

    State: the nearest classes of each class, and the batches that the epoch had shown at the last refresh.

    Args:
        neighbours: called with a number, gives the rows of so many nearest other images for each image, the nearest
            first; −1 where there is none. The same in all processes.
    """

    def __init__(
        self,
        labels: Int64[np.ndarray, " image"],
        batch: int,
        *,
        neighbours: Callable[[int], Int64[np.ndarray, "image k"]],
        per_class: int = 4,
        refresh_every: int = 500,
        num_neighbours: int = 50,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(labels, batch, per_class=per_class, seed=seed, rank=rank, world_size=world_size)
        for name, value in {"refresh_every": refresh_every, "num_neighbours": num_neighbours}.items():
            if value < 1:
                raise UserError(f"{name} must be at least 1, got {value}")
        self.neighbours = neighbours
        self.refresh_every = refresh_every
        self.num_neighbours = num_neighbours
        self._nearest = np.empty((len(self.classes), 0), dtype=np.int64)
        self._epoch = 0
        self._shown: list[Chunks] = []  # of that epoch, before the last refresh

    def refresh(self, epoch: int, batch: int) -> None:
        """Nothing; mines neighbours, by which the batches from that position on are made."""
        shown = self.global_batches(epoch)[:batch]
        self._nearest = nearest_classes(self.labels, self.neighbours(self.num_neighbours), self.num_neighbours)
        self._epoch, self._shown = epoch, shown

    def global_batches(self, epoch: int) -> list[Chunks]:
        """Returns the batches of one epoch: those shown before the last refresh, then as the neighbours want them."""
        generator = self.generator(epoch)
        chunks = [cut(generator.permutation(rows), self.per_class) for rows in self.classes]
        number = self.least_batches(chunks)
        batches = list(self._shown) if epoch == self._epoch else []
        seen = {int(chunk[0]) for pieces in batches for chunk in pieces}
        left = [[chunk for chunk in pieces[:number] if int(chunk[0]) not in seen] for pieces in chunks]
        rows_left = sum(len(chunk) for pieces in left for chunk in pieces)
        generator = self.generator(epoch, len(batches))
        while True:
            pieces = self._take(left, rows_left, max(1, number - len(batches)), generator)
            if len(pieces) < max(2, self.world_size):
                return batches
            batches.append(pieces)
            rows_left -= sum(map(len, pieces))

    def _take(self, left: list[Chunks], rows_left: int, batches_left: int, generator: np.random.Generator) -> Chunks:
        """Returns the chunks of the next batch, taken out of those left of each class."""
        size = {label: len(chunks[0]) for label, chunks in enumerate(left) if chunks}
        smallest = min(size.values(), default=0)
        counts = np.array([len(chunks) for chunks in left])
        # An equal share of what is left, but at least a negative, and something for each rank.
        share, least = min(self.batch, -(-rows_left // batches_left)), max(2, self.world_size)
        pieces: Chunks = []
        rows = 0

        def room() -> int:
            return (self.batch if len(pieces) < least else share) - rows

        def take(label: int) -> bool:
            nonlocal rows
            if size.get(label, room() + 1) > room():
                return False
            rows += size.pop(label)  # so that a class comes once
            pieces.append(left[label].pop(0))
            return True

        for label in np.flatnonzero(counts >= batches_left).tolist():
            take(label)
        for label in generator.permutation(np.repeat(np.arange(len(left)), counts)).tolist():
            if room() < smallest:
                break
            if take(label):
                for near in self._nearest[label].tolist():
                    take(near)
        return pieces

    def state_dict(self) -> dict[str, Any]:
        """Returns the nearest classes, and what the epoch of the last refresh had shown by then."""
        shown = [[chunk.tolist() for chunk in pieces] for pieces in self._shown]
        return {"nearest": torch.from_numpy(self._nearest), "epoch": self._epoch, "shown": shown}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing; takes over the state of another sampler of the same arguments."""
        self._nearest = state["nearest"].numpy()
        self._epoch = int(state["epoch"])
        self._shown = [[np.array(chunk, dtype=np.int64) for chunk in pieces] for pieces in state["shown"]]


def nearest_classes(
    labels: Int64[np.ndarray, " image"], neighbours: Int64[np.ndarray, "image k"], most: int
) -> Int64[np.ndarray, "class most"]:
    """Returns for each class, in the order of their labels, at most `most` others, the nearest first, then −1.

    Two classes are as near as there are images of either one among the neighbours of the other's; among equally near
    ones the lower label comes first. `neighbours` are rows, or −1.
    """
    if len(neighbours) != len(labels) or not (neighbours.min() >= -1 and neighbours.max() < len(labels)):
        raise UserError(
            f"neighbours must be {len(labels)} lists of rows below {len(labels)}, or -1; got {neighbours.shape} from "
            f"{neighbours.min()} to {neighbours.max()}"
        )
    names, label = np.unique(labels, return_inverse=True)
    own, other = np.repeat(label, neighbours.shape[1]), label[neighbours.ravel()]
    wanted = (neighbours.ravel() >= 0) & (own != other)
    own, other = own[wanted], other[wanted]
    pairs, counts = np.unique(
        np.concatenate([own, other]) * len(names) + np.concatenate([other, own]), return_counts=True
    )
    own, other = np.divmod(pairs, len(names))
    order = np.lexsort((other, -counts, own))
    own, other = own[order], other[order]
    place = np.arange(len(own)) - np.searchsorted(own, own)
    table = np.full((len(names), most), -1, dtype=np.int64)
    kept = place < most
    table[own[kept], place[kept]] = other[kept]
    return table
