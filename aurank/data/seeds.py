"""The seeds of augmentations: all of a batch at once, since numpy takes longer for one than this for a hundred."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt32, UInt64

Words = UInt32[np.ndarray, " key"]

# The constants of numpy's SeedSequence, whose stream numpy promises to keep.
_POOL = 4
_SHIFT = np.uint32(16)
_FIRST, _FIRST_FACTOR = 0x43B0D7E5, 0x931E8875
_LAST, _LAST_FACTOR = 0x8B51F9DD, 0x58F38DED
_LEFT, _RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)


def augmentation_seeds(seed: int, keys: Sequence[tuple[int, int, int]]) -> UInt64[np.ndarray, " key"]:
    """Return the 64-bit seed of each augmentation (row, epoch, view), the same in every process, on every machine."""
    words = [seed >> shift & 0xFFFFFFFF for shift in range(0, max(1, seed.bit_length()), 32)]
    own = np.array(keys, dtype=np.uint32).reshape(-1, 3)
    entropy = [np.full(len(own), word, dtype=np.uint32) for word in words] + list(own.T)
    factor, by = _FIRST, _FIRST_FACTOR

    def hashed(value: Words) -> Words:
        nonlocal factor
        value = value ^ np.uint32(factor)
        factor = factor * by & 0xFFFFFFFF
        return _folded(value * np.uint32(factor))

    pool = [hashed(word) for word in entropy[:_POOL]]  # as numpy's `mix_entropy` fills it
    for source in range(_POOL):
        for place in range(_POOL):
            if place != source:
                pool[place] = _folded(_LEFT * pool[place] - _RIGHT * hashed(pool[source]))
    for word in entropy[_POOL:]:
        pool = [_folded(_LEFT * value - _RIGHT * hashed(word)) for value in pool]
    factor, by = _LAST, _LAST_FACTOR
    first, second = (hashed(value) for value in pool[:2])  # as its `generate_state` draws two words
    return first.astype(np.uint64) | second.astype(np.uint64) << np.uint64(32)


def _folded(value: Words) -> Words:
    folded: Words = value ^ (value >> _SHIFT)
    return folded
