"""The example of docs/pml.md runs as it stands there, and learns."""

import re
from pathlib import Path
from typing import Any

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "pml.md"


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # of PML's progress bar
def test_the_example_of_the_documentation_runs_and_learns() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, str(DOCUMENT), "exec"), names)
    before, after = names["before"], names["after"]
    assert set(after) == {"mauprc_level0", "precision_at_1_level0"}
    assert after["mauprc_level0"] > before["mauprc_level0"] + 0.05
    assert names["loss"].has_been_filled
