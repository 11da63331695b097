"""Files of an encoder give its embeddings, graphs and folders of timm, or are refused."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import timm
import torch
from packaging.version import Version
from PIL import Image, ImageOps
from testing.galleries import graph
from testing.picture_modes import write_pictures
from testing.runs import tiny_config
from torch.nn import functional

import aurank
from aurank.config import Config, ModelConfig
from aurank.data import TRANSFORMS, Pipeline
from aurank.data.photos import read_photo
from aurank.data.transforms.standard import CROP_MODES, TEST_TRANSFORMS
from aurank.embedding.build import encoder_arguments
from aurank.errors import UserError
from aurank.exporting.card import write_card
from aurank.exporting.formats import quantise, write_graph
from aurank.exporting.timm_folder import timm_settings, write_folder
from aurank.models import Encoder
from aurank.models.adapters.by_name import load_model
from aurank.models.adapters.exported import StoredTransform, pack_preprocessing, unpack_preprocessing

SIZE = 32
OLD_TIMM = Version(timm.__version__) < Version("1.0.31")
PACKAGE = Path(aurank.__file__).parent  # which no exported file names


class Made(NamedTuple):
    encoder: Encoder
    config: ModelConfig
    pipeline: Pipeline


def make(pooling: str = "avg", *, channels: int = 3, backbone: str = "test_resnet", look=None, **given: Any) -> Made:
    config = ModelConfig(backbone=backbone, pretrained=False, dim=8, pooling=pooling, **given)  # type: ignore[arg-type]
    torch.manual_seed(0)
    encoder = Encoder(**encoder_arguments(config), channels=channels)
    for module in encoder.modules():  # statistics that a batch of training would leave
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean = 0.1 * torch.randn(module.num_features)
            module.running_var = 0.5 + torch.rand(module.num_features)
    shown = {"image_size": SIZE, "mean": (0.4,) * channels, "std": (0.3,) * channels, **(look or {})}
    return Made(encoder.eval(), config, TRANSFORMS["center"](channels=channels, **shown))


def photos(count: int = 3, channels: int = 3) -> list[Image.Image]:
    random = np.random.default_rng(0)
    shape = (40, 50) if channels == 1 else (40, 50, channels)
    return [Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)) for _ in range(count)]


def expected(model: Made, images: list[Image.Image]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model.encoder(torch.stack([model.pipeline(image) for image in images]))
    return found


def embedded(name: str, images: list[Image.Image]) -> torch.Tensor:
    model = load_model(name)
    with torch.inference_mode():
        found: torch.Tensor = model.module(torch.stack([model.transform(image) for image in images]))
    return found


@pytest.mark.slow
def test_graphs_take_batches_of_any_size_and_pixels_as_they_are(tmp_path):
    pytest.importorskip("onnxscript")
    look = {"image_size": (40, 24), "resize": "pad"}
    model = make("gem", channels=1, head_layers=2, channels_last=True, look=look)
    whole, small = tmp_path / "model.onnx", tmp_path / "model.int8.onnx"
    write_graph(model.encoder, model.pipeline, whole)
    assert str(PACKAGE).encode() not in whole.read_bytes()
    transform = StoredTransform(model.pipeline, is_inside=True)
    quantise(whole, small, [torch.stack([transform(image) for image in photos(8, 1)]).numpy()])
    assert small.stat().st_size < 0.5 * whole.stat().st_size
    for count in (1, 2, 5):
        images = photos(count, 1)
        wanted = expected(model, images)
        found = embedded(f"onnx:{whole}", images)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
        assert found.norm(dim=1).sub(1).abs().max() < 1e-5
        assert (embedded(f"onnx:{small}", images) * wanted).sum(1).min() > 0.98  # its preprocessing is still inside
    with pytest.raises(UserError, match="the graph brings its preprocessing; leave out mean=…"):
        load_model(f"onnx:{whole},mean=0.5")


@pytest.mark.skipif(OLD_TIMM, reason="older ones lose what a folder says")
@pytest.mark.parametrize(
    ("backbone", "given", "channels"),
    [
        ("test_resnet", {}, 3),
        ("test_resnet", {"discard_head": True, "head_layers": 2}, 1),
        ("test_vit", {"params": {"img_size": SIZE}}, 3),
        ("test_vit", {"params": {"img_size": SIZE, "global_pool": "token"}}, 4),
        ("test_vit", {"params": {"img_size": [48, 32]}, "look": {"image_size": (48, 32)}}, 3),
        ("test_convnext", {"pooling": "max"}, 3),
        ("test_efficientnet", {"params": {"drop_rate": 0.2}}, 2),
    ],
)
def test_timm_alone_gives_the_same_embeddings(backbone, given, channels, tmp_path):
    source = make(backbone=backbone, channels=channels, **given)
    write_folder(*source, tmp_path / "model.safetensors")
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = torch.randn(3, channels, *source.pipeline.size)
    with torch.inference_mode():
        found = functional.normalize(model(images), dim=-1)
        torch.testing.assert_close(found, source.encoder(images), atol=1e-5, rtol=0)
    settings = timm.data.resolve_model_data_config(model)
    assert settings["input_size"] == (channels, *source.pipeline.size)
    assert settings["mean"] == pytest.approx((0.4,) * channels)
    assert settings["interpolation"] == "box"


@pytest.mark.slow
def test_transformers_loads_the_folder_of_timm_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    source = make()
    write_folder(*source, tmp_path / "model.safetensors")
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    images = torch.randn(3, 3, SIZE, SIZE)
    with torch.inference_mode():
        found = functional.normalize(model(pixel_values=images).logits, dim=-1)
        torch.testing.assert_close(found, source.encoder(images), atol=1e-5, rtol=0)


def require_equal(read: np.ndarray, expected: np.ndarray, pipeline: Pipeline) -> None:
    """Require the same pixels; those by area may differ by a level where one sum is of float32."""
    apart = np.abs(read - expected.transpose(2, 0, 1).astype(int))
    is_by_area = pipeline.interpolation == "area"
    assert apart.max() <= is_by_area
    assert apart.mean() <= 0.003 * is_by_area


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("center", {}),
        ("center", {"margin": 35 / 32}),
        ("transformers_center", {"margin": 35 / 32}),
        ("transformers_center", {"image_size": (40, 24), "margin": 35 / 32}),
        ("resize", {}),
        ("resize", {"image_size": (24, 40), "resize": "pad"}),
        *(
            ("center", {"image_size": size, "resize": how})
            for size in (32, (40, 24), (24, 40))
            for how in CROP_MODES
            if (size, how) != (32, "crop")
        ),
        *(("center", {"channels": channels, "margin": 1.3, "interpolation": "area"}) for channels in (1, 3, 4)),
        ("center", {"interpolation": "area", "resize": "pad"}),
        *(("resize", {"channels": channels, "resize": "pad"}) for channels in (1, 4)),
        *(
            ("timm", {"crop_mode": mode, "crop_pct": pct, "image_size": size})
            for mode in CROP_MODES.values()
            for pct, size in ((0.9, 32), (1.0, 32), (1.15, 32), (0.9, (24, 40)), (1.15, (40, 24)))
        ),
    ],
)
def test_the_code_of_a_card_makes_the_pixels_of_the_model_and_timms_settings_do(name, params, tmp_path, monkeypatch):
    pipeline = TRANSFORMS[name](**{"channels": 3, "interpolation": "bicubic", "image_size": SIZE, **params})
    config = Config(**{key: value for key, value in tiny_config().items() if key != "evaluate"})
    facts: dict[str, Any] = {"data": "d", "split": "test", "measured": "", "files": {}, "checks": [], "versions": {}}
    facts |= {"target": "onnx", "file": "m.onnx", "width": 8, "method": "bicubic", "metrics": {}, "licence": None}
    card = write_card(config, {"manifest": "", "progress": {}}, pipeline, **facts)
    (code,) = re.findall(r"\n\n\n(def .*?)\n\n\npixels", card, flags=re.DOTALL)
    scope: dict[str, Any] = {"Image": Image, "ImageOps": ImageOps, "np": np}
    exec(code, scope)
    for file in write_pictures(tmp_path, pipeline.size):
        decoded = pipeline.augment(pipeline.prepare(read_photo(file, pipeline.channels)), None)
        require_equal(scope["read"](file), decoded, pipeline)
    if pipeline.channels != 3:
        return
    monkeypatch.chdir(tmp_path)
    for shape in ((40, 50), (51, 40), (37, 200), (9, 16), (32, 32), (64, 64), (128, 128)):
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8))
        image.save(tmp_path / "photo.jpg", "png")
        expected = pipeline.augment(pipeline.prepare(np.asarray(image)), None)
        require_equal(scope["read"]("photo.jpg"), expected, pipeline)
        settings = timm_settings(pipeline) if name != "transformers_center" else {}
        if pipeline.interpolation == "area":
            settings = {}
        if OLD_TIMM and settings.get("crop_mode") == "center" and pipeline.size[0] != pipeline.size[1]:
            settings = {}  # older ones take bilinear, whatever is asked for
        if settings:  # timm has no like of transformers_center
            found = timm.data.create_transform(**settings, normalize=False)(image)
            assert torch.equal(found, torch.tensor(expected).permute(2, 0, 1))


@pytest.mark.parametrize("name", TEST_TRANSFORMS)
def test_stored_preprocessing_gives_the_same_tensor(name):
    look: dict[str, Any] = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7), "interpolation": "bicubic"}
    pipeline = TRANSFORMS[name]((16, 12), 3, **look, resize="pad")
    (image,) = photos(1)
    outside = unpack_preprocessing(pack_preprocessing(pipeline, dim=8, is_inside=False), "here")
    assert torch.equal(outside(image), pipeline(image))
    inside = unpack_preprocessing(pack_preprocessing(pipeline, dim=8, is_inside=True), "here")
    pixels = inside(image)
    assert pixels.dtype == torch.uint8
    assert torch.equal(pipeline.normalise(pixels), pipeline(image))


PIPELINE = TRANSFORMS["resize"](4, 3)


def refusal(name: str) -> str:
    """Return what is said of a model's file, without the name that it begins with."""
    with pytest.raises(UserError) as caught:
        load_model(name)
    said = str(caught.value)
    assert said.startswith(f"{name}: ")
    assert said.count(name) == 1
    assert "\n" not in said
    return said.removeprefix(f"{name}: ")


def test_graphs_that_cannot_be_used(tmp_path):
    stored = pack_preprocessing(PIPELINE, dim=3, is_inside=True)
    path = tmp_path / "model.onnx"
    assert "the graph fails on images" in refusal(f"{graph(path)},size=16")
    assert "of format 3" in refusal(graph(path, stored=stored.replace('"format": 2', '"format": 3')))
    assert "it again, or upgrade onnxruntime" in refusal(graph(path, opset=99))
    name = graph(path, stored=stored)
    path.write_bytes(path.read_bytes()[:-100])
    assert refusal(name).startswith("cannot be read as an ONNX model (")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: "[" * 100_000, "cannot be read"),
        (lambda content: "[]", "list indices must be integers"),
        (lambda content: json.dumps({**content, "format": 0}), "of format 0, expected 2"),
        (lambda content: json.dumps({**content, "transform": {"name": "other"}}), "'other' is missing"),
        (lambda content: json.dumps({**content, "transform": {"name": "resize", "image_size": "9"}}), "image_size"),
        (lambda content: json.dumps(content).replace('"image_size": 4', '"image_size": 1000000000'), "images of"),
    ],
)
def test_preprocessing_that_is_none_is_refused_in_one_line(change, message):
    text = change(json.loads(pack_preprocessing(PIPELINE, dim=8, is_inside=True)))
    with pytest.raises(UserError, match=message) as caught:
        unpack_preprocessing(text, "model.onnx")
    assert str(caught.value).startswith("model.onnx: ")
    assert "\n" not in str(caught.value)
