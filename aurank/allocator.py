"""Settings of glibc that keep freed memory in the process, made once before torch is imported."""

import ctypes
import os
import sys
from pathlib import Path

from aurank.sizes import available_memory

_OTHERS = ("jemalloc", "tcmalloc", "mimalloc")
_KEPT = 2_000_000_000  # free bytes at the end of the heap from which on they are given back
_ENOUGH = 2 * _KEPT  # available at the start
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of malloc.h


def keep_memory() -> bool:
    """Let glibc keep the memory of freed tensors for the next ones, and return whether it does.

    By default every large tensor is mapped and unmapped by Linux, which then clears its pages each time. Nothing
    changes where there is no glibc or another allocator, where the user has set MALLOC_* or GLIBC_TUNABLES, and where
    less than 4 GB are available, within a container's limit.
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    libc, loaded = ctypes.CDLL(None), Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    is_other = not hasattr(libc, "gnu_get_libc_version") or any(name in loaded for name in _OTHERS)
    if is_other or (available_memory() or 0) < _ENOUGH:
        return False
    return bool(libc.mallopt(_MMAP_MAX, 0) and libc.mallopt(_TRIM_THRESHOLD, _KEPT))
