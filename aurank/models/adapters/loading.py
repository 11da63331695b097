"""What adapters of other libraries share: names with options, imports, errors in one line, no code of files or hubs."""

import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from torch import nn

from aurank.errors import UserError, first_line
from aurank.models.image_model import Tokenise
from aurank.names import meant, nearest

Options = dict[str, Any]  # of plain values; Any, as other libraries' constructors judge them
TextParts = tuple[nn.Module, Tokenise]
"""A text model: maps the tokens that it expects, [text, length], to features [text, width]."""
Known = Mapping[str, frozenset[str] | None]
"""The options of models by library, those of which no value can run code; None: the library's constructor says."""

_WORDS = {"true": True, "false": False, "none": None, "null": None}
_FORCED = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
_OF_ARGUMENTS = (TypeError, AssertionError, ValueError, KeyError, AttributeError)  # of values that do not fit

TEXTS: Known = {
    "open_clip": frozenset(
        {"pretrained", "pretrained_hf", "precision", "force_quick_gelu", "force_context_length", "cache_dir"}
    ),
    "transformers": frozenset(
        {"pretrained", "length", "revision", "variant", "subfolder", "add_pooling_layer", "num_hidden_layers"}
        | {"torch_dtype", "dtype", "cache_dir", "local_files_only"}
    ),
}
TOWERS: Known = {
    "open_clip": (TEXTS["open_clip"] or frozenset())
    | {"force_image_size", "image_mean", "image_std", "image_interpolation", "image_resize_mode"},
    "transformers": (TEXTS["transformers"] or frozenset()) - {"length"},
}
IMAGES: Known = {
    "timm": None,
    **TOWERS,
    "onnx": frozenset({"output", "size", "margin", "mean", "std", "resize"}),
    "safetensors": frozenset(),
    "torchexport": frozenset(),
    "python": None,
}


def parse_name(name: str, known: Known, *, remedy: str = "") -> tuple[str, str, Options]:
    kind, _, rest = name.partition(":")
    what, *pairs = rest.split(",")
    if kind not in known or not what:
        raise UserError(f"no model {name!r}; expected one of {', '.join(f'{kind}:…' for kind in known)}")
    taken, values = known[kind], Options()
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or (taken is not None and key not in taken):
            listed = "" if taken is None else f"; known are {', '.join(sorted(taken)) or 'none'}{remedy}"
            hint = meant(nearest(key, taken or ()))
            raise UserError(f"{name}: unknown option {key!r}{hint}, expected option=value behind commas{listed}")
        values[key] = _WORDS.get(value.lower(), value)
        if re.fullmatch(r"[0-9]+x[0-9]+", value):
            values[key] = tuple(map(int, value.split("x")))  # height and width
        for number in (float, int):  # the last that takes it
            with contextlib.suppress(ValueError):
                values[key] = number(value)
    return kind, what, values


def without_weights(kind: str, options: Options) -> Options:
    return {**options, "pretrained": False, **({"pretrained_hf": False} if kind == "open_clip" else {})}


@contextlib.contextmanager
def building(name: str, *, pretrained: bool, allow_code: bool = False, remedy: str = "") -> Iterator[None]:
    """A context in which a library builds a model: torch reads weights as data alone, an error is one line."""
    kept = {} if allow_code else {key: os.environ.pop(key) for key in _FORCED if key in os.environ}
    if not allow_code:
        os.environ[_FORCED[0]] = "1"
    try:
        yield
    except UserError:
        raise
    # Hubs and their clients raise errors of many kinds: no network, no such file, no permission, a damaged download.
    except Exception as error:
        said = f"cannot be built: {first_line(error)}{remedy}"
        if pretrained and (isinstance(error, OSError) or not isinstance(error, _OF_ARGUMENTS)):
            said = (
                f"the pretrained weights could not be had ({type(error).__name__}: {first_line(error)}); connect to "
                "the network once (HF_HUB_OFFLINE=1 then asks no hub), name a local file of weights (weights=FILE, "
                "model.weights=FILE), or take random weights with pretrained=false"
            )
        raise UserError(f"{name}: {said}") from error
    finally:
        if not allow_code:
            del os.environ[_FORCED[0]]
        os.environ.update(kept)


@contextlib.contextmanager
def no_code_of_hubs(allow_code: bool = False) -> Iterator[None]:
    try:
        hub: Any = None if allow_code else importlib.import_module("transformers.dynamic_module_utils")
    except ImportError:
        hub = None
    inside = True

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(what: Any, *others: Any, **options: Any) -> Any:
            if inside:  # a module that is imported meanwhile keeps this function
                raise ValueError(f"it would run code of {str(what)!r}, which --allow-code lets an image model do alone")
            return call(what, *others, **options)

        return refuse

    names = [name for name in ("get_cached_module_file", "get_class_in_module") if hasattr(hub, name)]
    before = {name: getattr(hub, name) for name in names}
    for name, call in before.items():
        setattr(hub, name, refusing(call))
    try:
        yield
    finally:
        inside = False
        for name, call in before.items():
            setattr(hub, name, call)


def describe_adapter(library: ModuleType, what: str, options: Mapping[str, Any], transform: object) -> str:
    version = getattr(library, "__version__", "?")
    stable = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(transform))  # addresses in memory differ from run to run
    return f"{library.__name__} {version} {what} {dict(sorted(options.items()))} {stable}"
