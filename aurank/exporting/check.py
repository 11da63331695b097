"""How an exported file compares with its checkpoint."""

from dataclasses import dataclass

import numpy as np

from aurank.embedding.embed import Embedded
from aurank.errors import AurankError

TOLERANCE = 1e-4
"""The largest difference of an exported embedding from the checkpoint's, in any of its numbers."""


@dataclass(frozen=True)
class Check:
    """How an exported file compares with its checkpoint, on the same images.

    Attributes:
        max_difference: of any number of any embedding at unit length.
        before, after: mAUPRC of the checkpoint and of the file; None where the images have no labels to compare.
    """

    file: str
    images: int
    max_difference: float
    before: float | None = None
    after: float | None = None

    @property
    def is_same(self) -> bool:
        """Whether it is the same model: no number differs by more than `TOLERANCE`, nor mAUPRC by more than 0.00005."""
        near = self.before is None or self.after is None or abs(self.after - self.before) <= 0.5e-4
        return self.max_difference <= TOLERANCE and near

    def __str__(self) -> str:
        text = f"{self.file}: max difference {self.max_difference:.1e} over {self.images:,} images"
        return text if self.before is None else f"{text}; mauprc {self.before:.4f} before, {self.after:.4f} after"

    @property
    def change(self) -> str:
        """The line with what it costs that the file is meant to differ."""
        if self.before is None or self.after is None:
            return f"{self}; not measured: no labels to compare"
        return f"{self}, a change of {self.after - self.before:+.4f}"


def largest_difference(file: str, before: Embedded, after: Embedded) -> float:
    if not np.array_equal(after.ids, before.ids):
        raise AurankError(f"{file}: other images could be read than before; export again")
    sides = (np.asarray(side.embeddings, np.float64) for side in (before, after))
    units = [rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12) for rows in sides]
    return float(np.nan_to_num(np.abs(units[1] - units[0]).max(), nan=np.inf))
