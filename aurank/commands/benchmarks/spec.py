"""What a benchmark compares, and the pieces of work that it is made of."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from aurank.config.schema import Strict
from aurank.data.manifest import ValidationUnit

Overrides = tuple[str, ...]


class Folds(Strict):
    """Class-disjoint folds: each is tested, or validated, by what was trained on the others."""

    folds: int = Field(ge=2, le=100)
    by: ValidationUnit = "class"


class BenchmarkSpec(Strict):
    """What a benchmark compares, as its YAML file says it.

    Attributes:
        config: the base of every training: the name of a shipped configuration, or a path from the file's folder.
        methods, settings: the overrides of each by its name; every method is trained in every setting.
        without_training: post-processing steps, fitted on training rows, behind which saved embeddings are measured.
        splits: those of the data, or folds of all classes, each of which is the test once.
        trials: of the search for hyper-parameters that each method has in each setting and split; 0: none.
        choose_by: folds of the training classes that the search validates on.
        ranges: of the search; others are those that the loss, the sampler and the optimiser declare.
        reference: the method that the others are compared with; default: the first.
    """

    config: str
    methods: dict[str, Overrides] = Field(min_length=1)
    settings: dict[str, Overrides] = Field(default={"": ()}, min_length=1)
    overrides: Overrides = ()
    without_training: Overrides = ()
    splits: Literal["published"] | Folds = "published"
    seeds: int = Field(default=5, ge=1, le=1000)
    trials: int = Field(default=0, ge=0, le=10_000)
    choose_by: Folds = Folds(folds=3)
    ranges: dict[str, Any] = Field(default={})
    reference: str | None = None


@dataclass(frozen=True)
class Unit:
    """A piece of work: a choice of hyper-parameters, a training with its test, or a test without training."""

    kind: Literal["choice", "run", "untrained"]
    method: str  # of what is not trained: its steps
    setting: str
    split: str
    seed: int = 0
    chosen: Overrides = ()

    def __str__(self) -> str:
        seed = f"seed {self.seed}" if self.kind == "run" else self.kind
        return ", ".join(filter(None, [self.setting, self.method, self.split, seed]))
