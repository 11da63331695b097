"""What adapters of other libraries share: names with options, imports, errors in one line, no code of files or hubs."""

import contextlib
import functools
import importlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from aurank.errors import UserError, first_line
from aurank.models.adapters.names import LOCAL

_FORCED = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
_PATIENCE = 5.0  # seconds to wait for a hub
_OF_ARGUMENTS = (TypeError, AssertionError, ValueError, KeyError, AttributeError)  # of values that do not fit


@contextlib.contextmanager
def asking_once() -> Iterator[list[str]]:
    """A context in which only the hub's cache is looked at where the hub does not answer; gives why, if so.

    Its client would try six times for every file, which takes a minute.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError:
        yield []
        return
    why, constants = list[str](), hub.constants
    before = constants.HF_HUB_OFFLINE
    if before:
        why.append("HF_HUB_OFFLINE is set")
    else:
        try:
            hub.utils.get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
        except Exception as error:  # of whatever library the client is made with
            why.append(f"{constants.ENDPOINT} does not answer: {first_line(error)}")
    constants.HF_HUB_OFFLINE = bool(why)
    try:
        yield why
    finally:
        constants.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def building(name: str, *, pretrained: bool, allow_code: bool = False, remedy: str = "") -> Iterator[None]:
    """A context in which a library builds a model: torch reads weights as data alone, an error is one line."""
    before = {} if allow_code else {key: os.environ.pop(key) for key in _FORCED if key in os.environ}
    if not allow_code:
        os.environ[_FORCED[0]] = "1"
    path = name.partition(":")[2].partition(",")[0]
    is_local = LOCAL in name or (path and Path(path).exists())
    offline: list[str] = []
    try:
        with contextlib.ExitStack() as stack:
            offline += stack.enter_context(asking_once()) if pretrained and not is_local else []
            yield
    except UserError:
        raise
    # Hubs and their clients raise errors of many kinds: no network, no such file, no permission, a damaged download.
    except Exception as error:
        message = f"cannot be built: {first_line(error)}{remedy}"
        if pretrained and (isinstance(error, OSError) or not isinstance(error, _OF_ARGUMENTS)):
            reason = offline[0] if offline else f"{type(error).__name__}: {first_line(error)}"
            message = (
                f"the pretrained weights are not kept here and could not be had ({reason}); connect to the network "
                "once, name a local file of weights (weights=FILE, in a configuration model.weights=FILE), or take "
                "random weights (pretrained=false, in a configuration model.pretrained=false)"
            )
        raise UserError(f"{name}: {message}") from error
    finally:
        if not allow_code:
            del os.environ[_FORCED[0]]
        os.environ.update(before)


@contextlib.contextmanager
def no_code_of_hubs(allow_code: bool = False) -> Iterator[None]:
    """A context in which transformers fetches and runs no code of a repository, unless that is allowed."""
    try:
        hub: Any = None if allow_code else importlib.import_module("transformers.dynamic_module_utils")
    except ImportError:
        hub = None
    calls = {
        name: getattr(hub, name) for name in ("get_cached_module_file", "get_class_in_module") if hasattr(hub, name)
    }
    is_inside = True

    def refuse(name: str, source: Any, *arguments: Any, **options: Any) -> Any:
        if is_inside:  # a module that is imported meanwhile keeps this function
            raise ValueError(f"it would run code of {str(source)!r}, which --allow-code lets an image model do alone")
        return calls[name](source, *arguments, **options)

    for name in calls:
        setattr(hub, name, functools.partial(refuse, name))
    try:
        yield
    finally:
        is_inside = False
        for name, call in calls.items():
            setattr(hub, name, call)


def describe_adapter(library: ModuleType, model_id: str, options: Mapping[str, Any], transform: object) -> str:
    version = getattr(library, "__version__", "?")
    stable = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(transform))  # addresses in memory differ from run to run
    return f"{library.__name__} {version} {model_id} {dict(sorted(options.items()))} {stable}"
