"""What adapters of other libraries share: names with options, imports, errors in one line, no code of files or hubs."""

import contextlib
import importlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

from torch import nn

from aurank.errors import UserError, first_line
from aurank.models.image_model import Tokenise
from aurank.names import meant, nearest

Options = dict[str, Any]  # of plain values; Any, as other libraries' constructors judge them
TextParts = tuple[nn.Module, Tokenise]
_WORDS = {"true": True, "false": False, "none": None, "null": None}

TEXT_OPTIONS: Mapping[str, frozenset[str]] = {
    "open_clip": frozenset(
        {"pretrained", "pretrained_hf", "precision", "force_quick_gelu", "force_context_length", "cache_dir"}
    ),
    "transformers": frozenset(
        {"pretrained", "length", "revision", "variant", "subfolder", "add_pooling_layer", "num_hidden_layers"}
        | {"torch_dtype", "dtype", "cache_dir", "local_files_only"}
    ),
}
"""The options of text models by library, those of which no value can run code."""

IMAGE_OPTIONS: Mapping[str, frozenset[str]] = {
    "open_clip": TEXT_OPTIONS["open_clip"]
    | {"force_image_size", "image_mean", "image_std", "image_interpolation", "image_resize_mode"},
    "transformers": TEXT_OPTIONS["transformers"] - {"length"},
    "onnx": frozenset({"size", "margin", "mean", "std"}),
    "safetensors": frozenset(),
    "torchexport": frozenset(),
}
"""The same of image models; timm's depend on the model."""


def parse_name(
    name: str, known: Collection[str], options: Mapping[str, frozenset[str]], *, flag: bool = False
) -> tuple[str, str, Options]:
    """Return the kind that a name KIND:WHAT[,option=value…] begins with, what it names and its options.

    Args:
        known: kinds.
        options: known options by kind, where others might run code.
        flag: whether --allow-code permits those.
    """
    kind, _, rest = name.partition(":")
    what, *pairs = rest.split(",")
    if kind not in known or not what:
        raise UserError(f"no model {name!r}; expected one of {', '.join(f'{kind}:…' for kind in known)}")
    values: Options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f"{name}: {pair!r} is not option=value; options follow the model's name after commas")
        if kind in options and key not in options[kind]:
            remedy = "; if you trust what it may run, add --allow-code" if flag else ""
            expected = f"known are {', '.join(sorted(options[kind])) or 'none'}"
            raise UserError(f"{name}: unknown option {key!r}{meant(nearest(key, options[kind]))}; {expected}{remedy}")
        values[key] = _WORDS.get(value.lower(), value)
        for number in (float, int):  # the last that takes it
            with contextlib.suppress(ValueError):
                values[key] = number(value)
    return kind, what, values


def import_library(module: str, name: str, *, package: str) -> ModuleType:
    """Return the imported module; UserError names the package to install where it cannot be had."""
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
        said = f"{type(error).__name__}: {first_line(error)}"
        if not pretrained:
            raise UserError(f"{name}: {said}") from error
        raise UserError(
            f"{name}: the pretrained weights could not be had ({said}); connect "
            "to the network once (HF_HUB_OFFLINE=1 then asks no hub), name a local file of weights (weights=FILE, "
            "model.weights=FILE), or take random weights with pretrained=false"
        ) from error


@contextlib.contextmanager
def weights_only(allow_code: bool = False) -> Iterator[None]:
    """A context in which torch reads files of weights as data alone, whatever a library asks it for."""
    if allow_code:
        yield
        return
    names = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ[names[0]] = "1"
    try:
        yield
    finally:
        del os.environ[names[0]]
        os.environ.update(before)


@contextlib.contextmanager
def no_code_of_hubs(allow_code: bool = False) -> Iterator[None]:
    """A context in which transformers runs no code of a model's repository, whoever tells it to trust that."""
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
    """Return all that decides an embedding beside the weights, in words."""
    version = getattr(library, "__version__", "?")
    stable = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(transform))  # addresses in memory differ from run to run
    return f"{library.__name__} {version} {what} {dict(sorted(options.items()))} {stable}"
