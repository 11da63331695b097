"""From YAML text, a dict and dotted overrides to one plain tree of mappings, lists, text, numbers, booleans and null.

Nothing in a file can run or look anything up: tags, anchors, aliases and ``${…}`` are refused, not resolved.
Numbers and booleans are those of YAML 1.2: ``1e-4`` is a number, ``no`` and ``on`` are text.
"""

import math
import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any, NoReturn

import yaml
from pydantic import BaseModel
from yaml.composer import ComposerError
from yaml.events import AliasEvent

from aurank.config.messages import ConfigError, KeyPath, Problems, dotted, one_line, show
from aurank.errors import UserError
from aurank.names import meant, nearest

Tree = dict[str, Any]

_DEEPEST = 32
_DROPPED = object()

_RESOLVERS = (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    # No leading zero: 007 is a name. At most 40 digits: Python refuses to read thousands of them.
    ("int", r"^[-+]?(?:0|[1-9](?:_?[0-9]){0,40})$", list("-+0123456789")),
    (
        "float",
        r"^[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$",
        list("-+.0123456789"),
    ),
)


class _Loader(yaml.SafeLoader):
    """Composes nodes only; refuses what is not plain."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (yaml's own attribute)
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None) is not None:
            self._refuse("anchors and aliases (&name, *name) are refused; write the value out", event)
        if getattr(event, "tag", None) is not None:
            self._refuse(f"the tag {show(event.tag)} is refused; write plain text, numbers, lists and mappings", event)
        self.depth += 1
        if self.depth > _DEEPEST:
            self._refuse(f"nested more than {_DEEPEST} deep", event)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    @staticmethod
    def _refuse(text: str, event: Any) -> NoReturn:
        raise ComposerError(None, None, text, event.start_mark)


class _Dumper(yaml.SafeDumper):
    """Writes what ``_Loader`` reads back the same; text that either version of YAML would take for more is quoted."""


def _list_on_one_line(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    # PyYAML takes U+0085 and its like for line breaks when it reads; escaped, they come back as they were.
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')


for _kind, _pattern, _first in _RESOLVERS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)
_Dumper.add_representer(list, _list_on_one_line)
_Dumper.add_representer(str, _text)


def write_yaml(tree: Tree) -> str:
    """``tree`` as YAML text, keys in their order."""
    text = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)
    return str(text)


def parse_yaml(text: str, path: KeyPath, problems: Problems) -> Any:
    """The plain value of one YAML document; duplicate keys and keys that are not text go to ``problems``.

    Raises:
        UserError: a syntax error, or something refused, with its line and column.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        what = error.problem or error.context or "not YAML"
        tabs = "; indent with spaces" if "'\\t'" in what else ""
        raise UserError(f"{where}{one_line(what)}{tabs}") from error
    # PyYAML lets chr() fail on "\UFFFFFFFF", and recurses while it scans.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"not YAML: {one_line(str(error))}") from error
    return None if node is None else _value(node, path, problems)


def _value(node: yaml.Node, path: KeyPath, problems: Problems) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), problems) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, problems)
    text, kind = str(node.value), node.tag.rsplit(":", 1)[-1]
    if kind == "int":
        return int(text)
    if kind == "float":
        # YAML writes ".inf" and ".nan", Python "inf" and "nan"; both are refused later, by their key.
        return float(re.sub(r"\.(?=[a-z])", "", text.lower()))
    return {"null": None, "bool": text.lower() == "true"}.get(kind, text)


def _mapping(node: yaml.MappingNode, path: KeyPath, problems: Problems) -> Tree:
    found: Tree = {}
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _value(key_node, path, problems)
        if not isinstance(key, str):
            problems.add((*path, str(key)), f"line {line}: a key must be text, got {show(key)}; quote it")
        elif key in found:
            problems.add((*path, key), f"given twice, on lines {lines[key]} and {line}; keep one")
        else:
            lines[key] = line
            found[key] = _value(value_node, (*path, key), problems)
    return found


def read_tree(source: Path, problems: Problems, *, shipped: Mapping[str, Path]) -> Tree:
    """The mapping in a YAML file.

    Raises:
        ConfigError: no such file, not a file, not UTF-8, not YAML, empty, or not a mapping.
    """
    try:
        value = parse_yaml(_read_text(source, shipped), (), problems)
    except UserError as error:
        raise ConfigError([str(error)], str(source)) from error
    sections = "expected a mapping with the sections data, loss, optim, train, …"
    if value is None:
        raise ConfigError([f"the file is empty, {sections}"], str(source))
    if not isinstance(value, dict):
        raise ConfigError([f"got {show(value)}, {sections}"], str(source))
    return value


def _read_text(source: Path, shipped: Mapping[str, Path]) -> str:
    try:
        if source.is_dir():
            inside = sorted(path.name for path in source.glob("*.yaml"))
            raise UserError(f"is a folder, expected a YAML file{meant([str(source / name) for name in inside[:1]])}")
        if not source.exists():
            raise UserError(f"no such file{meant(_like_file(source, shipped))}")
        if not source.is_file():
            raise UserError("is not a regular file, expected a YAML file")
        return source.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text (byte {error.start}), expected a YAML file") from error
    except UserError:
        raise
    # A path can hold a zero byte, which is a ValueError.
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read: {one_line(getattr(error, 'strerror', None) or str(error))}") from error


def _like_file(source: Path, shipped: Mapping[str, Path]) -> list[str]:
    name = source.with_suffix("").as_posix().removeprefix("configs/")
    if name in shipped:
        return [str(shipped[name])]
    beside = {path.name: path for path in source.parent.glob("*.yaml")} if source.parent.is_dir() else {}
    near = [beside[like] for like in nearest(source.name, beside)] or [shipped[like] for like in nearest(name, shipped)]
    return [str(path) for path in near]


def plain_tree(value: Any, path: KeyPath, problems: Problems) -> Any:
    """A copy of ``value`` made of plain things only; what is not plain goes to ``problems`` and is left out.

    Refused: ``${…}``, NaN and infinity, numbers beyond 64 bits, text that is not Unicode, keys that are not text.
    """
    if len(path) > _DEEPEST:
        problems.add(path, f"nested more than {_DEEPEST} deep")
        return _DROPPED
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        items = {key: plain_tree(item, (*path, str(key)), problems) for key, item in value.items()}
        for key in items:
            if not isinstance(key, str):
                problems.add((*path, str(key)), f"a key must be text, got {show(key)}")
        return {key: item for key, item in items.items() if isinstance(key, str) and item is not _DROPPED}
    if isinstance(value, (list, tuple)):
        listed = [plain_tree(item, (*path, index), problems) for index, item in enumerate(value)]
        return _DROPPED if any(item is _DROPPED for item in listed) else listed
    scalar, complaint = _plain_scalar(value)
    if complaint is not None:
        problems.add(path, f"got {show(value)}, expected {complaint}")
        return _DROPPED
    return scalar


def _plain_scalar(value: Any) -> tuple[Any, str | None]:
    """The value as YAML can hold it, and what was expected instead if it cannot."""
    if value is None or isinstance(value, bool):
        return value, None
    if isinstance(value, (str, PurePath)):
        text = str(value)
        if "${" in text:
            return None, "the value itself: ${…} is not looked up anywhere"
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            return None, "text without zero bytes and lone surrogates"
        return text, None
    if isinstance(value, Integral):
        return int(value), None if -(2**63) <= int(value) < 2**63 else "a number of at most 64 bits"
    if isinstance(value, (float, Real)):
        try:
            return float(value), None if math.isfinite(value) else "a finite number"
        except OverflowError:
            return None, "a finite number"
    return None, "text, a number, true, false, null, a list or a mapping"


def parse_overrides(overrides: Sequence[str], problems: Problems) -> list[tuple[tuple[str, ...], Any]]:
    """(path, value) of each ``key.path=value``, the value read as YAML."""
    found = []
    for text in [overrides] if isinstance(overrides, str) else overrides:
        label = f"override {show(text)}"
        name, equals, value = text.partition("=")
        path = tuple(part.strip() for part in name.split("."))
        if not equals or not all(path):
            problems.add((label,), "expected key.path=value, for example optim.lr=1e-4", label=label)
            continue
        try:
            found.append((path, parse_yaml(value, path, problems)))
        except UserError as error:
            problems.add((label,), f"the value is not YAML: {error}", label=label)
    return found


def apply_overrides(
    tree: Tree,
    overrides: Sequence[tuple[tuple[str, ...], Any]],
    problems: Problems,
    *,
    components: Mapping[str, str | None],
) -> list[str]:
    """A line on each set of ``params`` that was dropped; each path of ``tree`` is set in place to its value.

    Naming another component drops the ``params`` of ``tree``, which belonged to the one before; ``params`` given by
    overrides stay, before or after the name.

    Args:
        components: dotted path of each component with the name that it has when none is given.
    """
    dropped = []
    # The last one where there are several.
    names = {path[:-1]: value for path, value in overrides if path[-1] == "name"}
    for path, value in names.items():
        component, section = ".".join(path), _lookup(tree, path)
        if component not in components or not isinstance(section, dict):
            continue
        if (before := section.get("name", components[component])) == value:
            continue
        params = section.pop("params", None)
        if isinstance(params, dict) and params:
            given = ", ".join(f"{key}={show(one)}" for key, one in params.items())
            of = f" of {before}" if before else ""
            dropped.append(f"{component}.name={value} leaves out the {component}.params{of}: {given}")
    for path, value in overrides:
        section = tree
        for depth, key in enumerate(path[:-1], start=1):
            if section.get(key) is None:
                section[key] = {}
            section = section[key]
            if not isinstance(section, dict):
                text = f"is {show(section)}, not a mapping; set {dotted(path[:depth])} as a whole"
                problems.add(path, f"{dotted(path[:depth])} {text}")
                break
        else:
            section[path[-1]] = value
    return dropped


def _lookup(tree: Tree, path: Sequence[str]) -> Any:
    value: Any = tree
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
