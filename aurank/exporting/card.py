"""The card of an export: its README.md, with how to use each file."""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aurank.config import Config, LossTerm
from aurank.data import Pipeline
from aurank.data.transforms.standard import TransformersCenter
from aurank.embedding.stored.checkpoint import describe_average
from aurank.models.adapters.exported import crop_of, describe_steps
from aurank.models.adapters.towers import is_local, without_places
from aurank.models.tuning import WHOLE

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


@dataclass(frozen=True)
class Facts:
    """What a card tells beside the configuration.

    Attributes:
        target: what was exported, such as "onnx".
        files: bytes of each file by name.
        metrics: of the exported files behind their own transform, by name.
        data: the name of the images that were measured.
        measured: the images that the metrics and the check are of, in words.
        checks: lines on how the exported files compare with the checkpoint.
        trained: lines on the run, such as the step of the weights.
        versions: of the libraries.
        licence: as hubs name it, None where nobody has said.
        begun_licence: a sentence on that of the weights that training began with.
        width: of an embedding.
        interpolation: Pillow's word for how images are resized.
        split: of the images that were measured.
    """

    target: str
    files: Mapping[str, int]
    metrics: Mapping[str, float]
    measured: str
    checks: Sequence[str]
    trained: Sequence[str]
    versions: Mapping[str, str]
    width: int
    interpolation: str
    data: str
    split: str
    licence: str | None = None
    begun_licence: str = ""
    notes: Sequence[str] = field(default_factory=list)


def write_card(config: Config, pipeline: Pipeline, facts: Facts) -> str:
    """Return the README.md of an exported folder: a head in YAML for hubs, then text.

    Nothing of it names a place on this machine, and names that came from outside stay text.
    """
    size, channels = pipeline.image_size, pipeline.channels
    sections = [
        _head(config, facts),
        f"# {_plain(f'Image embeddings by {_network(config)}')}\n",
        f"The model makes {facts.width} numbers of an image, its embedding. Images are alike where the cosine of their "
        f"embeddings is large. It was trained with {_losses(config)} by aurank.\n",
        "## Use\n",
        usage(facts.target, pipeline, facts.width, facts.interpolation),
        "## Images\n",
        f"Input: {channels} × {size} × {size}. Of a photo: " + "; ".join(describe_steps(pipeline)) + "; then "
        f"(value / 255 − mean) / deviation with mean {_numbers(pipeline.mean)} and deviation "
        f"{_numbers(pipeline.std)}, {_where(facts.target)}.\n",
        "## Metrics\n",
        _table(("metric", "value"), [(key, f"{value:.4f}") for key, value in facts.metrics.items()])
        if facts.metrics
        else "Not measured: the images have no labels that can be compared.\n",
        f"Of {_plain(facts.measured)}.\n",
        "## Export\n",
        _table(("file", "bytes"), [(_code(key), f"{value:,}") for key, value in facts.files.items()]),
        *(f"- {_plain(line)}" for line in (*facts.checks, *facts.notes)),
        "\n## Training\n",
        *(f"- {_plain(line)}" for line in facts.trained),
        "\n## Licence\n",
        _licence(facts),
        "## Versions\n",
        ", ".join(f"{_plain(key)} {_plain(value)}" for key, value in facts.versions.items()) + ".",
    ]
    return "\n".join(sections).rstrip() + "\n"


def _head(config: Config, facts: Facts) -> str:
    """Return the YAML between two rules; values are JSON, which YAML takes as it stands."""
    library = "timm" if facts.target == "hf" else "aurank"
    tags = ["image-retrieval", "metric-learning", "aurank", "timm" if facts.target == "hf" else facts.target]
    data = facts.data
    results = [
        {
            "task": {"type": "image-feature-extraction", "name": "Image retrieval"},
            "dataset": {"type": data, "name": data, "split": facts.split},
            "metrics": [{"type": key, "name": key, "value": round(value, 6)} for key, value in facts.metrics.items()],
        }
    ]
    name = f"{_network(config)} trained with {' + '.join(term.name for term in config.terms)}"
    lines = [
        f"license: {json.dumps(facts.licence or 'unknown')}",
        f"library_name: {json.dumps(library)}",
        'pipeline_tag: "image-feature-extraction"',
        f"tags: {json.dumps(tags)}",
        f"metrics: {json.dumps(list(facts.metrics))}",
    ]
    if facts.metrics:
        lines.append(f"model-index: {json.dumps([{'name': name, 'results': results}])}")
    return "\n".join(["---", *lines, "---\n"])


def _licence(facts: Facts) -> str:
    own = (
        f"This model: {_code(facts.licence)}."
        if facts.licence
        else "This model: not stated. Fill in `license` at the head of this file before you share it."
    )
    return " ".join(filter(None, (own, facts.begun_licence, "The training images have terms of their own."))) + "\n"


def _where(target: str) -> str:
    return "inside the model" if target in ("onnx", "torchexport") else "outside the model"


def _numbers(values: Sequence[float] | None) -> str:
    return ", ".join(f"{value:g}" for value in values or ())


def _table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ("---", "---:"), *rows)]
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Return the text as code on one line: no mark-up in it counts."""
    return "`" + _one_line(text).replace("`", "'").replace("|", "¦") + "`"


def _plain(text: str) -> str:
    """Return the text with everything that Markdown or HTML would take for mark-up written out."""
    return "".join(f"\\{one}" if one in "\\`*_[]<>#|&" else one for one in _one_line(text))


def _one_line(text: str) -> str:
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def _network(config: Config) -> str:
    """Return the name of the backbone; of one in a folder of this machine, that it is."""
    backbone = config.model.backbone
    return "a network of a local folder" if is_local(backbone) else without_places(backbone)


def _begun(config: Config) -> str:
    """Return what weights training began with."""
    model = config.model
    if model.init_from is not None:
        return "the weights of another run"
    if model.weights is not None:
        return "weights of a file"
    return "pretrained weights" if model.pretrained else "random weights"


def _describe_term(term: LossTerm) -> str:
    weight = "" if term.weight == 1 else f"{term.weight:g} * "
    return f"loss: {weight}{term.name} {json.dumps(term.params, default=str)}"


def _losses(config: Config) -> str:
    named = [_code(term.name) for term in config.terms]
    return f"the loss {named[0]}" if len(named) == 1 else f"the losses {' + '.join(named)}"


def describe_training(config: Config, state: dict[str, Any]) -> list[str]:
    """Return what the card says of the run."""
    model, data = config.model, config.data
    step = state["progress"].get("step")
    averaged = [f"{line}; the lines above are of the first" for line in describe_average(state, named=False)]
    head = "without its projection" if model.discard_head else f"{model.head_layers}-layer projection to {model.dim}"
    head += " trained alone" if model.freeze is not None and WHOLE in model.freeze else ""
    return [
        f"network: {_network(config)}, {model.pooling} pooling, {head}, from {_begun(config)}",
        f"data: read as {data.name}, images at {data.image_size} pixels, manifest {str(state['manifest'])[:16]}",
        *map(_describe_term, config.terms),
        f"sampler: {config.sampler.name}, batches of {config.sampler.batch}",
        f"optimiser: {config.optim.name}, lr {config.optim.lr:g}, weight decay {config.optim.weight_decay:g}",
        *(averaged or [f"weights of step {step} of {config.train.steps}, seed {config.seed}"]),
    ]


def describe_begun_licence(config: Config) -> str:
    """Return a sentence on the licence of the weights that training began with, none for random ones."""
    begun, backbone = _begun(config), config.model.backbone
    if begun == "random weights":
        return ""
    timm: Any = importlib.import_module("timm")
    known = None if begun != "pretrained weights" or ":" in backbone else timm.get_pretrained_cfg(backbone)
    if known is not None and known.license is not None:
        return f"The weights that training began with: {_code(str(known.license))}, as timm records it."
    return "The weights that training began with have a licence of their own, which timm does not record here."
