"""A command that is killed while it writes is given again."""

import os
import signal

import pytest
from testing.processes import run_aurank, succeeded

KILLED = "import os\nos.fsync = lambda descriptor: os.kill(os.getpid(), 9)"  # with all bytes in the temporary file


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "average {run} {run}/last --out {out}",
        "embed --model aurank:{run}/best --no-cache --out {out}.npz",
        "embed --model aurank:{run}/best --no-cache --out {out} --shard-rows 500",
        "export {run}/best --to hf --out {out}",
    ],
    ids=["average", "embed", "embed in parts", "export"],
)
def test_a_command_that_was_killed_while_it_wrote_does_its_work_and_leaves_nothing(tiny_run, tmp_path, command):
    words = [word.format(run=tiny_run, out=tmp_path / "out") for word in command.split()]
    killed = run_aurank(*words, setup=KILLED)
    assert killed.wait() == -signal.SIGKILL, killed.communicate()
    left = list(tmp_path.rglob("*.part"))
    assert left
    for path in left:
        os.utime(path, (0, 0))  # those of the last hour may be another process's
    ((_, output, _),) = succeeded([run_aurank(*words)])
    assert "written to" in output
    assert not list(tmp_path.rglob(".*"))
