"""Memory that stays: freed pages serve again, unless the user or a small machine says otherwise."""

import ctypes
import os
import subprocess
import sys

import pytest

from aurank.allocator import available_memory

HAS_GLIBC = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
SCRIPT = """
import resource, sys
from aurank import allocator
allocator.available_memory = lambda: int(sys.argv[1])
kept, pages = allocator.keep_memory(), []
for _ in range(3):
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = b"x" * 2**26
    del block
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start)
print(kept, pages[-1] < 1000)
"""


def tried(available: int, **environment: str) -> str:
    """Whether memory is kept, and whether a third block of 64 MB finds its 16,384 pages there already."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUN"))}
    command = [sys.executable, "-c", SCRIPT, str(available)]
    done = subprocess.run(command, env=known | environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(not HAS_GLIBC, reason="of glibc")
def test_a_freed_block_serves_the_next_one_unless_somebody_chose_otherwise() -> None:
    assert tried(16 * 10**9) == "True True"
    assert tried(10**9) == "False False"  # a small machine
    assert tried(16 * 10**9, MALLOC_TRIM_THRESHOLD_="131072").startswith("False")
    assert tried(16 * 10**9, GLIBC_TUNABLES="glibc.malloc.tcache_count=7").startswith("False")


def test_the_memory_available_is_within_that_of_the_machine() -> None:
    memory = available_memory()
    assert memory is not None
    assert 2**24 < memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
