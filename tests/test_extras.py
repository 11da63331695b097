"""The extras of the installation: with what each one installs, and nothing else to import, its uses run."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from testing.uses import USES

from aurank.errors import UserError
from aurank.lazy import import_library, missing_library, require_libraries

# Run first: hides every installed module whose package is not among the arguments.
HIDE = """
import sys
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
import re

class Finder(PathFinder):
    allowed = set(sys.argv.pop().split())
    owners = {module: {re.sub(r"[-_.]+", "-", name).lower() for name in names}
              for module, names in packages_distributions().items()}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        owners = cls.owners.get(name.partition(".")[0], cls.allowed)
        return PathFinder.find_spec(name, path, target) if owners & cls.allowed else None

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


def installed(extras: str) -> set[str]:
    """Return the packages that aurank with some extras brings along."""
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [Requirement(f"aurank[{extras}]")]
    while left:
        wanted = left.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:  # of another platform
            continue
        for needed in map(Requirement, lines):
            chosen = [{"extra": extra} for extra in ("", *wanted.extras)]
            if needed.marker is None or any(map(needed.marker.evaluate, chosen)):
                left.append(needed)
    return {name for name, _ in seen}


@pytest.mark.slow
@pytest.mark.parametrize("extras", USES)
def test_with_what_an_extra_installs_alone_its_uses_run(extras: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HIDE + USES[extras], " ".join(installed(extras))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    if extras == "cli":
        assert "pip install 'aurank[index]'" in done.stderr


@pytest.mark.slow
def test_the_command_without_its_extra_says_so(tmp_path: Path) -> None:
    code = HIDE + "sys.argv = ['aurank', 'ls']\nimport runpy\nrunpy.run_module('aurank', run_name='__main__')"
    command = [sys.executable, "-c", code, " ".join(installed(""))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"error: .* (click|rich), .*: pip install 'aurank\[cli\]'\n", done.stderr), done.stderr


def test_what_lacks_is_named_with_its_extra_or_its_package() -> None:
    with pytest.raises(UserError, match=r"this model needs no_such_library, .*: pip install no_such_library"):
        import_library("no_such_library", "this model")
    with pytest.raises(UserError, match=r"a page needs nothing_like_it, "):
        require_libraries("a page", "json", "nothing_like_it")
    assert missing_library(ModuleNotFoundError(name="json")) is None
    assert "pip install 'aurank[serve]'" in str(missing_library(ModuleNotFoundError(name="uvicorn.config")))
