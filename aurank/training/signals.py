"""Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 end a run between two steps, so that everything can be saved."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

INSISTING = (signal.SIGINT, signal.SIGTERM)
# A closed terminal, which often sends it twice, and what schedulers send some time before they kill. Not on Windows.
WARNING = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1") if hasattr(signal, name))


class StopRequest:
    """While entered, remembers the first of the signals in ``received``.

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
                    self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if number in INSISTING:
            if self._insisted:
                raise KeyboardInterrupt
            self._insisted = True
        if self.received is None:
            self.received = number
