"""``profile``: real steps of a run that leave nothing behind, what each of their parts takes, and what to change."""

import itertools
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function

from aurank.config import Config
from aurank.errors import AurankError
from aurank.files import replacing, require_writable
from aurank.losses import CrossBatchMemory
from aurank.training.loop import Drawn, Loop
from aurank.training.run import require_same, training_group
from aurank.training.state import Progress
from aurank.training.trainer import Trainer, build_trainer
from aurank.training.watch import SeenBatch

WARM_UP = 5
FURTHER = 10  # steps at most of each further measurement
TRACED = 3  # steps of a trace: more make files that no viewer opens
GIB = 2**30
PHASES = {
    "data": "waiting for data",
    "sampler": "mining by the sampler",
    "forward": "forward",
    "loss": "loss and miner",
    "backward": "backward",
    "optimiser": "optimiser",
    "rest": "the rest (Python, log)",
}
ADVICE = {
    "data": "more data.workers (now {workers}, for {processors} processors), data.cache or aurank data prepare",
    "sampler": "a larger refresh_every of the sampler",
    "forward": "a smaller model.backbone or data.image_size, model.freeze, on a GPU train.mixed_precision=bf16 or "
    "train.compile=true",
    "loss": "a smaller sampler.batch or memory.size, another loss",
    "backward": "what shortens the forward pass; of several processes a larger sampler.batch or train.accumulate, as "
    "they exchange gradients here",
    "optimiser": "optim.name=adamw, adam or sgd, which are fused; fewer trained weights (model.freeze, model.lora)",
    "rest": "a larger train.log_every or sampler.batch",
}
StepListener = Callable[[str, int, int], None]
"""Called with what is measured, how many of its steps are done and how many there are."""


@dataclass(frozen=True)
class PhaseTime:
    """Seconds a step: their mean, median and the time that nine of ten steps stay below."""

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
        own_seconds: of each process, the mean of a step before its backward pass, in which it waits for the others.
        images: the mean of a step, over all processes.
        phases: of a step of the main process; their means add up to that of ``step``.
        data_alone: of a step's batches from the loader while nothing else runs.
        step_alone: of a step on one batch again and again, without any loader beside it.
        memory: bytes at most, of one process and of its GPU if it has one.
        is_main: whether this is the process that has to print.

    Example:
        >>> second, phases = PhaseTime(1.0, 1.0, 1.0), {"loss": PhaseTime(0.6, 0.6, 0.6)}
        >>> profile = TrainingProfile("cpu", [1.0], 0, "images", 64.0, 5, second, phases, 0.4, 0.6, {})
        >>> profile.images_per_second, profile.bottleneck, profile.bound, profile.share("loss")
        (64.0, 'loss', 0.6, 0.6)
    """

    device: str
    own_seconds: list[float]
    workers: int
    unit: str
    images: float
    steps: int
    step: PhaseTime
    phases: dict[str, PhaseTime]
    data_alone: float
    step_alone: float
    memory: dict[str, int]
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
        return self.phases[name].mean / self.step.mean

    @property
    def advice(self) -> list[str]:
        """What would change the phases that take most, at most three."""
        by_share = sorted(self.phases, key=self.share, reverse=True)
        worth = [name for name in by_share if self.share(name) >= 0.1] or by_share[:1]
        named = {"workers": self.workers, "processors": processors()}
        return [f"{name}: {100 * self.share(name):.0f} %; try {ADVICE[name].format(**named)}" for name in worth[:3]]

    def to_json(self) -> dict[str, Any]:
        extra = {name: getattr(self, name) for name in ("images_per_second", "bottleneck", "bound", "advice")}
        return {name: value for name, value in {**asdict(self), **extra}.items() if name != "is_main"}

    def __str__(self) -> str:
        processes = len(self.own_seconds)
        where = f"{self.device}, {processes} process{'es' * (processes > 1)}, data.workers={self.workers}"
        steps = f"{self.steps} steps of {self.images:,.0f} {self.unit}, after {WARM_UP} to warm up; {where}"
        lines = [*wrap(steps, 80), "", f"{'':<24}{'ms a step':>10}{'share':>9}{'median':>11}{'90 %':>11}"]
        for name, text in [*PHASES.items(), ("step", "step")]:
            seconds = self.step if name == "step" else self.phases[name]
            share = "" if name == "step" else f"{100 * self.share(name):.0f} %"
            if seconds.mean > 0:
                rest = f"{1000 * seconds.median:>11,.1f}{1000 * seconds.p90:>11,.1f}"
                lines.append(f"{text:<24}{1000 * seconds.mean:>10,.1f}{share:>9}{rest}")
        alone = {"now": self.step.mean, "data alone": self.data_alone, "step alone": self.step_alone}
        lines += ["", f"{'':<24}{'ms a step':>10}{f'{self.unit}/s':>13}"]
        for name, mean in {**alone, "bound": self.bound}.items():
            lines.append(f"{name:<24}{1000 * mean:>10,.1f}{self.images / mean:>13,.0f}")
        memory = ", ".join(f"{size / GIB:.2f} GiB {name}" for name, size in self.memory.items())
        said = [part for text in (*self.advice, *self.notices) for part in wrap(text, 80, subsequent_indent="  ")]
        return "\n".join([*lines, f"{'memory at most':<24}{memory}", "", *said])


class MeasuredLoop(Loop):
    """Training for some steps without validations and checkpoints, by a clock that is always in exactly one phase.

    On a GPU the clock waits for the device between phases. Traces name the phases.

    Args:
        again: a batch to train on in every step, in place of those of the sampler.
    """

    def __init__(self, trainer: Trainer, steps: int, *, progress: Progress, again: Drawn | None = None) -> None:
        super().__init__(trainer, Path(), {}, progress=progress, writes=False)
        self.again, self.left = again, steps
        self.first: Drawn | None = None
        self.images_drawn, self.mining_seconds = 0, 0.0
        self.steps: list[dict[str, float]] = [dict.fromkeys(PHASES, 0.0)]
        self._phase, self._since = "rest", time.perf_counter()

    def _enter(self, name: str) -> str:
        """Begin a phase; return the one before."""
        device = self.trainer.accelerator.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now, before = time.perf_counter(), self._phase
        self.steps[-1][before] += now - self._since
        self._phase, self._since = name, now
        return before

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A context whose time is the phase's, but for that of the phases within."""
        before = self._enter(name)
        try:
            with record_function(f"aurank: {name}"):
                yield
        finally:
            self._enter(before)

    def run(self) -> None:
        parts = {"embed": "forward", "forward": "loss", "backward": "backward", "update": "optimiser"}
        for method, name in parts.items():  # what is left of `forward` without `embed` is the loss
            setattr(self.trainer, method, self.phase(name)(getattr(self.trainer, method)))
        try:
            if super().run() is not None:
                raise KeyboardInterrupt
        finally:
            for method in parts:
                delattr(self.trainer, method)

    @property
    def finished(self) -> bool:
        return self.left <= 0

    def save(self, name: str) -> None: ...

    def _after_step(self) -> None:
        self._enter(self._phase)
        self.steps.append(dict.fromkeys(PHASES, 0.0))
        self.left -= 1

    def _report_bad(self, batch: SeenBatch, value: float) -> None:
        raise AurankError(f"the loss is {value} at step {batch.step} of the profile; aurank train says of which images")

    def _refresh(self) -> bool:
        if self.again is not None or self.trainer.sampler.refresh_every is None:
            return False
        started = time.perf_counter()
        with self.phase("sampler"):
            due = super()._refresh()
        self.mining_seconds = time.perf_counter() - started if due else self.mining_seconds
        return due

    def _batches(self) -> Iterator[Drawn]:
        batches = super()._batches() if self.again is None else itertools.repeat(self.again)
        while True:
            with self.phase("data"):
                drawn = next(batches, None)
            if drawn is None:
                return
            self.first = self.first or drawn
            self.images_drawn += len(drawn.batch.id) // self.trainer.views
            yield drawn


def profile_training(
    config: Config, *, steps: int = 50, trace: Path | None = None, listener: StepListener | None = None
) -> TrainingProfile:
    """Train for a few steps, to say where their time goes; nothing is written but the trace.

    Args:
        config: what `read_config` returns.
        steps: measured ones, after a warm-up.
        trace: a file for a trace (.json, for Chrome or Perfetto) of three further steps, of the main process.
        listener: called with what is measured, how much of it is done and how much there is, in the main process.

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
        >>> abs(sum(phase.mean for phase in profile.phases.values()) - profile.step.mean) < 1e-9
        True
    """
    if trace is not None:
        require_writable(trace, suffix=".json", option="--trace")
    # For all that is measured, and what workers read ahead: a step of a longer run takes as long.
    least = steps + 200 + 20 * config.data.workers
    train = config.train.model_copy(update={"steps": max(least, config.train.steps), "trackers": []})
    config = config.model_copy(update={"train": train})
    with training_group(config) as group:
        require_same(config, **{"--steps": steps, "--trace": str(trace)})
        trainer, listen = build_trainer(config), listener or (lambda stage, done, total: None)
        device, workers, further = trainer.accelerator.device, trainer.config.data.workers, max(2, min(FURTHER, steps))
        measured = partial(MeasuredLoop, trainer, progress=Progress())
        memory = trainer.loss if isinstance(trainer.loss, CrossBatchMemory) else None
        if memory is not None:
            memory.start_at = min(memory.start_at, 1)  # as it is in most of the run
        listen("steps", 0, steps)
        loop = measured(WARM_UP + steps)
        loop.run()
        times = loop.steps[WARM_UP : WARM_UP + steps]
        used = {"in a process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}  # workers are not in it
        if device.type == "cuda":
            used["on its GPU"] = torch.cuda.max_memory_allocated(device)
        if trace is not None:
            with _traced(trace) if group.rank == 0 else nullcontext():
                measured(TRACED).run()

        listen("steps on one batch", 0, further)
        repeated = measured(1 + further, again=loop.first)
        repeated.run()
        step_alone = sum(sum(step.values()) for step in repeated.steps[1 : 1 + further]) / further

        listen("data alone", 0, further)
        drawn = measured(0).batches(None)
        for _ in range(2 * workers):  # read ahead before all workers are at work
            next(drawn)
        started = time.perf_counter()
        for _ in range(further * trainer.config.train.accumulate):
            next(drawn)
        data_alone = (time.perf_counter() - started) / further

        own = sum(step[name] for step in times for name in ("data", "sampler", "forward", "loss")) / steps
        everyone = group.all_gather((own, used, loop.images_drawn / (WARM_UP + steps), step_alone, data_alone))
        owns, memories, counts, steps_alone, data = zip(*everyone, strict=True)
        notices = [*trainer.notices]
        if max(owns) > 1.1 * float(np.median(owns)):
            slowest = owns.index(max(owns))
            notices.insert(0, f"rank {slowest} is the slowest before its backward pass: the others wait for it")
        if loop.mining_seconds:
            every = trainer.sampler.refresh_every or 1
            notices.insert(0, f"mining took {loop.mining_seconds:.1f} s, every {every} steps")
        if memory is not None and not memory.has_been_filled:
            notices.insert(0, f"the memory of {memory.memory_size:,} embeddings was not full: later steps rank more")
        threads = f"{device.type}, {torch.get_num_threads()} of {processors()} processors"
        return TrainingProfile(
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else threads,
            own_seconds=list(owns),
            workers=workers,
            unit=trainer.task.unit,
            images=sum(counts),
            steps=steps,
            step=PhaseTime.of([sum(step.values()) for step in times]),
            phases={name: PhaseTime.of([step[name] for step in times]) for name in PHASES},
            data_alone=max(data),
            step_alone=max(steps_alone),
            memory={name: max(each[name] for each in memories) for name in used},
            notices=notices,
            is_main=group.rank == 0,
        )


@contextmanager
def _traced(path: Path) -> Iterator[None]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it tells of its own doings, and of a GPU that is not there
    with torch.profiler.profile() as trace:
        yield
    with replacing(path) as file:
        trace.export_chrome_trace(file.name)


def processors() -> int:
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, mine // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
