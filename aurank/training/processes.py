"""The processes of a run: how they join, agree, are asked to stop, and what is said when one of them is gone."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import gather_object
from jaxtyping import Int64
from torch import Tensor

from aurank.config import Config, config_difference
from aurank.errors import AurankError, UserError
from aurank.launched import launched
from aurank.sizes import seconds
from aurank.training.liveness import Liveness

Result = TypeVar("Result")

INSISTING = (signal.SIGINT, signal.SIGTERM)
# A closed terminal, which often sends it twice, and what schedulers send some time before they kill. Not on Windows.
WARNING = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1") if hasattr(signal, name))


class StopRequest:
    """While entered, keeps the first of the signals in ``received``: the run ends after its step, and saves.

    A second SIGINT or SIGTERM interrupts at once. SIGHUP that is ignored, as under nohup, stays so.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._insisted = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Python delivers signals to the main thread only, and lets only that thread install handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (*INSISTING, *WARNING):
                if number in INSISTING or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._insisted and number in INSISTING:
            raise KeyboardInterrupt
        self._insisted |= number in INSISTING
        self.received = self.received or number


def on_cpu() -> bool:
    """Return whether Accelerate has to be told that there are no GPUs: it would not join processes without them."""
    return launched() > 1 and not torch.cuda.is_available()


@contextmanager
def joined(timeout: str) -> Iterator[None]:
    """Join the processes that were launched while the context lasts; of one alone, do nothing.

    One that ends, or shows no sign of life, is named in one line, in every other. Accelerate keeps the settings of an
    Accelerator in a class: they are reset in the end, as the next run may ask for others.

    Raises:
        AurankError: another process is gone, or does not come within ``timeout``.
    """
    try:
        if launched() == 1:
            yield
            return
        with Liveness(timeout) as life:
            given = {"store": life.store, "rank": life.rank, "world_size": life.size}
            PartialState(cpu=on_cpu(), timeout=timedelta(seconds=seconds(timeout)), **given)
            yield
    finally:
        AcceleratorState._reset_state(reset_partial_state=False)


def together(work: Callable[[], Result]) -> Result:
    """Return what ``work`` returns; where it fails in one process, fail in all of them, with its message."""
    try:
        result = work()
    except AurankError as error:
        gather_object([(isinstance(error, UserError), f"rank {os.environ.get('RANK', '0')}: {error}")])
        raise
    failures: list[tuple[bool, str]] = gather_object([])
    for mistake, text in failures:
        raise UserError(text) if mistake else AurankError(text)
    return result


class HostExchange:
    """Tells all processes which images each of them has, from host to host: no device is waited for."""

    def __init__(self, device: torch.device) -> None:
        # Processes that are joined by their devices alone cannot send what is on the host.
        self._group: Any = None if device.type == "cpu" else torch.distributed.new_group(backend="gloo")

    def rows(self, own: Int64[Tensor, " row"], *, at_most: int) -> list[Int64[Tensor, " row"]]:
        """Return the rows of each process, of which none has more than ``at_most``."""
        sent = torch.zeros(at_most + 1, dtype=torch.int64)
        sent[0], sent[1 : len(own) + 1] = len(own), own
        found = [torch.empty_like(sent) for _ in range(launched())]
        torch.distributed.all_gather(found, sent, group=self._group)
        return [each[1 : int(each[0]) + 1] for each in found]


def differences(saved: Config, given: Config) -> list[str]:
    """Return the settings that differ, as "key: saved != given", but for those that cannot change a result."""
    harmless: tuple[str, ...] = (
        *("data.workers", "data.root", "data.cache", "data.repeated", "data.odd_classes"),
        *("train.timeout", "train.trackers", "train.sharded"),
    )
    if (saved.data.prepared is None) == (given.data.prepared is None):
        harmless += ("data.prepared",)  # what the folder holds is compared, wherever it lies
    return [line for line in config_difference(saved, given) if not line.startswith(harmless)]


def require_same(config: Config, **others: object) -> None:
    """Raise UserError where the processes were started with different options, naming each of these and the ranks."""
    everyone: list[tuple[Config, dict[str, object]]] = gather_object([(config, others)])
    first, first_others = everyone[0]
    for rank, (settings, values) in enumerate(everyone):
        found = differences(first, settings)
        found += [
            f"{name}: {first_others[name]} != {value}" for name, value in values.items() if first_others[name] != value
        ]
        if found:
            raise UserError(
                f"rank 0 and rank {rank} were started with different options (rank 0 != rank {rank}): "
                f"{'; '.join(found)}; start every process with the same command"
            )
