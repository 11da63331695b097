"""ONNX graphs, run by onnxruntime on the CPU."""

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from aurank.errors import UserError, first_line
from aurank.files import reading, require_ordinary
from aurank.models.adapters.loading import (
    ImageModel,
    Options,
    Transform,
    describe_adapter,
    import_library,
    standard_transform,
)
from aurank.models.adapters.stored import PREPROCESSING, unpack_preprocessing

_ANY_BATCH = "export it with a batch of any size, torch.onnx.export(…, dynamic_axes={'images': {0: 'batch'}})"


class _Onnx(nn.Module):
    """An ONNX graph, run by onnxruntime on the CPU. The file's digest stands in the state for its weights."""

    def __init__(self, name: str, session: Any, content: bytes) -> None:
        super().__init__()
        self.name = name
        self.session = session
        self.register_buffer("digest", torch.tensor(list(hashlib.sha256(content).digest()), dtype=torch.uint8))

    def forward(self, images: Shaped[Tensor, "batch channel height width"]) -> Float[Tensor, "batch dim"]:
        graph = self.session
        if graph.get_inputs()[0].shape[0] == 1 < len(images):
            raise UserError(f"{self.name}: the graph takes one image at a time: add --batch 1, or {_ANY_BATCH}")
        try:
            found = graph.run([graph.get_outputs()[0].name], {graph.get_inputs()[0].name: images.cpu().numpy()})
        except Exception as error:
            what = f"the graph fails on images {list(images.shape)}"
            raise UserError(f"{self.name}: {what} ({_said(error)})") from error
        if np.ndim(found[0]) < 2 or len(found[0]) != len(images):
            came = f"the graph gives {list(np.shape(found[0]))} for {len(images)} images"
            raise UserError(f"{self.name}: {came}, expected an embedding of each, [batch, dim], as its first output")
        return torch.from_numpy(found[0]).flatten(1)


def _said(error: Exception) -> str:
    """Return what onnxruntime says, without its codes and the place in its own source."""
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (/\S+:\d+ .*?\) )?", "", first_line(error))[:300]


def onnx_model(name: str, what: str, options: Options, allow_code: bool) -> ImageModel:
    """Return the graph of a file, with the preprocessing stored inside, else the usual transform at its size."""
    library: Any = import_library("onnxruntime", name, package="onnxruntime")
    require_ordinary(Path(what))
    remedy = "copy or export it again, or upgrade onnxruntime where it is of a newer version"
    with reading(name, "an ONNX model", remedy=remedy):
        content = Path(what).read_bytes()
        try:
            session = library.InferenceSession(content, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ValueError(_said(error)) from error
        shape = session.get_inputs()[0].shape
        if len(session.get_inputs()) != 1 or len(shape) != 4:
            raise UserError(f"{name}: expected one input [batch, channel, height, width], got {shape}")
        if isinstance(shape[0], int) and shape[0] != 1:
            raise UserError(f"{name}: the graph takes {shape[0]} images at once, no more and no fewer: {_ANY_BATCH}")
        transform, channels = _transform(name, session, shape, options)
    description = describe_adapter(library, what, options, transform)
    return ImageModel(name, _Onnx(name, session, content), transform, description, channels=channels)


def _transform(name: str, session: Any, shape: Any, options: Options) -> tuple[Transform, int]:
    """Return what makes an image ready for the graph, and how many channels it has."""
    fixed = sorted({side for side in shape[2:] if isinstance(side, int)})
    if len(fixed) > 1:
        raise UserError(f"{name}: the graph takes images of {shape[2]} × {shape[3]}; export it for square ones")
    text = session.get_modelmeta().custom_metadata_map.get(PREPROCESSING)
    if text is not None:
        if options:
            raise UserError(f"{name}: its preprocessing is stored inside; leave out {next(iter(options))}=…")
        stored = unpack_preprocessing(text, name)
        size, channels = stored.pipeline.image_size, stored.pipeline.channels
        if list(shape[1:]) != [channels, size, size]:
            came = f"the graph takes images {list(shape[1:])}, its stored preprocessing gives {[channels, size, size]}"
            raise UserError(f"{name}: {came}; export the model again")
        return stored, channels
    if "float" not in (kind := session.get_inputs()[0].type):
        what = f"the graph takes {kind}, and no preprocessing is stored inside"
        raise UserError(f"{name}: {what}; export it by aurank export, or for floats")
    if fixed and options.get("size", fixed[0]) != fixed[0]:
        raise UserError(
            f"{name}: the graph takes images of {fixed[0]} × {fixed[0]} alone: leave out size={options['size']}, or "
            "export it with height and width of any size (dynamic_axes)"
        )
    channels = shape[1] if isinstance(shape[1], int) else 3
    return standard_transform(name, channels=channels, **{"size": fixed[0] if fixed else 224, **options}), channels
