"""Edits and text at random: a configuration is valid or a ConfigError, and nothing else ever happens."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.configs import CHOICES, VALID, read_yaml

from aurank.config import Config, ConfigError, load_config

pytestmark = pytest.mark.slow


def _outcome(source: Any, overrides: list[str] | None = None) -> Config | None:
    """The config, or None after a ConfigError whose lines are sound; any other exception fails the test."""
    try:
        return load_config(source, overrides or [], choices=CHOICES)
    except ConfigError as error:
        lines = error.errors
    assert lines
    assert all(line.isprintable() and len(line) < 800 for line in lines)
    return None


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
