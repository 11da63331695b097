"""Weights of a local file or folder, read as data alone, and filled into a network under whatever names they have."""

import argparse
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor, nn

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
_REMEDY = "name a file that holds a model's state_dict, safetensors or torch's"
# Buffers that some versions of a library save and others compute.
_COMPUTED = re.compile(r"(^|\.)(num_batches_tracked|position_ids|inv_freq|relative_position_index|attn_mask)$")
_WRAPPERS = re.compile(r"^((_orig_mod|module|model|net|network|backbone|encoder|student|teacher)\.)+")


def read_weights(path: Path | str) -> dict[str, Tensors]:
    path = Path(path)
    content = _read_folder(path) if path.is_dir() else _read_file(path)
    containers = dict(_containers(content, "", 0))
    if not containers:
        raise UserError(f"{path} holds no tensors by name; {_REMEDY}")
    return {
        name: containers[name] for name in sorted(containers, key=lambda name: name.split(".")[-1] not in _AVERAGES)
    }


def _read_folder(folder: Path) -> dict[str, Any]:
    usual = [folder / name for name in (*_USUAL, *_INDEXES) if (folder / name).is_file()]
    files = usual[:1] or sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
    if len(files) != 1:
        names = ", ".join(path.name for path in files[:3])
        content = f"several files of weights ({names}); name one" if files else f"no file of weights; {_REMEDY}"
        raise UserError(f"{folder} holds {content}")
    if files[0].name in _INDEXES:
        with reading(files[0], "an index of files of weights", remedy="fetch it again"):
            parts = set(json.loads(files[0].read_bytes())["weight_map"].values())
            files = [files[0].with_name(part) for part in sorted(parts)]  # which takes no path
    return {key: value for file in files for key, value in _read_file(file).items()}


def _read_file(path: Path) -> dict[str, Any]:
    require_ordinary(path)
    with reading(path, "a file of weights alone", remedy=_REMEDY):
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        # timm's training writes its arguments into its checkpoints: a namespace, which runs nothing.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
        return dict(content) if isinstance(content, Mapping) else {}


def _containers(content: Mapping[Any, Any], name: str, depth: int) -> Iterator[tuple[str, Tensors]]:
    tensors = {key: value for key, value in content.items() if isinstance(key, str) and isinstance(value, Tensor)}
    if tensors:
        yield name, tensors
    if depth < _DEEPEST:
        for key, value in content.items():
            if isinstance(key, str) and isinstance(value, Mapping):
                yield from _containers(value, f"{name}.{key}" if name else key, depth + 1)


# -- filling a network ------------------------------------------------------------------------------------------------


def fit_tensors(
    expected: Mapping[str, Tensor], weights: Tensors, *, classifier: Sequence[str] = ()
) -> tuple[Tensors, dict[str, list[str]], dict[str, list[str]]]:
    """Return the weights that a network with this state takes, behind whatever prefix most of them have.

    Returns:
        The tensors by the network's names; by kind of fault the names that do not fit; and the names without fault:
        those of the file without use, such as a text tower, and those of the network's classifier, left at random.
    """
    prefixes: Counter[str] = Counter()
    for name in weights:
        parts = name.split(".")
        prefixes.update(
            "".join(f"{part}." for part in parts[:at]) for at in range(len(parts)) if ".".join(parts[at:]) in expected
        )
    prefix = min(prefixes, key=lambda prefix: (-prefixes[prefix], len(prefix)), default="")
    inside = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    tensors = {name: inside[name] for name in expected if name in inside and inside[name].shape == expected[name].shape}

    def is_classifier(name: str) -> bool:
        return any(f"{name}.".startswith(f"{beginning}.") for beginning in classifier)

    unfilled = [name for name in expected if name not in tensors]
    lacking = [name for name in unfilled if not is_classifier(name)]
    unused = [name for name in inside if name not in expected and not _COMPUTED.search(name)]
    modules = {name.split(".")[0] for name in expected}
    unexpected = [name for name in unused if name.split(".")[0] in modules and not is_classifier(name)]
    wrong = {
        f"of {len(expected)} tensors are missing": [
            name for name in lacking if name not in inside and not _COMPUTED.search(name)
        ],
        "of another shape": [
            f"{name} {list(inside[name].shape)}, expected {list(expected[name].shape)}"
            for name in lacking
            if name in inside
        ],
        "unexpected": unexpected,
    }
    outside = [name for name in weights if not name.startswith(prefix)]
    left_over = outside + [name for name in unused if name not in unexpected]
    return tensors, wrong, {"left over": left_over, "at random": [name for name in unfilled if is_classifier(name)]}


def load_weights_file(
    module: nn.Module,
    path: Path | str,
    *,
    name: str,
    classifier: Sequence[str] = (),
    convert: Callable[[Tensors], Tensors] = dict,
    finish: Callable[[Tensors], Tensors] = dict,
) -> str:
    """Fill a network with the weights of a file or folder, whose every tensor must fit; return what was taken.

    Args:
        name: of the network, in messages.
        classifier: beginnings of the names that may stay random.
        convert: gives the tensors of another layout the network's names.
        finish: adapts tensors that have the network's names.
    """
    state = module.state_dict()
    fits = []
    for container, weights in read_weights(path).items():
        bare = {_WRAPPERS.sub("", key): value for key, value in weights.items()}
        for conversion, names in itertools.product((dict, convert), (weights, bare)):
            with suppress(Exception):  # a conversion is of one layout, and fails in its own way on another
                tensors, faults, unused = fit_tensors(state, finish(conversion(dict(names))), classifier=classifier)
                fits.append((sum(map(len, faults.values())), container, tensors, faults, unused))
        if any(not count for count, *_ in fits):
            break
    count, container, tensors, faults, unused = min(fits, key=lambda fit: fit[0])
    if count or not tensors:
        wrong = ", ".join(f"{len(names)} {kind} ({', '.join(names[:3])})" for kind, names in faults.items() if names)
        wrong = wrong or "no name of the file is one of its own"
        remedy = f"use weights of {name} itself"
        if "fc_norm.weight" in wrong:
            remedy = "they were trained to be pooled otherwise: set model.params.global_pool=token, or fc_norm=false"
        raise UserError(f"the weights of {path} do not fit {name}: {wrong}; {remedy}")
    module.load_state_dict(tensors, strict=False)
    note = f"{len(tensors)} tensors of {path}{f', below {container!r}' if container else ''} fill {name}"
    return note + "".join(f"; {kind}: {some(names)}" for kind, names in unused.items() if names)


def some(names: Sequence[str], most: int = 3) -> str:
    return f"{len(names)} ({', '.join(names[:most])}{', …' if len(names) > most else ''})"


# -- how images were shown --------------------------------------------------------------------------------------------

_PILLOWS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by Pillow's numbers
_SHOWN: dict[str, Any] = {"mean": list[Annotated[float, Field(ge=0, le=1)]], "std": list[Annotated[float, Field(gt=0)]]}


def read_look(path: Path | str) -> dict[str, Any]:
    for name in ("config.json", "preprocessor_config.json", "open_clip_config.json"):
        settings: Any = None
        with suppress(OSError, ValueError):
            settings = json.loads((Path(path) / name).read_bytes())
        if isinstance(settings, dict):
            settings = settings.get("pretrained_cfg", settings.get("preprocess_cfg", settings))
        if not isinstance(settings, dict):
            continue
        look = {key: settings.get(key, settings.get(f"image_{key}")) for key in _SHOWN}
        if None not in look.values():
            with reading(Path(path) / name, "settings of images", remedy="correct it, or remove it"):
                look = {key: checked(look[key], kind) for key, kind in _SHOWN.items()}
            look["interpolation"] = settings.get("interpolation") or interpolation_of(settings.get("resample"))
            look |= {key: settings.get(key) for key in ("crop_pct", "crop_mode")}
            if name in _CROPS:
                look["crop"] = _CROPS[name](settings)
            return {key: tuple(value) if isinstance(value, list) else value for key, value in look.items() if value}
    return {}


def crop_of_open_clip(settings: Mapping[str, Any]) -> Crop:
    mode = "squash" if settings.get("resize_mode") == "squash" else "center"
    return "timm", {"crop_pct": 1.0, "crop_mode": mode}  # both are torchvision's


def crop_of_processor(settings: Mapping[str, Any]) -> Crop:
    size, crop_size = settings.get("size") or {}, settings.get("crop_size") or {}
    shorter = size if isinstance(size, int) else size.get("shortest_edge")
    square = crop_size if isinstance(crop_size, int) else crop_size.get("height")
    if settings.get("do_center_crop", True) and shorter and square:  # older files leave the first out
        return "transformers_center", {"margin": shorter / square}
    return "resize", {}


_CROPS = {"open_clip_config.json": crop_of_open_clip, "preprocessor_config.json": crop_of_processor}


def interpolation_of(number: object) -> str | None:
    return _PILLOWS[number] if isinstance(number, int) and 0 <= number < len(_PILLOWS) else None
