"""An installation that cannot be written, of a user without a home, as in a container."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aurank


@pytest.mark.slow
def test_measuring_needs_no_folder_to_keep_compiled_code_in(tmp_path: Path) -> None:
    package = tmp_path / "aurank"
    shutil.copytree(Path(aurank.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    # Permissions do not bind root: a file where numba would make a folder stops anyone.
    (package / "evaluation" / "engine" / "__pycache__").write_bytes(b"")
    script = """
import numpy as np
import aurank
assert aurank.__file__.startswith("PACKAGE"), aurank.__file__
from aurank.evaluation.engine import compiled
rows, index, scores = np.array([[3, 4], [0, 1]], np.float32), np.arange(2), np.empty(2)
compiled.exact_pairs(rows, index, rows, index, np.array([5.0, 1.0]), False, scores)
print(scores)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    environment |= {"HOME": os.devnull, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(tmp_path)}
    environment.pop("XDG_CACHE_HOME", None)
    code = script.replace("PACKAGE", str(package))
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[5. 1.]\n"
