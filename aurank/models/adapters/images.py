"""Any image model with the preprocessing it expects: timm, open_clip, transformers, ONNX files, one's own code."""

import hashlib
import importlib
import json
import site
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor, nn

from aurank.errors import UserError, first_line
from aurank.files import require_ordinary
from aurank.models.adapters.backbones import create, unknown_backbone, unknown_options
from aurank.models.adapters.loading import (
    IMAGE_OPTIONS,
    Options,
    describe_adapter,
    library_of,
    loading,
    located,
    no_code_of_hubs,
    open_clip_arguments,
    parse_options,
    quick_when_offline,
    require_known,
    transformers_arguments,
    transformers_model,
    weights_only,
)

Transform = Callable[[Image], Tensor]


@dataclass(frozen=True, eq=False)
class ImageModel:
    """A model together with the preprocessing it expects.

    `module` maps a stack of what `transform` returns to embeddings [batch, dim]; `transform` takes an upright 8-bit
    image of `channels` channels. `description` holds all that decides an embedding beside the weights: what the model
    is called, its options, the version of its library, the transform.
    """

    name: str
    module: nn.Module
    transform: Transform
    description: str
    channels: int = 3


def load_model(name: str, *, allow_code: bool = False) -> ImageModel:
    """Returns the model that `name` asks for, on the CPU, in evaluation mode.

    `name` is KIND:WHAT[,option=value…]. Options go to the library's own constructor; without `allow_code` those alone
    that can run no code, and weights are read as data. Weights that are not loaded are drawn from a fixed seed, so one
    name means one model.

    - `timm:resnet18[,pretrained=false]`: options of the model's own constructor; `file=FILE`: weights of a local file
      (safetensors, or torch's); `input_size=128`: another size of images. The transform is `timm.data`'s for the model.
    - `open_clip:ViT-B-32[,pretrained=laion2b_s34b_b79k]`: the image tower.
    - `transformers:facebook/dinov2-small`: a name of the hub, or a folder; `pretrained=false`: its architecture.
    - `onnx:FILE[,size=224,margin=1.143,mean=0.5,std=0.5]`: an image [batch, channel, height, width] to [batch, dim];
      shorter side to margin × size, the middle, then ImageNet's mean and deviation unless one number is given for each.
    - `python:package.module:function[,option=value…]`: the function returns an `nn.Module`, or it and a transform. It
      runs code of the caller's choice, so `allow_code` must be set.

    Raises UserError for an unknown name, a package that is not installed, weights that cannot be had.
    """
    kind, what, options = check_model(name, allow_code=allow_code)
    with torch.random.fork_rng(devices=[]), weights_only(allow_code):
        torch.manual_seed(0)
        model = ADAPTERS[kind](name, what, options, allow_code)
    model.module.eval()
    return model


def check_model(name: str, *, allow_code: bool = False) -> tuple[str, str, Options]:
    """Returns the kind that a name begins with, what it names and the options, nothing of which is loaded.

    Raises UserError for an unknown name or option, and for what may run code unless `allow_code` is set.
    """
    kind, _, rest = name.partition(":")
    if kind not in ADAPTERS or not rest:
        raise UserError(f"no model {name!r}; expected one of {', '.join(f'{known}:…' for known in ADAPTERS)}")
    if kind == "python" and not allow_code:
        raise UserError(f"{name} runs Python code of that module; if you trust it, add --allow-code")
    what, options = parse_options(name, rest)
    if kind == "timm" and (complaint := unknown_backbone(what)) is not None:
        raise UserError(f"{name}: {complaint}")
    if not allow_code and kind in IMAGE_OPTIONS:
        require_known(name, options, IMAGE_OPTIONS[kind])
    return kind, what, options


def _timm(name: str, what: str, options: Options, allow_code: bool) -> ImageModel:
    own = {option: value for option, value in options.items() if option not in ("pretrained", "input_size")}
    if not allow_code:
        for complaint in unknown_options(what, own).values():
            raise UserError(f"{name}: {complaint}")
    pretrained = bool(options.get("pretrained", True))
    with loading(name, pretrained=pretrained):
        module: Any = create(what, {"num_classes": 0, **own}, pretrained=pretrained, allow_code=allow_code)
    # Imported late: seconds that commands without a model need not spend.
    timm: Any = importlib.import_module("timm")
    settings = timm.data.resolve_data_config({}, model=module)
    channels, height, width = settings["input_size"]
    for option in ("img_size", "input_size"):
        if (size := options.get(option)) is not None:
            height = width = _size(name, option, size)
    if isinstance(given := options.get("in_chans"), int) and given != channels:
        channels = given
        # timm adds or repeats the first layer's weights; the colours' mean stands for each channel.
        settings |= {key: (sum(settings[key]) / len(settings[key]),) * given for key in ("mean", "std")}
    settings["input_size"] = (channels, height, width)
    transform = timm.data.create_transform(**settings)
    arguments = {**options, "pretrained": pretrained}
    return ImageModel(name, module, transform, describe_adapter(timm, what, arguments, transform), channels=channels)


def _size(name: str, option: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name}: {option} must be a whole number above 0, got {value!r}")
    return value


class _OpenClip(nn.Module):
    """The image tower of an open_clip model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch dim"]:
        features: Tensor = self.model.encode_image(images)
        return features


def _open_clip(name: str, what: str, options: Options, allow_code: bool) -> ImageModel:
    library = library_of("open_clip", name, package="open_clip_torch")
    arguments = open_clip_arguments(library, name, what, options)
    pretrained = arguments["pretrained"] is not None
    fetched = quick_when_offline(needed=pretrained or ":" in what)
    with loading(name, pretrained=pretrained), no_code_of_hubs(allow_code), fetched:
        model, _, transform = library.create_model_and_transforms(what, **arguments)
    return ImageModel(name, _OpenClip(model), transform, describe_adapter(library, what, arguments, transform))


class _Transformers(nn.Module):
    """The image features of a transformers model: projected, else pooled, else the first token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch dim"]:
        project = getattr(self.model, "get_image_features", None)
        found = self.model(pixel_values=images) if project is None else project(pixel_values=images)
        if not isinstance(found, Tensor):
            pooled = getattr(found, "pooler_output", None)
            found = found.last_hidden_state[:, 0] if pooled is None else pooled
        features: Tensor = found.flatten(1)
        return features


def _transformers(name: str, what: str, options: Options, allow_code: bool) -> ImageModel:
    library = library_of("transformers", name, package="transformers")
    pretrained, arguments = transformers_arguments(options)
    fetched = quick_when_offline(needed=not Path(what).is_dir())
    with loading(name, pretrained=pretrained), no_code_of_hubs(allow_code), fetched:
        processor = library.AutoImageProcessor.from_pretrained(what, **located(arguments))
        model = transformers_model(library, what, arguments, pretrained=pretrained)

    def transform(image: Image) -> Tensor:
        pixels: Tensor = processor(images=image, return_tensors="pt")["pixel_values"][0]
        return pixels

    description = describe_adapter(library, what, {**arguments, "pretrained": pretrained}, processor)
    return ImageModel(name, _Transformers(model), transform, description)


_ANY_BATCH = "export it with a batch of any size, torch.onnx.export(…, dynamic_axes={'images': {0: 'batch'}})"


class _Onnx(nn.Module):
    """An ONNX graph, run by onnxruntime on the CPU. The file's digest stands in the state for its weights."""

    def __init__(self, name: str, session: Any, content: bytes) -> None:
        super().__init__()
        self.name = name
        self.session = session
        self.register_buffer("digest", torch.tensor(list(hashlib.sha256(content).digest()), dtype=torch.uint8))

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch dim"]:
        graph = self.session
        if graph.get_inputs()[0].shape[0] == 1 < len(images):
            raise UserError(f"{self.name}: the graph takes one image at a time: add --batch 1, or {_ANY_BATCH}")
        try:
            found = graph.run([graph.get_outputs()[0].name], {graph.get_inputs()[0].name: images.cpu().numpy()})
        except Exception as error:
            raise UserError(
                f"{self.name}: the graph fails on images {list(images.shape)}: {first_line(error)}"
            ) from error
        return torch.from_numpy(found[0]).flatten(1)


def _onnx(name: str, what: str, options: Options, allow_code: bool) -> ImageModel:
    library = library_of("onnxruntime", name, package="onnxruntime")
    require_ordinary(Path(what))
    try:
        content = Path(what).read_bytes()
    except OSError as error:
        raise UserError(f"{name}: cannot read the file {what}: {error.strerror}") from error
    try:
        session = library.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UserError(f"{name}: {what} is no ONNX model that can be run: {first_line(error)}") from error
    shape = session.get_inputs()[0].shape
    if len(session.get_inputs()) != 1 or len(shape) != 4:
        raise UserError(f"{name}: expected one input [batch, channel, height, width], got {shape}")
    if isinstance(shape[0], int) and shape[0] != 1:
        raise UserError(f"{name}: the graph takes {shape[0]} images at once, no more and no fewer: {_ANY_BATCH}")
    fixed = sorted({side for side in shape[2:] if isinstance(side, int)})
    if len(fixed) > 1:
        raise UserError(f"{name}: the graph takes images of {shape[2]} × {shape[3]}; export it for square ones")
    if fixed and options.get("size", fixed[0]) != fixed[0]:
        raise UserError(
            f"{name}: the graph takes images of {fixed[0]} × {fixed[0]} alone: leave out size={options['size']}, or "
            "export it with height and width of any size (dynamic_axes)"
        )
    channels = shape[1] if isinstance(shape[1], int) else 3
    transform = _standard(name, channels=channels, **{"size": fixed[0] if fixed else 224, **options})
    description = describe_adapter(library, what, options, transform)
    return ImageModel(name, _Onnx(name, session, content), transform, description, channels=channels)


def _python(name: str, what: str, options: Options, allow_code: bool) -> ImageModel:
    place, _, function = what.partition(":")
    if not place or not function.isidentifier():
        raise UserError(f"{name}: expected python:package.module:function")
    # As `python -m` would: one's own module usually lies in the folder that the command is given in.
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(place)
        found = getattr(module, function)(**options)
    except Exception as error:
        raise UserError(f"{name}: {type(error).__name__}: {first_line(error)}") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    model, transform = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(model, nn.Module) or not (transform is None or callable(transform)):
        raise UserError(f"{name}: expected an nn.Module, or one and a transform, got {type(found).__name__}")
    transform = transform or _standard(name)
    description = f"{describe_adapter(torch, what, options, transform)} code {_code_sha256(module)}"
    return ImageModel(name, model, transform, description)


def _code_sha256(module: ModuleType) -> str:
    """Returns a digest of the files of a module, and of every loaded one that is neither Python's nor installed.

    Which of them the model uses cannot be known, so all count. Those of aurank do not: they differ between commands.
    """
    places = [*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()]
    installed = [Path(place).resolve() for place in places]
    files: dict[str, str] = {}
    for name, loaded in list(sys.modules.items()):
        file = getattr(loaded, "__file__", None)
        if not file or (loaded is not module and name.partition(".")[0] in ("__main__", "aurank")):
            continue
        path = Path(file).resolve()
        # A few modules of torch name a file that is not there.
        if path.is_file() and not any(path.is_relative_to(place) for place in installed):
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def _standard(
    name: str, *, size: Any = 224, margin: Any = 256 / 224, mean: Any = None, std: Any = None, channels: int = 3
) -> Transform:
    """Returns the usual evaluation transform, for models that bring none."""
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


ADAPTERS: Mapping[str, Callable[[str, str, Options, bool], ImageModel]] = {
    "timm": _timm,
    "open_clip": _open_clip,
    "transformers": _transformers,
    "onnx": _onnx,
    "python": _python,
}
