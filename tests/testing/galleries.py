"""Photos, saved rows, indexes and models that tests search, serve and embed with."""

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from testing.runs import tiny_config
from testing.trees import png, write_image, write_tree
from torch import nn

from aurank.commands import ImageIndex, build_index
from aurank.embedding import ImageSelection
from aurank.models.adapters.exported import PREPROCESSING
from aurank.serving.app import make_app
from aurank.serving.server import listen, server_of
from aurank.serving.uploads import Limits


def photos(root: Path, counts: dict[str, int]) -> None:
    """So many images in each ``split/class``."""
    names = [f"{folder}/{number}.png" for folder, count in counts.items() for number in range(count)]
    write_tree(root, names, height=20, width=20)


def broken_photos(root: Path) -> dict[str, Any]:
    """A configuration whose data set has 4 classes of 4 images a split; half of the training images are broken."""
    photos(root, {f"{name}/{name}{label}": 4 for name in ("train", "val", "test") for label in "abcd"})
    for path in [*root.glob("train/*/[01].png"), root / "val/vala/0.png", root / "test/testb/3.png"]:
        path.write_bytes(b"broken")
    return tiny_config(
        data={"name": "folder", "root": str(root), "on_error": "skip"},
        sampler={"name": "shuffled", "batch": 4, "params": {}},
        train={"steps": 12, "validate_every": 6},
    )


MODEL = "timm:test_vit,pretrained=false,input_size=32"
COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (40, 60, 220)}
EVIL = ("<img src=x onerror=alert(1)>.png", "\x1b[31mred\x1b[0m.png", 'quote"&lt;.png', "=1+1.png")


def write_photo(path: Path, seed: int) -> None:
    """Write a photo of noise, as .png whatever its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(seed, height=12, width=12))


def write_photos(folder: Path, classes: int = 4, images: int = 5) -> Path:
    """Write photos "c0/0.png" and so on; return the folder."""
    for number in range(classes * images):
        write_photo(folder / f"c{number % classes}/{number // classes}.png", number)
    return folder


def write_coloured(folder: Path, *, each: int = 10) -> Path:
    """Write `each` noisy photos of each colour, some red ones with the names of `EVIL`; return the folder."""
    for colour, value in COLOURS.items():
        for number in range(each):
            noise = np.random.default_rng([number, *value]).integers(-35, 36, (48, 64, 3))
            name = EVIL[number] if colour == "red" and number < len(EVIL) else f"{number}.png"
            write_image(folder / colour / name, (np.array(value) + noise).clip(0, 255))
    return folder


def photo_of(colour: str = "green") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (50, 40), COLOURS[colour]).save(file, "PNG")
    return file.getvalue()


def small_index(folder: Path, out: Path | str, **options: object) -> ImageIndex:
    """Return an index of the photos of a folder by an untrained network."""
    return build_index(MODEL, ImageSelection(f"folder:{folder}"), out=out, **options)  # type: ignore[arg-type]


CLASSES, PER_CLASS, WIDTH = 12, 6, 16


def write_split_photos(folder: Path, *, classes: int = 9, each: int = 4) -> Path:
    """Write train/CLASS/IMAGE and test/CLASS/IMAGE, of sides that are rounded, and return the folder."""
    chance = np.random.default_rng(0)
    for label in range(classes):
        split = "test" if label >= classes - 3 else "train"
        for place in range(each):
            pixels = chance.integers(0, 256, (41 + place, 57 - label, 3), dtype=np.uint8) // 4 + np.uint8(label * 20)
            write_image(folder / split / f"class{label}" / f"{place}.png", pixels)
    return folder


def rows(**changes: Any) -> dict[str, np.ndarray]:
    """Arrays of a file of embeddings: twelve classes, of which the last four are for testing."""
    chance = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    embeddings = chance.normal(size=(CLASSES, WIDTH))[labels] + 0.5 * chance.normal(size=(len(labels), WIDTH))
    content: dict[str, Any] = {
        "embeddings": embeddings.astype(np.float32),
        "labels": labels,
        "paths": np.array([f"{label}/{row}.png" for row, label in enumerate(labels.tolist())]),
        "splits": np.where(labels < 8, "train", "test"),
    }
    content |= changes
    return {name: values for name, values in content.items() if values is not None}


def write_rows(path: Path, **changes: Any) -> Path:
    """Write them, with other arrays, or without those that are None."""
    np.savez(path, **rows(**changes))
    return path


def head_config(file: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """A configuration of a head on them; ``sections`` override single keys."""
    config: dict[str, Any] = {
        "data": {"name": "embeddings", "root": str(file.parent), "params": {"file": file.name}},
        "sampler": {"batch": 8, "params": {"per_class": 2}},
        "model": {"dim": 4},
        "loss": {"name": "smooth_ap"},
        "optim": {"lr": 1e-2},
        "train": {"steps": 4, "validate_every": 2, "checkpoint_every": 2, "log_every": 1},
        "evaluate": {"recall_at": [1]},
    }
    config["data"] |= {"validation_fraction": 0.25}
    for name, values in sections.items():
        config[name] = {**config.get(name, {}), **values}
    return config


PIXELS = "python:pixel_model:build"


def write_pixel_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be in a folder with the code of a model whose embeddings are the pixels."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    shown = "lambda image: torch.from_numpy(numpy.array(image)).permute(2, 0, 1).float()"
    code = f"import numpy, torch\ndef build(): return torch.nn.Flatten(), {shown}\n"
    (folder / "pixel_model.py").write_text(code)


@contextlib.contextmanager
def running_server(index: ImageIndex, limits: Limits | None = None, token: str | None = None) -> Iterator[int]:
    """Serve an index while the context lasts; gives the port."""
    server = server_of(make_app(index, limits=limits, hosts=["127.0.0.1"], token=token))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=[[listening]])
        thread.start()
        try:
            yield int(listening.getsockname()[1])  # it listens, so requests wait until the server takes them
        finally:
            server.should_exit = True
            thread.join()


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 16}
LOOK = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.2, 0.2], "resample": 3, "size": {"height": 32, "width": 32}}
_PROCESSORS = {"clip": "CLIPImageProcessor", "dinov2": "BitImageProcessor", "siglip": "SiglipImageProcessor"}


def folder_of(folder: Path, kind: str = "dinov2", **look: Any) -> str:
    """A folder of a network of that kind, with its processor; `look` overrides what that does."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    both = {"intermediate_size": 32}
    if kind == "clip":
        text = {key: value for key, value in SIZES.items() if key not in ("image_size", "patch_size")}
        text |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 8}
        config = transformers.CLIPConfig(
            text_config={**text, **both, "vocab_size": 9}, vision_config={**SIZES, **both}, projection_dim=12
        )
        model = transformers.CLIPModel(config)
    elif kind == "siglip":
        model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**SIZES, **both))
    else:
        model = transformers.Dinov2Model(transformers.Dinov2Config(**SIZES))
    for value in model.parameters():
        if value.ndim > 1:
            nn.init.normal_(value, std=0.2)
    model.save_pretrained(folder)
    settings = {**LOOK, "image_processor_type": _PROCESSORS[kind], "crop_size": LOOK["size"], **look}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return str(folder)


WORDS = ("red", "green", "blue", "mug", "but")


def write_tokeniser(folder: Path) -> None:
    """A tokeniser of `WORDS` for the network `clip` of `folder_of`: 12 tokens at most, the last one ends a text."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    numbers = {word: number for number, word in enumerate(("<pad>", "<start>", "<unknown>", *WORDS, "<end>"))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="<unknown>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[(name, numbers[name]) for name in ("<start>", "<end>")]
    )
    named = {"pad_token": "<pad>", "bos_token": "<start>", "eos_token": "<end>", "unk_token": "<unknown>"}
    tokeniser = transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=12, **named)
    tokeniser.save_pretrained(folder)


def words_index(folder: Path) -> ImageIndex:
    """Return an index, in `folder`, of `write_coloured` by an untrained network of images and texts."""
    write_coloured(folder / "photos")
    name = folder_of(folder / "clip", "clip")
    write_tokeniser(folder / "clip")
    return build_index(f"transformers:{name}", ImageSelection(f"folder:{folder}/photos"), out=folder / "index")


def graph(
    path: Path,
    *,
    dtype: str = "UINT8",
    shape: tuple[int | str, ...] = ("batch", 3, 4, 4),
    stored: str | None = None,
    opset: int = 17,
) -> str:
    """Write an ONNX graph whose embedding is the mean of the pixels by channel, and return its name."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    kinds, make = onnx.TensorProto, onnx.helper
    pixels = make.make_tensor_value_info("pixels", getattr(kinds, dtype), shape)
    embedding = make.make_tensor_value_info("embedding", kinds.FLOAT, shape[:2])
    nodes = [
        make.make_node("Cast", ["pixels"], ["values"], to=kinds.FLOAT),
        make.make_node("ReduceMean", ["values"], ["embedding"], axes=[2, 3], keepdims=0),
    ]
    model = make.make_model(
        make.make_graph(nodes, "sums", [pixels], [embedding]),
        opset_imports=[make.make_opsetid("", opset)],
        ir_version=8,
    )
    if stored is not None:
        model.metadata_props.add(key=PREPROCESSING, value=stored)
    path.write_bytes(model.SerializeToString())
    return f"onnx:{path}"
