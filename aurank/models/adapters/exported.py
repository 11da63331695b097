"""ONNX graphs as models, with the preprocessing stored in them."""

import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Shaped
from PIL.Image import Image
from torch import Tensor, nn

from aurank.data.decode import to_pixels
from aurank.data.transforms import TRANSFORMS, Pipeline
from aurank.data.transforms.base import channels_first
from aurank.data.transforms.standard import CROP_MODES, MARGIN, Affine, Resize, Timm, TransformersCenter
from aurank.errors import UserError
from aurank.files import checked, reading, require_ordinary
from aurank.lazy import import_library
from aurank.models.adapters.loading import describe_adapter
from aurank.models.adapters.names import Options
from aurank.models.image_model import ImageModel, Transform, standard_transform

PREPROCESSING = "aurank.preprocessing"
"""The key of a graph's metadata for the text of `pack_preprocessing`."""

_FORMAT = 2
_COLOURS = {1: "grey", 3: "RGB", 4: "RGBA"}
_EMBEDDINGS = ("embedding", "embeddings", "image_embeds", "sentence_embedding", "pooler_output")
"""Names of a graph's output that is an embedding, the likeliest first."""
_TYPES = {f"tensor({name})": getattr(torch, name) for name in ("float", "float16", "double", "uint8")}
_APART = 1e-2  # of the largest value: more than rounding in float16
_ANY_BATCH = "export it with a batch of any size, torch.onnx.export(…, dynamic_axes={'images': {0: 'batch'}})"


class StoredTransform:
    def __init__(self, pipeline: Pipeline, *, is_inside: bool) -> None:
        self.pipeline, self.is_inside = pipeline, is_inside

    def __call__(self, image: Image) -> Tensor:
        pixels = to_pixels(image, self.pipeline.channels)
        square = channels_first(self.pipeline.augment(self.pipeline.prepare(pixels), None))
        return square if self.is_inside else self.pipeline.normalise(square)

    def __repr__(self) -> str:
        return f"{self.pipeline!r}{', normalised inside the model' if self.is_inside else ''}"


def pack_preprocessing(pipeline: Pipeline, *, dim: int, is_inside: bool) -> str:
    channels = pipeline.channels
    names = {kind: name for name, kind in TRANSFORMS.items()}
    outside = "(value / 255 - mean) / std, by channel, made outside"
    content = {
        "format": _FORMAT,
        "input": {
            "dtype": "uint8" if is_inside else "float32",
            "shape": ["batch", channels, *pipeline.size],
            "colours": _COLOURS.get(channels, f"{channels} channels"),
            "values": "0 to 255, normalised inside the model" if is_inside else outside,
            "normalised_inside": is_inside,
        },
        "steps": describe_steps(pipeline),
        "transform": {"name": names[type(pipeline)], **asdict(pipeline)},
        "output": {"dim": dim, "unit_length": is_inside},  # timm normalises neither pixels nor embeddings
    }
    return json.dumps(content, indent=1)


def unpack_preprocessing(text: str, source: str) -> StoredTransform:
    with reading(source, "stored preprocessing", remedy="export the model again"):
        content: Any = json.loads(text)
        parameters = dict(content["transform"])
        pipeline: Pipeline = checked(parameters, TRANSFORMS[parameters.pop("name")])
        fault = f"it is of format {content['format']!r}, expected {_FORMAT}"
        if content["format"] == _FORMAT:
            fault = f"images of {pipeline.channels} × {pipeline.size[0]} × {pipeline.size[1]} are too large"
        if content["format"] != _FORMAT or max(pipeline.size) > 8192 or pipeline.channels > 256:
            raise ValueError(fault)
        return StoredTransform(pipeline, is_inside=checked(content["input"]["normalised_inside"], bool))


def describe_steps(pipeline: Pipeline) -> list[str]:
    size, by = pipeline.size, pipeline.interpolation
    mode, canvas = crop_of(pipeline)
    (height, width), (tall, wide) = size, canvas
    steps = [describe_decoding(pipeline.channels)]
    if mode == "squash":
        steps.append(f"resize to {tall} × {wide}, height by width, by {by}, whatever its shape")
    elif mode == "center" and tall == wide:
        longer = f"the longer to {tall} × longer / shorter, cut down to whole pixels"
        steps.append(f"resize by {by}, the shorter side to {tall}, {longer}")
    else:
        ratio = f"the {'larger' if mode == 'border' else 'smaller'} of height / {tall} and width / {wide}"
        steps.append(f"resize by {by}, both sides divided by {ratio}, rounded to whole pixels")
    if (mode, canvas) != ("squash", size):
        half = "half a pixel " + ("down" if isinstance(pipeline, TransformersCenter) else "to the even number")
        is_smaller = tall < height or wide < width
        fill = {"border": "the mean around it, ", "center": "black around it, " * is_smaller}.get(mode, "")
        start = f"from (height − {height}) / 2 above and (width − {width}) / 2 left on"
        steps.append(f"take the middle {height} × {width}, {fill}{start}, {half}")
    return steps


def describe_decoding(channels: int) -> str:
    deep = "of deeper grey values take the upper 8 bits in the range that the file declares"
    steps = ["turn upright", deep, *["lay what is transparent on white"] * (channels != 4)]
    return f"{', '.join(steps)}, make it {_COLOURS.get(channels, f'{channels} channels')}"


def crop_of(pipeline: Pipeline) -> tuple[str, tuple[int, int]]:
    """Return how evaluation cuts an image, in timm's word, and the height and width that it is resized for before."""
    if isinstance(pipeline, Timm):
        return pipeline.crop_mode, pipeline.resized_size
    if isinstance(pipeline, Resize | Affine):
        return "border" if pipeline.resize == "pad" else "squash", pipeline.size
    return CROP_MODES[pipeline.resize], pipeline.canvas_size(getattr(pipeline, "margin", None) or MARGIN)


def onnx_model(name: str, model_id: str, options: Options, allow_code: bool) -> ImageModel:
    library: Any = import_library("onnxruntime", name)
    require_ordinary(Path(model_id))
    remedy = "copy or export it again, or upgrade onnxruntime where it is of a newer version"
    with reading(name, "an ONNX model", remedy=remedy):
        content = Path(model_id).read_bytes()
        session = library.InferenceSession(content, providers=["CPUExecutionProvider"])
        transform, channels = _transform_of(name, session, options)
    description = describe_adapter(library, model_id, options, transform)
    module = _Graph(name, session, content, output=options.get("output"))
    return ImageModel(name, module, transform, description, channels=channels)


class _Graph(nn.Module):
    """An ONNX graph from images to embeddings; of the first batch of several images, the halves must give the same."""

    def __init__(self, name: str, session: Any, content: bytes, *, output: object) -> None:
        super().__init__()
        self.name, self.session, self.is_checked = name, session, False
        self.input, self.is_flattened = session.get_inputs()[0], output is not None
        # The state has the file's digest in place of weights.
        self.register_buffer("digest", torch.tensor(list(hashlib.sha256(content).digest()), dtype=torch.uint8))
        shapes = {each.name: each.shape for each in session.get_outputs()}
        named = [name for name in _EMBEDDINGS if len(shapes.get(name, ())) == 2]
        vectors = [name for name, shape in shapes.items() if len(shape) == 2]
        choice = named[:1] or (vectors if len(shapes) > 1 else [*shapes])
        if output is not None:
            choice = [name for name in shapes if name == str(output)]
        if len(choice) != 1:
            listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise UserError(f"{self.name}: name the output that is the embedding, output=…; the graph has {listed}")
        self.output = choice[0]

    def forward(self, images: Shaped[Tensor, "batch channel height width"]) -> Float[Tensor, "batch dim"]:
        images = images.cpu()
        embeddings = self._compute(images)
        if not self.is_checked and embeddings.ndim == 2 and len(embeddings) == len(images) > 1:
            halves = torch.cat([self._compute(half) for half in images.tensor_split(2)])
            most = _APART * embeddings.abs().nan_to_num().max().item()
            if not torch.allclose(embeddings, halves, rtol=0, atol=most, equal_nan=True):
                remedy = "export the network in evaluation mode, model.eval(), or embed each image alone, --batch 1"
                raise UserError(f"{self.name}: an image's embedding depends on the others of its batch; {remedy}")
            self.is_checked = True
        return embeddings

    def _compute(self, images: Tensor) -> Tensor:
        try:
            values = images.to(_TYPES[self.input.type]).numpy()
            embeddings = torch.from_numpy(self.session.run([self.output], {self.input.name: values})[0]).float()
        except Exception as error:
            failure = f"the graph fails on images {list(images.shape)} ({' '.join(str(error).split())[:300]})"
            remedy = f"; where it takes one at a time, add --batch 1, or {_ANY_BATCH}" if len(images) > 1 else ""
            raise UserError(f"{self.name}: {failure}{remedy}") from error
        if not self.is_flattened and math.prod(embeddings.shape[1:]) > max(embeddings.shape[1:], default=1):
            shape = f"its output {self.output} is {list(embeddings.shape)}, not a vector for each image"
            remedy = f"export a pooled one, or add output={self.output} for all of its numbers"
            raise UserError(f"{self.name}: {shape}; {remedy}")
        return embeddings.flatten(1) if embeddings.ndim > 1 else embeddings


def _transform_of(name: str, session: Any, options: Options) -> tuple[Transform, int]:
    inputs, options = session.get_inputs(), {key: value for key, value in options.items() if key != "output"}
    batch, channels, *sides = inputs[0].shape
    if len(inputs) != 1 or len(sides) != 2 or (isinstance(batch, int) and batch != 1) or inputs[0].type not in _TYPES:
        taken = ", ".join(f"{graph_input.shape} of {graph_input.type}" for graph_input in inputs)
        expected = f"[batch, channel, height, width] of {', '.join(_TYPES)}: {_ANY_BATCH}"
        raise UserError(f"{name}: the graph takes {taken}, expected {expected}")
    text, is_raw = session.get_modelmeta().custom_metadata_map.get(PREPROCESSING), inputs[0].type == "tensor(uint8)"
    if unused := [key for key in options if text is not None or (is_raw and key in ("mean", "std"))]:
        reason = "normalises images itself" if text is None else "brings its preprocessing"
        raise UserError(f"{name}: the graph {reason}; leave out {unused[0]}=…")
    if text is not None:
        stored = unpack_preprocessing(text, name)
        return stored, stored.pipeline.channels
    channels = channels if isinstance(channels, int) else 3
    fixed = next((side for side in sides if isinstance(side, int)), 224)
    size = tuple(side if isinstance(side, int) else fixed for side in sides)
    return standard_transform(channels=channels, is_raw=is_raw, **{"size": size, **options}), channels
