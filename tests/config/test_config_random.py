"""Edits and text at random: a configuration is valid or a ConfigError, and nothing else ever happens."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.configs import CHOICES, VALID, dump_yaml, read_yaml

from aurank.config import Config, ConfigError, dump_config, load_config

pytestmark = pytest.mark.slow

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 10**9, 10**30, -(10**400), 0.0, -0.5, 0.5, 1e300, 1e-300, float("nan"),
    float("inf"), -float("inf"), "", " ", "x", "1", "1e-4", "nan", "no", "${oc.env:HOME}", "\0", "\ud800", "a\nb",
    "é" * 99, "x" * 10_000, [], [1], [[]], [[1, [2, [3]]]], [None], [float("nan")], ["a", 1, None], {}, {"a": 1},
    {"name": "x"}, {"name": None, "params": []}, {"name": "rank", "params": {"tau1": -1}}, {"params": {"params": {}}},
    {"": {"": {}}},
]  # fmt: skip


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path of a key or an item in the tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in items for place in ((*path, key), *_places(value, (*path, key)))]


def _edit(tree: dict[str, Any], chance: random.Random) -> None:
    """Delete, rename, add, replace or wrap one thing of the tree in place."""
    *parents, last = chance.choice(_places(tree))
    holder: Any = tree
    for key in parents:
        holder = holder[key]
    kind = chance.choice(["delete", "rename", "add", "replace", "replace", "replace", "wrap"])
    if kind == "delete":
        del holder[last]
    elif kind == "rename" and isinstance(last, str):
        cut = chance.randrange(len(last))
        holder[last[:cut] + chance.choice(["", "x", ".", " ", "\n"]) + last[cut + 1 :]] = holder.pop(last)
    elif kind == "add" and isinstance(holder, dict):
        holder[chance.choice(["lr", "extra", "name", "params", "", "7", "<<"])] = chance.choice(VALUES)
    elif kind == "wrap":
        holder[last] = chance.choice([[holder[last]], {last: holder[last]}, {"name": holder[last]}, str(holder[last])])
    else:
        holder[last] = chance.choice(VALUES)


def _outcome(source: Any, overrides: list[str] | None = None) -> Config | None:
    """The config, or None after a ConfigError whose lines are sound; any other exception fails the test."""
    try:
        return load_config(source, overrides or [], choices=CHOICES)
    except ConfigError as error:
        lines = error.errors
    assert lines
    assert all(line.isprintable() and len(line) < 800 for line in lines)
    return None


@pytest.mark.parametrize("form", ["file", "dict", "override"])
def test_random_edits_of_a_valid_config_end_valid_or_in_a_config_error(tmp_path: Path, form: str) -> None:
    chance = random.Random(form)
    path = tmp_path / "config.yaml"
    whole = load_config(_written(path, VALID), choices=CHOICES).model_dump(mode="json")
    valid = 0
    edits = 40
    for _ in range(edits):
        tree = copy.deepcopy(whole)
        if form == "override":
            place = [str(key) for key in chance.choice(_places(whole))]
            value = dump_yaml(chance.choice(VALUES), flow=True)
            config = _outcome(tree, [f"{'.'.join(place)}={value}"])
        else:
            _edit(tree, chance)
            config = _outcome(tree if form == "dict" else _written(path, dump_yaml(tree)))
        if config is not None:
            valid += 1
            text = dump_config(config)
            assert dump_config(load_config(_written(path, text), choices=CHOICES)) == text
    assert 0.03 * edits < valid < 0.7 * edits


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    return path


_SCRAPS = [
    "a", "lr", "optim", ": ", ":\n  ", "\n", "- ", "[", "]", "{", "}", ", ", "'", '"', "!!int ", "&a ", "*a", "? ",
    "|\n", ">-\n", "#", "%YAML 1.2\n", "---\n", "...\n", "\t", "\\", "1e4", ".nan", "~", "${x}", "<<", "\x85", "\ufeff",
    "@", "`", "=",
]  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(_SCRAPS) | st.text(max_size=3), max_size=25).map("".join))
def test_any_text_as_file_or_override_ends_valid_or_in_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert _outcome(path) is None
    tree = read_yaml(VALID)
    _outcome(tree, [text])
    _outcome(tree, [f"model.params.x={text}"])
    _outcome({text: text})
