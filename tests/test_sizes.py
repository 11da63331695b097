"""Amounts as people write them; freed pages serve again, unless the user or a small machine says otherwise."""

import ctypes
import os
import subprocess
import sys

import pytest

from aurank.sizes import as_text, available_memory, seconds, size_in_bytes

HAS_GLIBC = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
SCRIPT = """
import resource, sys
from aurank import sizes
sizes.available_memory = lambda: int(sys.argv[1])
kept, pages = sizes.keep_memory(), []
for _ in range(3):
    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = b"x" * 2**26
    del block
    pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start)
print(kept, pages[-1] < 1000)
"""

SIZES = {"0": 0, "512": 512, "512B": 512, "2KB": 2000, "1.5 KiB": 1536, "1GB": 10**9, "1GiB": 2**30, "1tb": 10**12}
TIMES = {"90": 90, "1.5 h": 5400, "10min": 600, "2S": 2}


def test_sizes_and_times_are_read_as_people_write_them() -> None:
    assert {text: size_in_bytes(text) for text in SIZES} == SIZES
    assert {text: seconds(text) for text in TIMES} == TIMES


@pytest.mark.parametrize("text", ["a lot", "", "-1", "1 X", "GiB", "1 day", "min"])
def test_what_is_no_size_and_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="byte"):
        size_in_bytes(text)
    with pytest.raises(ValueError, match="expected a time such as"):
        seconds(text)


def test_amounts_are_written_in_the_largest_unit_that_they_fill() -> None:
    texts = {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 2**30: "1.0 GiB", 5 * 2**50: "5.0 PiB"}
    assert {count: as_text(count) for count in texts} == texts


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
    assert 2**24 < memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
