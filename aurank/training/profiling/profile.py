"""``profile``: real steps of a run, what each of their parts takes, and what to change."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from accelerate.utils import gather_object

from aurank.config import Config
from aurank.files import require_writable
from aurank.losses import CrossBatchMemory
from aurank.training.build import build_splits
from aurank.training.checkpoints.state import Progress, seed_everything
from aurank.training.loop import Drawn
from aurank.training.processes import joined, require_same
from aurank.training.profiling.advice import advise, processors, workers_to_try
from aurank.training.profiling.phases import PHASES, Phases
from aurank.training.profiling.report import PhaseTime, TrainingProfile
from aurank.training.profiling.steps import (
    TRACED,
    WARM_UP,
    MeasuredLoop,
    StepListener,
    Trace,
    read_alone,
    require_steps,
)
from aurank.training.trainer import Trainer

UNEVEN = 1.15  # between two measurements of the same
MOST = 10  # steps of each further measurement


def profile_training(
    config: Config, *, steps: int = 50, trace: Path | None = None, listener: StepListener | None = None
) -> TrainingProfile:
    """Train for a few steps, to say where their time goes; nothing is written but the trace.

    Besides the steps as they are, the loader alone is measured, and steps on one batch again and again. Where images
    are waited for, another number of workers is tried.

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
        >>> found = profile_training(read_config(config), steps=2)
        >>> abs(sum(phase.mean for phase in found.phases.values()) - found.step.mean) < 1e-9
        True
    """
    require_steps(steps)
    if trace is not None:
        require_writable(trace, suffix=".json", option="--trace")
    # For the warm-up, the trace, what is tried and what workers read ahead: a step of a longer run takes as long.
    least = steps + 200 + 20 * (config.data.workers + processors())
    train = config.train.model_copy(update={"steps": max(least, config.train.steps), "trackers": []})
    config = config.model_copy(update={"train": train})
    with joined(config.train.timeout):
        require_same(config, **{"--steps": steps, "--trace": str(trace)})
        seed_everything(config.seed)
        splits = build_splits(config.data, seed=config.seed, texts=config.model.text is not None)
        return _Profiler(Trainer(config, splits), steps, listener).run(trace)


class _Profiler:
    def __init__(self, trainer: Trainer, steps: int, listener: StepListener | None) -> None:
        self.trainer, self.steps, self.listener = trainer, steps, listener
        self.progress = Progress()
        self.phases = Phases(trainer.accelerator.device)
        self.further = max(2, min(MOST, steps))

    def run(self, trace: Path | None) -> TrainingProfile:
        trainer, processes = self.trainer, self.trainer.accelerator.num_processes
        if isinstance(trainer.loss, CrossBatchMemory):
            trainer.loss.start_at = min(trainer.loss.start_at, 1)  # as it is in most of the run
        loop, seconds = self._steps_as_they_are(trace)
        memory = _memory(trainer.accelerator.device)
        images = sum(loop.drawn[WARM_UP : WARM_UP + self.steps]) / self.steps
        step_alone = self._mean_step(self.further, "steps on one batch", 1, again=loop.first)
        batches = self.further * trainer.config.train.accumulate
        data_alone = read_alone(trainer, self.progress, batches) * trainer.config.train.accumulate
        everyone = gather_object([(seconds, memory, images, step_alone, data_alone)])
        own = [sum(sum(step.values()) - step["collectives"] for step in one[0]) / len(one[0]) for one in everyone]
        rank = own.index(max(own))
        seconds = everyone[rank][0]
        found = TrainingProfile(
            device=_device(trainer.accelerator.device),
            processes=processes,
            rank=rank,
            own_seconds=own,
            workers=trainer.config.data.workers,
            unit=trainer.task.unit,
            images=sum(one[2] for one in everyone),
            steps=self.steps,
            warm_up=WARM_UP,
            step=PhaseTime.of([sum(step.values()) for step in seconds]),
            phases={name: PhaseTime.of([step[name] for step in seconds]) for name in PHASES},
            data_alone=max(one[4] for one in everyone),
            step_alone=max(one[3] for one in everyone),
            tried_workers={},
            memory={name: max(one[1][name] for one in everyone) for name in memory},
            notices=trainer.notices,
            is_main=trainer.accelerator.is_main_process,
        )
        if (workers := workers_to_try(found)) is not None:  # the same in every process
            found = replace(found, tried_workers=self._try_workers(workers))
        return replace(found, advice=advise(found, trainer), notices=[*self._notices(loop, found), *found.notices])

    def _steps_as_they_are(self, trace: Path | None) -> tuple[MeasuredLoop, list[dict[str, float]]]:
        measured: list[dict[str, float]] = []
        last = WARM_UP + self.steps
        actions = {WARM_UP: self.phases.begin, last: lambda: measured.extend(self.phases.seconds())}
        if trace is not None and self.trainer.accelerator.is_main_process:
            file = Trace(trace, self.phases)

            def start() -> None:
                measured.extend(self.phases.seconds())
                file.start()

            actions |= {last: start, last + TRACED: file.stop}
        loop = self._loop(last + TRACED * (trace is not None), "steps", actions)
        loop.measure()
        return loop, measured

    def _loop(
        self,
        steps: int,
        stage: str,
        actions: dict[int, Callable[[], None]],
        again: Drawn | None = None,
    ) -> MeasuredLoop:
        return MeasuredLoop(
            self.trainer,
            self.phases,
            progress=self.progress,
            steps=steps,
            stage=stage,
            listener=self.listener,
            actions=actions,
            again=again,
        )

    def _mean_step(self, steps: int, stage: str, warm_up: int, again: Drawn | None = None) -> float:
        """Return the mean seconds of a step, of so many after a warm-up."""
        loop = self._loop(warm_up + steps, stage, {warm_up: self.phases.begin}, again)
        loop.measure()
        return sum(sum(step.values()) for step in self.phases.seconds()) / steps

    def _try_workers(self, workers: int) -> dict[int, float]:
        """Return the seconds of a step with so many workers, and with the present number just before and after."""
        present = self.trainer.config.data.workers
        before = self._with_workers(present)
        tried = self._with_workers(workers)
        return {workers: tried, present: (before + self._with_workers(present)) / 2}

    def _with_workers(self, workers: int) -> float:
        """Return the seconds of a step with so many workers: the slowest process's."""
        trainer = self.trainer
        given = trainer.config
        trainer.config = given.model_copy(update={"data": given.data.model_copy(update={"workers": workers})})
        try:
            # What they have read before the first step is used up by then.
            warm_up = WARM_UP + 2 * workers // given.train.accumulate
            own = self._mean_step(max(self.further, workers), f"steps with data.workers={workers}", warm_up)
        finally:
            trainer.config = given
        everyone: list[float] = gather_object([own])
        return max(everyone)

    def _notices(self, loop: MeasuredLoop, profile: TrainingProfile) -> list[str]:
        """What training does at times, and what was not as it will be."""
        sampler, memory, found = self.trainer.sampler, self.trainer.loss, []
        if sampler.refresh_every is not None:
            each = 1000 * loop.mining_seconds / sampler.refresh_every
            found.append(
                f"the sampler's mining took {loop.mining_seconds:.1f} s before the first step; done every "
                f"{sampler.refresh_every} steps it adds {each:.1f} ms to each"
            )
        if isinstance(memory, CrossBatchMemory) and not memory.has_been_filled:
            found.append(f"the memory of {memory.memory_size:,} embeddings was not full yet: later steps rank more")
        rest = profile.step.mean - profile.phases["data"].mean
        uneven = max(rest / profile.step_alone, profile.step_alone / rest)
        if not profile.workers and profile.processes == 1 and uneven > UNEVEN:  # nothing of its own ran beside
            found.append(
                f"the same step took {1000 * rest:,.1f} ms at first and {1000 * profile.step_alone:,.1f} ms later: "
                "something else runs on this machine, measure again or take more --steps"
            )
        return found


def _memory(device: torch.device) -> dict[str, int]:
    """Bytes at most so far, of this process and of its GPU; workers are not in it."""
    found = {}
    if sys.platform != "win32":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        found["in a process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if device.type == "cuda":
        found["on its GPU"] = torch.cuda.max_memory_allocated(device)
    return found


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} of {processors()} processors"
