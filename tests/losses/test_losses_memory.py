"""Memory grows with queries · positives · references, not with the cube of the batch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "tools" / "bench_losses.py"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("name", ["SmoothAPLoss", "SOPRCLoss"])
def test_a_batch_of_896_by_512_grows_the_process_by_less_than_150_megabytes(name: str) -> None:
    # one B·M·B tensor is 10 MB here; B·B·B would be 2.9 GB
    command = [sys.executable, str(BENCH), "--one", name, "--batch", "896", "--rounds", "1", "--threads", "2"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout)["growth"] < 150
