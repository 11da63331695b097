"""Models of timm: plain options, weights of a local file, images of a known mean and deviation."""

import importlib
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aurank.errors import UserError, first_line
from aurank.models.adapters.loading import (
    ImageModel,
    Options,
    describe_adapter,
    loading,
    quick_when_offline,
    require_size,
    weights_only,
)
from aurank.names import meant, nearest

HUBS = ("hf-hub:", "hf_hub:", "local-dir:")
FILE_OPTIONS = ("file", "checkpoint_path")
"""Options that name a local file of weights; the second is timm's name for it."""

_OVERLAY = "pretrained_cfg_overlay"
_OVERLAID = ("file", "mean", "std", "interpolation")  # what may be in it
# EfficientNets take these apart from their constructor.
_OF_BUILDERS = frozenset({"bn_eps", "bn_momentum", "bn_tf"})


@dataclass(frozen=True)
class Preprocessing:
    """How a backbone was shown images: values (v / 255 − mean) / std by channel, resized by that interpolation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str


def unknown_backbone(name: str) -> str | None:
    """What to say of a name that timm has no model of, None where it has one or only a hub can tell."""
    timm: Any = importlib.import_module("timm")
    if name.startswith(HUBS):
        return None
    architecture = name.split(".")[0]
    if timm.is_model(architecture):
        try:
            timm.get_pretrained_cfg(name)
        except RuntimeError:
            likely = nearest(name, timm.list_pretrained(f"{architecture}.*"), most=3)
            return f"timm has no weights {name!r}{meant(likely)}"
        return None
    return f"timm has no model {name!r}" + (
        meant(nearest(name, timm.list_models(), most=3)) or "; timm.list_models() names them all"
    )


def unknown_options(name: str, options: Mapping[str, Any], *, filled: Collection[str] = ()) -> dict[str, str]:
    """What to say of each option that this model does not take, or that the program fills in itself.

    The rest are arguments of the model's own constructor, which builds layers from plain values, or say where local
    weights are. Nothing else is passed on: timm's builders take functions, and places to fetch from and to write to.
    """
    if not options:
        return {}
    taken = [*_constructor_arguments(name), *sorted(_OF_BUILDERS), *FILE_OPTIONS]
    known = [option for option in taken if option not in filled]
    found = {}
    for option, value in options.items():
        if option == _OVERLAY:
            odd = sorted(set(value) - set(_OVERLAID)) if isinstance(value, Mapping) else [repr(value)]
            if odd:
                found[option] = f"got {odd[0]}, expected a mapping with keys among {', '.join(_OVERLAID)}"
        elif option not in known:
            found[option] = (
                f"{name} takes no option {option!r}{meant(nearest(option, known))}; it takes {', '.join(known)}"
            )
    return found


def weights_file(options: Mapping[str, Any]) -> str | None:
    """The local file of weights that options name, or None."""
    overlay = options.get(_OVERLAY)
    named = [options.get(option) for option in FILE_OPTIONS]
    named.append(overlay.get("file") if isinstance(overlay, Mapping) else None)
    return next((str(file) for file in named if file is not None), None)


def without_file(options: Mapping[str, Any]) -> Options:
    """The options without a local file of weights."""
    rest = {name: value for name, value in options.items() if name not in FILE_OPTIONS}
    if isinstance(overlay := rest.get(_OVERLAY), Mapping):
        rest[_OVERLAY] = {name: value for name, value in overlay.items() if name != "file"}
    return rest


def timm_model(name: str, what: str, options: Options, allow_code: bool) -> ImageModel:
    """Return timm's model, with the evaluation transform of its settings."""
    own = {option: value for option, value in options.items() if option not in ("pretrained", "input_size")}
    if not allow_code:
        for complaint in unknown_options(what, own).values():
            raise UserError(f"{name}: {complaint}")
    pretrained = bool(options.get("pretrained", True))
    with loading(name, pretrained=pretrained):
        module: Any = create(what, {"num_classes": 0, **own}, pretrained=pretrained, allow_code=allow_code)
    timm: Any = importlib.import_module("timm")
    settings = timm.data.resolve_data_config({}, model=module)
    channels, height, width = settings["input_size"]
    for option in ("img_size", "input_size"):
        if (size := options.get(option)) is not None:
            height = width = require_size(name, option, size)
    if isinstance(given := options.get("in_chans"), int) and given != channels:
        channels = given
        # timm adds or repeats the first layer's weights; the colours' mean stands for each channel.
        settings |= {key: (sum(settings[key]) / len(settings[key]),) * given for key in ("mean", "std")}
    settings["input_size"] = (channels, height, width)
    transform = timm.data.create_transform(**settings)
    arguments = {**options, "pretrained": pretrained}
    return ImageModel(name, module, transform, describe_adapter(timm, what, arguments, transform), channels=channels)


def create(name: str, options: Mapping[str, Any], *, pretrained: bool, allow_code: bool = False) -> nn.Module:
    """timm's model of that name, the weights of a local file read as data alone.

    Raises:
        UserError: the file is missing, no file of weights, or one of another model's.
        Exception: whatever timm raises of options or of weights that cannot be fetched.
    """
    timm: Any = importlib.import_module("timm")
    file, given = weights_file(options), without_file(options)
    with weights_only(allow_code):
        if file is None:
            with quick_when_offline(needed=pretrained or ":" in name):
                model: nn.Module = timm.create_model(name, pretrained=pretrained, **given)
            return model
        weights = _read(file)
        overlay = {**given.pop(_OVERLAY, {}), "state_dict": weights, "source": None}
        try:
            model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **given)
        except RuntimeError as error:
            raise UserError(
                f"the weights of {file} do not fit {name}: {' '.join(str(error).split())[:200]}; use its own"
            ) from error
    settings: Any = model.pretrained_cfg
    settings.pop("state_dict", None)
    # timm leaves what a file lacks at random. Norms and biases begin at ones and zeros; some have other names there.
    lacking = [key for key, value in model.state_dict().items() if value.ndim > 1 and key not in weights]
    if lacking:
        raise UserError(
            f"the weights of {file} do not fit {name}: {len(lacking)} tensors are missing, the first {lacking[0]}; "
            "use a file with the names of timm's parameters"
        )
    return model


def preprocessing(name: str, options: Mapping[str, Any], *, channels: int, pretrained: bool) -> Preprocessing:
    """How images are shown to a backbone: as it was trained, as far as that is known.

    Of another number of channels than it was trained with, pretrained weights get the colours' mean for each, and
    random ones 0.5. Random weights know no interpolation: "area". Raises UserError for what is not lists of numbers.
    """
    overlay = options.get(_OVERLAY) or {}
    settings = {**_pretrained_settings(name), **{key: overlay[key] for key in _OVERLAID[1:] if key in overlay}}
    learnt = pretrained or weights_file(options) is not None
    try:
        mean, std = (tuple(float(value) for value in settings[key]) for key in ("mean", "std"))
    except (TypeError, ValueError):
        mean, std = (), ()
    if not len(mean) == len(std) > 0:
        got = ", ".join(f"{key}={settings[key]!r}" for key in ("mean", "std"))
        raise UserError(f"the images of {name}: got {got}, expected lists of numbers, one for each channel")
    if len(mean) != channels:
        mean, std = (((sum(one) / len(one) if learnt else 0.5),) * channels for one in (mean, std))
    return Preprocessing(mean, std, str(settings["interpolation"]) if learnt else "area")


def _pretrained_settings(name: str) -> dict[str, Any]:
    timm: Any = importlib.import_module("timm")
    if not name.startswith(HUBS):
        registered = timm.get_pretrained_cfg(name)
        settings: dict[str, Any] = {} if registered is None else registered.to_dict()
    else:
        with quick_when_offline(needed=True):
            settings = dict(_skeleton(name).pretrained_cfg)  # type: ignore[arg-type]
    data: dict[str, Any] = timm.data.resolve_data_config({}, pretrained_cfg=settings or {"mean": None})
    return data


@cache
def _constructor_arguments(name: str) -> tuple[str, ...]:
    """The arguments that the constructor of a model takes, and those that its parents take of it."""
    found: dict[str, None] = {}
    for ancestor in type(_skeleton(name)).__mro__[:-1]:
        if "__init__" not in vars(ancestor):
            continue
        parameters = list(inspect.signature(vars(ancestor)["__init__"]).parameters.values())[1:]
        found |= {one.name: None for one in parameters if one.kind is not one.VAR_KEYWORD}
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return tuple(found)


def _skeleton(name: str) -> nn.Module:
    """The model without weights, nor memory for them."""
    timm: Any = importlib.import_module("timm")
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    return model


def _read(file: str) -> dict[str, torch.Tensor]:
    """The tensors of a file, safetensors or torch's; nothing in it is run."""
    timm: Any = importlib.import_module("timm")
    if not Path(file).is_file():
        raise UserError(f"no file of weights at {file}; correct the path")
    try:
        tensors: dict[str, torch.Tensor] = timm.models.load_state_dict(file)
    # Damaged files fail in any way; others would run code if they were loaded.
    except Exception as error:
        raise UserError(
            f"{file} is no file of weights alone, safetensors or torch's ({first_line(error)}); use another one"
        ) from error
    if not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise UserError(f"{file} holds more than tensors by name; save the model's state_dict alone")
    return tensors
