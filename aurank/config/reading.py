"""YAML text to one plain tree of mappings, lists, text, numbers, booleans and null, and back.

Nothing in a file can run or look anything up: tags, anchors, aliases and ``${…}`` are refused, not resolved.
Numbers and booleans are those of YAML 1.2: ``1e-4`` is a number, ``no`` and ``on`` are text.
"""

import contextlib
import io
import math
import re
import sys
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any, ClassVar

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode, SequenceNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import VersionedResolver, implicit_resolvers

from aurank.config.messages import ConfigError, KeyPath, Problems, one_line, show
from aurank.errors import UserError
from aurank.names import meant, nearest

Tree = dict[str, Any]

_DEEPEST = 32
_TAG = "tag:yaml.org,2002:"
_TAGS = (f"{_TAG}str", f"{_TAG}seq", f"{_TAG}map")

_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
# No leading zero: 007 is a name. At most 40 digits: Python refuses to read thousands of them.
_INTEGER = re.compile(r"[-+]?(?:0|[1-9](?:_?[0-9]){0,40})")
_FLOAT = re.compile(
    r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)


def _scalar(text: str) -> Any:
    """Return the value of a scalar without quotes."""
    if text.lower() in _WORDS and text in (text.lower(), text.title(), text.upper()):
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    # YAML writes ".inf" and ".nan", Python "inf" and "nan"; both are refused later, by their key.
    return float(re.sub(r"\.(?=[a-z])", "", text.lower())) if _FLOAT.fullmatch(text) else text


class _Untyped(VersionedResolver):
    """Takes every scalar for text, so that any other tag is one that the file gives."""

    versioned_resolver: ClassVar[dict[str, Any]] = {}


def parse_yaml(text: str, path: KeyPath, problems: Problems, where: Callable[[Any], str]) -> Any:
    """Return the plain value of one YAML document, and note in ``problems.origins`` where each part of it came from.

    Args:
        path: the key that the value belongs to.
        problems: receives duplicate keys and keys that are not text.
        where: names a place of the text, given ruamel's mark of it, or None where it is not known.

    Raises:
        UserError: a syntax error, or something refused, after the place.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.Resolver = _Untyped
    try:
        node = yaml.compose(text)
        return None if node is None else _value(node, path, problems, where)
    except UserError:
        raise
    except MarkedYAMLError as error:
        problem = one_line(error.problem or error.context or "not YAML")
        tabs = "; indent with spaces" if "'\\t'" in problem else ""
        raise UserError(f"{where(error.problem_mark or error.context_mark)}: {problem}{tabs}") from error
    # chr() fails on "\UFFFFFFFF", which ruamel.yaml does not look for.
    except (YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{where(None)}: not YAML: {one_line(str(error))}") from error


def _value(node: Any, path: KeyPath, problems: Problems, where: Callable[[Any], str]) -> Any:
    problems.origins.setdefault(path, where(node.start_mark))
    refusal = None
    if node.anchor is not None:
        refusal = "anchors and aliases (&name, *name) are refused; write the value out"
    elif node.tag not in _TAGS:
        refusal = f"the tag {show(node.tag)} is refused; write plain text, numbers, lists and mappings"
    elif len(path) > _DEEPEST:
        refusal = f"nested more than {_DEEPEST} deep"
    if refusal is not None:
        raise UserError(f"{where(node.start_mark)}: {refusal}")
    if isinstance(node, ScalarNode):
        return node.value if node.style else _scalar(node.value)
    if isinstance(node, SequenceNode):
        return [_value(item, (*path, index), problems, where) for index, item in enumerate(node.value)]
    tree: Tree = {}
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        key = _value(key_node, (*path, "?"), problems, where)
        place = (*path, str(key))
        problems.origins[place] = where(key_node.start_mark)
        if not isinstance(key, str):
            problems.add(place, f"a key must be text, got {show(key)}; quote it")
            continue
        if key in lines:
            problems.add(place, f"given twice, first on line {lines[key]}; keep one")
        lines.setdefault(key, key_node.start_mark.line + 1)
        tree.setdefault(key, _value(value_node, place, problems, where))
    return tree


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


class _Representer(SafeRepresenter):
    """Mappings in blocks, lists on one line; text without quotes where YAML 1.1 and 1.2 agree that it is text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _float(representer: SafeRepresenter, value: float) -> Any:
    text = repr(value)
    return representer.represent_scalar(f"{_TAG}float", text if "." in text else text.replace("e", ".0e"))


def _text(representer: SafeRepresenter, value: str) -> Any:
    is_other = _scalar(value) != value or any(rule.match(value) for _, _, rule, _ in implicit_resolvers)
    style = '"' if not value.isprintable() else "'" if is_other else None
    return representer.represent_scalar(f"{_TAG}str", value, style=style)


_Representer.add_representer(dict, lambda it, value: it.represent_mapping(f"{_TAG}map", value, flow_style=False))
_Representer.add_representer(list, lambda it, value: it.represent_sequence(f"{_TAG}seq", value, flow_style=True))
_Representer.add_representer(float, _float)
_Representer.add_representer(str, _text)


def write_yaml(tree: Tree) -> str:
    """Return ``tree`` as text that means the same in YAML 1.1 and 1.2: mappings in blocks, lists on one line."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.width = sys.maxsize
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    stream = io.StringIO()
    yaml.dump(tree, stream)
    return stream.getvalue()
