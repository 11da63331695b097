"""Components chosen by name: their arguments fitted to the signature of what they build."""

import contextlib
import inspect
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NotRequired

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from aurank.files import reading
from aurank.names import signature

_STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


@dataclass(frozen=True)
class Choices:
    """One table of components.

    Attributes:
        table: what each name builds; only the entry that is named is looked up.
        filled: arguments that the program fills in, and a configuration does not know.

    Example:
        >>> Choices({"crop": lambda image_size, scale=1.0: None}, frozenset({"image_size"})).arguments("crop")
        ['scale']
    """

    table: Mapping[str, Callable[..., Any]]
    filled: frozenset[str] = frozenset()

    def arguments(self, name: str) -> list[str]:
        """Return the arguments that a configuration may give to the component ``name``."""
        return [argument for argument in signature(self.table[name])[0] if argument not in self.filled]

    def fit(self, name: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return ``params`` as the constructor's annotations want them (tuples for lists); else a ValidationError."""
        fitted: dict[str, Any] = _adapter(self.table[name], self.filled).validate_json(json.dumps(params))
        return fitted


@cache
def _adapter(factory: Callable[..., Any], filled: frozenset[str]) -> Any:
    arguments, is_open = signature(factory)
    kinds: dict[str, Any] = {name: Any for name in arguments if name not in filled}
    for name in kinds:
        annotation = arguments[name].annotation
        if annotation is not inspect.Parameter.empty and not isinstance(annotation, str):
            with warnings.catch_warnings(), contextlib.suppress(Exception):
                warnings.simplefilter("ignore")
                TypeAdapter(annotation, config=_STRICT)
                kinds[name] = annotation
    optional = {name for name in kinds if arguments[name].default is not inspect.Parameter.empty}
    fields = {name: NotRequired[kind] if name in optional else kind for name, kind in kinds.items()}
    kind = TypedDict("kind", fields)  # type: ignore[misc]
    return TypeAdapter(with_config(_STRICT | {"extra": "allow" if is_open else "forbid"})(kind))


def build(key: str, factory: Callable[..., Any], offered: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
    """Return what ``factory`` makes of ``params`` and what it takes of ``offered``; a refusal begins with ``key``."""
    arguments, _ = signature(factory)
    with reading(key, f"the arguments {dict(params)}", remedy="give others"):  # whatever a library raises
        return factory(**{name: value for name, value in offered.items() if name in arguments}, **params)
