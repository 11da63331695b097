"""Batches of an ImageDataset, made here or by worker processes: the same pixels either way."""

import contextlib
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

from aurank.data.dataset import Batch, ImageDataset, Key
from aurank.errors import UserError


def loader(
    dataset: ImageDataset, batches: Iterable[Sequence[Key]], *, workers: int = 0, pin_memory: bool = False
) -> "BatchLoader":
    """Returns a loader of one Batch for each list of keys, in order.

    `batches` may be endless; with workers it is read a few batches ahead of what has been consumed. The global random
    state is neither read nor changed. An error in a worker is raised here, as it was.
    """
    return BatchLoader(dataset, batches, workers=workers, pin_memory=pin_memory)


def evaluation_loader(
    dataset: ImageDataset, *, batch: int, workers: int = 0, pin_memory: bool = False
) -> "BatchLoader":
    """Returns a loader of all images in the order of their rows, not augmented, at most `batch` at a time."""
    if batch < 1:
        raise UserError(f"batch must be at least 1, got {batch}")
    rows: list[Key] = list(range(len(dataset)))
    batches = [rows[start : start + batch] for start in range(0, len(rows), batch)]
    return BatchLoader(dataset, batches, workers=workers, pin_memory=pin_memory)


class BatchLoader(DataLoader[Any]):
    """A DataLoader whose workers are forked where that is safe: they share the parent's images instead of copying."""

    def __init__(
        self, dataset: ImageDataset, batches: Iterable[Sequence[Key]], *, workers: int, pin_memory: bool
    ) -> None:
        if workers < 0:
            raise UserError(f"workers must be at least 0, got {workers}")
        with _quiet_start():
            super().__init__(
                dataset,
                batch_sampler=batches,  # type: ignore[arg-type]  # any sequence serves
                num_workers=workers,
                collate_fn=_as_is,
                pin_memory=pin_memory,
                persistent_workers=workers > 0,
                worker_init_fn=_start_worker if workers else None,
                multiprocessing_context=_context() if workers else None,
                # Its own: DataLoader would draw the workers' seeds from the global generator.
                generator=torch.Generator().manual_seed(0),
            )

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # narrower than torch's private iterator class
        with _quiet_start():
            batches = super().__iter__()
        return _with_plain_errors(batches)


def _with_plain_errors(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Returns the batches; what a worker raised is raised with its own message, without the worker's traceback."""
    try:
        yield from batches
    except UserError as error:
        text = str(error)
        if text.startswith("Caught UserError in DataLoader worker"):
            text = text.rpartition("UserError: ")[2].strip()
        raise UserError(text) from None


def _as_is(batch: Any) -> Any:
    return batch


def _context() -> Any:
    """Returns the fork context on Linux, elsewhere the platform's own: there forking is not safe, or not there."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else None)


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """Returns a context without two warnings that come when workers start.

    More workers than processors is the user's choice. Python 3.12 warns of forking a process that has threads, for the
    locks that such a thread holds; but workers use no thread pool of the parent: torch, OpenCV and the decoding each
    run on one thread there.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        yield


def _start_worker(worker: int) -> None:
    """Leaves signals to the parent, which finishes its step and saves: Ctrl-C and schedulers signal every process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ignore_once)


def _ignore_once(number: int, frame: FrameType | None) -> None:
    # A second one is meant for this worker.
    signal.signal(number, signal.SIG_DFL)
