"""Models of timm: plain options, weights of a local file, images of a known mean and deviation."""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from aurank.errors import UserError
from aurank.files import reading
from aurank.models.adapters.loading import (
    Options,
    describe_adapter,
    loading,
    weights_only,
)
from aurank.models.adapters.weights import Conversion, Tensors, from_transformers, load_weights_file, read_look
from aurank.models.image_model import ImageModel
from aurank.names import meant, nearest

HUBS = ("hf-hub:", "hf_hub:", "local-dir:")

_OVERLAY = "pretrained_cfg_overlay"
_OVERLAID = ("mean", "std", "interpolation")  # what may be in it
# What timm's modules call the function that converts names of older or other libraries.
_FILTERS = ("checkpoint_filter_fn", "_filter_fn", "_filter_torchvision_pretrained")
_OF_BUILDERS = ("bn_eps", "bn_momentum", "bn_tf")  # EfficientNets take these apart from their constructor


@dataclass(frozen=True)
class Preprocessing:
    """How a backbone was shown images: (v / 255 − mean) / std by channel, resized by that interpolation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    transform: str = "center"  # of evaluation, by its name in TRANSFORMS
    params: Options = field(default_factory=dict)


def unknown_backbone(name: str) -> str | None:
    """Return what is wrong with a name that timm has no model of, None where it has one or only a hub can tell."""
    timm: Any = importlib.import_module("timm")
    if name.startswith(HUBS):
        return None
    architecture = name.split(".")[0]
    if not timm.is_model(architecture):
        likely = meant(nearest(name, timm.list_models(), most=3))
        return f"timm has no model {name!r}{likely or '; timm.list_models() names them all'}"
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError:
        return f"timm has no weights {name!r}{meant(nearest(name, timm.list_pretrained(f'{architecture}.*'), most=3))}"
    return None


def unknown_options(name: str, options: Mapping[str, Any], *, filled: Collection[str] = ()) -> dict[str, str]:
    """Return what is wrong with each option that the model's constructor does not take, or that aurank fills in."""
    if not options:
        return {}
    known = [option for option in (*_constructor_arguments(name), *_OF_BUILDERS) if option not in filled]
    wrong = {}
    for option, value in options.items():
        if option == _OVERLAY:
            odd = sorted(set(value) - set(_OVERLAID)) if isinstance(value, Mapping) else [repr(value)]
            if odd:
                wrong[option] = f"got {odd[0]}, expected a mapping with keys among {', '.join(_OVERLAID)}"
        elif option in ("weights", "file", "checkpoint_path"):
            wrong[option] = f"weights of a file are model.weights={value}; leave it out here"
        elif option not in known:
            taken = f"it takes {', '.join(known)}"
            wrong[option] = f"{name} takes no option {option!r}{meant(nearest(option, known))}; {taken}"
    return wrong


def timm_model(name: str, what: str, options: Options, allow_code: bool) -> ImageModel:
    """Return timm's model, with the evaluation transform of its settings."""
    file = options.get("weights")
    own = {option: value for option, value in options.items() if option not in ("pretrained", "input_size", "weights")}
    if not allow_code:
        for complaint in unknown_options(what, own).values():
            raise UserError(f"{name}: {complaint}")
    learnt = bool(options.get("pretrained", True)) or file is not None
    with loading(name, pretrained=learnt and file is None):
        module = create(what, {"num_classes": 0, **own}, pretrained=learnt and file is None, allow_code=allow_code)
    notes = () if file is None else (load_file(module, str(file), name=what),)
    timm: Any = importlib.import_module("timm")
    with reading(name, "a model of timm"):
        settings = evaluation_settings(module, options)
        transform = timm.data.create_transform(**settings)
    told = {**options, "pretrained": learnt}
    told.pop("weights", None)  # they have a digest
    description = describe_adapter(timm, what, told, transform)
    return ImageModel(name, module, transform, description, channels=settings["input_size"][0], notes=notes)


def evaluation_settings(module: nn.Module, options: Options) -> dict[str, Any]:
    """Return the settings of timm's evaluation transform for a model with these options."""
    timm: Any = importlib.import_module("timm")
    settings: dict[str, Any] = timm.data.resolve_data_config({}, model=module)
    said = read_look(str(options["weights"])) if "weights" in options else {}
    settings |= {key: value for key, value in said.items() if key in settings}
    channels, height, width = settings["input_size"]
    for option in ("img_size", "input_size"):
        if (size := options.get(option)) is not None:
            height = width = size
    if isinstance(given := options.get("in_chans"), int):
        channels = given
    for key in ("mean", "std"):
        # timm adds or repeats the first layer's weights; the colours' mean stands for each channel.
        if len(settings[key]) != channels:
            settings[key] = (sum(settings[key]) / len(settings[key]),) * channels
    settings["input_size"] = (channels, height, width)
    return settings


def create(name: str, options: Mapping[str, Any], *, pretrained: bool, allow_code: bool = False) -> nn.Module:
    """Return timm's model of that name, with published weights or at random; whatever timm raises passes on."""
    timm: Any = importlib.import_module("timm")
    with weights_only(allow_code):
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    return model


def load_file(model: nn.Module, path: Path | str, *, name: str) -> str:
    """Load a file or folder of weights into a model of timm; return what was taken, in words."""
    timm: Any = importlib.import_module("timm")
    settings, own = cast("dict[str, Any]", model.pretrained_cfg), model.state_dict()
    module = sys.modules[type(model).__module__]
    filters = [getattr(module, each) for each in _FILTERS if hasattr(module, each)]

    def by_timm(weights: Tensors) -> Tensors:
        return dict(filters[0](weights, model)) if filters else weights

    def by_transformers(weights: Tensors) -> Tensors | None:
        renamed = from_transformers(weights)
        return None if renamed is None else by_timm(renamed)

    def names_of(key: str) -> tuple[str, ...]:
        said = settings.get(key) or ()
        return (said,) if isinstance(said, str) else tuple(said)

    def adapt(weights: Tensors) -> Tensors:
        for stem in (f"{one}.weight" for one in names_of("first_conv")):
            value, expected = weights.get(stem), own.get(stem)
            if value is None or expected is None or value.ndim != 4 or value.shape[1] == expected.shape[1]:
                continue
            with contextlib.suppress(NotImplementedError):
                weights = {**weights, stem: timm.models.adapt_input_conv(expected.shape[1], value)}
        return weights

    conversions: list[Conversion] = [by_timm, by_transformers]
    how: dict[str, Any] = {"classifier": names_of("classifier"), "conversions": conversions, "finish": adapt}
    try:
        return load_weights_file(model, path, name=name, **how)
    except UserError as error:
        if "fc_norm.weight" not in str(error):
            raise
        remedy = "they were trained to be pooled otherwise: set model.params.global_pool=token, or fc_norm=false"
        raise UserError(f"{str(error).rpartition(';')[0]}; {remedy}") from error


def preprocessing(
    name: str, options: Mapping[str, Any], *, channels: int, pretrained: bool, weights: str | None = None
) -> Preprocessing:
    """Return how images are shown to a backbone: as it was trained, as far as that is known."""
    timm: Any = importlib.import_module("timm")
    if name.startswith(HUBS):
        known = dict(_skeleton(name).pretrained_cfg)  # type: ignore[arg-type]
    else:
        registered = timm.get_pretrained_cfg(name)
        known = {} if registered is None else registered.to_dict()
    settings: dict[str, Any] = timm.data.resolve_data_config({}, pretrained_cfg=known or {"mean": None})
    overlay = options.get(_OVERLAY) or {}
    settings |= {} if weights is None else read_look(weights)
    settings |= {key: overlay[key] for key in _OVERLAID if key in overlay}
    learnt = pretrained or weights is not None
    # Of another number of channels trained weights get the colours' mean for each.
    try:
        mean, std = (tuple(float(value) for value in settings[key]) for key in ("mean", "std"))
        if len(mean) != len(std):
            raise ValueError("not of one length")
        if len(mean) != channels:
            mean, std = (((sum(one) / len(one) if learnt else 0.5),) * channels for one in (mean, std))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        got = ", ".join(f"{key}={settings[key]!r}" for key in ("mean", "std"))
        raise UserError(f"the images of {name}: got {got}, expected lists of numbers, one for each channel") from error
    crop = ("timm", timm_crop(settings)) if learnt else ()
    return Preprocessing(mean, std, str(settings["interpolation"]) if learnt else "area", *crop)


def timm_crop(settings: Mapping[str, Any]) -> Options:
    """Return the parameters of the transform "timm" among timm's settings."""
    return {"crop_pct": settings["crop_pct"], "crop_mode": settings.get("crop_mode") or "center"}


@cache
def _constructor_arguments(name: str) -> tuple[str, ...]:
    """Return the arguments that the constructor of a model takes, and those that its parents take of it."""
    names: dict[str, None] = {}
    for ancestor in type(_skeleton(name)).__mro__[:-1]:
        if "__init__" not in vars(ancestor):
            continue
        parameters = list(inspect.signature(vars(ancestor)["__init__"]).parameters.values())[1:]
        names |= {one.name: None for one in parameters if one.kind is not one.VAR_KEYWORD}
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            break
    return tuple(names)


def _skeleton(name: str) -> nn.Module:
    """Return the model without weights, nor memory for them."""
    timm: Any = importlib.import_module("timm")
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    return model
