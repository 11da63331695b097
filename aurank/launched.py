"""How many processes were launched for this command, and what one says that waits for the others."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NEEDED = ("RANK", "MASTER_ADDR")  # which a launcher sets for each process; a bare WORLD_SIZE may be of something else
WAITING = 15.0  # seconds after which a process says whom it waits for


def launched() -> int:
    """Return how many processes torchrun, Accelerate or a script launched to join; 1 for one by itself.

    Example:
        >>> launched()
        1
    """
    return int(os.environ.get("WORLD_SIZE", "1")) if all(name in os.environ for name in _NEEDED) else 1


@contextmanager
def waiting_told(timeout: str) -> Iterator[None]:
    """A context in which the processes meet; where that takes a while, this one says whom it waits for.

    Example:
        >>> with waiting_told("10min"):
        ...     pass
    """

    def say() -> None:
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        here, size, host, port = (os.environ.get(name, "") for name in names)
        text = f"rank {here} waits until all {size} processes have come to {host}:{port}, for {timeout} at most"
        os.write(2, f"{text}; if there are no others, unset WORLD_SIZE\n".encode())

    timer = threading.Timer(WAITING, say)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
