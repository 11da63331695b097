"""The training loop: steps, validation, logging and checkpoints that resume bit for bit."""

import itertools
import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from aurank.data import Batch, BatchLoader, ImageDataset, view_keys
from aurank.embedding.locations import LAST, SUFFIX
from aurank.embedding.stored.checkpoint import save_checkpoint
from aurank.errors import Diverged, UserError
from aurank.files import write_text
from aurank.losses.core.distributed import Shares
from aurank.training.build import learning_rate
from aurank.training.optim import set_learning_rate, update_average
from aurank.training.state import Progress, random_state
from aurank.training.trainer import Trainer
from aurank.training.watch import LossWatch, collapse_signs, learned_temperature

INSISTING = (signal.SIGINT, signal.SIGTERM)
# SIGHUP comes from a closed terminal, often twice; schedulers send SIGUSR1 before they kill. Windows has neither.
WARNING = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1") if hasattr(signal, name))
Listener = Callable[[str, dict[str, Any]], None]
_LOGGER = logging.getLogger("aurank")
"""Called in the main process with an event and its values.

The events are "step", "validation", "saved", "testing", "measuring", "tested", and "notice" with a text to be shown.
``skipped`` counts the unreadable images left out so far (data.on_error=skip).
"""


@contextmanager
def collecting_signals(received: list[int]) -> Iterator[None]:
    """Append signals to ``received`` while the context lasts; a second SIGINT or SIGTERM interrupts at once."""

    def receive(number: int, frame: FrameType | None) -> None:
        if number in INSISTING and any(earlier in INSISTING for earlier in received):
            raise KeyboardInterrupt
        received.append(number)

    previous: dict[int, Any] = {}
    # Python delivers signals to the main thread only, and lets only that thread install handlers.
    if threading.current_thread() is threading.main_thread():
        for number in (*INSISTING, *WARNING):
            if number in INSISTING or signal.getsignal(number) != signal.SIG_IGN:  # ignored under nohup
                previous[number] = signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


Drawn = tuple[Batch, int, int, Shares | None]
"""A batch of this process, its epoch and its number there; of several processes, the labels and ids of all."""


class Loop:
    """Trains from ``progress`` to the last step, or until early stopping or a signal.

    Args:
        images: the hashes of the images trained on, for checkpoints, by "manifest" and "data".
    """

    def __init__(
        self,
        trainer: Trainer,
        out: Path,
        images: dict[str, Any],
        *,
        progress: Progress,
        listener: Listener | None = None,
        writes: bool = True,
    ) -> None:
        self.trainer = trainer
        self.group = trainer.task.group
        self.out = out
        self.images = images
        self.progress = progress
        self.settings = trainer.config.train
        self.main = trainer.accelerator.is_main_process
        self.listener = listener
        self.writes = writes
        self.metrics: TextIO | None = None
        if self.main and writes:
            self.metrics = (out / "metrics.jsonl").open("a", encoding="utf-8")
            self.metrics.truncate(min(progress.metrics_bytes, self.metrics.tell()))
        self.validation_seconds = 0.0
        self.saved_step = progress.step  # step of the last checkpoint
        self.signals: list[int] = []
        self.batches_seen: list[tuple[int, int, int, Tensor]] = []  # since the last look: step, epoch, batch, ids
        processes, every = trainer.accelerator.num_processes, self.settings.log_every
        self.watch = LossWatch(trainer.accelerator.device, trainer.optimiser, every=every, processes=processes)
        self.last_metrics: dict[str, float] = {}  # last values sent to the listener
        self._started = 0.0  # start of the first step after the last look
        self._images = 0  # images of the steps since then

    def run(self) -> int | None:
        """Train; return the signal that ended the run early, or None: the same in every process."""
        progress = self.progress
        try:
            with collecting_signals(self.signals):
                if progress.step == 0:
                    self.save("last")
                if progress.validation_owed:
                    self._conclude()
                batches = self.batches()
                while not self.finished:
                    self.step(batches)
                    received = next(iter(self.signals), None) if self.group.size == 1 else self.watch.received
                    if received is not None:
                        self.save("last")
                        return received
                if self._stopped_early() and progress.step < self.settings.steps:
                    text = (
                        f"stopped early at step {progress.step} of {self.settings.steps}: "
                        f"{self.settings.early_stopping} validation(s) without improvement (train.early_stopping), "
                        f"the best is that of step {progress.best['step']:.0f}"
                    )
                    self.listen("notice", {"text": text})
                return None
        finally:
            if self.metrics is not None:
                with suppress(OSError):  # flush has raised the error already
                    self.metrics.close()

    # -- batches ------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Drawn]:
        """Yield the batches of the steps to come; where that is due, the sampler first looks at the data anew."""
        progress, sampler, settings = self.progress, self.trainer.sampler, self.settings
        every = sampler.refresh_every or settings.steps
        while True:
            if sampler.refresh_every is not None and progress.step % every == 0:
                sampler.refresh(progress.epoch, progress.batch)
            steps = min(settings.steps - progress.step, every - progress.step % every)
            yield from self._read(steps * settings.accumulate)

    def _read(self, count: int) -> Iterator[Drawn]:
        progress, sampler, trainer = self.progress, self.trainer.sampler, self.trainer
        skips, views = trainer.config.data.on_error == "skip", trainer.views
        labels_of = trainer.train_data.manifest.labels_of
        # Batches with too few readable images are skipped, so the number to draw is not known.
        drawn = itertools.islice(sampler.iterate_ranks(progress.epoch, progress.batch), None if skips else count)
        positions, to_load = itertools.tee(drawn)
        keys = (view_keys(parts[sampler.rank], epoch, views) for epoch, _, parts in to_load)
        loader = BatchLoader(trainer.train_data, keys, workers=trainer.config.data.workers)
        passed: tuple[int, int] | None = None  # first of the consecutive batches that were skipped
        for batch, (epoch, index, parts) in zip(loader, positions, strict=True):
            # Batch norms and pairs need two readable images in every process.
            rows = (
                self.group.all_gather(batch.id) if skips else [torch.from_numpy(np.tile(part, views)) for part in parts]
            )
            if not skips or min(map(len, rows)) >= 2 * views:
                passed, count = None, count - 1
                rank_labels = [torch.from_numpy(labels_of(ids.numpy())) for ids in rows]
                yield batch, epoch, index, (rank_labels, rows) if len(parts) > 1 else None
                if count == 0:
                    return
            elif passed is None:
                passed = epoch, index
            elif (epoch, index) >= (passed[0] + 1, passed[1]):
                raise too_few_readable(trainer.train_data)

    # -- one step -----------------------------------------------------------------------------------------------

    def step(self, batches: Iterator[Drawn]) -> None:
        trainer, progress, watch, settings = self.trainer, self.progress, self.watch, self.settings
        if not self._images:
            self._started = time.perf_counter()
        rate = learning_rate(trainer.config) * trainer.schedule(progress.step)
        set_learning_rate(trainer.optimiser, rate)
        for part in range(settings.accumulate):
            batch, epoch, index, shares = next(batches)
            if part == 0:
                trainer.set_progress(progress.step, epoch)
                trainer.restore_order(batch)
            is_last = part == settings.accumulate - 1
            with nullcontext() if is_last else trainer.accelerator.no_sync(trainer.encoder):
                embeddings, loss = trainer.forward(batch, shares)
                watch.add(loss.detach(), {} if trainer.sum is None else trainer.sum.last_terms)
                self.batches_seen.append((progress.step + 1, epoch, index, batch.id))
                if is_last:
                    watch.share(next(iter(self.signals), None))
                trainer.backward(loss if trainer.accelerator.scaler is None else watch.marked(loss))
            progress.epoch, progress.batch = epoch, index + 1
            self._images += len(batch.id) * trainer.accelerator.num_processes
        if trainer.config.optim.clip_norm is not None:
            trainer.accelerator.clip_grad_norm_(trainer.encoder.parameters(), trainer.config.optim.clip_norm)
        if watch.guard():
            self._look()
        trainer.update()
        if trainer.average is not None and settings.ema is not None:
            update_average(trainer.average, trainer.model, decay=settings.ema, step=progress.step)
        progress.step += 1
        due = (settings.log_every, settings.checkpoint_every, settings.validate_every)
        if watch.steps is None or watch.steps >= watch.every or any(map(self._due, due)):
            self._look()
        if not self.batches_seen:  # the device has no work left
            self.last_metrics["images_per_second"] = self._images / (time.perf_counter() - self._started)
            self._images = 0
        skipped = len(trainer.train_data.skipped) if trainer.config.data.on_error == "skip" else 0
        done = {"step": progress.step, "steps": settings.steps}
        self.listen("step", {**done, **self.last_metrics, "lr": rate, "skipped": skipped})
        if self._due(settings.log_every):
            mean = progress.loss_sum / progress.loss_count
            terms = {f"loss {name}": total / progress.loss_count for name, total in progress.term_sums.items()}
            signs = {**learned_temperature(trainer.loss), **collapse_signs(embeddings.detach())}
            record = {"step": progress.step, "epoch": epoch, "loss": mean, **terms, "lr": rate, **signs}
            progress.loss_sum, progress.loss_count, progress.term_sums = 0.0, 0, {}
            self._record(record, split="train")
        checkpoint, validation = self._due(settings.checkpoint_every), self._due(settings.validate_every)
        progress.validation_owed = validation and trainer.val_data is not None
        if checkpoint and (progress.validation_owed or not validation):
            self.save("last")  # a validation may fail
        if validation:
            self._conclude()

    def listen(self, kind: str, values: dict[str, Any]) -> None:
        if not self.main:
            return
        if self.listener is not None:
            self.listener(kind, values)
        if kind == "notice":
            _LOGGER.info("%s", values["text"])

    def _look(self) -> None:
        progress = self.progress
        losses, terms, is_bad = self.watch.look()
        batches, self.batches_seen = self.batches_seen, []
        if is_bad:
            self._report_bad(*batches[len(losses) - 1], losses[-1])
        for loss in losses:
            progress.loss_sum += loss
            progress.loss_count += 1
        for name, values in terms.items():
            for value in values:
                progress.term_sums[name] = progress.term_sums.get(name, 0.0) + value
        if losses:
            self.last_metrics["loss"] = progress.loss_sum / progress.loss_count

    def _report_bad(self, step: int, epoch: int, index: int, ids: Tensor, value: float) -> None:
        rows = dict.fromkeys(ids.tolist())  # each image once, however many views it has
        everyone = self.group.all_gather((value, [self.trainer.train_data.manifest.paths[row] for row in rows]))
        value = next(value for value, _ in everyone if not math.isfinite(value))
        paths = [path for _, paths in everyone for path in paths]
        record_path, saved = self.out / "diverged.json", ""
        if self.writes:
            if self.main:
                record = {"step": step, "epoch": epoch, "batch": index, "loss": str(value), "paths": paths}
                write_text(record_path, json.dumps(record, indent=1) + "\n")
            saved = (
                f"; its image paths are in {record_path}, the weights of step {self.saved_step} in {self.out / LAST}"
            )
        raise Diverged(
            f"the loss is {value} at step {step} (epoch {epoch}, batch {index}){saved}; "
            "try a lower optim.lr, optim.clip_norm=1, or look at those images"
        )

    # -- what happens every so many steps -----------------------------------------------------------------------

    def _due(self, every: int) -> bool:
        return self.progress.step % every == 0 or self.progress.step == self.settings.steps

    def _conclude(self) -> None:
        improved = self._validate()
        self.progress.validation_owed = False
        if improved:
            self.save("best")
        if self._due(self.settings.checkpoint_every) or self._stopped_early():
            self.save("last")

    @property
    def finished(self) -> bool:
        progress = self.progress
        return not progress.validation_owed and (progress.step >= self.settings.steps or self._stopped_early())

    def _stopped_early(self) -> bool:
        patience = self.settings.early_stopping
        return patience is not None and self.progress.without_improvement >= patience

    def _record(self, record: dict[str, Any], *, split: str) -> None:
        if self.metrics is not None:
            # NaN and infinity, which JSON has not, become null.
            odd = [key for key, value in record.items() if isinstance(value, float) and not math.isfinite(value)]
            self.metrics.write(json.dumps({"split": split, **record, **dict.fromkeys(odd)}) + "\n")
            self.metrics.flush()
        values = {f"{split}/{key}": value for key, value in record.items() if key != "step"}
        self.trainer.accelerator.log(values, step=record["step"])
        if self.main and self.metrics is not None:
            numbers = (f"{key} {value:.4g}" for key, value in record.items() if isinstance(value, float))
            _LOGGER.info("step %d of %d, %s: %s", record["step"], self.settings.steps, split, ", ".join(numbers))

    def _validate(self) -> bool:
        """Measure the validation split; return whether it is the best so far, as the newest is without a split."""
        trainer, progress = self.trainer, self.progress
        if trainer.val_data is None:
            return True
        started = time.perf_counter()
        report = trainer.task.measure(trainer.measured, trainer.val_data)
        values = report.metrics
        self._record({"step": progress.step, **values}, split="val")
        chosen_by = trainer.task.chosen_by
        improved = not progress.best or values[chosen_by] > progress.best[chosen_by]
        if improved:
            progress.best = {"step": float(progress.step), **values}
        progress.without_improvement = 0 if improved else progress.without_improvement + 1
        self.validation_seconds += time.perf_counter() - started
        skipped = len(trainer.val_data.skipped)
        self.listen("validation", {"step": progress.step, "improved": improved, "skipped": skipped, **values})
        return improved

    def save(self, name: str) -> None:
        """Write a checkpoint, "best" to measure or "last" to resume from; Diverged if weights are not finite."""
        self._look()
        trainer, progress = self.trainer, self.progress
        parameters = itertools.chain(trainer.model.parameters(), trainer.loss.parameters())
        is_finite = all(bool(parameter.isfinite().all()) for parameter in parameters)
        gathered = self.group.all_gather((is_finite, random_state()))
        if not all(finite for finite, _ in gathered):
            raise Diverged(
                f"the weights are not finite after step {progress.step}; those of step {self.saved_step} stay in "
                f"{self.out / LAST}; try a lower optim.lr, or optim.clip_norm=1"
            )
        if name == "last":
            self.saved_step = progress.step  # set in every process: errors name it
        if self.metrics is None:
            return
        os.fsync(self.metrics.fileno())
        progress.metrics_bytes = os.fstat(self.metrics.fileno()).st_size
        average = None if trainer.average is None else dict(trainer.measured.state_dict())
        content: dict[str, Any] = {
            "config": trainer.config.model_dump(mode="json"),
            **self.images,
            "progress": vars(progress),
            "encoder": trainer.model.state_dict(),
            "average": None if average is None else {"updates": progress.step, "values": average},
            "tokeniser": trainer.task.state_dict(),
        }
        if name == "last":
            scaler = trainer.accelerator.scaler
            content |= {
                "loss": trainer.loss.state_dict(),
                "miner": {} if trainer.miner is None else trainer.miner.state_dict(),
                "optimiser": trainer.optimiser.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
                "sampler": trainer.sampler.state_dict(),
                "random": [state for _, state in gathered],
            }
        save_checkpoint(self.out / f"{name}{SUFFIX}", content)
        self.listen("saved", {"name": name, "step": progress.step})


def too_few_readable(data: ImageDataset) -> UserError:
    return UserError(
        f"no batch of a whole epoch of {data.manifest.name} has two readable images ({len(data.skipped)} of "
        f"{len(data)} are skipped); data.on_error=raise shows why"
    )
