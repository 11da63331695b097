"""What adapters of other libraries share: names with options, imports, errors told in one line."""

import contextlib
import importlib
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from aurank.errors import UserError, first_line

Value = bool | int | float | str | None
Options = dict[str, Any]  # of Value; Any, as other libraries' constructors judge them
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "none": None, "null": None}


def parse_options(name: str, text: str) -> tuple[str, Options]:
    """Returns what stands before the first comma, and the option=value pairs behind."""
    what, *pairs = text.split(",")
    options: Options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f"{name}: {pair!r} is not option=value; options follow the model's name after commas")
        options[key] = _value(value)
    return what, options


def _value(text: str) -> Value:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def library_of(module: str, name: str, *, package: str) -> ModuleType:
    """Returns the imported module; UserError names the package to install where it cannot be had."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{name} needs {package}, which cannot be imported ({error}): pip install {package}") from error


@contextlib.contextmanager
def loading(name: str, *, pretrained: bool) -> Iterator[None]:
    """A context that turns what a library raises while it builds a model into one line."""
    try:
        yield
    except (TypeError, AssertionError, ValueError, KeyError) as error:
        raise UserError(f"{name}: cannot be built: {first_line(error)}") from error
    # Hubs and their clients raise errors of many kinds: no network, no such file, no permission, a damaged download.
    except Exception as error:
        if not pretrained:
            raise UserError(f"{name}: {type(error).__name__}: {first_line(error)}") from error
        raise UserError(
            f"{name}: the pretrained weights could not be had ({type(error).__name__}: {first_line(error)}); connect "
            "to the network once, or take random weights with pretrained=false"
        ) from error


def describe(library: ModuleType, what: str, options: Mapping[str, Any], transform: object) -> str:
    """Returns all that decides an embedding beside the weights, in words."""
    version = getattr(library, "__version__", "?")
    return f"{library.__name__} {version} {what} {dict(sorted(options.items()))} {_stable(transform)}"


def open_clip_arguments(library: ModuleType, name: str, what: str, options: Options) -> Options:
    """Returns the arguments of open_clip's constructors; UserError where weights are wanted but not named."""
    tags = [tag for model, tag in library.list_pretrained() if model == what]
    # The command line's other models are pretrained unless said otherwise; here weights go by tags.
    if options.get("pretrained") is True or ("pretrained" not in options and tags):
        raise UserError(
            f"{name}: name the weights, as in pretrained={tags[0] if tags else 'FILE'}, or pretrained=false"
        )
    return {**options, "pretrained": options.get("pretrained") or None}


def _stable(value: object) -> str:
    """Returns the value's words without the addresses in memory, which differ from run to run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
