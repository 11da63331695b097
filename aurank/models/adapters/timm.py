"""Models of timm: plain options, weights of a local file, images of a known mean and deviation."""

import contextlib
import importlib
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from aurank.errors import UserError
from aurank.files import reading
from aurank.models.adapters.fit_weights import converted, load_weights_file
from aurank.models.adapters.layouts import from_transformers
from aurank.models.adapters.loading import (
    ImageModel,
    Options,
    describe_adapter,
    loading,
    require_size,
    weights_only,
)
from aurank.models.adapters.weight_files import Tensors, read_look
from aurank.names import meant, nearest

HUBS = ("hf-hub:", "hf_hub:", "local-dir:")
FILE_OPTIONS = ("weights", "file", "checkpoint_path")
"""Options that name a local file of weights; the second is that of earlier versions, the third timm's name for it."""

_OVERLAY = "pretrained_cfg_overlay"
_OVERLAID = ("mean", "std", "interpolation")  # what may be in it
_FILTERS = ("checkpoint_filter_fn", "_filter_fn", "_filter_torchvision_pretrained")
"""What timm's modules call the function that converts names of older or other libraries."""
# EfficientNets take these apart from their constructor.
_OF_BUILDERS = frozenset({"bn_eps", "bn_momentum", "bn_tf"})


@dataclass(frozen=True)
class Preprocessing:
    """How a backbone was shown images: values (v / 255 − mean) / std by channel, resized by that interpolation.

    transform, params: the evaluation transform that cuts them as its library does, by its name in TRANSFORMS.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    transform: str = "center"
    params: Options = field(default_factory=dict)


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

    The rest are arguments of the model's own constructor, which builds layers from plain values. Nothing else is passed
    on: timm's builders take functions, and places to fetch from and to write to.
    """
    if not options:
        return {}
    taken = [*_constructor_arguments(name), *sorted(_OF_BUILDERS)]
    known = [option for option in taken if option not in filled]
    found = {}
    for option, value in options.items():
        if option == _OVERLAY:
            odd = sorted(set(value) - set(_OVERLAID)) if isinstance(value, Mapping) else [repr(value)]
            if odd == ["file"]:
                found[option] = f"weights of a file are model.weights={value['file']}; leave it out here"
            elif odd:
                found[option] = f"got {odd[0]}, expected a mapping with keys among {', '.join(_OVERLAID)}"
        elif option in FILE_OPTIONS:
            found[option] = f"weights of a file are model.weights={value}; leave it out here"
        elif option not in known:
            found[option] = (
                f"{name} takes no option {option!r}{meant(nearest(option, known))}; it takes {', '.join(known)}"
            )
    return found


def split_file(options: Mapping[str, Any]) -> tuple[str | None, Options]:
    """Return the local file of weights that options name, or None, and the options without it.

    Example:
        >>> split_file({"weights": "net.pth", "drop_rate": 0.1})
        ('net.pth', {'drop_rate': 0.1})
    """
    rest = {name: value for name, value in options.items() if name not in FILE_OPTIONS}
    named = [options.get(option) for option in FILE_OPTIONS]
    if isinstance(overlay := rest.get(_OVERLAY), Mapping):
        rest[_OVERLAY] = {name: value for name, value in overlay.items() if name != "file"}
        named.append(overlay.get("file"))
    return next((str(file) for file in named if file is not None), None), rest


def timm_model(name: str, what: str, options: Options, allow_code: bool) -> ImageModel:
    """Return timm's model, with the evaluation transform of its settings."""
    file, own = split_file(
        {option: value for option, value in options.items() if option not in ("pretrained", "input_size")}
    )
    if not allow_code:
        for complaint in unknown_options(what, own).values():
            raise UserError(f"{name}: {complaint}")
    pretrained = bool(options.get("pretrained", True)) and file is None
    with loading(name, pretrained=pretrained):
        module: Any = create(what, {"num_classes": 0, **own}, pretrained=pretrained, allow_code=allow_code)
    notes = () if file is None else (load_file(module, file, name=what),)
    timm: Any = importlib.import_module("timm")
    with reading(name, "a model of timm"):
        settings = evaluation_settings(name, module, options)
        transform = timm.data.create_transform(**settings)
    told = {
        option: value for option, value in options.items() if option not in FILE_OPTIONS
    }  # the weights have a digest
    description = describe_adapter(timm, what, {**told, "pretrained": pretrained or file is not None}, transform)
    return ImageModel(name, module, transform, description, channels=settings["input_size"][0], notes=notes)


def evaluation_settings(name: str, module: nn.Module, options: Options) -> dict[str, Any]:
    """Return the settings of timm's evaluation transform for a model of that name with these options."""
    timm: Any = importlib.import_module("timm")
    file, _ = split_file(options)
    settings: dict[str, Any] = timm.data.resolve_data_config({}, model=module)
    said = {} if file is None else read_look(file)
    settings |= {key: value for key, value in said.items() if key in settings}
    channels, height, width = settings["input_size"]
    for option in ("img_size", "input_size"):
        if (size := options.get(option)) is not None:
            height = width = require_size(name, option, size)
    if isinstance(given := options.get("in_chans"), int):
        channels = given
    for key in ("mean", "std"):
        # timm adds or repeats the first layer's weights; the colours' mean stands for each channel.
        if len(settings[key]) != channels:
            settings[key] = (sum(settings[key]) / len(settings[key]),) * channels
    settings["input_size"] = (channels, height, width)
    return settings


def create(name: str, options: Mapping[str, Any], *, pretrained: bool, allow_code: bool = False) -> nn.Module:
    """timm's model of that name, with published weights or at random.

    Raises:
        Exception: whatever timm raises of options or of weights that cannot be fetched.
    """
    timm: Any = importlib.import_module("timm")
    with weights_only(allow_code):
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **options)
    return model


def load_file(model: nn.Module, path: Path | str, *, name: str) -> str:
    """Load a file or folder of weights into a model of timm; return what was taken, in words.

    Names of timm, of open_clip and of transformers are known, and those that timm itself converts. As in timm, position
    embeddings are resized, and the first layer is adapted to the channels of its images.

    Raises:
        UserError: no file, none of weights, or weights that do not fill the model.
    """
    classifier = model.pretrained_cfg.get("classifier") or ()  # type: ignore[union-attr, operator]
    classifier = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    try:
        return load_weights_file(model, path, name=name, classifier=classifier, variants=partial(_variants, model))
    except UserError as error:
        if "fc_norm.weight" not in str(error):
            raise
        remedy = "they were trained to be pooled otherwise: set model.params.global_pool=token, or fc_norm=false"
        raise UserError(f"{str(error).rpartition(';')[0]}; {remedy}") from error


def _variants(model: nn.Module, weights: Tensors) -> Iterator[Tensors]:
    """The tensors of a file, and what timm and transformers' names make of them, with the model's channels."""
    timm: Any = importlib.import_module("timm")
    module, settings = sys.modules[type(model).__module__], cast("dict[str, Any]", model.pretrained_cfg)
    own = model.state_dict()
    filters = [getattr(module, each) for each in _FILTERS if hasattr(module, each)]

    def by_timm(found: Tensors) -> Tensors:
        return dict(filters[0](found, model))

    def by_transformers(found: Tensors) -> Tensors | None:
        renamed = from_transformers(found)
        return by_timm(renamed) if renamed is not None and filters else renamed

    first = settings.get("first_conv") or ()
    stems = [f"{one}.weight" for one in ((first,) if isinstance(first, str) else first)]
    for found in converted(weights, [*([by_timm] if filters else []), by_transformers]):
        for stem in stems:
            value, expected = found.get(stem), own.get(stem)
            if value is None or expected is None or value.ndim != 4 or value.shape[1] == expected.shape[1]:
                continue
            with contextlib.suppress(NotImplementedError):
                found = {**found, stem: timm.models.adapt_input_conv(expected.shape[1], value)}
        yield found


def preprocessing(
    name: str, options: Mapping[str, Any], *, channels: int, pretrained: bool, weights: str | None = None
) -> Preprocessing:
    """How images are shown to a backbone: as it was trained, as far as that is known.

    weights: a file or folder that it is filled from; a folder may say more than timm knows.

    Of another number of channels than it was trained with, pretrained weights get the colours' mean for each, and
    random ones 0.5. Random weights know no interpolation, "area", and no crop, "center". Raises UserError for what is
    not lists of numbers.
    """
    overlay = options.get(_OVERLAY) or {}
    said = {} if weights is None else read_look(weights)
    settings = {**_pretrained_settings(name), **said, **{key: overlay[key] for key in _OVERLAID if key in overlay}}
    learnt = pretrained or weights is not None
    try:
        mean, std = (tuple(float(value) for value in settings[key]) for key in ("mean", "std"))
    except (TypeError, ValueError):
        mean, std = (), ()
    if not len(mean) == len(std) > 0:
        got = ", ".join(f"{key}={settings[key]!r}" for key in ("mean", "std"))
        raise UserError(f"the images of {name}: got {got}, expected lists of numbers, one for each channel")
    if len(mean) != channels:
        mean, std = (((sum(one) / len(one) if learnt else 0.5),) * channels for one in (mean, std))
    crop = ("timm", timm_crop(settings)) if learnt else ()
    return Preprocessing(mean, std, str(settings["interpolation"]) if learnt else "area", *crop)


def timm_crop(settings: Mapping[str, Any]) -> Options:
    """Return the parameters of the transform "timm" among timm's settings.

    Example:
        >>> timm_crop({"mean": (0.5,), "crop_pct": 0.95, "crop_mode": None})
        {'crop_pct': 0.95, 'crop_mode': 'center'}
    """
    return {"crop_pct": settings["crop_pct"], "crop_mode": settings.get("crop_mode") or "center"}


def _pretrained_settings(name: str) -> dict[str, Any]:
    timm: Any = importlib.import_module("timm")
    if not name.startswith(HUBS):
        registered = timm.get_pretrained_cfg(name)
        settings: dict[str, Any] = {} if registered is None else registered.to_dict()
    else:
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
