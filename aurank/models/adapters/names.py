"""Names of models of other libraries and their options, parsed without importing any of them, or torch."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from aurank.errors import UserError
from aurank.names import meant, nearest

Options = dict[str, Any]  # of plain values; Any, as other libraries' constructors judge them
OptionNames = Mapping[str, frozenset[str] | None]
"""By library, the options of which no value can run code; None: the library's constructor says."""

_WORDS = {"true": True, "false": False, "none": None, "null": None}
LOCAL = "local-dir:"
HUBS = ("hf-hub:", "hf_hub:", LOCAL)
VIEWS = ("flip", "scales")  # of images: flip=true,scales=1+1.25
FILLED = ("in_chans", "num_classes")  # arguments of a backbone that an encoder gives itself

_OPEN_CLIP = frozenset(
    {"pretrained", "pretrained_hf", "precision", "force_quick_gelu", "force_context_length", "cache_dir"}
)
_OPEN_CLIP_IMAGES = {"force_image_size", "image_mean", "image_std", "image_interpolation", "image_resize_mode"}
_TRANSFORMERS = frozenset(
    {"pretrained", "revision", "variant", "subfolder", "add_pooling_layer", "num_hidden_layers"}
    | {"torch_dtype", "dtype", "cache_dir", "local_files_only"}
)
TEXTS: OptionNames = {"open_clip": _OPEN_CLIP, "transformers": _TRANSFORMERS | {"length"}}
TOWERS: OptionNames = {"open_clip": _OPEN_CLIP | _OPEN_CLIP_IMAGES, "transformers": _TRANSFORMERS}
IMAGES: OptionNames = {
    "timm": None,
    **TOWERS,
    "onnx": frozenset({"output", "size", "margin", "mean", "std", "resize"}),
    "python": None,
}


def parse_name(name: str, libraries: OptionNames, *, remedy: str = "") -> tuple[str, str, Options]:
    """Return library, model and options of KIND:MODEL[,option=value…]."""
    kind, _, text = name.partition(":")
    model_id, *pairs = text.split(",")
    if kind not in libraries or not model_id:
        raise UserError(f"no model {name!r}; expected one of {', '.join(f'{kind}:…' for kind in libraries)}")
    taken, values = libraries[kind], Options()
    if taken is not None and libraries is not TEXTS:
        taken |= {*VIEWS}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or (taken is not None and key not in taken):
            listed = "" if taken is None else f"; known are {', '.join(sorted(taken)) or 'none'}{remedy}"
            hint = meant(nearest(key, taken or ()))
            raise UserError(f"{name}: unknown option {key!r}{hint}, expected option=value behind commas{listed}")
        values[key] = _WORDS.get(value.lower(), value)
        if re.fullmatch(r"[0-9]+x[0-9]+", value):
            values[key] = tuple(map(int, value.split("x")))  # height and width
        for number in (float, int):  # the last that takes it
            with contextlib.suppress(ValueError):
                values[key] = number(value)
    return kind, model_id, values


def without_weights(kind: str, options: Options) -> Options:
    return {**options, "pretrained": False, **({"pretrained_hf": False} if kind == "open_clip" else {})}


def is_tower(name: str) -> bool:
    return name.partition(":")[0] in TOWERS
