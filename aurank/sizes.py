"""Amounts of memory and time as people write them, and the memory of this process."""

import ctypes
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from aurank.errors import UserError

_SECONDS = {"": 1, "S": 1, "MIN": 60, "H": 3600}
_KEPT = 2_000_000_000  # free bytes at the end of the heap from which on they are given back
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of malloc.h


def size_in_bytes(text: str) -> int:
    """Return the bytes in ``"1GiB"`` (2³⁰), ``"1GB"`` (10⁹), ``"512"`` (512); ValueError for anything else."""
    from pydantic import ByteSize, TypeAdapter

    return int(TypeAdapter(ByteSize).validate_python(text))


def seconds(text: str) -> float:
    """Return the seconds in ``"10min"`` (600), ``"90"`` (90); UserError for anything else."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(S|MIN|H|)", text.upper())
    if match is None:
        raise UserError(f"got {text!r}, expected a time such as 90s, 10min or 2h, or a number of seconds")
    return float(match[1]) * _SECONDS[match[2]]


def as_text(count: int) -> str:
    """Return an amount such as "512.0 MiB"."""
    from pydantic import ByteSize

    return ByteSize(count).human_readable(separator=" ")


def keep_memory() -> bool:
    """Let glibc keep freed memory, whose pages Linux would clear, before torch is imported; return whether it does."""
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version") or (available_memory() or 0) < 2 * _KEPT:
        return False
    return bool(libc.mallopt(_MMAP_MAX, 0) and libc.mallopt(_TRIM_THRESHOLD, _KEPT))


def available_memory() -> int | None:
    """Return the bytes that a process can still have on Linux, within a container's limit; None elsewhere."""
    limits = []
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # "max" is no number
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(limits, default=None)
