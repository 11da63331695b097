"""The card of an export: its README.md, with how to use each file, from a template."""

import importlib
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from aurank.config import Config
from aurank.config.messages import one_line
from aurank.data import Pipeline
from aurank.data.transforms.standard import TransformersCenter
from aurank.embedding.stored.checkpoint import describe_average
from aurank.models.adapters.exported import crop_of, describe_steps
from aurank.models.adapters.towers import is_local, without_places
from aurank.models.tuning import WHOLE

COLOURS = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's modes of the images that can be exported, by their channels."""


def write_card(
    config: Config, state: Mapping[str, Any], pipeline: Pipeline, *, metrics: Mapping[str, float], **facts: Any
) -> str:
    """Return the README.md of an exported folder: a head in YAML for hubs, then text.

    Nothing of it names a place on this machine, and names that came from outside stay text.

    Args:
        state: the checkpoint.
        metrics: of the exported files behind their own transform, by name.
        facts: `target` (such as "onnx"), `width` of an embedding, `method` (Pillow's word for how images are resized),
            `data` and `split` that were measured, `measured` (these images in words), `files` (bytes by name), `checks`
            (lines), `versions` of libraries, `licence` as hubs name it, or None.
    """
    model, (mode, canvas) = config.model, crop_of(pipeline)
    head = "without its projection" if model.discard_head else f"{model.head_layers}-layer projection to {model.dim}"
    backbone, begun = model.backbone, _begun(config)
    timm: Any = importlib.import_module("timm")
    known = timm.get_pretrained_cfg(backbone) if begun == "pretrained weights" and ":" not in backbone else None
    environment = Environment(
        loader=PackageLoader("aurank.exporting"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"code": _code, "plain": _plain, "json": partial(json.dumps, default=str)}
    return environment.get_template("card.md").render(
        config=config,
        state=state,
        network="a network of a local folder" if is_local(backbone) else without_places(backbone),
        head=head + " trained alone" * (model.freeze is not None and WHOLE in model.freeze),
        begun=begun,
        begun_licence=known and known.license,
        averaged=describe_average(dict(state), named=False),
        metrics=metrics,
        rounded=[{"type": name, "name": name, "value": round(value, 6)} for name, value in metrics.items()],
        pipeline=pipeline,
        size=pipeline.size,
        colours=COLOURS[pipeline.channels],
        steps=describe_steps(pipeline),
        mode=mode,
        canvas=canvas,
        fill=tuple(round(255 * value * (mode == "border")) for value in pipeline.mean or ()),
        is_cut_down=isinstance(pipeline, TransformersCenter),
        **facts,
    )


def _begun(config: Config) -> str:
    """Return what weights training began with."""
    model = config.model
    if model.init_from is not None:
        return "the weights of another run"
    if model.weights is not None:
        return "weights of a file"
    return "pretrained weights" if model.pretrained else "random weights"


def _code(text: str) -> str:
    return "`" + one_line(text).replace("`", "'").replace("|", "¦") + "`"


def _plain(text: str) -> str:
    """Return the text with everything that Markdown or HTML would take for mark-up written out."""
    return "".join(f"\\{each}" if each in "\\`*_[]<>#|&" else each for each in one_line(text))
