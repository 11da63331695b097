"""What a profile found: phases of a step, what it would take alone, and how that reads."""

from dataclasses import asdict, dataclass, field
from textwrap import wrap
from typing import Any

import numpy as np

from aurank.training.profiling.phases import PHASES

GIB = 2**30
_WIDTH = 80


@dataclass(frozen=True)
class PhaseTime:
    """Seconds a step: their mean, median and the time that nine of ten steps stay below.

    Example:
        >>> PhaseTime.of([0.25, 0.25, 1.0]).mean
        0.5
    """

    mean: float
    median: float
    p90: float

    @classmethod
    def of(cls, seconds: list[float]) -> "PhaseTime":
        return cls(float(np.mean(seconds)), float(np.median(seconds)), float(np.quantile(seconds, 0.9)))


@dataclass(frozen=True)
class TrainingProfile:
    """Where the time of a training step went, in seconds.

    Attributes:
        device: what it ran on, in words.
        rank: the process whose phases these are: the one that has most to do itself, for which the others wait.
        own_seconds: of each process, the mean of a step without waiting for the others.
        images: the mean of a step, over all processes.
        phases: of a step; their means add up to that of ``step``.
        data_alone: of a step's batches from the loader while nothing else runs.
        step_alone: of a step on one batch again and again, without any loader beside it.
        tried_workers: another data.workers that was tried, and the present one once more: seconds of a step with each.
        memory: bytes at most, of one process and of its GPU if it has one.
        advice: what to change, by what was measured.
        is_main: whether this is the process that has to print.

    Example:
        >>> second = PhaseTime(1.0, 1.0, 1.0)
        >>> found = TrainingProfile(
        ...     device="cpu", processes=1, rank=0, own_seconds=[1.0], workers=0, unit="images", images=64.0, steps=5,
        ...     warm_up=5, step=second, phases={"data": PhaseTime(0.4, 0.4, 0.4), "loss": PhaseTime(0.6, 0.6, 0.6)},
        ...     data_alone=0.4, step_alone=0.6, tried_workers={}, memory={},
        ... )
        >>> found.images_per_second, found.bottleneck, found.bound, found.share("data")
        (64.0, 'loss', 0.6, 0.4)
    """

    device: str
    processes: int
    rank: int
    own_seconds: list[float]
    workers: int
    unit: str
    images: float
    steps: int
    warm_up: int
    step: PhaseTime
    phases: dict[str, PhaseTime]
    data_alone: float
    step_alone: float
    tried_workers: dict[int, float]
    memory: dict[str, int]
    advice: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    is_main: bool = True

    @property
    def images_per_second(self) -> float:
        """Images of all processes, or pairs, by the mean of the steps."""
        return self.images / self.step.mean

    @property
    def bottleneck(self) -> str:
        """The phase that bounds training: the data where reading them alone takes longer than the step alone."""
        if self.data_alone > self.step_alone:
            return "data"
        return max((name for name in self.phases if name != "data"), key=lambda name: self.phases[name].mean)

    @property
    def bound(self) -> float:
        """Seconds of a step if reading and computing hid behind each other: the longer of both alone."""
        return max(self.data_alone, self.step_alone)

    def share(self, name: str) -> float:
        """The share of a phase in the time of all steps."""
        return self.phases[name].mean / self.step.mean

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        extra = {"images_per_second": self.images_per_second, "bottleneck": self.bottleneck, "bound": self.bound}
        content = {**asdict(self), **extra}
        return {name: value for name, value in content.items() if name != "is_main"}

    def __str__(self) -> str:
        where = f"{self.device}, {self.processes} process{'es' * (self.processes > 1)}, data.workers={self.workers}"
        lines = [
            *wrap(
                f"{self.steps} steps of {self.images:,.0f} {self.unit}, after {self.warm_up} to warm up; {where}",
                _WIDTH,
            ),
            "",
            f"{f'of rank {self.rank}' if self.processes > 1 else '':<24}"
            f"{'ms a step':>10}{'share':>9}{'median':>11}{'90 %':>11}",
        ]
        for name, text in PHASES.items():
            if (one := self.phases[name]).mean > 0:
                lines.append(f"{text:<24}{_row(one, f'{100 * self.share(name):.0f} %')}")
        lines += [
            f"{'step':<24}{_row(self.step, '')}",
            "",
            f"{'':<24}{'ms a step':>10}{f'{self.unit}/s':>13}",
            self._rate("now", self.step.mean, ""),
            self._rate("data alone", self.data_alone, f"data.workers={self.workers}"),
            self._rate("step alone", self.step_alone, "one batch again and again"),
            self._rate("bound", self.bound, self._bound_by()),
            f"{'memory at most':<24}" + ", ".join(f"{size / GIB:.2f} GiB {name}" for name, size in self.memory.items()),
            "",
        ]
        said = [*self.advice, *self.notices]
        return "\n".join([*lines, *(part for text in said for part in wrap(text, _WIDTH, subsequent_indent="  "))])

    def _rate(self, name: str, seconds: float, note: str) -> str:
        return f"{name:<24}{_ms(seconds):>10}{self.images / seconds:>13,.0f}  {note}".rstrip()

    def _bound_by(self) -> str:
        what, gain = "the data" if self.bottleneck == "data" else "the step itself", self.step.mean / self.bound
        return f"{what}; {gain:.2f} × as fast" if gain >= 1.05 else f"{what}, as it is now"


def _row(time: PhaseTime, share: str) -> str:
    return f"{_ms(time.mean):>10}{share:>9}{_ms(time.median):>11}{_ms(time.p90):>11}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f}"
