"""YAML text to one plain tree of mappings, lists, text, numbers, booleans and null, and back.

Nothing in a file can run or look anything up: tags, anchors, aliases and ``${…}`` are refused, not resolved.
Numbers and booleans are those of YAML 1.2: ``1e-4`` is a number, ``no`` and ``on`` are text.
"""

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any, NoReturn

from pydantic import BaseModel
from ruamel.yaml import YAML, events
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.resolver import implicit_resolvers

from aurank.config.messages import ConfigError, KeyPath, Problems, one_line, show
from aurank.errors import UserError
from aurank.names import meant, nearest

Tree = dict[str, Any]

_DEEPEST = 32

_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
# No leading zero: 007 is a name. At most 40 digits: Python refuses to read thousands of them.
_INTEGER = re.compile(r"[-+]?(?:0|[1-9](?:_?[0-9]){0,40})")
_FLOAT = re.compile(
    r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
# Text without quotes, where it is no number and no word of YAML.
_PLAIN = re.compile(r"[\w./\\(][\w./\\()+=@-]*(?:[ :][\w./\\()+=@-]+)*")


def _scalar(text: str) -> Any:
    """Return the value of a scalar without quotes."""
    if text.lower() in _WORDS and text in (text.lower(), text.title(), text.upper()):
        return _WORDS[text.lower()]
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
        if isinstance(next(self.events), events.StreamEndEvent):
            return None
        value = self.value(next(self.events), path)
        next(self.events)  # the end of the document
        if not isinstance(event := next(self.events), events.StreamEndEvent):
            self.refuse("a second document begins here; keep one", event)
        return value

    def value(self, event: Any, path: KeyPath) -> Any:
        if isinstance(event, events.AliasEvent) or event.anchor is not None:
            self.refuse("anchors and aliases (&name, *name) are refused; write the value out", event)
        if event.tag is not None:
            self.refuse(f"the tag {show(event.tag)} is refused; write plain text, numbers, lists and mappings", event)
        if isinstance(event, events.ScalarEvent):
            return _scalar(event.value) if event.implicit[0] else event.value
        if len(path) >= _DEEPEST:
            self.refuse(f"nested more than {_DEEPEST} deep", event)
        if isinstance(event, events.MappingStartEvent):
            return self.mapping(path)
        items: list[Any] = []
        while not isinstance(item := next(self.events), events.SequenceEndEvent):
            items.append(self.value(item, self.placed(item, (*path, len(items)))))
        return items

    def mapping(self, path: KeyPath) -> Tree:
        found: Tree = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self.events), events.MappingEndEvent):
            key = self.value(event, (*path, "?"))
            place = self.placed(event, (*path, str(key)))
            if not isinstance(key, str):
                self.problems.add(place, f"a key must be text, got {show(key)}; quote it")
            elif key in lines:
                self.problems.add(place, f"given twice, first on line {lines[key]}; keep one")
            value = self.value(next(self.events), place)
            if isinstance(key, str):
                found.setdefault(key, value)
                lines.setdefault(key, event.start_mark.line + 1)
        return found

    def placed(self, event: Any, path: KeyPath) -> KeyPath:
        """Return the path, having noted where it stands."""
        self.problems.origins[path] = self.where(event.start_mark)
        return path

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
    except UserError:
        raise
    except MarkedYAMLError as error:
        what = one_line(error.problem or error.context or "not YAML")
        tabs = "; indent with spaces" if "'\\t'" in what else ""
        raise UserError(f"{where(error.problem_mark or error.context_mark)}: {what}{tabs}") from error
    # chr() fails on "\UFFFFFFFF", which ruamel.yaml does not look for.
    except (YAMLError, ValueError, OverflowError, RecursionError) as error:
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
        if not isinstance(value, dict):
            came = "the file is empty" if value is None else f"got {show(value)}"
            raise UserError(f"{source}: {came}, expected a mapping with the sections data, loss, optim, train, …")
    except UserError as error:
        raise ConfigError([str(error)], str(source)) from error
    return value


def _read_text(source: Path, shipped: Mapping[str, Path]) -> str:
    try:
        if source.is_file():
            return source.read_bytes().decode("utf-8-sig")
        if source.is_dir():
            inside = sorted(map(str, source.glob("*.yaml")))
            text = f"is a folder, expected a YAML file{meant(inside[:1])}"
        elif source.exists():
            text = "is not a regular file, expected a YAML file"
        else:
            name = source.with_suffix("").as_posix().removeprefix("configs/")
            beside = {path.name: path for path in source.parent.glob("*.yaml")}
            like = [] if name in shipped else [str(beside[one]) for one in nearest(source.name, beside)]
            text = f"no such file{meant(like or nearest(name, shipped))}"
    except UnicodeDecodeError as error:
        text = f"is not UTF-8 text (byte {error.start}), expected a YAML file"
    # A path can hold a zero byte, which is a ValueError.
    except (OSError, ValueError) as error:
        text = f"cannot be read: {one_line(getattr(error, 'strerror', None) or str(error))}"
    raise UserError(f"{source}: {text}")


def plain_tree(value: Any, path: KeyPath, problems: Problems) -> Any:
    """Return a copy of ``value`` made of plain things only; what is not plain goes to ``problems`` and becomes null.

    Refused: ``${…}``, NaN and infinity, numbers beyond 64 bits, text that is not Unicode, keys that are not text.
    """
    expected = "text, a number, true, false, null, a list or a mapping"
    if len(path) > _DEEPEST:
        problems.add(path, f"nested more than {_DEEPEST} deep")
        return None
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                problems.add((*path, str(key)), f"a key must be text, got {show(key)}")
        return {key: plain_tree(item, (*path, key), problems) for key, item in value.items() if isinstance(key, str)}
    if isinstance(value, (list, tuple)):
        return [plain_tree(item, (*path, index), problems) for index, item in enumerate(value)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, PurePath)):
        if "${" in str(value):
            expected = "the value itself: ${…} is not looked up anywhere"
        elif re.search("[\0\ud800-\udfff]", str(value)):
            expected = "text without zero bytes and lone surrogates"
        else:
            return str(value)
    elif isinstance(value, Integral):
        if -(2**63) <= int(value) < 2**63:
            return int(value)
        expected = "a number of at most 64 bits"
    elif isinstance(value, Real):
        with contextlib.suppress(OverflowError):
            if math.isfinite(value):
                return float(value)
        expected = "a finite number"
    problems.add(path, f"got {show(value)}, expected {expected}")
    return None


def write_yaml(tree: Tree, indent: str = "") -> str:
    """Return ``tree`` as text that means the same in YAML 1.1 and 1.2: mappings in blocks, lists on one line."""
    lines = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            lines.append(f"{indent}{_flow(key)}:\n{write_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{_flow(key)}: {_flow(value)}\n")
    return "".join(lines) or "{}\n"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, float):
        return repr(value) if "." in repr(value) else repr(value).replace("e", ".0e")
    if not isinstance(value, str):
        return json.dumps(value)
    if not value.isprintable():
        escaped = (one if one.isprintable() and one not in '\\"' else f"\\U{ord(one):08X}" for one in value)
        return f'"{"".join(escaped)}"'
    is_other = _scalar(value) != value or any(rule.match(value) for _, _, rule, _ in implicit_resolvers)
    return value if _PLAIN.fullmatch(value) and not is_other else "'" + value.replace("'", "''") + "'"
