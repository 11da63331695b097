"""results.jsonl: one finished training a line, and what follows from the lines."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student_t  # type: ignore[import-untyped]  # scikit-learn brings it

from aurank.files import write_text
from miniatures.methods import METHODS, SEEDS, Run, grid

Line = dict[str, Any]
KEYS = ("method", "config", "overrides")


class Results:
    """The lines of a file, by the run that they are of; a run that diverged has a line with "error" and no metrics."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        self.lines: list[Line] = [json.loads(line) for line in text.splitlines()]

    @property
    def seeds(self) -> list[int]:
        """Those of the default, which choose the learning rates, and all others there are runs of."""
        return [*SEEDS, *sorted({line["seed"] for line in self.lines} - set(SEEDS))]

    def find(self, run: Run) -> Line | None:
        """The line of a run, by its method and all its changes of the configuration."""
        wanted = [run.method, METHODS[run.method].config, run.overrides]
        return next((line for line in self.lines if [line[key] for key in KEYS] == wanted), None)

    def append(self, line: Line) -> None:
        """Nothing; the file is written anew and renamed, so that a kill leaves no half line."""
        self.lines.append(line)
        write_text(self.path, "".join(json.dumps(each) + "\n" for each in self.lines))

    def best_rate(self, name: str, *, seeds: Sequence[int], steps: int) -> float | None:
        """The learning rate with the higher validation mAUPRC at the first seed; None before the grid is complete."""
        found = {run.rate: self.find(run) for run in grid(name, seeds=seeds, steps=steps)}
        if None in found.values():
            return None
        score = {rate: line["val_mauprc"] for rate, line in found.items() if line and "error" not in line}
        return max(score, key=score.__getitem__) if score else None

    def chosen(self, name: str, *, seeds: Sequence[int], steps: int) -> list[Line]:
        """The finished runs of a method at its chosen learning rate, by seed."""
        rate = self.best_rate(name, seeds=seeds, steps=steps)
        if rate is None:
            return []
        lines = [self.find(Run(name, rate, seed, steps)) for seed in seeds]
        return [line for line in lines if line is not None and "error" not in line]


@dataclass(frozen=True)
class Mean:
    """A mean over seeds, and the half width of its 95 % interval by Student's t; None for a single seed."""

    value: float
    half_width: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Mean":
        values = list(values)
        half = None
        if len(values) >= 2:
            half = float(student_t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
        return cls(fmean(values), half, len(values))

    def times(self, factor: float) -> "Mean":
        """In another unit."""
        return Mean(self.value * factor, None if self.half_width is None else self.half_width * factor, self.count)

    def text(self, digits: int = 4) -> str:
        """As it stands in a table."""
        plain = f"{self.value:.{digits}f}"
        return plain if self.half_width is None else f"{plain} ± {self.half_width:.{digits}f}"
