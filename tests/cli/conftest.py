"""What tests of the command line share."""

import pytest
from testing.shell import Shell


@pytest.fixture
def aurank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> Shell:
    """Commands as typed, on a wide terminal, with a cache of embeddings of the test's own."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("AURANK_CACHE", str(tmp_path_factory.mktemp("cache")))
    return Shell(monkeypatch, capsys)
