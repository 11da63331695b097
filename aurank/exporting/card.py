"""The card of an export or a saved model: its README.md, with how to use each file, from a template."""

import importlib
import json
import re
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from aurank.config import Config
from aurank.config.messages import one_line
from aurank.data import Pipeline
from aurank.data.transforms.standard import TransformersCenter
from aurank.embedding.stored.checkpoint import describe_average
from aurank.models.adapters.exported import crop_of, describe_decoding, describe_steps
from aurank.models.adapters.towers import is_local, without_places
from aurank.models.image_model import ImageModel
from aurank.models.tuning import WHOLE

COLOURS = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's modes of the images that can be exported, by their channels."""


def write_card(
    config: Config, state: Mapping[str, Any], pipeline: Pipeline, *, metrics: Mapping[str, float], **facts: Any
) -> str:
    mode, canvas = crop_of(pipeline)
    return _template("card.md").render(
        **_training_facts(config, state),
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


def write_model_card(model: ImageModel, licence: str | None) -> str:
    if model.config is not None:
        about = _training_facts(model.config, {"manifest": "", "progress": {}})
        about["size"] = getattr(model.transform, "size", (1, 1))
    else:
        kind, _, name = (model.origin or model.name).partition(":")
        published: Any = getattr(model.module, "pretrained_cfg", {})  # of timm
        source = str(published.get("architecture", name.split(",")[0]))
        network = f"{kind} {Path(source).name if Path(source).exists() else source}"
        about = {"config": None, "network": network, "begun": "", "begun_licence": published.get("license")}
    versions = {name: version(name) for name in ("aurank", "torch", "timm")}
    shown = " ".join(model.preprocessing.split())
    how = {"decoding": describe_decoding(model.channels), "shown": shown}
    return _template("saved.md").render(**about, **how, licence=licence, versions=versions)


def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("aurank.exporting"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"shell": quote, "json": partial(json.dumps, default=str)}
    environment.filters["plain"] = lambda text: re.sub(r"([\\`*_\[\]<>#|&])", r"\\\1", one_line(text))
    environment.filters["code"] = lambda text: "`" + one_line(text).replace("`", "'").replace("|", "¦") + "`"
    return environment.get_template(name)


def _training_facts(config: Config, state: Mapping[str, Any]) -> dict[str, Any]:
    model, backbone = config.model, config.model.backbone
    begun = "pretrained weights" if model.pretrained else "random weights"
    if model.init_from is not None:
        begun = "the weights of another run"
    elif model.weights is not None:
        begun = "weights of a file"
    head = "without its projection" if model.discard_head else f"{model.head_layers}-layer projection to {model.dim}"
    timm: Any = importlib.import_module("timm")
    published = timm.get_pretrained_cfg(backbone) if begun == "pretrained weights" and ":" not in backbone else None
    return {
        "config": config,
        "state": state,
        "network": "a network of a local folder" if is_local(backbone) else without_places(backbone),
        "head": head + " trained alone" * (model.freeze is not None and WHOLE in model.freeze),
        "begun": begun,
        "begun_licence": published and published.license,
        "averaged": describe_average(dict(state), named=False),
    }
