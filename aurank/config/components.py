"""Components chosen by name: their arguments checked against the signature of what they build."""

import enum
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from aurank.config.messages import (
    KeyPath,
    Problems,
    describe,
    describe_annotation,
    dotted,
    enumerated,
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
_HELD = (bool, int, float, str, list, tuple, dict, set, frozenset, enum.Enum, PurePath)


@dataclass(frozen=True)
class Choices:
    """One table of components.

    Attributes:
        table: what each name builds.
        filled: arguments that the program fills in; a configuration that gives one is refused.
        trial: if given, a component whose names and types are right is built once with those of these that it takes,
            so that impossible values are refused as well; None: never built.
    """

    table: Mapping[str, Callable[..., Any]]
    filled: frozenset[str] = field(default_factory=frozenset)
    trial: Mapping[str, Any] | None = None

    def arguments(self, name: str) -> list[str]:
        """The arguments that a configuration may give to the component ``name``."""
        return [argument for argument in signature(self.table[name])[0] if argument not in self.filled]


def signature(factory: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """The arguments that ``factory`` takes by name, and whether it takes any others as well.

    ``**kwargs`` of a class are followed into the constructors that it inherits from.
    """
    if not inspect.isclass(factory):
        return _named(factory)
    found: dict[str, inspect.Parameter] = {}
    for ancestor in factory.__mro__[:-1]:
        if "__init__" in vars(ancestor):
            named, more = _named(vars(ancestor)["__init__"], bound=True)
            found |= {name: parameter for name, parameter in named.items() if name not in found}
            if not more:
                return found, False
    # What is never declared is either kept by the class itself or, without any constructor, no argument at all.
    return (found, True) if any("__init__" in vars(ancestor) for ancestor in factory.__mro__[:-1]) else _named(factory)


def _named(function: Callable[..., Any], *, bound: bool = False) -> tuple[dict[str, inspect.Parameter], bool]:
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    # An annotation that names what is not imported is left as text; a builtin has no signature at all.
    except Exception:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            return {}, True
    parameters = parameters[1:] if bound else parameters
    more = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return {parameter.name: parameter for parameter in parameters if parameter.kind in _BY_NAME}, more


def check_component(
    section: KeyPath, node: Mapping[str, Any], choices: Choices, problems: Problems, *, known: Sequence[KeyPath]
) -> dict[str, Any]:
    """The arguments in ``node`` as the constructor's annotations want them (tuples for lists, floats for integers).

    Args:
        section: path of the component.
        node: its ``name`` and ``params``.
        problems: receives every mistake: the name, names and types of arguments, missing ones, impossible values.
        known: every key that there is, for "did you mean".
    """
    name, params = node.get("name"), node.get("params", {})
    if not isinstance(name, str) or not isinstance(params, dict):
        return {}
    if name not in choices.table:
        problems.add((*section, "name"), wrong_value(name, one_of(choices.table), list(choices.table)))
        return {}
    where = (*section, "params")
    named, more = signature(choices.table[name])
    values = {}
    for key, value in params.items():
        path = (*where, key)
        if key in choices.filled:
            source = _source_of(key, section, known)
            problems.add(path, f"got {show(value)}, but it is filled in from {source}; remove it")
        elif key in named:
            values[key], complaint = fit(value, named[key].annotation)
            if complaint is not None:
                problems.add(path, complaint)
        elif more:
            values[key] = value
        else:
            problems.add(path, partial(unknown_key, path, value, known))
    required = [key for key in named if named[key].default is _EMPTY and key not in choices.filled]
    for key in required:
        if key not in params:
            expected = expectation(named[key].annotation)[0]
            problems.add((*where, key), f"missing, expected {expected}: '{name}' needs it")
    if choices.trial is not None and not problems.within(where):
        offered = {key: value for key, value in choices.trial.items() if key in named}
        for blamed, text in _impossible(choices.table[name], offered, values, required):
            came = "these values" if blamed is None else show(params[blamed])
            problems.add(where if blamed is None else (*where, blamed), f"got {came}, refused by '{name}': {text}")
    return values


def _source_of(key: str, section: KeyPath, known: Sequence[KeyPath]) -> str:
    """Where the program takes an argument from: the nearest key of that name around the section, else the data."""
    near = [(*section[:end], key) for end in range(len(section), -1, -1)]
    far = [path for path in known if path[-1] == key and "params" not in path]
    return next((f"'{dotted(path)}'" for path in [*near, *far] if path in known and key != "params"), "the data")


def fit(value: Any, annotation: Any) -> tuple[Any, str | None]:
    """The value as ``annotation`` wants it, and what to say if it cannot be.

    The rules are those of strict JSON: a whole number is a float, a list a tuple, text never a number. An annotation
    that cannot be judged accepts everything.
    """
    adapter = _adapter(annotation)
    if adapter is None:
        return value, None
    try:
        result = adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        if any(item["type"] == "needs_python_object" for item in error.errors()) and _is_instance(adapter, value):
            return value, None
        return value, wrong_value(value, *expectation(annotation))
    # A validator of the annotation's own failed in its own way: not for this place to judge.
    except Exception:
        return value, None
    return (result if result is None or isinstance(result, _HELD) else value), None


def expectation(annotation: Any) -> tuple[str, list[Any]]:
    """What ``annotation`` accepts in words, and the choices of an enumeration."""
    adapter = _adapter(annotation)
    if adapter is None:
        return "a value", []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            schema = adapter.json_schema()
        # Types that JSON has no word for.
        except PydanticUserError:
            return describe_annotation(annotation), []
    definitions = schema.get("$defs", {})
    return describe(schema, definitions) or describe_annotation(annotation), enumerated(schema, definitions)


def _adapter(annotation: Any) -> Any:
    """pydantic's ``TypeAdapter``, or None; its type, generic in nothing at run time, is one that beartype refuses."""
    # Text: an annotation that could not be evaluated.
    if annotation in (_EMPTY, Any) or isinstance(annotation, str):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return TypeAdapter(annotation, config=_STRICT)
    # Annotations are other people's: one that pydantic cannot use, however that shows, is one it cannot judge.
    except Exception:
        return None


def _is_instance(adapter: Any, value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


def _impossible(
    factory: Callable[..., Any], offered: Mapping[str, Any], values: Mapping[str, Any], required: Sequence[str]
) -> list[tuple[str | None, str]]:
    """(argument, message) of each value that the constructor refuses; None for an argument that cannot be told."""

    def attempt(keys: Iterable[str]) -> str | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                factory(**offered, **{key: values[key] for key in keys})
        except (ValueError, TypeError) as error:
            return shorten(one_line(str(error)), 300)
        # Whatever a constructor does with an impossible value is the value's fault, told in one line.
        except Exception as error:
            return shorten(one_line(f"{type(error).__name__}: {error}"), 300)
        return None

    refusal = attempt(values)
    if refusal is None:
        return []
    if attempt(required) is None:
        # Each value alone, so that all that are impossible are told at once.
        alone = {key: attempt({*required, key}) for key in values if key not in required}
        found: list[tuple[str | None, str]] = [(key, text) for key, text in alone.items() if text is not None]
        if found:
            return found
    blamed = (key for key in values if re.search(rf"\b{re.escape(key)}\b", refusal))
    return [(next(blamed, None), refusal)]
