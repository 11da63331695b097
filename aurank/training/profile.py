"""``profile``: where the time of a training step goes, by the clock, and as a trace of torch.profiler."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt
from torch.profiler import record_function

from aurank.config import Config
from aurank.files import replacing, require_writable
from aurank.losses import CrossBatchMemory
from aurank.training.components import read_config
from aurank.training.loop import Drawn, Loop
from aurank.training.run import require_same, training_group
from aurank.training.state import Progress
from aurank.training.trainer import Trainer, build_trainer

WARM_UP = 5
TRACED = 3  # steps of a trace: more make files that no viewer opens
PHASES = {  # name: what it is, and what shortens it
    "data": ("waiting for data", "more data.workers, data.cache or aurank data prepare"),
    "sampler": ("mining by the sampler", "a larger refresh_every of the sampler"),
    "forward": ("forward", "a smaller model.backbone or data.image_size, model.freeze, on a GPU mixed precision"),
    "loss": ("loss and miner", "a smaller sampler.batch or memory.size, another loss"),
    "backward": ("backward", "what shortens the forward pass; of several processes a larger train.accumulate"),
    "optimiser": ("optimiser", "optim.name=adamw, adam or sgd, which are fused; fewer trained weights"),
    "rest": ("the rest (Python, log)", "a larger train.log_every or sampler.batch"),
}
StepListener = Callable[[str, int, int], None]
"""Called with what is measured, how many of its steps are done and how many there are."""


@dataclass(frozen=True)
class TrainingProfile:
    """Where the time of a training step goes, in seconds.

    Attributes:
        own_seconds: of each process, the mean of a step before its backward pass, in which it waits for the others.
        images: the mean of a step, over all processes.
        phases: the mean, median and p90 of each phase of a step of the main process, and of the whole, "step".
        is_main: whether this is the process that has to print.

    Example:
        >>> phases = {"data": {"mean": 0.4}, "loss": {"mean": 0.6}, "step": {"mean": 1.0}}
        >>> profile = TrainingProfile("cpu", [1.0], 0, "images", 64.0, 5, phases)
        >>> profile.images_per_second, profile.bottleneck, profile.share("loss")
        (64.0, 'loss', 0.6)
    """

    device: str
    own_seconds: list[float]
    workers: int
    unit: str
    images: float
    steps: int
    phases: dict[str, dict[str, float]]
    notices: list[str] = field(default_factory=list)
    is_main: bool = True

    @property
    def images_per_second(self) -> float:
        """Images of all processes, or pairs, by the mean of the steps."""
        return self.images / self.phases["step"]["mean"]

    @property
    def bottleneck(self) -> str:
        """The phase that takes most of a step."""
        return max(self.phases.keys() - {"step"}, key=self.share)

    def share(self, name: str) -> float:
        return self.phases[name]["mean"] / self.phases["step"]["mean"]

    def to_json(self) -> dict[str, Any]:
        derived = {"images_per_second": self.images_per_second, "bottleneck": self.bottleneck}
        return {name: value for name, value in {**asdict(self), **derived}.items() if name != "is_main"}

    def __str__(self) -> str:
        processes = len(self.own_seconds)
        lines = [
            f"{self.steps} steps of {self.images:,.0f} {self.unit}, after {WARM_UP} to warm up: "
            f"{self.images_per_second:,.0f} {self.unit}/s",
            f"{self.device}, {processes} process{'es' * (processes > 1)}, data.workers={self.workers}",
            f"\n{'':<24}{'ms a step':>10}{'share':>9}{'median':>11}{'90 %':>11}",
        ]
        for name, title in {**{name: title for name, (title, _) in PHASES.items()}, "step": "step"}.items():
            mean, median, p90 = (1000 * seconds for seconds in self.phases[name].values())
            if mean > 0:
                share = f"{100 * self.share(name):.0f} %"
                lines.append(f"{title:<24}{mean:>10,.1f}{share:>9}{median:>11,.1f}{p90:>11,.1f}")
        advice = f"\n{self.bottleneck} takes most; try {PHASES[self.bottleneck][1]}"
        return "\n".join([*lines, advice, *self.notices])


class PhaseClock:
    """A clock that is always in exactly one phase of a step; on a GPU it waits for the device between phases."""

    def __init__(self, trainer: Trainer) -> None:
        self.device = trainer.accelerator.device
        self.steps: list[dict[str, float]] = []
        self._step, self._phase, self._since = dict.fromkeys(PHASES, 0.0), "rest", time.perf_counter()
        # What is left of `forward` without `embed` is the loss.
        parts = {"embed": "forward", "forward": "loss", "backward": "backward", "update": "optimiser"}
        for method, phase in parts.items():
            setattr(trainer, method, self.phase(phase)(getattr(trainer, method)))
        trainer.sampler.refresh = self.phase("sampler")(trainer.sampler.refresh)  # type: ignore[method-assign]

    def enter(self, phase: str) -> str:
        """Begin a phase; return the one before."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now, before = time.perf_counter(), self._phase
        self._step[before] += now - self._since
        self._phase, self._since = phase, now
        return before

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A context whose time is the phase's, but for that of the phases within; a trace names it."""
        before = self.enter(name)
        try:
            with record_function(f"aurank: {name}"):
                yield
        finally:
            self.enter(before)

    def take_step(self, loop: Loop, batches: Iterator[Drawn]) -> int:
        """Take a step; return how many images this process had."""
        images = 0

        def timed() -> Iterator[Drawn]:
            nonlocal images
            while True:
                with self.phase("data"):
                    drawn = next(batches)
                images += len(drawn.batch.id) // loop.trainer.views
                yield drawn

        loop.step(timed())
        self.enter("rest")
        self.steps.append({**self._step, "step": sum(self._step.values())})
        self._step = dict.fromkeys(PHASES, 0.0)
        return images


def profile_training(
    config: Config | Path | str | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    steps: PositiveInt = 50,
    trace: Path | None = None,
    listener: StepListener | None = None,
) -> TrainingProfile:
    """Train for a few steps, to say where their time goes; nothing is written but the trace.

    Args:
        config, overrides: as for `train`.
        steps: steps to measure, after a warm-up.
        trace: a trace (.json) to write, for Chrome or Perfetto, of three further steps of the main process.
        listener: called with what is measured, how many steps are done and how many there are, in the main process.

    Raises:
        UserError: whatever a real run would raise before its first step.
        AurankError: the loss is not finite, or the trace cannot be written.

    Example:
        >>> from aurank.training import read_config
        >>> config = {
        ...     "data": {"name": "digits", "image_size": 16, "channels": 1},
        ...     "model": {"backbone": "test_resnet", "pretrained": False, "dim": 8},
        ...     "sampler": {"batch": 16}, "loss": {"name": "smooth_ap"}, "optim": {"lr": 1e-3}, "train": {"steps": 2},
        ... }
        >>> profile = profile_training(read_config(config), steps=2)
        >>> abs(sum(profile.share(name) for name in profile.phases) - 2) < 1e-9  # the phases, and their sum
        True
    """
    if trace is not None:
        require_writable(trace, suffix=".json", option="--trace")
    config = read_config(config, overrides)
    # Neither validations nor checkpoints, and more steps than are measured or read ahead.
    changes: dict[str, Any] = {"steps": 10**6, "validate_every": 10**9, "checkpoint_every": 10**9, "trackers": []}
    train = config.train.model_copy(update=changes)
    with training_group(config) as group:
        require_same(config, **{"--steps": steps, "--trace": str(trace)})
        trainer = build_trainer(config.model_copy(update={"train": train}))
        if isinstance(trainer.loss, CrossBatchMemory):
            trainer.loss.start_at = min(trainer.loss.start_at, 1)  # as it is in most of the run
        clock, loop = PhaseClock(trainer), Loop(trainer, Path(), {}, progress=Progress(), writes=False)
        batches, images = loop.batches(), 0
        for step in range(-WARM_UP, steps):
            if listener is not None and group.rank == 0:
                listener("steps", max(0, step), steps)
            images += clock.take_step(loop, batches) * (step >= 0)
        times = clock.steps[WARM_UP:]
        if trace is not None:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it tells of its own doings, and of a GPU that is not there
            with torch.profiler.profile() if group.rank == 0 else nullcontext() as profiler:
                for _ in range(TRACED):
                    clock.take_step(loop, batches)
            if profiler is not None:
                with replacing(trace) as file:
                    profiler.export_chrome_trace(file.name)
        before_backward = sum(step[name] for step in times for name in ("data", "sampler", "forward", "loss")) / steps
        everyone = group.all_gather((before_backward, images / steps))
        own_seconds, counts = (list(values) for values in zip(*everyone, strict=True))
        notices = [*trainer.notices]
        if max(own_seconds) > 1.1 * float(np.median(own_seconds)):
            slowest = own_seconds.index(max(own_seconds))
            notices.insert(0, f"rank {slowest} is the slowest before its backward pass: the others wait for it")
        phases = {}
        for name in (*PHASES, "step"):
            seconds = [step[name] for step in times]
            quantiles = {"median": float(np.median(seconds)), "p90": float(np.quantile(seconds, 0.9))}
            phases[name] = {"mean": float(np.mean(seconds)), **quantiles}
        return TrainingProfile(
            device=str(trainer.accelerator.device),
            own_seconds=own_seconds,
            workers=trainer.config.data.workers,
            unit=trainer.task.unit,
            images=sum(counts),
            steps=steps,
            phases=phases,
            notices=notices,
            is_main=group.rank == 0,
        )
