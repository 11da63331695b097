"""``profile``: where the time of a training step goes, by the clock, and as a trace of torch.profiler."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import PositiveInt
from torch.profiler import record_function

from aurank.config import Config
from aurank.data import Manifest
from aurank.files import replacing, require_writable
from aurank.losses import CrossBatchMemory
from aurank.training.components import read_config
from aurank.training.loop import Drawn, Loop
from aurank.training.run import require_same, training_group
from aurank.training.state import Progress
from aurank.training.trainer import Trainer, build_trainer

WARM_UP = 5
TRACED = 3  # steps of a trace; viewers cannot open larger files
PHASES = {  # phase: (description, how to shorten it)
    "data": ("waiting for data", "more data.workers, data.cache or aurank data prepare"),
    "sampler": ("mining by the sampler", "a larger refresh_every of the sampler"),
    "forward": ("forward", "a smaller model.backbone or data.image_size, model.freeze, on a GPU mixed precision"),
    "loss": ("loss and miner", "a smaller sampler.batch or memory.size, another loss"),
    "backward": ("backward", "what shortens the forward pass; of several processes a larger train.accumulate"),
    "optimiser": ("optimiser", "optim.name=adamw, adam or sgd, which are fused; fewer trained weights"),
    "rest": ("the rest (Python, log)", "a larger train.log_every or sampler.batch"),
}


@dataclass(frozen=True)
class TrainingProfile:
    """Where the time of a training step goes.

    Attributes:
        images: drawn in a step by all processes, or pairs (``unit``).
        phases: seconds that a step of the main process spends in each phase, the mean of ``steps``.
        is_main: whether this is the process that has to print.

    Example:
        >>> profile = TrainingProfile("cpu", 0, "images", 64.0, 5, {"data": 0.4, "loss": 0.6})
        >>> profile.images_per_second, profile.bottleneck, profile.share("loss")
        (64.0, 'loss', 0.6)
    """

    device: str
    workers: int
    unit: str
    images: float
    steps: int
    phases: dict[str, float]
    is_main: bool = True

    @property
    def images_per_second(self) -> float:
        return self.images / sum(self.phases.values())

    @property
    def bottleneck(self) -> str:
        """The phase that takes most of a step."""
        return max(self.phases, key=self.share)

    def share(self, name: str) -> float:
        return self.phases[name] / sum(self.phases.values())

    def __str__(self) -> str:
        lines = [
            f"{self.steps} steps of {self.images:,.0f} {self.unit}, after {WARM_UP} to warm up: "
            f"{self.images_per_second:,.0f} {self.unit}/s ({self.device}, data.workers={self.workers})",
            f"\n{'':<24}{'ms a step':>10}{'share':>9}",
        ]
        lines += [
            f"{PHASES[name][0]:<24}{1000 * seconds:>10,.1f}{self.share(name):>9.0%}"
            for name, seconds in self.phases.items()
            if seconds > 0
        ]
        return "\n".join([*lines, f"\n{self.bottleneck} takes most; try {PHASES[self.bottleneck][1]}"])


class PhaseClock:
    """A clock that is always in exactly one phase of a step; on a GPU it waits for the device between phases."""

    def __init__(self, trainer: Trainer) -> None:
        self.device = trainer.accelerator.device
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._phase, self._since = "rest", time.perf_counter()
        # `forward` contains `embed`; the rest of its time is the loss.
        parts = {"embed": "forward", "forward": "loss", "backward": "backward", "update": "optimiser"}
        for method, phase in parts.items():
            setattr(trainer, method, self.phase(phase)(getattr(trainer, method)))
        trainer.sampler.refresh = self.phase("sampler")(trainer.sampler.refresh)  # type: ignore[method-assign]

    def enter(self, phase: str) -> str:
        """Begin a phase; return the one before."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now, before = time.perf_counter(), self._phase
        self.seconds[before] += now - self._since
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


def profile_training(
    config: Config | Path | str | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    dataset: Manifest | None = None,
    steps: PositiveInt = 50,
    trace: Path | None = None,
    listener: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> TrainingProfile:
    """Train for a few steps, to say where their time goes; nothing is written but the trace.

    Args:
        config, overrides, dataset: as for `train`.
        steps: steps to measure, after a warm-up.
        trace: a trace (.json) to write, for Chrome or Perfetto, of three further steps of the main process.
        listener: called in the main process with "steps", how many of them are done and how many there are.

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
        >>> abs(sum(profile.share(name) for name in profile.phases) - 1) < 1e-9
        True
    """
    if trace is not None:
        require_writable(trace, suffix=".json", option="--trace")
    config = read_config(config, overrides)
    # No validation or checkpoint within the measured steps.
    changes: dict[str, Any] = {"steps": 10**6, "validate_every": 10**9, "checkpoint_every": 10**9, "trackers": []}
    train = config.train.model_copy(update=changes)
    with training_group(config) as group:
        require_same(config, **{"--steps": steps, "--trace": str(trace)})
        trainer = build_trainer(config.model_copy(update={"train": train}), dataset)
        if isinstance(trainer.loss, CrossBatchMemory):
            trainer.loss.start_at = min(trainer.loss.start_at, 1)  # as in most of a run, the memory is in use
        clock, loop = PhaseClock(trainer), Loop(trainer, Path(), {}, progress=Progress(), writes=False)
        images = 0

        def timed(batches: Iterator[Drawn]) -> Iterator[Drawn]:
            nonlocal images
            while True:
                with clock.phase("data"):
                    drawn = next(batches)
                images += len(drawn[0].id) // trainer.views
                yield drawn

        batches = timed(loop.batches())
        for _ in range(WARM_UP):
            loop.step(batches)
        clock.enter("rest")
        clock.seconds, images = dict.fromkeys(PHASES, 0.0), 0
        for step in range(steps):
            if group.rank == 0:
                listener("steps", step, steps)
            loop.step(batches)
        clock.enter("rest")
        profile = TrainingProfile(
            device=str(trainer.accelerator.device),
            workers=trainer.config.data.workers,
            unit=trainer.task.unit,
            images=sum(group.all_gather(images)) / steps,
            steps=steps,
            phases={name: seconds / steps for name, seconds in clock.seconds.items()},
            is_main=group.rank == 0,
        )
        if trace is not None:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else it logs its progress
            with torch.profiler.profile() if group.rank == 0 else nullcontext() as profiler:
                for _ in range(TRACED):
                    loop.step(batches)
            if profiler is not None:
                with replacing(trace) as file:
                    profiler.export_chrome_trace(file.name)
        return profile
