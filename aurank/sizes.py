"""Amounts of memory and time, and sizes of images, as people write them."""

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from aurank.errors import UserError

SIZE = r"(?i)^([0-9]{1,15}(?:\.[0-9]{1,9})?) ?((?:[KMGT]i?)?B)?$"  # "512", "512MB", "1.5 GiB"
DURATION = r"(?i)^([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(s|min|h)?$"  # "90", "90s", "1.5 h"
_BYTES = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SECONDS = {"": 1, "S": 1, "MIN": 60, "H": 3600}


def size_in_bytes(text: str) -> int:
    """Return the bytes in ``"1GiB"`` (2³⁰), ``"1GB"`` (10⁹), ``"512"`` (512); UserError for anything else."""
    return int(_amount(text, SIZE, _BYTES, "a size such as 512MB or 1GiB, or a number of bytes"))


def seconds(text: str) -> float:
    """Return the seconds in ``"10min"`` (600), ``"90"`` (90); UserError for anything else."""
    return _amount(text, DURATION, _SECONDS, "a time such as 90s, 10min or 2h, or a number of seconds")


def _amount(text: str, pattern: str, factors: dict[str, int], expected: str) -> float:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise UserError(f"got {text!r}, expected {expected}")
    return float(match[1]) * factors[(match[2] or "").upper()]


def as_text(count: int) -> str:
    """Return an amount such as "512.0 MiB"."""
    amount, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.1f} {unit}"


def as_sides(size: Sequence[int]) -> int | list[int]:
    """Return a height and a width as a configuration has them: one number where they are equal."""
    height, width = size
    return height if height == width else [height, width]


def available_memory() -> int | None:
    """Return the bytes that a process can still have, within a container's limit; None if unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number
            limits.append(int(Path(file).read_text(encoding="ascii")))
    if not limits:
        with contextlib.suppress(OSError, ValueError):
            limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)
