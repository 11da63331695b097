"""How each kind of exported file is used, as the code of its model card."""

from collections.abc import Callable, Mapping
from functools import partial

from aurank.data import Pipeline
from aurank.data.transforms.standard import TransformersCenter
from aurank.models.adapters.exported import crop_of

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def usage(target: str, pipeline: Pipeline, width: int, method: str) -> str:
    """Return Markdown with a block of Python that embeds a photo, and the command that measures the file.

    `width` is that of an embedding; `method` is Pillow's word for how images are resized.
    """
    return _KINDS[target](pipeline, width, method)


def _block(code: str) -> str:
    return f"```python\n{code}```\n"


def _upright(pipeline: Pipeline) -> str:
    """Return code that reads a photo with Pillow."""
    return f'image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("{_MODES[pipeline.channels]}")\n'


def _pixels(pipeline: Pipeline, method: str) -> str:
    """Return code that makes `pixels` uint8 [1, channel, size, size] of a photo with Pillow."""
    (mode, side), size = crop_of(pipeline), pipeline.image_size
    sizes = {
        "squash": f"({side}, {side})",
        "border": f"[max(1, round(side / (max(image.size) / {side}))) for side in image.size]",
        "center": f"[{side} * side // min(image.size) for side in image.size]",
    }[mode]
    code = _upright(pipeline) + f"image = image.resize({sizes}, Image.Resampling.{method.upper()})\n"
    if (mode, side) != ("squash", size):
        if mode == "border" or side < size:
            fill = tuple(round(255 * value * (mode == "border")) for value in pipeline.mean or ())
            code += f"whole = Image.new(image.mode, [max(side, {size}) for side in image.size], {fill})\n"
            code += "whole.paste(image, [(most - side) // 2 for most, side in zip(whole.size, image.size)])\n"
            code += "image = whole\n"
        half = f"(side - {size}) // 2" if isinstance(pipeline, TransformersCenter) else f"round((side - {size}) / 2)"
        code += f"left, top = ({half} for side in image.size)\n"
        code += f"image = image.crop((left, top, left + {size}, top + {size}))\n"
    shape = f"1, {size}, {size}, {pipeline.channels}"
    return code + f"pixels = np.ascontiguousarray(np.asarray(image).reshape({shape}).transpose(0, 3, 1, 2))\n"


def _nearly(pipeline: Pipeline, method: str) -> str:
    if pipeline.interpolation != "area":
        return ""
    nearest = f"of which Pillow's `{method.upper()}` is nearest on the images that were measured"
    return f"Training resized by area (OpenCV's), {nearest}; the pixels differ a little.\n"


def _as_they_are(
    pipeline: Pipeline, width: int, method: str, *, library: str, load: str, embed: str, measured: str
) -> str:
    """Return what is said of a file that takes pixels as they are: `load` makes it ready, `embed` calls it."""
    code = (
        f"import numpy as np\nimport {library}\nfrom PIL import Image, ImageOps\n\n{load}\n"
        f"{_pixels(pipeline, method)}embedding = {embed}  # [1, {width}]\n"
    )
    first = "Pixels go in as they are, uint8 from 0 to 255, in batches of any size; the embedding has unit length.\n"
    return "\n".join((first, _block(code), _nearly(pipeline, method), measured))


_onnx = partial(
    _as_they_are,
    library="onnxruntime",
    load='session = onnxruntime.InferenceSession("model.onnx")',
    embed='session.run(None, {"pixels": pixels})[0]',
    measured="`aurank evaluate --model onnx:model.onnx` reads all of this from the file itself.\n",
)
_program = partial(
    _as_they_are,
    library="torch",
    load='model = torch.export.load("model.pt2").module()',
    embed="model(torch.tensor(pixels))",
    measured="torch reads the file with pickle, which can run code: load it from where you trust. `aurank evaluate "
    "--model torchexport:model.pt2 --allow-code` reads preprocessing.json beside it.\n",
)


def _weights(pipeline: Pipeline, width: int, method: str) -> str:
    code = (
        "from aurank.models.adapters.by_name import load_model\nfrom PIL import Image\n\n"
        'model = load_model("safetensors:model.safetensors")\n'
        'image = model.transform(Image.open("photo.jpg"))\n'
        f"embedding = model.module(image[None])  # [1, {width}], of unit length\n"
    )
    names = "Tensors are named `backbone.…` as in timm and `head.…`; the metadata say what network they are of.\n"
    last = "`aurank evaluate --model safetensors:model.safetensors` measures them.\n"
    return "\n".join((_block(code), names, last))


def _folder(pipeline: Pipeline, width: int, method: str) -> str:
    code = (
        "import timm\nimport torch\nfrom PIL import Image, ImageOps\n\n"
        'model = timm.create_model("local-dir:.", pretrained=True).eval()\n'
        "settings = timm.data.resolve_model_data_config(model)\n"
        "transform = timm.data.create_transform(**settings, is_training=False)\n"
        f"{_upright(pipeline)}"
        f"embedding = torch.nn.functional.normalize(model(transform(image)[None]), dim=-1)  # [1, {width}]\n"
    )
    first = "The folder is in timm's layout; on a hub it is `hf-hub:OWNER/NAME`. The last line makes the length 1.\n"
    return "\n".join((first, _block(code), _nearly(pipeline, method)))


_KINDS: Mapping[str, Callable[[Pipeline, int, str], str]] = {
    "onnx": _onnx,
    "torchexport": _program,
    "safetensors": _weights,
    "hf": _folder,
}
