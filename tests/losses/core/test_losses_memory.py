"""Memory grows with the similarities, not with queries · positives · references, nor with the cube of the batch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "tools" / "bench_losses.py"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")]


def growth(name: str, *words: str) -> float:
    """Megabytes that one step adds to a process."""
    command = [sys.executable, str(BENCH), "--one", name, "--rounds", "1", "--threads", "2", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: float = json.loads(done.stdout)["growth"]
    return found


def test_smooth_ap_of_a_batch_of_4096_adds_less_than_400_megabytes() -> None:
    # the similarity is 64 MB, each of its two masks 16; B·M·B would be 200 MB, and autograd would keep several
    assert growth("smooth_ap", "--batch", "4096") < 400


def test_a_memory_of_20000_references_with_many_positives_adds_what_its_similarities_take() -> None:
    # the similarity is 18 MB, each of its two masks 4, and a step adds 120 to 190, as the allocator likes; one tensor
    # with the 12 positives of a query would be 0.2 GB more, and autograd would keep several
    words = ("--batch", "224", "--references", "20000", "--per-class", "12", "--dim", "64")
    assert growth("soprc", *words) < 300
