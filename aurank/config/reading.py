"""YAML text to one plain tree of mappings, lists, text, numbers, booleans and null, and back.

Nothing in a file can run or look anything up: tags, anchors, aliases and ``${…}`` are refused, not resolved.
Numbers and booleans are those of YAML 1.2: ``1e-4`` is a number, ``no`` and ``on`` are text.
"""

import io
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any, NoReturn

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.emitter import Emitter
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import implicit_resolvers

from aurank.config.messages import ConfigError, KeyPath, Problems, one_line, show
from aurank.errors import UserError
from aurank.names import meant, nearest

Tree = dict[str, Any]

_DEEPEST = 32
_DROPPED = object()

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
# No leading zero: 007 is a name. At most 40 digits: Python refuses to read thousands of them.
_INTEGER = re.compile(r"[-+]?(?:0|[1-9](?:_?[0-9]){0,40})")
_FLOAT = re.compile(
    r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)


def _scalar(text: str) -> Any:
    """Return the value of a scalar without quotes."""
    if _NULL.fullmatch(text):
        return None
    if _BOOLEAN.fullmatch(text):
        return text.lower() == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    # YAML writes ".inf" and ".nan", Python "inf" and "nan"; both are refused later, by their key.
    return float(re.sub(r"\.(?=[a-z])", "", text.lower())) if _FLOAT.fullmatch(text) else text


class _Reader:
    """Values made of the events of ruamel's parser, which say where in the text they begin."""

    def __init__(self, text: str, problems: Problems, where: Callable[[Any], str]) -> None:
        self.events: Iterator[Any] = YAML(typ="safe", pure=True).parse(text)
        self.problems = problems
        self.where = where

    def document(self, path: KeyPath) -> Any:
        next(self.events)  # the start of the stream
        if isinstance(next(self.events), StreamEndEvent):
            return None
        value = self.value(next(self.events), path)
        next(self.events)  # the end of the document
        if not isinstance(event := next(self.events), StreamEndEvent):
            self.refuse("a second document begins here; keep one", event)
        return value

    def value(self, event: Any, path: KeyPath) -> Any:
        if isinstance(event, AliasEvent) or event.anchor is not None:
            self.refuse("anchors and aliases (&name, *name) are refused; write the value out", event)
        if event.tag is not None:
            self.refuse(f"the tag {show(event.tag)} is refused; write plain text, numbers, lists and mappings", event)
        if isinstance(event, ScalarEvent):
            return _scalar(event.value) if event.implicit[0] else event.value
        if len(path) >= _DEEPEST:
            self.refuse(f"nested more than {_DEEPEST} deep", event)
        return self.items(path) if isinstance(event, SequenceStartEvent) else self.mapping(path)

    def items(self, path: KeyPath) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            place = (*path, len(found))
            self.problems.origins[place] = self.where(event.start_mark)
            found.append(self.value(event, place))
        return found

    def mapping(self, path: KeyPath) -> Tree:
        found: Tree = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            key = self.value(event, (*path, "?"))
            place = (*path, str(key))
            self.problems.origins[place] = self.where(event.start_mark)
            if not isinstance(key, str):
                self.problems.add(place, f"a key must be text, got {show(key)}; quote it")
            elif key in lines:
                self.problems.add(place, f"given twice, first on line {lines[key]}; keep one")
            value = self.value(next(self.events), place)
            if isinstance(key, str):
                found.setdefault(key, value)
                lines.setdefault(key, event.start_mark.line + 1)
        return found

    def refuse(self, text: str, event: Any) -> NoReturn:
        raise UserError(f"{self.where(event.start_mark)}: {text}")


def parse_yaml(text: str, path: KeyPath, problems: Problems, where: Callable[[Any], str]) -> Any:
    """Return the plain value of one YAML document, and note in ``problems.origins`` where each part of it came from.

    Args:
        path: the key that the value belongs to.
        problems: receives duplicate keys and keys that are not text.
        where: what to call a place of the text, given ruamel's mark of it; None where it is not known.

    Raises:
        UserError: a syntax error, or something refused, after what `where` says of its place.
    """
    try:
        return _Reader(text, problems, where).document(path)
    except MarkedYAMLError as error:
        what = one_line(error.problem or error.context or "not YAML")
        tabs = "; indent with spaces" if "'\\t'" in what else ""
        raise UserError(f"{where(error.problem_mark or error.context_mark)}: {what}{tabs}") from error
    # chr() fails on "\UFFFFFFFF", which ruamel.yaml does not look for.
    except (YAMLError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{where(None)}: not YAML: {one_line(str(error))}") from error


def read_file(source: Path, problems: Problems, *, shipped: Mapping[str, Path]) -> Tree:
    """Return the mapping in a YAML file.

    Raises:
        ConfigError: no such file, not a file, not UTF-8, not YAML, empty, or not a mapping.
    """

    def where(mark: Any) -> str:
        return str(source) if mark is None else f"{source}:{mark.line + 1}:{mark.column + 1}"

    try:
        value = parse_yaml(_read_text(source, shipped), (), problems, where)
    except UserError as error:
        raise ConfigError([str(error)], str(source)) from error
    if not isinstance(value, dict):
        came = "the file is empty" if value is None else f"got {show(value)}"
        expected = "expected a mapping with the sections data, loss, optim, train, …"
        raise ConfigError([f"{source}: {came}, {expected}"], str(source))
    return value


def _read_text(source: Path, shipped: Mapping[str, Path]) -> str:
    try:
        if source.is_dir():
            inside = sorted(path.name for path in source.glob("*.yaml"))
            text = f"is a folder, expected a YAML file{meant([str(source / name) for name in inside[:1]])}"
        elif not source.exists():
            text = f"no such file{meant(_like_file(source, shipped))}"
        elif not source.is_file():
            text = "is not a regular file, expected a YAML file"
        else:
            return source.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = f"is not UTF-8 text (byte {error.start}), expected a YAML file"
    # A path can hold a zero byte, which is a ValueError.
    except (OSError, ValueError) as error:
        text = f"cannot be read: {one_line(getattr(error, 'strerror', None) or str(error))}"
    raise UserError(f"{source}: {text}")


def _like_file(source: Path, shipped: Mapping[str, Path]) -> list[str]:
    name = source.with_suffix("").as_posix().removeprefix("configs/")
    if name in shipped:
        return [str(shipped[name])]
    beside = {path.name: path for path in source.parent.glob("*.yaml")} if source.parent.is_dir() else {}
    near = [beside[like] for like in nearest(source.name, beside)] or [shipped[like] for like in nearest(name, shipped)]
    return [str(path) for path in near]


def plain_tree(value: Any, path: KeyPath, problems: Problems) -> Any:
    """Return a copy of ``value`` made of plain things only; what is not plain goes to ``problems`` and is left out.

    Refused: ``${…}``, NaN and infinity, numbers beyond 64 bits, text that is not Unicode, keys that are not text.
    """
    if len(path) > _DEEPEST:
        problems.add(path, f"nested more than {_DEEPEST} deep")
        return _DROPPED
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                problems.add((*path, str(key)), f"a key must be text, got {show(key)}")
        items = {key: plain_tree(item, (*path, key), problems) for key, item in value.items() if isinstance(key, str)}
        return {key: item for key, item in items.items() if item is not _DROPPED}
    if isinstance(value, (list, tuple)):
        listed = [plain_tree(item, (*path, index), problems) for index, item in enumerate(value)]
        return _DROPPED if any(item is _DROPPED for item in listed) else listed
    scalar, expected = _plain_scalar(value)
    if expected is not None:
        problems.add(path, f"got {show(value)}, expected {expected}")
        return _DROPPED
    return scalar


def _plain_scalar(value: Any) -> tuple[Any, str | None]:
    """Return the value as YAML can hold it, and what was expected instead if it cannot."""
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


class _Emitter(Emitter):
    """Never breaks plain text: ruamel.yaml 0.19 breaks it in keys too, and then cannot read them."""

    def write_plain(self, text: Any, split: Any = True) -> None:
        width, self.best_width = self.best_width, sys.maxsize
        super().write_plain(text, split)
        self.best_width = width


class _Representer(SafeRepresenter):
    """Lists on one line; numbers that both versions of YAML read; quotes where either takes text for something else."""

    def represent_text(self, value: str) -> Any:
        more_than_text = _scalar(value) != value or any(rule.match(value) for _, _, rule, _ in implicit_resolvers)
        quoted = more_than_text or value.startswith((":", "?"))  # ruamel.yaml reads ":0" in a list as a mapping
        style = '"' if not value.isprintable() else "'" if quoted else None
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    def represent_number(self, value: float) -> Any:
        text = repr(value)
        text = text if "." in text else text.replace("e", ".0e")
        return self.represent_scalar("tag:yaml.org,2002:float", text)

    def represent_items(self, value: list[Any]) -> Any:
        return self.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


_Representer.add_representer(str, _Representer.represent_text)
_Representer.add_representer(float, _Representer.represent_number)
_Representer.add_representer(list, _Representer.represent_items)


def write_yaml(tree: Tree) -> str:
    """Return ``tree`` as YAML text, keys in their order."""
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Emitter, yaml.Representer, yaml.default_flow_style, yaml.width = _Emitter, _Representer, False, 110
    yaml.sort_base_mapping_type_on_output, yaml.brace_single_entry_mapping_in_flow_sequence = False, True
    stream = io.StringIO()
    yaml.dump(tree, stream)
    return stream.getvalue()
