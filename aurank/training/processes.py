"""The processes of a run: how they join, agree and are asked to stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from accelerate.state import AcceleratorState

from aurank.config import Config, config_difference
from aurank.distributed import ProcessGroup, joined
from aurank.errors import UserError

INSISTING = (signal.SIGINT, signal.SIGTERM)
# A closed terminal, which often sends it twice, and what schedulers send some time before they kill. Not on Windows.
WARNING = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1") if hasattr(signal, name))


class StopRequest:
    """While entered, keeps the first signal in ``received``; a second SIGINT or SIGTERM interrupts at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._insisted = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Python delivers signals to the main thread only, and lets only that thread install handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (*INSISTING, *WARNING):
                if number in INSISTING or signal.getsignal(number) != signal.SIG_IGN:  # ignored under nohup
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


@contextmanager
def training_group(config: Config) -> Iterator[ProcessGroup]:
    """Join the processes that were launched to train; Accelerate forgets its settings in the end."""
    try:
        with joined(config.train.timeout) as group:
            yield group
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


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
    """Raise UserError where the processes were started with different options."""
    everyone: list[tuple[Config, dict[str, object]]] = ProcessGroup(None).all_gather((config, others))
    first, first_others = everyone[0]
    for rank, (settings, values) in enumerate(everyone):
        differing = differences(first, settings)
        differing += [
            f"{name}: {first_others[name]} != {values[name]}" for name in values if first_others[name] != values[name]
        ]
        if differing:
            raise UserError(
                f"rank 0 and rank {rank} were started with different options (rank 0 != rank {rank}): "
                f"{'; '.join(differing)}; start every process with the same command"
            )
