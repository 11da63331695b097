"""`aurank average` as typed."""

from pathlib import Path

import pytest
from testing.shell import Shell


@pytest.mark.filterwarnings("default:.* began at random weights")
def test_an_average_is_written_and_doubts_are_notices(tiny_run: Path, aurank: Shell, tmp_path: Path) -> None:
    out = tmp_path / "average"
    code, text, notice = aurank("average", f"aurank:{tiny_run}", tiny_run / "last", "--out", out)
    assert code == 0
    assert text == f"written to {out}: best.safetensors, the average of 2 models\n"
    assert notice.count("\n") == 1
    assert notice.startswith(f"{tiny_run} began at random weights")
    code, text, notice = aurank("average", tiny_run, tiny_run / "last", "--out", out)
    assert (code, text) == (2, "")
    assert notice == f"error: --out {out} is not empty; name another folder\n"
