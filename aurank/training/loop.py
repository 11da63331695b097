"""The training loop: steps, validation, logging and checkpoints that resume bit for bit."""

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from torch import Tensor

from aurank.data import Batch, BatchLoader, ImageDataset, view_keys
from aurank.embedding.checkpoint import fingerprint, save_checkpoint
from aurank.errors import AurankError, UserError
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import TwoWayReport
from aurank.files import write_text
from aurank.training.build import learning_rate
from aurank.training.logs import MetricsFile, collapse_signs, learned_temperature
from aurank.training.optim import set_learning_rate
from aurank.training.parts import Parts
from aurank.training.random_state import random_state
from aurank.training.resume import older_checkpoints
from aurank.training.signals import StopRequest
from aurank.training.state import Before, Progress

Listener = Callable[[str, dict[str, Any]], None]
"""Told what happens: ("step", …), ("validation", …), ("saved", …), ("testing", …), ("tested", …), in the main process.

("notice", {"text": …}) is to be shown. ``skipped`` in a step, a validation or a test counts the unreadable images left
out so far (data.on_error=skip).
"""


class Loop:
    """Trains from ``progress`` to the last step, or until early stopping or a signal."""

    def __init__(self, parts: Parts, out: Path, *, progress: Progress, listener: Listener | None = None) -> None:
        self.parts = parts
        self.out = out
        self.progress = progress
        self.settings = parts.config.train
        self.main = parts.accelerator.is_main_process
        self.listen = listener if listener is not None and self.main else _ignore
        self.metrics = MetricsFile(out / "metrics.jsonl", keep=progress.metrics_bytes) if self.main else None
        self.validation_seconds = 0.0
        self.saved_step = progress.step  # that of last.pt

    def run(self) -> int | None:
        """Train; returns the signal that ended the run early, or None: the same in every process."""
        try:
            with StopRequest() as stop:
                if self.progress.step == 0:
                    self.save("last")
                if self.progress.validation_owed:
                    self._conclude()
                batches: Iterator[tuple[Batch, int, int]] | None = None
                while not self.finished:
                    if self._refreshed() or batches is None:
                        batches = self._batches()
                    self._step(batches)
                    # A signal reaches the processes in different steps, or one of them only; they have to stop at one.
                    received: list[int] = [number for number in gather_object([stop.received]) if number is not None]
                    if received:
                        self.save("last")
                        return received[0]
                self._say_if_early()
                return None
        finally:
            if self.metrics is not None:
                self.metrics.close()

    # -- one step -----------------------------------------------------------------------------------------------

    def _refreshed(self) -> bool:
        """Whether the sampler has taken a new look at the data: batches that were read ahead are then others."""
        every = self.parts.sampler.refresh_every
        due = every is not None and self.progress.step % every == 0
        if due:
            self.parts.sampler.refresh(self.progress.epoch, self.progress.batch)
        return due

    def _batches(self) -> Iterator[tuple[Batch, int, int]]:
        """Batches with their epoch and place in it, from what was consumed so far to the next refresh or the end."""
        progress, sampler = self.progress, self.parts.sampler
        every = sampler.refresh_every or self.settings.steps
        last = min(self.settings.steps, progress.step - progress.step % every + every)
        skips = self.parts.config.data.on_error == "skip"
        # How many are wanted is not known where some may be passed over.
        count = None if skips else (last - progress.step) * self.settings.accumulate
        positions, batches = itertools.tee(itertools.islice(sampler.iterate(progress.epoch, progress.batch), count))
        wanted = (view_keys(rows, epoch, self.parts.views) for epoch, _, rows in batches)
        data = BatchLoader(self.parts.train_data, wanted, workers=self.parts.config.data.workers)
        found = ((batch, epoch, index) for batch, (epoch, index, _) in zip(data, positions, strict=True))
        return self._large_enough(found) if skips else found

    def _large_enough(self, batches: Iterator[tuple[Batch, int, int]]) -> Iterator[tuple[Batch, int, int]]:
        """The batches in which every process could read two images: a batch norm and a pair need as many."""
        passed: tuple[int, int] | None = None
        for batch, epoch, index in batches:
            if min(gather_object([len(batch.id)])) >= 2 * self.parts.views:
                passed = None
                yield batch, epoch, index
            elif passed is None:
                passed = epoch, index
            elif (epoch, index) >= (passed[0] + 1, passed[1]):
                raise too_few_readable(self.parts.train_data)

    def _step(self, batches: Iterator[tuple[Batch, int, int]]) -> None:
        parts, progress = self.parts, self.progress
        started = time.perf_counter()
        rate = learning_rate(parts.config) * parts.schedule(progress.step)
        set_learning_rate(parts.optimiser, rate)
        self.before = Before(parts.module, parts.loss, progress, miner=parts.miner)
        images = 0
        for part in range(self.settings.accumulate):
            batch, epoch, index = next(batches)
            if part == 0:
                parts.set_progress(progress.step, epoch)
            with parts.accelerator.accumulate(parts.encoder):
                embeddings = self._backward(batch, epoch, index)
            progress.epoch, progress.batch = epoch, index + 1
            images += len(batch.id)
        if parts.average is not None:
            parts.average.update(parts.module)
        progress.step += 1
        self.listen(
            "step",
            {
                "step": progress.step,
                "steps": self.settings.steps,
                "loss": progress.loss_sum / progress.loss_count,
                "lr": rate,
                "skipped": len(parts.train_data.skipped),
                "images_per_second": images * parts.accelerator.num_processes / (time.perf_counter() - started),
            },
        )
        self._log(embeddings, rate)
        checkpoint, validation = self._due(self.settings.checkpoint_every), self._due(self.settings.validate_every)
        progress.validation_owed = validation and parts.val_data is not None
        if checkpoint and progress.validation_owed:
            self.save("last")  # so that a validation that fails loses no step
        if validation:
            self._conclude()
        elif checkpoint:
            self.save("last")

    def _conclude(self) -> None:
        """Do the validation that is due at this step, and save what it and the step ask for."""
        improved = self._validate()
        self.progress.validation_owed = False
        if improved:
            self.save("best")
        if self._due(self.settings.checkpoint_every) or self._stopped_early():
            self.save("last")

    def _backward(self, batch: Batch, epoch: int, index: int) -> Tensor:
        parts = self.parts
        embeddings, loss = parts.forward(batch)
        value = float(loss.detach())
        self._check_finite(value, batch, epoch, index)
        parts.backward(loss)
        if parts.config.optim.clip_norm is not None and parts.accelerator.sync_gradients:
            parts.accelerator.clip_grad_norm_(parts.encoder.parameters(), parts.config.optim.clip_norm)
        parts.optimiser.step()
        parts.optimiser.zero_grad()
        self.progress.loss_sum += value
        self.progress.loss_count += 1
        return embeddings.detach()

    def _check_finite(self, value: float, batch: Batch, epoch: int, index: int) -> None:
        """Stop every process when a loss is not finite, before it reaches the weights."""
        if all(gather_object([math.isfinite(value)])):
            return
        rows = dict.fromkeys(batch.id.tolist())  # each once, in how many views it may be
        paths = gather_object([self.parts.train_data.manifest.paths[row] for row in rows])
        step = self.progress.step + 1
        self.before.restore(self.progress)
        self.save("diverged")
        if self.main:
            record = {"step": step, "epoch": epoch, "batch": index, "loss": str(value), "paths": paths}
            write_text(self.out / "diverged.json", json.dumps(record, indent=1) + "\n")
        raise AurankError(
            f"the loss is {value} at step {step} (epoch {epoch}, batch {index}); its image paths are in "
            f"{self.out / 'diverged.json'}, the state before it in {self.out / 'diverged.pt'}; try a lower optim.lr, "
            "optim.clip_norm=1, or look at those images"
        )

    # -- what happens every so many steps -----------------------------------------------------------------------

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.progress.step == self.settings.steps

    @property
    def finished(self) -> bool:
        """Whether no step is left, nor a validation that is due at the last one."""
        progress = self.progress
        return not progress.validation_owed and (progress.step >= self.settings.steps or self._stopped_early())

    def _stopped_early(self) -> bool:
        patience = self.settings.early_stopping
        return patience is not None and self.progress.without_improvement >= patience

    def _say_if_early(self) -> None:
        progress, patience = self.progress, self.settings.early_stopping
        if self._stopped_early() and progress.step < self.settings.steps:
            text = (
                f"stopped early at step {progress.step} of {self.settings.steps}: {patience} validation(s) without "
                f"improvement (train.early_stopping), the best is that of step {progress.best['step']:.0f}"
            )
            self.listen("notice", {"text": text})

    def _log(self, embeddings: Tensor, rate: float) -> None:
        progress = self.progress
        if not self._due(self.settings.log_every):
            return
        record = {
            "step": progress.step,
            "epoch": progress.epoch,
            "loss": progress.loss_sum / progress.loss_count,
            "lr": rate,
            **learned_temperature(self.parts.loss),
            **collapse_signs(self.parts.task.of_images(embeddings)),
        }
        progress.loss_sum, progress.loss_count = 0.0, 0
        self._record(record, prefix="train")

    def _record(self, record: dict[str, Any], *, prefix: str) -> None:
        if self.metrics is not None:
            self.metrics.write({"split": prefix, **record})
        values = {f"{prefix}/{key}": value for key, value in record.items() if key != "step"}
        self.parts.accelerator.log(values, step=record["step"])

    def _validate(self) -> bool:
        """Measure the validation split; whether it is the best so far. Without a split the newest is the best."""
        if self.parts.val_data is None:
            return True
        started = time.perf_counter()
        progress = self.progress
        report = self.measure(self.parts.val_data) if self.main else None
        values = gather_object([report.metrics if report is not None else None])[0]
        self._record({"step": progress.step, **values}, prefix="val")
        chosen_by = self.parts.task.chosen_by
        improved = not progress.best or values[chosen_by] > progress.best[chosen_by]
        if improved:
            progress.best = {"step": float(progress.step), **values}
        progress.without_improvement = 0 if improved else progress.without_improvement + 1
        self.validation_seconds += time.perf_counter() - started
        skipped = len(self.parts.val_data.skipped)
        self.listen("validation", {"step": progress.step, "improved": improved, "skipped": skipped, **values})
        return improved

    def measure(self, data: ImageDataset) -> Report | TwoWayReport:
        """The exact report of the current weights (their moving average where there is one) on a data set."""
        parts = self.parts
        module = parts.module
        own = {name: value.clone() for name, value in module.state_dict().items()} if parts.average else None
        if parts.average is not None:
            module.load_state_dict(parts.average.values)
        try:
            return parts.task.measure(data)
        finally:
            if own is not None:
                module.load_state_dict(own)

    # -- state --------------------------------------------------------------------------------------------------

    def save(self, name: str) -> None:
        """Write ``name``.pt: "best" with the weights and what measuring them needs, else with all to go on from."""
        parts, progress = self.parts, self.progress
        random_states = gather_object([random_state()])
        if not self.main or self.metrics is None:
            return
        progress.metrics_bytes, progress.metrics_sha256 = self.metrics.position()
        content: dict[str, Any] = {
            "config": parts.config.model_dump(mode="json"),
            "manifest": parts.manifest_hash,
            "data": parts.data,
            "progress": vars(progress).copy(),
            "encoder": parts.module.state_dict(),
            "average": None if parts.average is None else parts.average.state_dict(),
            "tokeniser": parts.task.state_dict(),
        }
        if name == "best":
            content["progress"]["best_sha256"] = None  # that of the best before it is not its own
            progress.best_sha256 = fingerprint(content)
            save_checkpoint(self.out / "best.pt", content)
        else:
            scaler = parts.accelerator.scaler
            content |= {
                "loss": parts.loss.state_dict(),
                "miner": {} if parts.miner is None else parts.miner.state_dict(),
                "optimiser": parts.optimiser.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
                "sampler": parts.sampler.state_dict(),
                "random": random_states,
            }
            keep = self.settings.keep_last if name == "last" and progress.step != self.saved_step else 1
            save_checkpoint(self.out / f"{name}.pt", content, displaced=older_checkpoints(self.out, keep))
        if name == "last":
            self.saved_step = progress.step
        self.listen("saved", {"name": name, "step": progress.step})


def _ignore(kind: str, values: dict[str, Any]) -> None:
    """Nothing: a listener that does not listen."""


def too_few_readable(data: ImageDataset) -> UserError:
    """What to raise where no batch of a whole epoch has two readable images."""
    return UserError(
        f"no batch of a whole epoch of {data.manifest.name} has two readable images ({len(data.skipped)} of "
        f"{len(data)} are skipped); data.on_error=raise shows why"
    )
