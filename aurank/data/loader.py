"""Batches of an ImageDataset, and whatever else is made of many items, here or by worker processes."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader

from aurank.data.dataset import Batch, ImageDataset, Key
from aurank.errors import AurankError, UserError, explained, first_line

_SMALL = 2**18  # bytes
_PLAIN = (torch.uint8, torch.int64, torch.float32)  # types that arrays have too
_FEW = 512  # items: fewer are made by threads, more by processes
_inherited: list[Iterator[Batch]] = []
_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class BatchLoader(DataLoader[Any]):
    """One Batch for each list of keys, in order, made here or by workers; neither changes a pixel.

    The global random state is neither read nor changed. Where there is a CUDA device, batches are in pinned memory,
    which is copied to it without waiting.

    Args:
        batches: may be endless; with workers it is read a few batches ahead of what has been consumed.
        workers: processes that make batches, 0 for none. They are forked where that is safe: they then share the
            parent's images instead of copying. An error in a worker is raised here, as it was.

    Example:
        >>> from aurank.data import READERS, TRANSFORMS, ImageDataset, view_keys
        >>> digits = READERS["digits"](None).split("train")
        >>> dataset = ImageDataset(digits, TRANSFORMS["resize"](8, 1), channels=1)
        >>> [len(batch.id) for batch in BatchLoader(dataset, [view_keys([0, 1, 2], epoch=0), view_keys([3], epoch=0)])]
        [3, 1]
    """

    def __init__(self, dataset: ImageDataset, batches: Iterable[Sequence[Key]], *, workers: int = 0) -> None:
        with _quietly():
            super().__init__(
                dataset,
                batch_sampler=batches,  # type: ignore[arg-type]  # any sequence serves
                num_workers=workers,
                # What is pinned has to be tensors.
                collate_fn=Batch._make if torch.cuda.is_available() else _packed,
                pin_memory=torch.cuda.is_available(),
                worker_init_fn=_start_worker if workers else None,
                multiprocessing_context=_context() if workers else None,
                # Its own: DataLoader would draw the workers' seeds from the global generator.
                generator=torch.Generator().manual_seed(0),
            )

    def __iter__(self) -> "Iteration":  # type: ignore[override]  # not torch's private iterator class
        with _quietly():
            return Iteration(super().__iter__())


class Iteration:
    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        # The finaliser holds torch's iterator until it has run, so that no cycle can collect it before.
        self.close = weakref.finalize(self, _shut_down, batches, os.getpid())

    def __iter__(self) -> "Iteration":
        return self

    def __next__(self) -> Any:
        if not self.close.alive:
            raise StopIteration
        try:
            received = next(self._batches)
        except UserError as error:
            self.close()
            is_workers = str(error).startswith("Caught UserError in DataLoader worker")
            raise UserError(str(error).rpartition("UserError: ")[2].strip() if is_workers else str(error)) from None
        except BaseException as error:
            message = explained(error)
            try:
                self.close()
            except RuntimeError as late:  # torch tells of a dead worker at whatever the process does next
                message = message or explained(late)
            if message is None and isinstance(error, ConnectionError | EOFError):  # nobody is at the other end
                message = explained(RuntimeError(f"DataLoader worker is gone: {first_line(error)}"))
            if message is not None:
                raise AurankError(message) from error
            raise
        if not isinstance(received, Batch):
            return received
        parts: Iterator[Any] = iter(received)
        return Batch._make(torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in parts)


def made_of_each(make: Callable[[_Item], _Made], items: Sequence[_Item], *, at_once: int = 1) -> Iterator[_Made]:
    """Yield what `make` returns for each item, in order: by threads, or of many items by processes."""
    workers, is_daemon = min(8, os.cpu_count() or 1), multiprocessing.current_process().daemon
    if sys.platform != "linux" or is_daemon or workers == 1 or len(items) < _FEW:
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(make, items)
        return
    with _quietly():
        loader: DataLoader[Any] = DataLoader(
            items,  # type: ignore[arg-type]  # any sequence serves
            batch_size=at_once,
            num_workers=workers,
            collate_fn=lambda part: [*map(make, part)],
            worker_init_fn=_start_worker,
            multiprocessing_context=_context(),
            generator=torch.Generator().manual_seed(0),
        )
        batches = Iteration(iter(loader))
    try:
        for made in batches:
            yield from made
    finally:
        batches.close()


def _shut_down(batches: Iterator[Batch], owner: int) -> None:
    """End the workers of an iterator, in the process that started them; elsewhere keep it from being collected."""
    if os.getpid() != owner:
        _inherited.append(batches)
    elif hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()


def _packed(batch: Any) -> Any:
    """Make arrays of small tensors, which pass through the pipe instead of shared memory."""
    small = [value.nbytes <= _SMALL and value.dtype in _PLAIN and not value.requires_grad for value in batch]
    return Batch._make(value.numpy() if is_small else value for value, is_small in zip(batch, small, strict=True))


def _context() -> Any:
    return multiprocessing.get_context("fork" if sys.platform == "linux" else None)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Hide warnings: of more workers than processors, which the user chose; of forking."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
        yield


def _start_worker(worker: int) -> None:
    for name in ("SIGINT", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):  # not all of them on Windows
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    # Of SIGTERM the first: a second one is meant for this worker.
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:  # torch's own watch waits for ever where a pipe is full
        while parent is not None and os.getppid() == parent.pid:
            time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=end_with_parent, daemon=True).start()
