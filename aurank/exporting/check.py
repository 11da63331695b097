"""How an exported file compares with its checkpoint."""

import math
from dataclasses import dataclass, field
from typing import Any

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


@dataclass
class Measured:
    """Embeddings of the checkpoint with their metrics, and how files compare with them.

    Attributes:
        images: which they are, in words.
        options: of the evaluation; empty where nothing can be measured.
        reached: metrics of what was exported, behind its own transform.
        checks: of the model's own file first.
    """

    before: Embedded
    metrics: dict[str, float]
    images: str
    options: dict[str, Any]
    reached: dict[str, float] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def compare(self, file: str, after: Embedded, *, is_other: bool = False) -> Check:
        """Keep and return the check of embeddings of the same images; `is_other`: by a file that is meant to differ."""
        if not np.array_equal(after.ids, self.before.ids):
            raise AurankError(f"{file}: other images could be read than before; export again")
        difference = float(
            np.abs(_unit(np.asarray(after.embeddings)) - _unit(np.asarray(self.before.embeddings))).max()
        )
        difference = math.inf if math.isnan(difference) else difference
        metrics = all_metrics(after, self.options)
        self.reached = self.reached if is_other else metrics
        mauprc = self.metrics.get("mauprc"), metrics.get("mauprc")
        self.checks.append(Check(file, len(after.ids), difference, *mauprc))
        return self.checks[-1]


def all_metrics(embedded: Embedded, options: dict[str, Any]) -> dict[str, float]:
    """Return the metrics, none without options: nothing can be measured then."""
    return dict(embedded.evaluate(**options).metrics) if options else {}


def _unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    found: np.ndarray = rows / np.maximum(lengths, 1e-12)
    return found


def describe_change(check: Check) -> str:
    """Return a line on a file that is meant to differ: what that costs."""
    if check.before is None or check.after is None:
        return f"{check}; not measured: no labels to compare"
    return f"{check}, a change of {check.after - check.before:+.4f}"
