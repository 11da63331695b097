"""What adapters of other libraries share: what they return, names with options, imports, errors in one line."""

import contextlib
import importlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL.Image import Image
from torch import Tensor, nn

from aurank.errors import UserError, first_line
from aurank.files import reading
from aurank.names import meant, nearest

Options = dict[str, Any]  # of plain values; Any, as other libraries' constructors judge them
Transform = Callable[[Image], Tensor]
Tokenise = Callable[[Sequence[str]], Tensor]
TextParts = tuple[nn.Module, Tokenise]
_WORDS = {"true": True, "false": False, "none": None, "null": None}
_LARGEST = 2**24  # number of layers, of words, of positions
# What libraries build by; of timm all arguments. Others are notes, as of the number of parameters.
_SIZES = re.compile(r"^model_args$|_(size|dim|layers|heads|channels|positions|embeddings|classes)s?$|^(depth|width)s?$")


@dataclass(frozen=True, eq=False)
class ImageModel:
    """A model together with the preprocessing it expects.

    `module` maps a stack of what `transform` returns to embeddings [batch, dim]; `transform` takes an upright 8-bit
    image of `channels` channels. `description` holds all that decides an embedding beside the weights: what the model
    is called, its options, the version of its library, the transform. `notes` say what was taken of a file of weights.
    """

    name: str
    module: nn.Module
    transform: Transform
    description: str
    channels: int = 3
    notes: tuple[str, ...] = ()

    @property
    def preprocessing(self) -> str:
        """How images are shown to it, in words that another version of a library changes only if it does otherwise."""
        if self.name.partition(":")[0] != "python":
            return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(self.transform))
        return " ".join([*self.description.split(" ")[:1], *self.description.split(" ")[2:]])  # without the version

    @property
    def needed_side(self) -> int | None:
        """The shorter side below which its transform enlarges an image before it cuts; None where that is unknown."""
        if hasattr(self.transform, "needed_side"):
            own: int | None = self.transform.needed_side
            return own
        steps = (step for step in getattr(self.transform, "transforms", ()) if type(step).__name__.startswith("Resize"))
        size = getattr(next(steps, None), "size", None)  # of torchvision's Resize, and timm's
        return min(size) if isinstance(size, list | tuple) else size


@dataclass(frozen=True, eq=False)
class TextModel:
    """A text model together with the tokens it expects.

    `tokenise` makes int64 tokens [text, length] of texts, of one length always; `module` maps them to features
    [text, width].
    """

    name: str
    module: nn.Module
    tokenise: Tokenise
    width: int


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
    """Return what stands before the first comma, and the option=value pairs behind."""
    what, *pairs = text.split(",")
    options: Options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UserError(f"{name}: {pair!r} is not option=value; options follow the model's name after commas")
        options[key] = _WORDS.get(value.lower(), value)
        for number in (float, int):  # the last that takes it
            with contextlib.suppress(ValueError):
                options[key] = number(value)
    return what, options


def require_known(name: str, options: Mapping[str, Any], known: Collection[str], *, flag: bool = True) -> None:
    """Raise UserError for an option that might run code. `flag`: whether --allow-code permits it."""
    for option in options:
        if option not in known:
            remedy = "; if you trust what it may run, add --allow-code" if flag else ""
            hint = meant(nearest(option, known))
            raise UserError(f"{name}: unknown option {option!r}{hint}; known are {', '.join(sorted(known))}{remedy}")


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
        if not pretrained:
            raise UserError(f"{name}: {type(error).__name__}: {first_line(error)}") from error
        raise UserError(
            f"{name}: the pretrained weights could not be had ({type(error).__name__}: {first_line(error)}); connect "
            "to the network once (HF_HUB_OFFLINE=1 then asks no hub), name a local file of weights (weights=FILE, "
            "model.weights=FILE), or take random weights with pretrained=false"
        ) from error


def require_likely(folder: Path) -> None:
    """Raise UserError where config.json of a folder has a size that no network has; a library would build for hours.

    A folder without it is left to the library.
    """
    path = folder / "config.json"
    with reading(path, "the settings of a network", remedy="fetch it again"):
        waiting: list[tuple[str, Any]] = [("", json.loads(path.read_bytes()) if path.exists() else None)]
        while waiting:
            key, value = waiting.pop()
            if isinstance(value, int) and abs(value) > _LARGEST and _SIZES.search(key):
                raise ValueError(f"it has the number {str(value)[:30]}")
            if isinstance(value, dict):
                waiting += ((key if "model_args" in key else str(one), inner) for one, inner in value.items())
            elif isinstance(value, list):
                waiting += ((key, inner) for inner in value)


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


def describe_adapter(library: ModuleType, what: str, options: Mapping[str, Any], transform: object) -> str:
    """Return all that decides an embedding beside the weights, in words."""
    version = getattr(library, "__version__", "?")
    stable = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(transform))  # addresses in memory differ from run to run
    return f"{library.__name__} {version} {what} {dict(sorted(options.items()))} {stable}"


def require_size(name: str, option: str, value: Any) -> int:
    """Return the value; UserError unless it is a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name}: {option} must be a whole number above 0, got {value!r}")
    return value


def standard_transform(
    name: str, *, size: Any = 224, margin: Any = 256 / 224, mean: Any = None, std: Any = None, channels: int = 3
) -> Transform:
    """Return the usual evaluation transform, for models that bring none."""
    timm_data: Any = importlib.import_module("timm.data")

    if not isinstance(size, int) or size < 1 or not isinstance(margin, int | float) or margin < 1:
        raise UserError(f"{name}: size must be a whole number above 0 and margin at least 1, got {size} and {margin}")
    for key, value in (("mean", mean), ("std", std)):
        if not (value is None or isinstance(value, int | float)) or (key == "std" and value is not None and value <= 0):
            raise UserError(f"{name}: {key} must be one number, above 0 for std, got {value!r}")
    usual = (
        (timm_data.IMAGENET_DEFAULT_MEAN, timm_data.IMAGENET_DEFAULT_STD)
        if channels == 3
        else ((0.5,) * channels, (0.5,) * channels)
    )
    transform: Transform = timm_data.create_transform(
        input_size=(channels, size, size),
        mean=usual[0] if mean is None else (float(mean),) * channels,
        std=usual[1] if std is None else (float(std),) * channels,
        crop_pct=1 / margin,
    )
    return transform
