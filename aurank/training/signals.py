"""Ctrl-C and SIGTERM end a run between two steps, so that everything can be saved."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """While entered, remembers the first SIGINT or SIGTERM in ``received``; a second one interrupts at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Python delivers signals to the main thread only, and lets only that thread install handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
