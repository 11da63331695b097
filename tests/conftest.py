"""Shapes and types of every annotated function are checked while the tests run."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis  # noqa: F401 - it looks for its generators among objects that are not frozen
import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")
# Checked modules are compiled once, not by every worker and every process that a test starts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

install_import_hook("aurank", "beartype.beartype")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import without looking for garbage, and leave what was imported out of every later search."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of `tiny_config` with three steps, to be read and not changed."""
    from testing.runs import tiny_config

    import aurank

    out = tmp_path_factory.mktemp("tiny") / "run"
    aurank.train(tiny_config(train={"steps": 3}), out)
    return out
