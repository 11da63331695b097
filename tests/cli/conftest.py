"""What tests of the command line share."""

import pytest
from testing.shell import Shell


@pytest.fixture
def aurank(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Commands as typed."""
    return Shell(monkeypatch, capsys)
