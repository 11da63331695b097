"""What adapters of other libraries share: names with options, imports, errors in one line."""

import contextlib
import importlib
import os
import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

from aurank.errors import UserError, first_line
from aurank.names import meant, nearest

Value = bool | int | float | str | None
Options = dict[str, Any]  # of Value; Any, as other libraries' constructors judge them
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "none": None, "null": None}
_PATIENCE = 3.0  # seconds that a hub has to answer

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
}
"""The same of image models; timm's depend on the model."""


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


def require_known(name: str, options: Mapping[str, Any], known: Collection[str], *, flag: bool = True) -> None:
    """Raise UserError for an option that might run code. `flag`: whether --allow-code permits it."""
    for option in options:
        if option not in known:
            remedy = "; if you trust what it may run, add --allow-code" if flag else ""
            hint = meant(nearest(option, known))
            raise UserError(f"{name}: unknown option {option!r}{hint}; known are {', '.join(sorted(known))}{remedy}")


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
            "to the network once, name a local file of timm's weights (file=FILE, model.params.file), or take random "
            "weights with pretrained=false"
        ) from error


@contextlib.contextmanager
def weights_only(allow_code: bool = False) -> Iterator[None]:
    """A context in which torch reads files of weights as data alone, whatever a library asks it for."""
    names = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    before = {name: os.environ.pop(name) for name in names if name in os.environ and not allow_code}
    if not allow_code:
        os.environ[names[0]] = "1"
    try:
        yield
    finally:
        if not allow_code:
            del os.environ[names[0]]
        os.environ.update(before)


@contextlib.contextmanager
def no_code_of_hubs(allow_code: bool = False) -> Iterator[None]:
    """A context in which transformers runs no code of a model's repository, whoever tells it to trust that.

    Not only its caller does: open_clip hands on what a repository's own configuration says.
    """
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


@contextlib.contextmanager
def quick_when_offline(*, needed: bool) -> Iterator[None]:
    """A context in which a hub that does not answer is not asked again and again: what was fetched before is used.

    needed: whether anything is to be fetched at all.
    """
    constants: Any = importlib.import_module("huggingface_hub.constants")
    if not needed or constants.HF_HUB_OFFLINE or _answers(constants.ENDPOINT):
        yield
        return
    timeout = socket.getdefaulttimeout()
    constants.HF_HUB_OFFLINE = True
    socket.setdefaulttimeout(_PATIENCE)  # of downloads from elsewhere
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False
        socket.setdefaulttimeout(timeout)


def _answers(address: str) -> bool:
    """Whether a server, or the proxy before it, says anything within seconds; looking up its name counts too."""
    answered: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_PATIENCE).close()
            answered.append(True)
        except urllib.error.HTTPError as error:
            answered.append(error.code < 500)
        # Its certificate is not ours to judge: the hub's own client may know another authority.
        except urllib.error.URLError as error:
            answered.append(isinstance(error.reason, ssl.SSLError))
        except (OSError, ValueError):
            answered.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return bool(answered and answered[0])


def describe_adapter(library: ModuleType, what: str, options: Mapping[str, Any], transform: object) -> str:
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


def transformers_arguments(options: Options) -> tuple[bool, Options]:
    """Whether weights are wanted, and the arguments of transformers' constructors; left out, code is not trusted."""
    arguments = {"trust_remote_code": False, **options}  # else it would ask at the terminal
    return bool(arguments.pop("pretrained", True)), arguments


def located(arguments: Options) -> Options:
    """Those arguments that say where a processor or a tokeniser is, and whether its code is trusted."""
    return {key: value for key, value in arguments.items() if key in ("revision", "subfolder", "trust_remote_code")}


def transformers_model(library: ModuleType, what: str, arguments: Options, *, pretrained: bool) -> Any:
    """The model, or its architecture with random weights, under the same arguments."""
    if pretrained:
        return library.AutoModel.from_pretrained(what, **arguments)
    # The configuration takes its options and leaves the model's, as where weights are loaded.
    config, others = library.AutoConfig.from_pretrained(what, return_unused_kwargs=True, **arguments)
    return library.AutoModel.from_config(config, **{**others, "trust_remote_code": arguments["trust_remote_code"]})


def _stable(value: object) -> str:
    """Returns the value's words without the addresses in memory, which differ from run to run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
