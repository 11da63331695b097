"""The preprocessing that is stored inside an exported model, read back to the same pixels."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from PIL.Image import Image
from torch import Tensor

from aurank.data.decode import to_pixels
from aurank.data.transforms import TRANSFORMS, Pipeline
from aurank.data.transforms.base import channels_first
from aurank.data.transforms.standard import MARGIN, Affine, Resize, Timm, TransformersCenter
from aurank.errors import UserError
from aurank.files import checked, reading

PREPROCESSING, ENCODER = "aurank.preprocessing", "aurank.encoder"
"""Keys of a file's metadata: the text of `pack_preprocessing`, and what an `Encoder` is built with, as JSON."""
FORMAT = 2  # in 1, the transform center took other pixels
_COLOURS = {1: "grey", 3: "RGB", 4: "RGBA"}


class StoredTransform:
    """An image of Pillow to the tensor of an exported model, by the pipeline that it was exported with.

    Args:
        is_inside: whether the model normalises by itself: it then takes uint8 pixels [channel, size, size].

    Example:
        >>> from PIL import Image
        >>> transform = StoredTransform(TRANSFORMS["resize"](4, 3), is_inside=True)
        >>> pixels = transform(Image.new("RGB", (20, 30), "white"))
        >>> pixels.shape, pixels.dtype, int(pixels.min())
        (torch.Size([3, 4, 4]), torch.uint8, 255)
    """

    def __init__(self, pipeline: Pipeline, *, is_inside: bool) -> None:
        self.pipeline, self.is_inside, self.needed_side = pipeline, is_inside, pipeline.needed_side

    def __call__(self, image: Image) -> Tensor:
        pixels = to_pixels(image, self.pipeline.channels)
        square = channels_first(self.pipeline.augment(self.pipeline.prepare(pixels), None))
        return square if self.is_inside else self.pipeline.normalise(square)

    def __repr__(self) -> str:
        return f"{self.pipeline!r}{', normalised inside the model' if self.is_inside else ''}"


def pack_preprocessing(pipeline: Pipeline, *, dim: int, is_inside: bool, is_unit: bool = True) -> str:
    """Return what a model's file says of its input and output, as JSON for programs and people.

    Args:
        dim: width of the embedding.
        is_inside: whether the model takes uint8 pixels and normalises them by itself.
        is_unit: whether embeddings come at unit length.

    Example:
        >>> text = pack_preprocessing(TRANSFORMS["resize"](4, 3), dim=8, is_inside=True)
        >>> json.loads(text)["input"]["shape"]
        ['batch', 3, 4, 4]
    """
    size, channels = pipeline.image_size, pipeline.channels
    names = {kind: name for name, kind in TRANSFORMS.items()}
    values = (
        "0 to 255, normalised inside the model" if is_inside else "(value / 255 - mean) / std, by channel, made outside"
    )
    content = {
        "format": FORMAT,
        "input": {
            "dtype": "uint8" if is_inside else "float32",
            "shape": ["batch", channels, size, size],
            "colours": _COLOURS.get(channels, f"{channels} channels"),
            "values": values,
            "normalised_inside": is_inside,
        },
        "steps": describe_steps(pipeline),
        "transform": {"name": names[type(pipeline)], **asdict(pipeline)},
        "output": {"dim": dim, "unit_length": is_unit},
    }
    return json.dumps(content, indent=1)


def unpack_preprocessing(text: str, source: str) -> StoredTransform:
    """Return the transform that `pack_preprocessing` described; raise UserError, naming `source`, for anything else.

    Example:
        >>> text = pack_preprocessing(TRANSFORMS["resize"](4, 3), dim=8, is_inside=False)
        >>> unpack_preprocessing(text, "model.onnx").pipeline.image_size
        4
    """
    with reading(source, "stored preprocessing", remedy="export the model again"):
        content: Any = json.loads(text)
        if (number := content["format"]) != FORMAT:
            newer = isinstance(number, int) and number > FORMAT
            said = f"its stored preprocessing is of format {number!r}, and this aurank reads {FORMAT}"
            raise UserError(f"{source}: {said}; {'upgrade aurank' if newer else 'export the model again'}")
        given = dict(content["transform"])
        pipeline: Pipeline = checked(given, TRANSFORMS[given.pop("name")])
        if pipeline.image_size > 8192 or pipeline.channels > 256:
            raise ValueError(f"images of {pipeline.channels} × {pipeline.image_size} × {pipeline.image_size}")
        return StoredTransform(pipeline, is_inside=checked(content["input"]["normalised_inside"], bool))


def stored_text(metadata: Mapping[str, str], name: str, source: str) -> str:
    """Return one entry of a file's metadata; raise UserError where the file has none, as others write them."""
    if name not in metadata:
        what = f"the file holds no {name}, so it was not written by aurank export"
        raise UserError(f"{source}: {what}; name another file")
    return metadata[name]


def describe_steps(pipeline: Pipeline) -> list[str]:
    """Return what is done to an image before it is normalised, in words, to the pixel.

    Example:
        >>> describe_steps(TRANSFORMS["resize"](32, 1))
        ['turn upright, grey', 'resize to 32 × 32 by area, whatever its shape']
        >>> describe_steps(TRANSFORMS["timm"](32, 3, crop_pct=0.95, interpolation="bicubic"))[1]
        'resize by bicubic, the shorter side to 33, the longer to 33 × longer / shorter, cut down to whole pixels'
    """
    size, by = pipeline.image_size, pipeline.interpolation
    mode, side = crop_of(pipeline)
    steps = [f"turn upright, {_COLOURS.get(pipeline.channels, f'{pipeline.channels} channels')}"]
    if mode == "squash":
        steps.append(f"resize to {side} × {side} by {by}, whatever its shape")
    else:
        first, other, rounded = (
            ("longer", "shorter", "rounded") if mode == "border" else ("shorter", "longer", "cut down")
        )
        rest = f"the {other} to {side} × {other} / {first}, {rounded} to whole pixels"
        steps.append(f"resize by {by}, the {first} side to {side}, {rest}")
    if (mode, side) != ("squash", size):
        half = "half a pixel " + ("down" if isinstance(pipeline, TransformersCenter) else "to the even number")
        fill = {"border": "the mean around it, ", "center": "black around it, " * (side < size)}.get(mode, "")
        steps.append(f"take the middle {size} × {size}, {fill}from (side − {size}) / 2 left and above on, {half}")
    return steps


def crop_of(pipeline: Pipeline) -> tuple[str, int]:
    """Return how evaluation cuts an image, in timm's word, and the side that the image is resized to before.

    Example:
        >>> crop_of(TRANSFORMS["center"](32, 1, margin=1.25))
        ('center', 40)
    """
    if isinstance(pipeline, Timm):
        return pipeline.crop_mode, pipeline.needed_side
    if isinstance(pipeline, Resize | Affine):
        return "squash", pipeline.image_size
    return "center", round((getattr(pipeline, "margin", None) or MARGIN) * pipeline.image_size)
