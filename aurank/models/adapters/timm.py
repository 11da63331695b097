"""Models of timm: plain options, weights of a local file, images of a known mean and deviation."""

import contextlib
import importlib
import inspect
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from aurank.errors import refuse_first
from aurank.files import reading
from aurank.lazy import import_library
from aurank.models.adapters.loading import building, describe_adapter
from aurank.models.adapters.names import HUBS, LOCAL, VIEWS, Options
from aurank.models.adapters.weights import Crop, Tensors, load_weights_file, read_look
from aurank.models.image_model import ImageModel, crop_settings
from aurank.names import meant, nearest

NO_ARGUMENTS = ("pretrained", "input_size", "weights", "resize", *VIEWS)
"""Options of a name that the model's constructor does not take."""
_OVERLAY = "pretrained_cfg_overlay"
_OVERLAID = ("mean", "std", "interpolation")  # what may be in it
# What timm's modules call the function that converts names of older or other libraries.
_FILTERS = ("checkpoint_filter_fn", "_filter_fn", "_filter_torchvision_pretrained")
# Layers of EfficientNet-PyTorch (lite networks are published for it) whose names in timm differ by more than a "_".
_STEM_AND_HEAD = {"_bn0": "bn1", "_bn1": "bn2", "_fc": "classifier"}
_SEPARABLE = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_EXPANDING = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"}
_EXPANDING |= {"_project_conv": "conv_pwl", "_bn2": "bn3"}
_SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
_OF_BUILDERS = ("bn_eps", "bn_momentum", "bn_tf")  # EfficientNets take these apart from their constructor


def wrong_names(
    name: str, options: Mapping[str, Any], *, filled: Collection[str] = (), further: Collection[str] = ()
) -> dict[str, str]:
    """Return what is wrong with a name, under "", and with each option that the constructor does not take.

    `further`: options that aurank itself takes, the first that may have been meant.
    """
    timm: Any = importlib.import_module("timm")
    architecture = name.split(".")[0]
    if not name.startswith(HUBS) and not timm.is_model(architecture):
        likely = meant(nearest(name, timm.list_models(), most=3))
        return {"": f"timm has no model {name!r}{likely or '; timm.list_models() names them all'}"}
    try:
        timm.get_pretrained_cfg("" if name.startswith(HUBS) else name)
    except RuntimeError:
        likely = meant(nearest(name, timm.list_pretrained(f"{architecture}.*"), most=3))
        return {"": f"timm has no weights {name!r}{likely}"}
    taken = (*further, *_constructor_arguments(name), *_OF_BUILDERS) if options else ()
    accepted = [argument for argument in taken if argument not in filled]
    wrong = {}
    for option, value in options.items():
        if option == _OVERLAY:
            odd = sorted(set(value) - set(_OVERLAID)) if isinstance(value, Mapping) else [repr(value)]
            if odd:
                wrong[option] = f"got {odd[0]}, expected a mapping with keys among {', '.join(_OVERLAID)}"
        elif option in ("weights", "file", "checkpoint_path"):
            wrong[option] = f"weights of a file are model.weights={value}; leave it out here"
        elif option not in accepted:
            hint = meant(nearest(option, accepted))
            wrong[option] = f"{name} takes no option {option!r}{hint}; it takes {', '.join(accepted)}"
    return wrong


def require_known(name: str, options: Mapping[str, Any], *, of: str, **more: Collection[str]) -> None:
    wrong = wrong_names(name, options, **more).items()
    refuse_first((f"{option}: {complaint}" if option else complaint for option, complaint in wrong), of)


def timm_model(name: str, model_id: str, options: Options, allow_code: bool) -> ImageModel:
    crop, file = crop_settings(options), options.get("weights")
    arguments = {option: value for option, value in options.items() if option not in NO_ARGUMENTS}
    if not allow_code:
        require_known(model_id, arguments, of=name, further=NO_ARGUMENTS)
    fetched = bool(options.get("pretrained", True)) and file is None
    with building(name, pretrained=fetched, allow_code=allow_code):
        timm: Any = importlib.import_module("timm")
        module = timm.create_model(model_id, **{"num_classes": 0, **arguments}, pretrained=fetched)
    notes = () if file is None else (load_file(module, str(file), name=model_id),)
    with reading(name, "a model of timm"):
        settings = timm_look(model_id, options, weights=file, model=module)
        del settings["crop"]
        channels, height, width = settings["input_size"]
        channels = options.get("in_chans", channels)
        for option in ("img_size", "input_size"):
            size = options.get(option) or (height, width)
            height, width = size if isinstance(size, tuple) else (size, size)
        settings |= crop | {key: by_channel(settings[key], channels) for key in ("mean", "std")}
        transform = timm.data.create_transform(**{**settings, "input_size": (channels, height, width)})
    described = {**options, "pretrained": fetched or file is not None}
    described.pop("weights", None)  # they have a digest
    description = describe_adapter(timm, model_id, described, transform)
    return ImageModel(name, module, transform, description, channels=channels, notes=notes)


def load_file(model: nn.Module, path: Path | str, *, name: str) -> str:
    timm: Any = importlib.import_module("timm")
    settings, state = cast("dict[str, Any]", model.pretrained_cfg), model.state_dict()
    module = sys.modules[type(model).__module__]
    convert = next(filter(None, (getattr(module, name, None) for name in _FILTERS)), lambda weights, _: weights)

    def names_of(key: str) -> tuple[str, ...]:
        names = settings.get(key) or ()
        return (names,) if isinstance(names, str) else tuple(names)

    def adapt_channels(weights: Tensors) -> Tensors:
        for stem in (f"{layer}.weight" for layer in names_of("first_conv")):
            value, expected = weights.get(stem), state.get(stem)
            if value is None or expected is None or value.ndim != 4 or value.shape[1] == expected.shape[1]:
                continue
            with contextlib.suppress(NotImplementedError):
                weights = {**weights, stem: timm.models.adapt_input_conv(expected.shape[1], value)}
        return weights

    def convert_names(weights: Tensors) -> Tensors:
        return dict(convert(_from_efficientnet_pytorch(weights, state), model))

    how: dict[str, Any] = {"convert": convert_names, "finish": adapt_channels}
    return load_weights_file(model, path, name=name, classifier=names_of("classifier"), **how)


def _from_efficientnet_pytorch(weights: Tensors, state: Tensors) -> Tensors:
    modules = dict(_STEM_AND_HEAD)
    blocks = dict.fromkeys(re.findall(r"^blocks\.\d+\.\d+", "\n".join(state), re.MULTILINE))
    for number, block in enumerate(blocks):  # counted through the network there, in each stage by timm
        layers = _EXPANDING if f"{block}.conv_pwl.weight" in state else _SEPARABLE
        modules |= {f"_blocks.{number}.{layer}": f"{block}.{name}" for layer, name in (layers | _SQUEEZE).items()}
    renamed = {}
    for name, value in weights.items():
        module, dot, tensor = name.rpartition(".")
        # Without "_" a layer of no table counts as unexpected, not as part of another tower.
        renamed[modules.get(module, module.removeprefix("_")) + dot + tensor] = value
    return renamed


def timm_look(
    name: str, options: Mapping[str, Any], *, weights: str | None, model: nn.Module | None = None
) -> dict[str, Any]:
    """Return how a model is shown images: its published settings, those beside its weights, those of `options`."""
    timm: Any = importlib.import_module("timm")
    is_built = model is not None or name.startswith(HUBS)
    published: Any = (model or _skeleton(name)).pretrained_cfg if is_built else timm.get_pretrained_cfg(name)
    if published is not None and not isinstance(published, Mapping):
        published = published.to_dict()
    settings: dict[str, Any] = timm.data.resolve_data_config({}, pretrained_cfg=published or {"mean": None})
    beside = {} if weights is None else read_look(weights)
    settings |= {key: value for key, value in beside.items() if key in settings}
    return {**settings, **(options.get(_OVERLAY) or {}), "crop": timm_crop(settings)}


def timm_config(model: nn.Module, name: str, weights: str | None) -> dict[str, Any]:
    kind, _, repo = name.partition(":")
    shown = {key: value for key, value in cast("dict[str, Any]", model.pretrained_cfg).items() if key != "file"}
    content: dict[str, Any] = {"architecture": shown["architecture"]}
    if name.startswith(HUBS):  # arguments of its constructor are there alone
        file = Path(repo, "config.json")
        if f"{kind}:" != LOCAL:
            repo, _, revision = repo.partition("@")
            hub = import_library("huggingface_hub", name)
            file = hub.hf_hub_download(repo, "config.json", revision=revision or None)
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    beside = {} if weights is None else read_look(weights)
    return {**content, "pretrained_cfg": {**shown, **{key: value for key, value in beside.items() if key != "crop"}}}


def by_channel(values: Sequence[Any], channels: int) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    return numbers if len(numbers) == channels else (sum(numbers) / len(numbers),) * channels


def timm_crop(settings: Mapping[str, Any]) -> Crop:
    return "timm", {"crop_pct": settings["crop_pct"], "crop_mode": settings.get("crop_mode") or "center"}


@cache
def _constructor_arguments(name: str) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for ancestor in type(_skeleton(name)).__mro__[:-1]:
        if "__init__" not in vars(ancestor):
            continue
        parameters = list(inspect.signature(vars(ancestor)["__init__"]).parameters.values())[1:]
        names |= {parameter.name: None for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return tuple(names)


def _skeleton(name: str) -> nn.Module:
    timm: Any = importlib.import_module("timm")
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    return model
