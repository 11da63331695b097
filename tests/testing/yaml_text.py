"""YAML text for tests, read and written by ruamel.yaml's own safe loader and dumper."""

import io
from typing import Any

from ruamel.yaml import YAML


def read_yaml(text: str, *, version: tuple[int, int] = (1, 2)) -> Any:
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.version = version
    return yaml.load(text)


def dump_yaml(value: Any, *, flow: bool = False) -> str:
    """`value` as YAML, all on one line where `flow` is set."""
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = flow, 10**9
    yaml.sort_base_mapping_type_on_output = False
    stream = io.StringIO()
    yaml.dump(value, stream)
    return stream.getvalue().removesuffix("...\n").rstrip("\n") if flow else stream.getvalue()
