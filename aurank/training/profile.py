"""``profile``: real steps of a run that leave nothing behind, what each of their parts takes, and what to change."""

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
from aurank.errors import AurankError
from aurank.files import replacing, require_writable
from aurank.losses import CrossBatchMemory
from aurank.training.components import read_config
from aurank.training.loop import Drawn, Loop
from aurank.training.run import require_same, training_group
from aurank.training.state import Progress
from aurank.training.trainer import Trainer, build_trainer
from aurank.training.watch import SeenBatch

WARM_UP = 5
FURTHER = 10  # steps at most whose data are read alone
TRACED = 3  # steps of a trace: more make files that no viewer opens
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
    "data": "more data.workers, data.cache or aurank data prepare",
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
class TrainingProfile:
    """Where the time of a training step went, in seconds.

    Attributes:
        own_seconds: of each process, the mean of a step before its backward pass, in which it waits for the others.
        images: the mean of a step, over all processes.
        phases: the mean, median and p90 of each phase of a step of the main process, and of the whole, "step".
        data_alone: of a step's batches from the loader while nothing else runs.
        is_main: whether this is the process that has to print.

    Example:
        >>> phases = {"data": {"mean": 0.4}, "loss": {"mean": 0.6}, "step": {"mean": 1.0}}
        >>> profile = TrainingProfile("cpu", [1.0], 0, "images", 64.0, 5, phases, 0.4)
        >>> profile.images_per_second, profile.bottleneck, profile.bound, profile.share("loss")
        (64.0, 'loss', 0.6, 0.6)
    """

    device: str
    own_seconds: list[float]
    workers: int
    unit: str
    images: float
    steps: int
    phases: dict[str, dict[str, float]]
    data_alone: float
    notices: list[str] = field(default_factory=list)
    is_main: bool = True

    @property
    def images_per_second(self) -> float:
        """Images of all processes, or pairs, by the mean of the steps."""
        return self.images / self.phases["step"]["mean"]

    @property
    def step_alone(self) -> float:
        """Seconds of a step without waiting for data."""
        return self.phases["step"]["mean"] - self.phases["data"]["mean"]

    @property
    def bottleneck(self) -> str:
        """The phase that bounds training: the data where reading them alone takes longer than the step alone."""
        if self.data_alone > self.step_alone:
            return "data"
        return max(self.phases.keys() - {"data", "step"}, key=self.share)

    @property
    def bound(self) -> float:
        """Seconds of a step if reading and computing hid behind each other: the longer of both alone."""
        return max(self.data_alone, self.step_alone)

    def share(self, name: str) -> float:
        return self.phases[name]["mean"] / self.phases["step"]["mean"]

    @property
    def advice(self) -> list[str]:
        """What would change the phases that take most, at most three."""
        largest = sorted(self.phases.keys() - {"step"}, key=self.share, reverse=True)[:3]
        lines = {name: f"{name}: {100 * self.share(name):.0f} %; try {ADVICE[name]}" for name in largest}
        return [line for name, line in lines.items() if self.share(name) >= 0.1]

    def to_json(self) -> dict[str, Any]:
        names = ("images_per_second", "bottleneck", "step_alone", "bound", "advice")
        derived = {name: getattr(self, name) for name in names}
        return {name: value for name, value in {**asdict(self), **derived}.items() if name != "is_main"}

    def __str__(self) -> str:
        processes = len(self.own_seconds)
        where = f"{self.device}, {processes} process{'es' * (processes > 1)}, data.workers={self.workers}"
        lines = [f"{self.steps} steps of {self.images:,.0f} {self.unit}, after {WARM_UP} to warm up", where, ""]
        lines += [f"{'':<24}{'ms a step':>10}{'share':>9}{'median':>11}{'90 %':>11}"]
        for name, text in {**PHASES, "step": "step"}.items():
            mean, median, p90 = (1000 * seconds for seconds in self.phases[name].values())
            if mean > 0:
                share = f"{100 * self.share(name):.0f} %"
                lines.append(f"{text:<24}{mean:>10,.1f}{share:>9}{median:>11,.1f}{p90:>11,.1f}")
        lines += ["", f"{'':<24}{'ms a step':>10}{f'{self.unit}/s':>13}"]
        alone = {"now": self.phases["step"]["mean"], "data alone": self.data_alone, "step alone": self.step_alone}
        for name, seconds in {**alone, "bound": self.bound}.items():
            lines.append(f"{name:<24}{1000 * seconds:>10,.1f}{self.images / seconds:>13,.0f}")
        return "\n".join([*lines, "", *self.advice, *self.notices])


class MeasuredLoop(Loop):
    """Training for some steps without validations and checkpoints, by a clock that is always in exactly one phase.

    On a GPU the clock waits for the device between phases. Traces name the phases.
    """

    def __init__(self, trainer: Trainer, steps: int) -> None:
        super().__init__(trainer, Path(), {}, progress=Progress(), writes=False)
        self.left, self.images_drawn = steps, 0
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
        with self.phase("sampler") if self.trainer.sampler.refresh_every else nullcontext():
            return super()._refresh()

    def _batches(self) -> Iterator[Drawn]:
        batches = super()._batches()
        while True:
            with self.phase("data"):
                drawn = next(batches, None)
            if drawn is None:
                return
            self.images_drawn += len(drawn.batch.id) // self.trainer.views
            yield drawn


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
        >>> abs(sum(profile.share(name) for name in profile.phases) - 2) < 1e-9  # the phases, and their sum
        True
    """
    if trace is not None:
        require_writable(trace, suffix=".json", option="--trace")
    config = read_config(config, overrides)
    # For all that is measured, and what workers read ahead: a step of a longer run takes as long.
    least = steps + 200 + 20 * config.data.workers
    train = config.train.model_copy(update={"steps": max(least, config.train.steps), "trackers": []})
    config = config.model_copy(update={"train": train})
    with training_group(config) as group:
        require_same(config, **{"--steps": steps, "--trace": str(trace)})
        trainer, listen = build_trainer(config), listener or (lambda stage, done, total: None)
        workers, further = trainer.config.data.workers, max(2, min(FURTHER, steps))
        if isinstance(trainer.loss, CrossBatchMemory):
            trainer.loss.start_at = min(trainer.loss.start_at, 1)  # as it is in most of the run
        listen("steps", 0, steps)
        loop = MeasuredLoop(trainer, WARM_UP + steps)
        loop.run()
        times = [{**step, "step": sum(step.values())} for step in loop.steps[WARM_UP : WARM_UP + steps]]
        if trace is not None:
            with _traced(trace) if group.rank == 0 else nullcontext():
                MeasuredLoop(trainer, TRACED).run()

        listen("data alone", 0, further)
        batches = MeasuredLoop(trainer, 0).batches(None)
        for _ in range(2 * workers):  # read ahead before all workers are at work
            next(batches)
        started = time.perf_counter()
        for _ in range(further * trainer.config.train.accumulate):
            next(batches)
        data_alone = (time.perf_counter() - started) / further

        own = sum(step[name] for step in times for name in ("data", "sampler", "forward", "loss")) / steps
        everyone = group.all_gather((own, loop.images_drawn / (WARM_UP + steps), data_alone))
        own_seconds, counts, data = zip(*everyone, strict=True)
        notices = [*trainer.notices]
        if max(own_seconds) > 1.1 * float(np.median(own_seconds)):
            slowest = own_seconds.index(max(own_seconds))
            notices.insert(0, f"rank {slowest} is the slowest before its backward pass: the others wait for it")
        return TrainingProfile(
            device=str(trainer.accelerator.device),
            own_seconds=list(own_seconds),
            workers=workers,
            unit=trainer.task.unit,
            images=sum(counts),
            steps=steps,
            phases={name: _summary([step[name] for step in times]) for name in (*PHASES, "step")},
            data_alone=max(data),
            notices=notices,
            is_main=group.rank == 0,
        )


def _summary(seconds: list[float]) -> dict[str, float]:
    mean, median, p90 = np.mean(seconds), np.median(seconds), np.quantile(seconds, 0.9)
    return {"mean": float(mean), "median": float(median), "p90": float(p90)}


@contextmanager
def _traced(path: Path) -> Iterator[None]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it tells of its own doings, and of a GPU that is not there
    with torch.profiler.profile() as trace:
        yield
    with replacing(path) as file:
        trace.export_chrome_trace(file.name)
