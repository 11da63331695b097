"""The memory of this process: what it can still have, and freed memory that glibc keeps for the next tensors."""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

_KEPT = 2_000_000_000  # free bytes at the end of the heap from which on they are given back
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of malloc.h


def keep_memory() -> bool:
    """Let glibc keep the memory of freed tensors for the next ones, and return whether it does.

    By default every large tensor is mapped and unmapped by Linux, which then clears its pages each time. Nothing
    changes without glibc, where the user has set MALLOC_* or GLIBC_TUNABLES, and where less than 4 GB are available.
    Another allocator, such as jemalloc, does not hear of it. Call it before torch is imported.
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version") or (available_memory() or 0) < 2 * _KEPT:
        return False
    return bool(libc.mallopt(_MMAP_MAX, 0) and libc.mallopt(_TRIM_THRESHOLD, _KEPT))


def available_memory() -> int | None:
    """Return the bytes that a process can still have, within a container's limit; None if unknown."""
    limits = []
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # "max" is no number
            limits.append(int(Path(file).read_text(encoding="ascii")))
    if not limits:  # no Linux
        with suppress(OSError, ValueError):
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)
