"""Trees of published data sets, as the tests make them, damaged: what a broken download or a wrong copy looks like."""

import contextlib
import importlib
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import loadmat, savemat

from aurank.data import READERS, Manifest, check_benchmark
from aurank.errors import AurankError
from fuzzing.damage import HOSTILE_WORDS, damage_bytes, damage_text

_TESTS = str(Path(__file__).parents[2] / "tests")
_NAMES = (
    "x",
    ".hidden.jpg",
    "é.jpg",
    "0002_c1s1.jpg",
    "-1_c1s1_000401_03.jpg",
    "_.jpg",
    "9" * 30 + "_c1s1_0_0.jpg",
    "a" * 200,
)
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "veriwild": [{"test": "small"}, {"test": "medium"}, {"test": "large"}],
    "msmt17": [{"validation": True}],
}
_VALUES: tuple[Any, ...] = (
    *(0, -1, 1e300, float("nan"), float("inf"), 2**31, True, "", "x", "../../etc/passwd", "\x1b[31m"),
    *(
        np.zeros((0, 0)),
        np.zeros(3),
        np.ones((2, 2, 2)),
        np.array(["a", "b"]),
        np.array([[1 + 2j]]),
        np.array([[None]]),
    ),
    *(np.array([["x", 1]], dtype=object), {"a": 1}, np.full((1, 4), np.nan), np.array([[-5, 10**9]])),
)


def read_damaged(folder: Path, chance: random.Random) -> Manifest:
    """Write the tree of a published set, damage one thing in it, and read it; `aurank data check` looks at it too."""
    if _TESTS not in sys.path:
        sys.path.append(_TESTS)
    trees: Any = importlib.import_module("testing.retrieval_trees")
    name = chance.choice(sorted(trees.TREES))
    tree = trees.TREES[name](folder)
    _damage(tree, chance)
    with contextlib.suppress(AurankError):
        str(check_benchmark(name, folder))
    options = chance.choice([{}, *_OPTIONS.get(name, [])])
    if chance.random() < 0.2:  # packed, as it comes
        shutil.make_archive(str(folder / "packed"), "zip", tree)
        options = {**options, "path": "packed.zip"}
    return READERS[name](folder, complete=chance.random() < 0.05, **options)


def _damage(tree: Path, chance: random.Random) -> None:
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    facts = [path for path in files if path.suffix in (".txt", ".csv", ".mat")]
    file = chance.choice(facts if facts and chance.random() < 0.7 else files)
    if chance.random() < 0.25:
        return _move(tree, file, chance)
    if file.suffix == ".mat" and chance.random() < 0.6:
        return _damage_matlab(file, chance)
    content = file.read_bytes()
    if file.suffix in (".txt", ".csv") and chance.random() < 0.8:
        content = damage_text(content.decode(), chance).encode("utf-8", "surrogatepass")
    else:
        content = damage_bytes(content, chance)
    file.write_bytes(content)


def _move(tree: Path, file: Path, chance: random.Random) -> None:
    """Remove, rename, empty or turn into a folder one file, or the folder that it is in."""
    what = file if file.parent == tree or chance.random() < 0.6 else file.parent
    how = chance.randrange(6)
    if how == 0:
        shutil.rmtree(what) if what.is_dir() else what.unlink()
    elif how == 1:
        what.rename(what.with_name(chance.choice(_NAMES)))
    elif how == 2:
        shutil.copy(file, file.with_name(chance.choice(_NAMES)))
    elif how == 3:
        file.write_bytes(b"")
    elif how == 4:
        file.unlink()
        file.mkdir()
    else:
        file.unlink()
        file.symlink_to(chance.choice(("/dev/null", "/etc", "nowhere", file.name)))


def _damage_matlab(file: Path, chance: random.Random) -> None:
    """Replace a value of a Matlab file, or one within its records."""
    content = {key: value for key, value in loadmat(file).items() if not key.startswith("__")}
    key = chance.choice(sorted(content))
    value, how = content[key], chance.random()
    if how < 0.25 or (value.dtype.names is None and value.dtype != object):
        content[key] = chance.choice(_VALUES)
    elif how < 0.35:
        del content[key]
    elif how < 0.5:
        content[key] = value[:, : chance.randrange(value.shape[1] + 1)]
    else:
        place = (0, chance.randrange(value.shape[1]))
        if value.dtype.names is None:
            value[place] = chance.choice((*_VALUES, *HOSTILE_WORDS[:40]))
        else:
            record = list(value[place])
            record[chance.randrange(len(record))] = chance.choice(_VALUES)
            value[place] = tuple(record)
    with contextlib.suppress(TypeError, ValueError):  # scipy does not write it: the file stays
        savemat(file, content or {"other": 1})
