"""A network that learns nothing gives the same embeddings by every way, on photos of any shape."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from testing.runs import tiny_config
from testing.trees import pixels, write_image
from torch import Tensor
from torch.nn import functional

import aurank
from aurank.commands import RunOptions, embed_model, export_model
from aurank.embedding import ImageSelection

SIZE = 64
# Larger and smaller than the crop, odd and even beside it, and as long as photos get.
SHAPES = ((64, 64), (67, 80), (68, 71), (81, 66), (97, 131), (200, 133), (31, 45), (12, 9), (300, 40), (7, 150))
SHAPES += ((123, 77), (90, 171), (70, 69), (66, 67), (53, 160), (128, 171))


class Frozen(NamedTuple):
    run: Path
    weights: Path
    photos: list[Path]
    images: ImageSelection


def look(crop_mode: str, crop_pct: float) -> dict[str, Any]:
    own = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "interpolation": "bicubic"}
    return {**own, "crop_mode": crop_mode, "crop_pct": crop_pct}


def frozen(folder: Path, settings: dict[str, Any], **shown: Any) -> Frozen:
    torch.manual_seed(0)
    (folder / "weights").mkdir()
    save_file(timm.create_model("test_resnet").state_dict(), folder / "weights/model.safetensors")
    (folder / "weights/config.json").write_text(json.dumps({"pretrained_cfg": settings}))
    photos = []
    for place, (height, width) in enumerate(SHAPES):
        photos.append(folder / f"photos/{'abcd'[place % 4]}/{place}.{'png' if place % 3 else 'jpg'}")
        photo = Image.fromarray(pixels(place, height, width))
        write_image(photos[-1], photo.convert("L" if place == 3 else "RGB"))
    data = {"name": "folder", "root": str(folder / "photos"), "params": {"test_fraction": 0.5}, "channels": 3}
    data |= {**shown, "train_transform": {"name": "crop_flip"}, "test_transform": None}
    config = tiny_config(
        data={**data, "validation_fraction": 0.0},
        model={"weights": str(folder / "weights"), "params": {}, "discard_head": True, "freeze_batch_norm": True},
        sampler={"batch": 8},
        optim={"name": "sgd", "lr": 1e-12, "warmup_steps": 0},
        train={"steps": 1, "validate_every": 1},
    )
    aurank.train(config, folder / "run")
    images = ImageSelection(f"folder:{folder / 'photos'}", split="all")
    return Frozen(folder / "run/best", folder / "weights", photos, images)


def embeddings(name: str, images: ImageSelection) -> Tensor:
    """The embeddings of a command, in the order of the photos' names."""
    found = embed_model(name, images, running=RunOptions(allow_code=True))
    assert found.paths.tolist() == sorted(found.paths)
    return torch.tensor(np.asarray(found.embeddings))


def by_timm(model: Any, settings: dict[str, Any], photos: list[Path]) -> Tensor:
    """The embeddings of timm alone, in the order of the photos' names."""
    transform = timm.data.create_transform(**settings)
    with torch.inference_mode():
        images = torch.stack([transform(Image.open(path).convert("RGB")) for path in sorted(photos)])
        found: Tensor = functional.normalize(model.eval()(images), dim=-1)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("crop", "size", "resize"),
    [
        (("center", 0.875), (SIZE, SIZE), "crop"),
        (("border", 1.0), (72, 48), "crop"),
        (("center", 0.95), (72, 48), "pad"),
        (("center", 0.95), (48, 72), "squash"),
    ],
)
def test_a_frozen_network_gives_the_same_embeddings_by_every_way(crop, size, resize, tmp_path):
    settings = look(*crop)
    run, weights, photos, images = frozen(tmp_path, settings, image_size=[*size], resize=resize)
    settings |= {"pad": {"crop_mode": "border"}, "squash": {"crop_mode": "squash"}}.get(resize, {})
    settings["crop_pct"] = settings["crop_pct"] if resize == "crop" else 1.0
    plain = timm.create_model("test_resnet", num_classes=0)
    plain.load_state_dict(load_file(weights / "model.safetensors"), strict=False)
    expected = by_timm(plain, {"input_size": (3, *size), **settings}, photos)
    assert torch.equal(embeddings(f"aurank:{run}", images), expected)
    options = f"weights={weights},input_size={size[0]}x{size[1]},resize={resize}"
    assert torch.equal(functional.normalize(embeddings(f"timm:test_resnet,{options}", images), dim=-1), expected)
    for to in ("hf", *(["onnx"] if find_spec("onnxscript") else [])):
        tolerance = 1e-5 if to == "onnx" else 0.0  # which another runtime computes
        out = tmp_path / to
        exported = export_model(str(run), to, out, images=images)  # type: ignore[arg-type]
        assert exported[0].max_difference <= tolerance
        if to == "hf":
            model = timm.create_model(f"local-dir:{out}", pretrained=True)
            found = by_timm(model, timm.data.resolve_model_data_config(model), photos)
        else:
            found = embeddings(f"onnx:{out}", images)
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
