"""Tables of components for tests of configurations, and their texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML

from aurank.config import Choices


class Recorded:
    """The end of a chain of constructors that pass ``**kwargs`` on."""

    def __init__(self, collect: bool = False) -> None:
        self.collect = collect


class RankLoss(Recorded):
    def __init__(
        self,
        class_counts: Sequence[int],
        *,
        tau1: float = 0.1,
        tau2: float = 0.001,
        prior: Literal["scaled", "frequency"] = "scaled",
        semi_variance: tuple[float, float] | None = (1.0, 5.0),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in {"tau1": tau1, "tau2": tau2}.items():
            if value <= 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        if tau2 > tau1:
            raise ValueError(f"the second temperature must not exceed the first, got {tau2} and {tau1}")
        self.semi_variance = semi_variance


class SmoothLoss(Recorded):
    def __init__(self, temperature: float = 0.01, include_self: bool = False) -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature must be > 0, got {temperature}")


class MarginMiner(Recorded):
    def __init__(self, margin=0.2, **kwargs):  # type: ignore[no-untyped-def]
        super().__init__(**kwargs)
        self.margin = margin + 0.0


def digits(root: Path | None = None) -> None: ...


def table(root: Path, *, file: str, separator: str = ",") -> None: ...


def crop_flip(
    image_size: int, channels: int, *, scale: tuple[float, float] = (0.16, 1.0), mean: Sequence[float] | None = None
) -> None: ...


def center(image_size: int, channels: int) -> None: ...


def pk(labels: Sequence[int], batch: int, *, per_class: int = 4, seed: int = 0) -> None: ...


def shuffled(labels: Sequence[int], batch: int, *, seed: int = 0) -> None: ...


def sgd(params: list[Any], lr: float, *, momentum: float = 0.9, nesterov: bool = True) -> None: ...


def adamw(params: list[Any], lr: float, *, betas: tuple[float, float] = (0.9, 0.999)) -> None: ...


def constant(steps: int) -> None: ...


def multi_step(steps: int, *, milestones: Sequence[int], gamma: float = 0.1) -> None: ...


_TRANSFORMS = Choices({"crop_flip": crop_flip, "center": center}, frozenset({"image_size", "channels"}))
CHOICES = {
    "data": Choices({"digits": digits, "table": table}, frozenset({"root"})),
    "data.train_transform": _TRANSFORMS,
    "data.test_transform": _TRANSFORMS,
    "sampler": Choices({"pk": pk, "shuffled": shuffled}, frozenset({"labels", "batch", "seed"})),
    "loss": Choices({"rank": RankLoss, "smooth": SmoothLoss}, frozenset({"class_counts"})),
    "miner": Choices({"margin": MarginMiner}),
    "optim": Choices({"sgd": sgd, "adamw": adamw}, frozenset({"params", "lr"})),
    "optim.schedule": Choices({"constant": constant, "multi_step": multi_step}, frozenset({"steps"})),
}

VALID = """
seed: 7
data:
  name: table
  params: {file: images.csv}
  root: /data
  image_size: 32
  channels: 1
  train_transform: {name: crop_flip, params: {scale: [0.5, 1]}}
  validation_fraction: 0.2
  on_error: skip
sampler: {name: pk, batch: 16, params: {per_class: 4}}
model: {backbone: resnet18, pretrained: false, dim: 64, params: {drop_rate: 0.1}}
loss:
  name: rank
  params: {tau1: 0.2, prior: frequency, semi_variance: [1, 5]}
miner: {name: margin, params: {margin: 0.1}}
optim:
  name: sgd
  lr: 1e-2
  params: {momentum: 0.8}
  schedule: {name: multi_step, params: {milestones: [50, 80]}}
  warmup_steps: 10
train: {steps: 100, mixed_precision: no, validate_every: 50, checkpoint_every: 25, trackers: [tensorboard]}
evaluate: {recall_at: [1, 5], max_memory: 256MiB}
"""

MINIMAL: dict[str, Any] = {
    "data": {"name": "digits"},
    "loss": {"name": "smooth"},
    "optim": {"lr": 0.001},
    "train": {"steps": 100},
}


def read_yaml(text: str, *, version: tuple[int, int] = (1, 2)) -> Any:
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.version = version
    return yaml.load(text)
