"""What the benchmarks share: seconds of a step, and the memory of this process."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def resident_megabytes(field: str) -> float:
    """VmRSS (now) or VmHWM (most so far) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def forget_peak() -> None:
    """Start the peak of resident memory anew."""
    with contextlib.suppress(OSError):  # where it may not be written, the peak of the imports counts too
        Path("/proc/self/clear_refs").write_text("5")


def seconds(step: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
