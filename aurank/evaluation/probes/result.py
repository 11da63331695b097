"""What a probe found: accuracies, what was counted, under which settings."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from aurank.evaluation.aggregate import mean
from aurank.evaluation.probes.splits import ProbeSplit
from aurank.files import EXACT, checked, read_record, reading, write_text

FORMAT, VERSION = "aurank.probe", 1
TOP = (1, 5)


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies of one probe, in [0, 1], and all that they depend on.

    `protocol`: "knn" or "linear_probe". `design`: "closed set", where one set of rows trains and another tests, or
    "halves", where each seed draws half of the rows of every class for training and the others test. `metrics`: means
    over the seeds, by the names of docs/metrics.md; `per_seed` their values, in the order of `seeds`, which is empty
    where nothing was drawn. `num_train`, `num_test` and `num_classes` are those of one draw; `num_left_out` counts rows
    that were not used. `settings` hold every option, those that were chosen too. `notes`: what a reader must know.

    Example:
        >>> result = ProbeResult("knn", "halves", {"top1": 0.5}, {"top1": [0.4, 0.6]}, [0, 1], 2, 2, 2, 0, {"k": 1}, [])
        >>> {name: round(value, 4) for name, value in result.spread.items()}
        {'top1': 0.1414}
    """

    __pydantic_config__ = EXACT

    protocol: str
    design: str
    metrics: dict[str, float]
    per_seed: dict[str, list[float]]
    seeds: list[int]
    num_train: int
    num_test: int
    num_classes: int
    num_left_out: int
    settings: dict[str, Any]
    notes: list[str]

    @property
    def spread(self) -> dict[str, float]:
        """Sample standard deviation over the seeds, by metric; empty with fewer than two."""
        if len(self.seeds) < 2:
            return {}
        squares = {
            name: [(value - self.metrics[name]) ** 2 for value in values] for name, values in self.per_seed.items()
        }
        return {name: math.sqrt(math.fsum(values) / (len(values) - 1)) for name, values in squares.items()}

    def __str__(self) -> str:
        """Return a table for people: one metric a line, its spread beside it, then what was counted and how."""
        width = max(len(name) for name in self.metrics)
        lines = [self.protocol]
        for name, value in self.metrics.items():
            spread = f" ± {self.spread[name]:.4f}" if name in self.spread else ""
            lines.append(f"{name:<{width}}  {value:.4f}{spread}")
        lines.append(
            f"{self.num_test:,} test rows, {self.num_train:,} training rows, {self.num_classes:,} classes; {self._how}"
        )
        lines.append(", ".join(f"{name.replace('_', ' ')} {_words(value)}" for name, value in self.settings.items()))
        return "\n".join([*lines, *self.notes])

    @property
    def _how(self) -> str:
        seeds = f"seed{'s' if len(self.seeds) > 1 else ''} {', '.join(map(str, self.seeds))}"
        if len(self.seeds) > 1:
            seeds = f"mean ± standard deviation over {seeds}"
        if self.design == "halves":
            return f"halves of each class, {seeds}"
        return f"{self.design}, {seeds}" if self.seeds else self.design

    def save(self, path: Path | str) -> None:
        """Write the result as one JSON file, whole or not at all."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self), "spread": self.spread}
        write_text(Path(path), json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> "ProbeResult":
        """Return the result that `save` wrote; UserError if the file is missing or something else."""
        content = read_record(Path(path), "a probe's result", named=FORMAT, versions=(VERSION,), remedy="probe again")
        with reading(path, "a probe's result", remedy="probe again"):
            return checked({name: content[name] for name in cls.__dataclass_fields__}, cls)


def result_of(
    protocol: str,
    split: ProbeSplit,
    found: Sequence[Mapping[str, float]],
    *,
    seeds: Sequence[int],
    settings: dict[str, Any],
    notes: Sequence[str] = (),
) -> ProbeResult:
    """Return the ProbeResult of what each draw of a split gave."""
    per_seed = {name: [values[name] for values in found] for name in found[0]}
    return ProbeResult(
        protocol=protocol,
        design=split.design,
        metrics={name: mean(values) for name, values in per_seed.items()},
        per_seed=per_seed,
        seeds=list(seeds),
        num_train=split.num_train,
        num_test=split.num_test,
        num_classes=split.num_classes,
        num_left_out=split.num_left_out,
        settings=settings,
        notes=[*split.notes, *notes],
    )


def top(ranks: Int64[np.ndarray, " query"]) -> dict[str, float]:
    """Return the part of the ranks within the first k, as "top{k}"."""
    return {f"top{k}": mean((ranks <= k).astype(np.float64)) for k in TOP}


def _words(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_words(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
