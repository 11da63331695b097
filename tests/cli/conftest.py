"""What tests of the command line share."""

from pathlib import Path

import numpy as np
import pytest
from testing.processes import Shell
from testing.trees import write_image


@pytest.fixture
def aurank(monkeypatch, capsys, tmp_path_factory) -> Shell:
    """Commands as typed, on a wide terminal, with a cache of embeddings of the test's own."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("AURANK_CACHE", str(tmp_path_factory.mktemp("cache")))
    return Shell(monkeypatch, capsys)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with eight photos in two classes, where commands are given."""
    for row in range(8):
        pixels = np.random.default_rng(row).integers(0, 120, (40, 40, 3), dtype=np.uint8)
        pixels[:, :, row // 4] += 120
        write_image(tmp_path / "photos" / "ab"[row // 4] / f"{row}.png", pixels)
    monkeypatch.chdir(tmp_path)
    return tmp_path
