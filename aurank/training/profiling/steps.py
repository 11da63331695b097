"""Real training steps that leave nothing behind: with their data, on one batch again and again, and the data alone."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from aurank.errors import AurankError, UserError
from aurank.files import replacing
from aurank.training.checkpoints.state import Progress
from aurank.training.loop import Drawn, Loop
from aurank.training.profiling.phases import Phases, watched
from aurank.training.trainer import Trainer

WARM_UP = 5
TRACED = 3  # steps of a trace: more make files that no viewer opens
StepListener = Callable[[str, int, int], None]
"""Called with what is measured, how many of its steps are done and how many there are."""


class MeasuredLoop(Loop):
    """The loop of training for a number of steps, without validations and checkpoints.

    Args:
        actions: called after that many steps; what is due after 0 before the first.
        again: a batch that takes the place of all others.

    Attributes:
        first: the first batch, the same one in all processes.
        drawn: images of each step so far.
    """

    def __init__(
        self,
        trainer: Trainer,
        phases: Phases,
        *,
        progress: Progress,
        steps: int,
        stage: str,
        listener: StepListener | None = None,
        actions: dict[int, Callable[[], None]] | None = None,
        again: Drawn | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aurank-profile-")
        super().__init__(trainer, Path(self._folder.name), {}, progress=progress)
        if trainer.accelerator.num_processes > 1:  # where it waits for the small tensor that goes round
            setattr(self.watch, "guard", phases.timed("collectives", self.watch.guard))  # noqa: B010 (a method)
        self.phases, self.steps, self.stage = phases, steps, stage
        self.draw = listener if listener is not None and self.main else lambda stage, done, total: None
        self.actions, self.again, self.done = actions or {}, again, 0
        self.mining_seconds = 0.0
        self.first: Drawn | None = None
        self.drawn: list[int] = [0]

    def measure(self) -> None:
        """Run the steps; raise AurankError where the loss is not finite."""
        with self._folder, watched(self.trainer, self.phases):
            self._act()
            try:
                stopped_by = self.run()
            except AurankError as error:
                found = self.out / "diverged.json"
                if not found.exists():
                    raise
                record = json.loads(found.read_text(encoding="utf-8"))
                raise AurankError(
                    f"the loss is {record['loss']} at step {record['step']} of the profile; aurank train, which stops "
                    "there too, says which images were in the batch"
                ) from error
        if stopped_by is not None:
            raise KeyboardInterrupt

    def _act(self) -> None:
        self.draw(self.stage, self.done, self.steps)
        self.actions.get(self.done, lambda: None)()

    @property
    def finished(self) -> bool:
        return self.done >= self.steps

    def save(self, name: str) -> None:
        """Save nothing."""

    def _after_step(self) -> None:
        """Neither validate nor save."""

    def _refresh(self) -> bool:
        if self.again is not None or self.trainer.sampler.refresh_every is None:
            return False
        started = time.perf_counter()
        with self.phases("sampler"):
            due = super()._refresh()
        if due:
            self.mining_seconds = time.perf_counter() - started
        return due

    def _batches(self) -> Iterator[Drawn]:
        if self.again is not None:
            return self._kept(self._repeated(self.again))
        return self._kept(self.phases.awaited(super()._batches()))

    def _repeated(self, again: Drawn) -> Iterator[Drawn]:
        while True:
            yield again

    def _kept(self, batches: Iterator[Drawn]) -> Iterator[Drawn]:
        for found in batches:
            self.first = self.first or found
            self.drawn[-1] += len(found.batch.id) // self.trainer.views
            yield found

    def _step(self, batches: Iterator[Drawn]) -> None:
        super()._step(batches)
        self.phases.end_step()
        self.done += 1
        self.drawn.append(0)
        self._act()


def read_alone(trainer: Trainer, progress: Progress, batches: int) -> float:
    """Return the seconds that the loader takes for a batch when nothing else is done.

    With workers after what they read ahead, so that they are all at work; past a refresh of the sampler, whose rows
    before and after it are read alike.
    """
    with tempfile.TemporaryDirectory(prefix="aurank-profile-") as folder:
        loop = Loop(trainer, Path(folder), {}, progress=progress)
        try:
            workers, found = trainer.config.data.workers, loop.batches(None)
            for _ in range(2 * workers):
                next(found)
            count = max(batches, 2 * workers)
            started = time.perf_counter()
            for _ in range(count):
                next(found)
            return (time.perf_counter() - started) / count
        finally:
            if loop.metrics is not None:
                loop.metrics.close()


class Trace:
    """A trace of torch.profiler, which Chrome and Perfetto show, written whole or not at all by `stop`."""

    def __init__(self, path: Path, phases: Phases) -> None:
        self.path, self.phases = path, phases
        self._running = ExitStack()

    def start(self) -> None:
        """Begin the trace; the phases are in it by their names."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it tells of its own doings, and of a GPU that is not there
        kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if torch.cuda.is_available() else [ProfilerActivity.CPU]
        self._profile: Any = self._running.enter_context(profile(activities=kinds))
        self.phases.labelled = True

    def stop(self) -> None:
        """End the trace and write it.

        Raises:
            AurankError: the file cannot be written.
        """
        self.phases.labelled = False
        self._running.close()
        with tempfile.TemporaryDirectory(prefix="aurank-profile-") as folder:
            file = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(file))
            content = file.read_bytes() if file.exists() else b""
        if not content.rstrip().endswith(b"}"):  # torch says nothing where its own disk is full
            raise AurankError(f"cannot save {self.path}: torch could not write the trace to {folder}")
        with replacing(self.path) as target:
            target.write(content)


def require_steps(steps: int) -> None:
    """Raise UserError unless there is a step to measure."""
    if steps < 1:
        raise UserError(f"steps must be at least 1, got {steps}")
