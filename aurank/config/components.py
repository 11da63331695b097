"""Components chosen by name: their arguments checked against the signature of what they build."""

import contextlib
import enum
import inspect
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from aurank.config.messages import (
    HIGH,
    KeyPath,
    Problems,
    dotted,
    one_line,
    one_of,
    shorten,
    show,
    unknown_key,
    wrong_value,
)

_EMPTY = inspect.Parameter.empty
_STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# The values that a tree can hold, before and after they are made what an annotation asks for.
_HELD = (bool, int, float, str, list, tuple, dict, set, frozenset, enum.Enum, PurePath, type(None))


@dataclass(frozen=True)
class Choices:
    """One table of components.

    Attributes:
        table: what each name builds. Only the entry that a configuration names is looked up.
        filled: arguments that the program fills in; a configuration that gives one is refused.
        trial: if given, a component whose names and types are right is built once with those of these that it takes,
            so that impossible values are refused as well; None: never built.
        proven: names that are not built where a configuration gives them no params, which spares slow imports.

    Example:
        >>> Choices({"decimal": int}).arguments("decimal")
        []
        >>> Choices({"crop": lambda image_size, scale=1.0: None}, frozenset({"image_size"})).arguments("crop")
        ['scale']
    """

    table: Mapping[str, Callable[..., Any]]
    filled: frozenset[str] = frozenset()
    trial: Mapping[str, Any] | None = None
    proven: frozenset[str] = frozenset()

    def arguments(self, name: str) -> list[str]:
        """Return the arguments that a configuration may give to the component ``name``."""
        return [argument for argument in signature(self.table[name])[0] if argument not in self.filled]


def signature(factory: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the arguments that ``factory`` takes by name, and whether it takes any others as well.

    ``**kwargs`` of a class are followed into the constructors that it inherits from.
    """
    ancestors = factory.__mro__[:-1] if inspect.isclass(factory) else ()
    constructors = [vars(ancestor)["__init__"] for ancestor in ancestors if "__init__" in vars(ancestor)]
    found: dict[str, inspect.Parameter] = {}
    for function in constructors or [factory]:
        parameters = _parameters(function)
        if parameters is None:
            return found, True
        for parameter in parameters[1 if constructors else 0 :]:
            if parameter.kind in _BY_NAME:
                found.setdefault(parameter.name, parameter)
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            return found, False
    return found, True


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    # An annotation that names what is not imported is left as text; a builtin has no signature at all.
    for evaluate in (True, False):
        with contextlib.suppress(Exception):
            return list(inspect.signature(function, eval_str=evaluate).parameters.values())
    return None


def check_component(
    section: KeyPath, node: Mapping[str, Any], choices: Choices, problems: Problems, *, known: Sequence[KeyPath]
) -> dict[str, Any]:
    """Return the ``params`` of ``node`` as the constructor's annotations want them (tuples for lists, …).

    ``problems`` receives every mistake: the name, names and types of arguments, missing ones, impossible values.
    ``known`` is every key that there is, for "did you mean".
    """
    name, params = node.get("name"), node.get("params") or {}
    if not isinstance(name, str) or not isinstance(params, dict):
        return {}
    if name not in choices.table:
        problems.add((*section, "name"), wrong_value(name, one_of(choices.table), choices.table))
        return {}
    factory, where = choices.table[name], (*section, "params")
    named, more = signature(factory)
    values = {}
    for key, value in params.items():
        path = (*where, key)
        if key in choices.filled:
            source = _source_of(key, section, known)
            problems.add(path, f"got {show(value)}, but it is filled in from {source}; remove it")
        elif key in named:
            values[key], mistake = fit(value, named[key].annotation)
            if mistake is not None:
                problems.add(path, mistake)
        elif more:
            values[key] = value
        else:
            problems.add(path, partial(unknown_key, path, value, known))
    required = [key for key in named if named[key].default is _EMPTY and key not in choices.filled]
    for key in required:
        if key not in params:
            expected, _ = expectation(named[key].annotation)
            problems.add((*where, key), f"missing, expected {expected}: '{name}' needs it")
    is_tried = bool(params) or name not in choices.proven
    if choices.trial is not None and is_tried and not problems.within(where):
        offered = {key: value for key, value in choices.trial.items() if key in named}
        if (text := _refusal(partial(factory, **offered), values)) is not None:
            words = set(re.findall(r"\w+", text))
            named_there = [key for key in values if words & {key, key.removesuffix("s")}]
            blamed = list(values) if len(values) == 1 else named_there[:1]
            came = show(params[blamed[0]]) if blamed else "these values"
            problems.add((*where, *blamed), f"got {came}, refused by '{name}': {text}")
    return values


def _source_of(key: str, section: KeyPath, known: Sequence[KeyPath]) -> str:
    """Where the program takes an argument from: the nearest key of that name around the section, else the data."""
    near = [(*section[:end], key) for end in range(len(section), -1, -1)]
    far = [path for path in known if path[-1] == key and "params" not in path]
    return next((f"'{dotted(path)}'" for path in [*near, *far] if path in known and key != "params"), "the data")


def fit(value: Any, annotation: Any) -> tuple[Any, str | None]:
    """Return the value as ``annotation`` wants it, and the message if it cannot be.

    The rules are those of strict JSON: a whole number is a float, a list a tuple, text never a number. An annotation
    that cannot be judged accepts everything.
    """
    if (adapter := _adapter(annotation)) is None:
        return value, None
    try:
        result = adapter.validate_json(json.dumps(value))
        return (result if isinstance(result, _HELD) else value), None
    except ValidationError as error:
        if any(item["type"] == "needs_python_object" for item in error.errors()):
            with contextlib.suppress(ValidationError):
                adapter.validate_python(value)
                return value, None
        return value, wrong_value(value, *expectation(annotation))
    # A validator of the annotation's own failed in its own way: not for this place to judge.
    except Exception:
        return value, None


def _adapter(annotation: Any) -> Any:
    """pydantic's ``TypeAdapter``, or None; its type, generic in nothing at run time, is one that beartype refuses."""
    # Text: an annotation that could not be evaluated.
    if annotation in (_EMPTY, Any) or isinstance(annotation, str):
        return None
    # Annotations are other people's: one that pydantic cannot use, however that shows, is one it cannot judge.
    # What has a configuration of its own, such as a section, takes no other.
    for config in (_STRICT, None):
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            return TypeAdapter(annotation, config=config)
    return None


def expectation(annotation: Any) -> tuple[str, list[Any]]:
    """Return what ``annotation`` accepts in words ("a number > 0"), and the choices of an enumeration."""
    if (adapter := _adapter(annotation)) is None:
        return "a value", []
    schema: dict[str, Any] = {}
    # Some types JSON has no word for.
    with warnings.catch_warnings(), contextlib.suppress(PydanticUserError):
        warnings.simplefilter("ignore")
        schema = adapter.json_schema()
    definitions = schema.get("$defs", {})
    as_written = shorten(inspect.formatannotation(annotation).replace("typing.", ""))
    return _words(schema, definitions) or as_written, _options(schema, definitions)


def _words(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return what a JSON schema accepts, in words; empty where it says nothing."""
    if "expected" in schema:
        return str(schema["expected"])
    if "$ref" in schema:
        return _words(definitions[schema["$ref"].rsplit("/", 1)[-1]], definitions)
    if "anyOf" in schema:
        branches = dict.fromkeys(_words(branch, definitions) for branch in schema["anyOf"])
        if "a number" in branches:
            branches.pop("a whole number", None)
        return " or ".join(filter(None, branches))
    if "enum" in schema:
        return one_of(map(str, schema["enum"]))
    if "const" in schema:
        return show(schema["const"])
    if "prefixItems" in schema:
        items = [_words(item, definitions) or "anything" for item in schema["prefixItems"]]
        return f"a list of {len(items)}: {', '.join(items)}"
    kind = schema.get("type")
    if kind == "array":
        item = _words(schema.get("items", {}), definitions)
        return f"a list{' of at least one' if schema.get('minItems') else ''}{item and f', each {item}'}"
    if kind == "object":
        keys = ", ".join(schema.get("properties", {}))
        return f"a mapping with the keys {keys}" if keys else "a mapping"
    if kind == "string":
        return "a path" if schema.get("format") == "path" else "text"
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    bounds = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if abs(schema.get(key, HIGH)) < HIGH]
    words = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "null": "null"}
    return words.get(str(kind), "") + (f" {' and '.join(bounds)}" if bounds else "")


def _options(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Any]:
    """Return the choices that a JSON schema lists, for the value itself or for the items of a list."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[-1]]
    items = schema.get("items")
    parts = [*schema.get("anyOf", ()), *([items] if isinstance(items, dict) else [])]
    return [*schema.get("enum", ()), *(option for part in parts for option in _options(part, definitions))]


def _refusal(build: Callable[..., Any], values: Mapping[str, Any]) -> str | None:
    """Return what the constructor says against the values, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            build(**values)
    # Whatever a constructor does with an impossible value is the value's fault, told in one line.
    except Exception as error:
        kind = "" if isinstance(error, (ValueError, TypeError)) else f"{type(error).__name__}: "
        return shorten(one_line(f"{kind}{error}"), 300)
    return None
