"""Names: the known one that a misspelt one is like, arguments by their names, and texts that count as the same."""

import difflib
import functools
import inspect
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from aurank.errors import UserError

NAN = ("nan", "NaN", "<NA>")  # a missing number as text
NO_GROUP_NAMES = ("-1", *NAN)  # no camera, or no super-category
_WHOLE = re.compile(r"(-?\d+)\.0+")  # such as numbers that have gaps become in a CSV file
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def nearest(name: str, names: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the names most like this one, ignoring case, the most similar first; none if none is close."""
    lowered = {option.lower(): option for option in names}
    return [lowered[close] for close in difflib.get_close_matches(name.lower(), lowered, n=most, cutoff=cutoff)]


def meant(names: Sequence[str]) -> str:
    """Return ``; did you mean 'a' or 'b'?``, or "" without names."""
    return f"; did you mean {' or '.join(repr(name) for name in names)}?" if names else ""


def require_choice(name: str, value: str, choices: Collection[str]) -> str:
    """Return a value that is one of the choices; UserError for another, with the choice that it is like."""
    if value not in [*choices]:
        hint = meant(nearest(value, choices)) if isinstance(value, str) else ""
        raise UserError(f"{name} must be one of {', '.join(choices)}; got {value!r}{hint}")
    return value


def tidied(text: str) -> str:
    """Return the text in Unicode's form NFC, each run of white space as one blank, none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def text_key(text: str) -> str:
    """Return a key that texts share if they differ only in case, white space or Unicode form."""
    return tidied(tidied(text).casefold())  # tidied again: a folded letter may be decomposed


def plain_text(value: Any) -> str:
    """Return a value as text without blanks around it: "" for None and NaN, and 1 for 1.0."""
    if value is None or (not isinstance(value, str) and str(value) in NAN):
        return ""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def plain_name(value: Any, missing: Sequence[str] = NAN) -> str:
    """Return a label or a group as text, "" where it is missing; the number 1.0 is 1, in a text too."""
    text = plain_text(value)
    text = match[1] if (match := _WHOLE.fullmatch(text)) else text
    return "" if text in missing else text


@functools.cache
def signature(factory: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the arguments that ``factory`` and its bases take by name or alias, and whether it takes any others."""
    ancestors = factory.__mro__[:-1] if inspect.isclass(factory) else ()
    constructors = [vars(ancestor)["__init__"] for ancestor in ancestors if "__init__" in vars(ancestor)]
    arguments: dict[str, inspect.Parameter] = {}
    is_open = True
    for function in constructors or [factory]:
        try:
            parameters = [*inspect.signature(function, eval_str=True).parameters.values()]
        except NameError:  # an annotation names what is not imported
            parameters = [*inspect.signature(function).parameters.values()]
        parameters = parameters[1:] if constructors else parameters
        arguments |= {each.name: each for each in parameters if each.kind in _BY_NAME and each.name not in arguments}
        is_open = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
        if not is_open:
            break
    for alias, name in getattr(factory, "aliases", {}).items():
        if name in arguments:
            arguments[alias] = arguments[name].replace(name=alias, kind=inspect.Parameter.KEYWORD_ONLY, default=None)
    return arguments, is_open


def named(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by the names, not the aliases, that ``factory`` has for them; TypeError for an unknown one."""
    (parameters, is_open), aliases = signature(factory), getattr(factory, "aliases", {})
    title, renamed = factory.__qualname__.removesuffix(".__init__"), dict[str, Any]()
    for argument, value in arguments.items():
        name = aliases.get(argument, argument)
        if name in renamed:
            raise TypeError(f"{title} was given {name!r} by two names; leave one out")
        if name not in parameters and not is_open:
            hint = meant(nearest(argument, parameters)) or f"; it takes {', '.join(parameters)}"
            raise TypeError(f"{title} takes no argument {argument!r}{hint}")
        renamed[name] = value
    return renamed
