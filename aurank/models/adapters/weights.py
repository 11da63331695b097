"""Weights of a local file or folder, read as data alone, and filled into a network under whatever names they have."""

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.files import checked, reading, require_ordinary

Tensors = dict[str, Tensor]
Conversion = Callable[[Tensors], Tensors | None]
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
    if any(str(name).startswith("encoder/") for name in content):
        raise UserError(f"{path} is a checkpoint of aurank; start from it by model.init_from, or load aurank:{path}")
    held = dict(_containers(content, "", 0))
    if not held:
        raise UserError(f"{path} holds no tensors by name; {_REMEDY}")
    return {name: held[name] for name in sorted(held, key=lambda name: name.split(".")[-1] not in _AVERAGES)}


def _read_folder(folder: Path) -> dict[str, Any]:
    usual = [folder / name for name in (*_USUAL, *_INDEXES) if (folder / name).is_file()]
    files = usual[:1] or sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.is_file())
    if len(files) != 1:
        names = ", ".join(path.name for path in files[:3])
        what = f"several files of weights ({names}); name one" if files else f"no file of weights; {_REMEDY}"
        raise UserError(f"{folder} holds {what}")
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


@dataclass(frozen=True)
class Fit:
    tensors: Tensors  # by the network's names
    wrong: str  # missing tensors, those of another shape, those of a larger network
    count: int  # of what is wrong
    left_over: list[str]  # names of the file without use: a classifier, a text tower
    fresh: list[str]  # names of the network's classifier, which begins at random


def fit_tensors(own: Mapping[str, Tensor], weights: Tensors, *, classifier: Sequence[str] = ()) -> Fit:
    prefixes: Counter[str] = Counter()
    for name in weights:
        parts = name.split(".")
        prefixes.update(
            "".join(f"{part}." for part in parts[:at]) for at in range(len(parts)) if ".".join(parts[at:]) in own
        )
    prefix = min(prefixes, key=lambda prefix: (-prefixes[prefix], len(prefix)), default="")
    inside = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    tensors = {name: inside[name] for name in own if name in inside and inside[name].shape == own[name].shape}

    def is_classifier(name: str) -> bool:
        return any(f"{name}.".startswith(f"{beginning}.") for beginning in classifier)

    fresh = [name for name in own if name not in tensors and is_classifier(name)]
    lacking = [name for name in own if name not in tensors and not is_classifier(name)]
    missing = [name for name in lacking if name not in inside and not _COMPUTED.search(name)]
    shapes = ((name, list(inside[name].shape), list(own[name].shape)) for name in lacking if name in inside)
    misshapen = [f"{name} {given}, expected {expected}" for name, given, expected in shapes]
    known = {name.split(".")[0] for name in own}
    others = [name for name in inside if name not in own and not _COMPUTED.search(name)]
    unexpected = [name for name in others if name.split(".")[0] in known and not is_classifier(name)]
    left_over = [name for name in weights if not name.startswith(prefix)]
    left_over += [name for name in others if name not in unexpected]
    kinds = [(f"of {len(own)} tensors are missing", missing), ("of another shape", misshapen)]
    kinds.append(("unexpected", unexpected))
    wrong = ", ".join(f"{len(names)} {what} ({', '.join(names[:3])})" for what, names in kinds if names)
    return Fit(tensors, wrong, len(missing) + len(misshapen) + len(unexpected), left_over, fresh)


def load_weights_file(
    module: nn.Module,
    path: Path | str,
    *,
    name: str,
    classifier: Sequence[str] = (),
    conversions: Sequence[Conversion] = (),
    finish: Callable[[Tensors], Tensors] = lambda weights: weights,
) -> str:
    own = module.state_dict()
    tried: list[tuple[str, Fit]] = []
    for container, weights in read_weights(path).items():
        bare = {_WRAPPERS.sub("", key): value for key, value in weights.items()}
        for convert in (dict, *conversions):
            for names in (weights, bare):
                with suppress(Exception):  # a conversion is of one layout, and fails in its own way on another
                    if (candidate := convert(dict(names))) is not None:
                        tried.append((container, fit_tensors(own, finish(candidate), classifier=classifier)))
            if any(where == container and not fit.count for where, fit in tried):
                break
    container, best = min(tried, key=lambda one: one[1].count)
    if best.count or not best.tensors:
        wrong = best.wrong or "no name of the file is one of its own"
        remedy = f"use weights of {name} itself"
        if "fc_norm.weight" in wrong:
            remedy = "they were trained to be pooled otherwise: set model.params.global_pool=token, or fc_norm=false"
        raise UserError(f"the weights of {path} do not fit {name}: {wrong}; {remedy}")
    module.load_state_dict(best.tensors, strict=False)
    said = f"{len(best.tensors)} tensors of {path}{f', below {container!r}' if container else ''} fill {name}"
    if others := sorted({other for other, fit in tried if not fit.count and other != container}):
        said += f"; {', '.join(map(repr, others))} would fit too"
    for what, unused in (("left over", best.left_over), ("at random", best.fresh)):
        said += f"; {what}: {some(unused)}" if unused else ""
    return said


def some(names: Sequence[str], most: int = 3) -> str:
    return f"{len(names)} ({', '.join(names[:most])}{', …' if len(names) > most else ''})"


_ANCHOR = re.compile(r"^(.*?)embeddings\.patch_embeddings?\.(projection\.)?weight$")
_TIMMS_NAMES = (
    (r"embeddings\.(cls_token|class_embedding)$", "cls_token"),
    (r"embeddings\.position_embeddings?(\.weight)?$", "pos_embed"),
    (r"embeddings\.patch_embeddings?\.(projection\.)?", "patch_embed.proj."),
    (r"pre_layrnorm\.", "norm_pre."),
    (r"(post_layernorm|layernorm)\.", "norm."),
    (r"encoder\.layers?\.(\d+)\.", r"blocks.\1."),
    (r"(blocks\.\d+)\.(layernorm_before|layer_norm1)\.", r"\1.norm1."),
    (r"(blocks\.\d+)\.(layernorm_after|layer_norm2)\.", r"\1.norm2."),
    (r"(blocks\.\d+)\.attention\.attention\.(query|key|value)\.", r"\1.attn.\2."),
    (r"(blocks\.\d+)\.self_attn\.([qkv])_proj\.", r"\1.attn.\2."),
    (r"(blocks\.\d+)\.(attention\.output\.dense|self_attn\.out_proj)\.", r"\1.attn.proj."),
    (r"(blocks\.\d+)\.intermediate\.dense\.", r"\1.mlp.fc1."),
    (r"(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
    (r"(blocks\.\d+)\.layer_scale(\d)\.lambda1$", r"\1.ls\2.gamma"),
    (r"head\.probe$", "attn_pool.latent"),
    (r"head\.attention\.in_proj_", "attn_pool.in."),
    (r"head\.attention\.out_proj\.", "attn_pool.proj."),
    (r"head\.layernorm\.", "attn_pool.norm."),
    (r"head\.mlp\.", "attn_pool.mlp."),
)
_ATTENTION = re.compile(r"^(blocks\.\d+\.attn)\.(q|k|v|query|key|value)\.(weight|bias)$")


def from_transformers(weights: Mapping[str, Tensor]) -> Tensors | None:
    if (anchor := next(filter(None, map(_ANCHOR.match, weights)), None)) is None:
        return None
    renamed: Tensors = {}
    attention: dict[str, Tensors] = {}
    for name, value in weights.items():
        own = name.removeprefix(anchor[1])
        for pattern, timms in _TIMMS_NAMES:
            own = re.sub(rf"^{pattern}", timms, own)
        if (part := _ATTENTION.match(own)) is not None:
            attention.setdefault(f"{part[1]}.qkv.{part[3]}", {})[part[2][0]] = value
        elif own.startswith("attn_pool.in."):
            kind, width = own.removeprefix("attn_pool.in."), len(value) // 3
            renamed |= {f"attn_pool.q.{kind}": value[:width], f"attn_pool.kv.{kind}": value[width:]}
        elif own == "cls_token":
            renamed[own] = value.reshape(1, 1, -1)
        else:
            renamed[own] = value[None] if own == "pos_embed" and value.ndim == 2 else value
    return renamed | {name: torch.cat([parts[key] for key in "qkv"]) for name, parts in attention.items()}


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
