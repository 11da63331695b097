"""Files and folders of weights, read as data alone: safetensors, or torch's without running code."""

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from aurank.data.transforms.standard import CROP_MODES
from aurank.errors import UserError
from aurank.files import checked, reading, require_ordinary

Tensors = dict[str, Tensor]
Crop = tuple[str, dict[str, Any]]
"""A transform by its name in TRANSFORMS, and its parameters."""

_USUAL = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt")
_AVERAGES = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "teacher")
_DEEPEST = 3
_SETTINGS = ("config.json", "preprocessor_config.json", "open_clip_config.json")
_PILLOWS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by Pillow's numbers
_REMEDY = "name a file that holds a model's state_dict, safetensors or torch's"


def read_weights(path: Path | str) -> dict[str, Tensors]:
    """Return the tensors of a file or folder, by what they stand below in it: "" is the file itself.

    Moving averages come first. Nothing in the file is run. Folders are those that timm, open_clip and transformers
    write, in one file or in several with an index.

    Raises:
        UserError: no such file, none of weights, or one that would run code.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save({"epoch": 3, "state_dict": {"fc.bias": torch.zeros(2)}}, f"{folder}/net.pth")
        ...     read_weights(folder)
        {'state_dict': {'fc.bias': tensor([0., 0.])}}
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"no file or folder of weights at {path}; correct the path")
    content = _read_folder(path) if path.is_dir() else _read_file(path)
    if any(str(name).startswith("encoder/") for name in content):
        raise UserError(f"{path} is a checkpoint of aurank; start from it by model.init_from, or load aurank:{path}")
    found = dict(_containers(content, "", 0))
    if not found:
        raise UserError(f"{path} holds no tensors by name; {_REMEDY}")
    order = [*(name for name in found if name.split(".")[-1] in _AVERAGES), *found]
    return {name: found[name] for name in dict.fromkeys(order)}


def read_look(path: Path | str) -> dict[str, Any]:
    """Return mean, deviation, interpolation and crop of images where a folder of weights says them, else nothing.

    The words are those of timm's settings; "crop", of open_clip and transformers, is a transform. A file that is no
    JSON is as if it were not there: the weights count.

    Raises:
        UserError: what a file says of images makes no sense.
    """
    for name in _SETTINGS:
        settings: Any = None
        with suppress(UserError), reading(path, "settings"):
            settings = json.loads((Path(path) / name).read_text(encoding="utf-8"))
        if isinstance(settings, dict):
            settings = settings.get("pretrained_cfg", settings.get("preprocess_cfg", settings))
        if not isinstance(settings, dict):
            continue
        found = {key: settings.get(key, settings.get(f"image_{key}")) for key in ("mean", "std")}
        found["interpolation"] = settings.get("interpolation") or interpolation_of(settings.get("resample"))
        found |= {key: settings[key] for key in ("crop_pct", "crop_mode") if settings.get(key) is not None}
        if found["mean"] is not None and found["std"] is not None:
            if not _is_look(**found):
                said = ", ".join(f"{key}={value!r}"[:60] for key, value in found.items())
                expected = "a number for each channel, std above 0, one of Pillow's interpolations, timm's crop"
                raise UserError(f"{Path(path) / name} says {said}; expected {expected}: correct it, or remove it")
            if name in _CROPS:
                with reading(Path(path) / name, "settings of images", remedy="correct it, or remove it"):
                    found["crop"] = _CROPS[name](settings)
            return {key: tuple(value) if isinstance(value, list) else value for key, value in found.items() if value}
    return {}


def crop_of_open_clip(settings: Mapping[str, Any]) -> Crop:
    """Return the transform that cuts images as open_clip's settings of its preprocessing say.

    Example:
        >>> crop_of_open_clip({"resize_mode": "squash"})
        ('timm', {'crop_pct': 1.0, 'crop_mode': 'squash'})
    """
    mode = "squash" if settings.get("resize_mode") == "squash" else "center"
    return "timm", {"crop_pct": 1.0, "crop_mode": mode}  # both are torchvision's


def crop_of_processor(settings: Mapping[str, Any]) -> Crop:
    """Return the transform that cuts images as a processor of transformers does; older ones write a size as a number.

    Example:
        >>> crop_of_processor({"do_center_crop": True, "size": {"shortest_edge": 256}, "crop_size": 128})
        ('transformers_center', {'margin': 2.0})
    """
    size, crop_size = settings.get("size") or {}, settings.get("crop_size") or {}
    shorter = size if isinstance(size, int) else size.get("shortest_edge")
    square = crop_size if isinstance(crop_size, int) else crop_size.get("height")
    if settings.get("do_center_crop", True) and shorter and square:  # older files leave the first out
        return "transformers_center", {"margin": shorter / square}
    return "resize", {}


_CROPS = {"open_clip_config.json": crop_of_open_clip, "preprocessor_config.json": crop_of_processor}


def _is_look(mean: Any, std: Any, interpolation: Any, crop_pct: Any = 1, crop_mode: Any = "center") -> bool:
    """Whether images can be shown so: a file may say anything."""
    lists = isinstance(mean, list) and isinstance(std, list) and len(mean) == len(std) > 0
    numbers = lists and all(isinstance(value, int | float) for value in [*mean, *std])
    is_crop = isinstance(crop_pct, int | float) and crop_pct > 0 and crop_mode in CROP_MODES
    is_named = interpolation in (None, *_PILLOWS)
    return numbers and 0 <= min(mean) <= max(mean) <= 1 and min(std) > 0 and is_named and is_crop


def interpolation_of(number: object) -> str | None:
    """Return the word for one of Pillow's ways to resize, None where it is none.

    Example:
        >>> interpolation_of(3)
        'bicubic'
    """
    return _PILLOWS[number] if isinstance(number, int) and 0 <= number < len(_PILLOWS) else None


def _read_folder(folder: Path) -> dict[str, Any]:
    for name in _USUAL:
        if (folder / name).is_file():
            return _read_file(folder / name)
    for name in _INDEXES:
        if (folder / name).is_file():
            return _read_parts(folder, folder / name)
    files = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
    if len(files) != 1:
        names = ", ".join(path.name for path in files[:3])
        what = f"several files of weights ({names}); name one" if files else f"no file of weights; {_REMEDY}"
        raise UserError(f"{folder} holds {what}")
    return _read_file(files[0])


def _read_parts(folder: Path, index: Path) -> dict[str, Any]:
    with reading(index, "an index of files of weights", remedy="fetch it again"):
        content = json.loads(index.read_text(encoding="utf-8"))
        names = sorted(set(checked(content["weight_map"], dict[str, str]).values()))
    if wrong := next((name for name in names if Path(name).name != name), None):
        raise UserError(f"{index} names {wrong!r}, which is no file beside it; fetch it again")
    content = {}
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{index} names {name}, which is not there; fetch it too")
        content |= _read_file(folder / name)
    return content


def _read_file(path: Path) -> dict[str, Any]:
    require_ordinary(path)
    with reading(path, "a file of weights alone", remedy=_REMEDY):
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        # timm's training writes its arguments into its checkpoints: a namespace, which runs nothing.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, Mapping):
        raise UserError(f"{path} holds a {type(content).__name__}, not tensors by name; {_REMEDY}")
    return dict(content)


def _containers(content: Mapping[Any, Any], name: str, depth: int) -> Iterator[tuple[str, Tensors]]:
    """Yield each mapping inside that holds tensors by name, under the keys that lead to it."""
    tensors = {key: value for key, value in content.items() if isinstance(key, str) and isinstance(value, Tensor)}
    if tensors:
        yield name, tensors
    if depth < _DEEPEST:
        for key, value in content.items():
            if isinstance(key, str) and isinstance(value, Mapping):
                yield from _containers(value, f"{name}.{key}" if name else key, depth + 1)
