"""How many processes were launched for this command, who they are, and what one says that waits for the others."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Peer:
    """A process of the run; `machine` is the same where process numbers mean the same processes."""

    rank: int
    host: str
    pid: int
    machine: str

    @classmethod
    def own(cls, rank: int) -> "Peer":
        """Return this process."""
        return cls(rank, socket.gethostname(), os.getpid(), own_machine())

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"

    @property
    def trouble(self) -> str:
        """What is the matter with a process of this machine, nothing where it runs."""
        return trouble_of(self.pid)


def own_machine() -> str:
    """Return what is the same in all processes for which process numbers mean the same processes."""
    with contextlib.suppress(OSError):  # containers of one kernel may have one name, and other process numbers
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def trouble_of(pid: int) -> str:
    """Return what is the matter with a process of this machine, nothing where it runs."""
    with contextlib.suppress(OSError):
        letter = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        return {"Z": "has ended", "X": "has ended", "T": "is stopped", "t": "is stopped"}.get(letter, "")
    if os.name != "posix":  # where 0 is the signal of Ctrl-C
        return ""
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)  # no signal: whether there is such a process
        except ProcessLookupError:
            return "has ended"
    return ""


def wait_for(host: str, port: int, timeout: float) -> None:
    """Wait until somebody listens there; OSError after so many seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
