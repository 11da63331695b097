"""Image towers of transformers and open_clip as backbones: the library's features, trained, saved and loaded again."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from testing.galleries import SIZES, folder_of
from testing.refusals import refused
from testing.runs import tiny_config
from torch import nn

import aurank
from aurank.embedding.build import build_transform, fill_preprocessing
from aurank.errors import UserError
from aurank.models import Encoder
from aurank.models.adapters.by_name import load_model
from aurank.models.adapters.towers import preprocessing
from aurank.models.tuning import checkpoint_gradients, freeze, layer_scales
from aurank.training.components import read_config

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "width"), [("dinov2", 16), ("clip", 12)])
def test_a_tower_of_transformers_has_the_features_of_its_adapter(kind: str, width: int, tmp_path: Path) -> None:
    name = f"transformers:{folder_of(tmp_path, kind)}"
    encoder = Encoder(name, dim=8, discard_head=True).eval()
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        model = load_model(name)
        expected = nn.functional.normalize(model.module.eval()(images), dim=1)
        torch.testing.assert_close(encoder(images), expected)
        assert encoder(torch.rand(2, 3, 48, 48)).shape == (2, width)  # positions are interpolated
    assert encoder.head.in_features == width
    assert not any("text" in key for key in encoder.state_dict())
    unused = [key for key, value in encoder.named_parameters() if not value.requires_grad]
    assert [key.split(".")[-1] for key in unused] == (["mask_token"] if kind == "dinov2" else ["logit_scale"])


def test_a_run_of_a_tower_is_loaded_without_its_weights(tmp_path: Path) -> None:
    name = f"transformers:{folder_of(tmp_path / 'net')}"
    config = tiny_config(
        model={"backbone": name, "pretrained": True, "params": {}},
        data={"channels": 3, "image_size": 32, "train_transform": {"name": "crop_flip"}},
        train={"steps": 2, "validate_every": 2},
        optim={"warmup_steps": 0},
    )
    aurank.train(config, tmp_path / "run")
    (tmp_path / "net" / "model.safetensors").unlink()
    (tmp_path / "net" / "preprocessor_config.json").unlink()
    image_model = aurank.load(tmp_path / "run")
    model, transform = image_model.module, image_model.transform
    assert (transform.mean, transform.std, transform.interpolation) == ((0.4, 0.5, 0.6), (0.2,) * 3, "bicubic")
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 8)
    with torch.inference_mode():
        assert aurank.load(tmp_path / "run").module.dim == 8
    refused(r"transformers:.*(could not be had|cannot be built)", Encoder, name)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_tower_is_measured_by_the_crop_of_its_processor(kind: str, tmp_path: Path) -> None:
    middle = {"size": {"shortest_edge": 41}, "crop_size": {"height": 32, "width": 32}} if kind == "clip" else {}
    name = f"transformers:{folder_of(tmp_path, kind, **middle)}"
    data = {"channels": 3, "image_size": 32, "test_transform": None}
    config = read_config(tiny_config(model={"backbone": name, "pretrained": True, "params": {}}, data=data))
    transform, expected = build_transform(fill_preprocessing(config).data, train=False), load_model(name).transform
    by_name = preprocessing(name, {}, channels=3, pretrained=True)
    assert preprocessing(name, {}, channels=3, pretrained=False, weights=str(tmp_path)) == by_name
    for shape in ((41, 57), (60, 35), (20, 31)):
        image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8))
        # Of 255, by a deviation of 0.2: torch resizes with other roundings; a crop beside it differs by tens.
        assert float((transform(image) - expected(image)).abs().mean()) * 255 * 0.2 < 0.5


def test_weights_that_lack_a_layer_are_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.ViTModel(transformers.ViTConfig(**SIZES, intermediate_size=32), add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"its weights lack 2 \(pooler.*; add ,add_pooling_layer=false to the name"):
        Encoder(f"transformers:{tmp_path}")
    assert Encoder(f"transformers:{tmp_path},add_pooling_layer=false", dim=8).dim == 8


def test_a_tower_of_open_clip_has_the_features_of_its_adapter(tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    name = "open_clip:ViT-S-32-alt"
    torch.save(open_clip.create_model("ViT-S-32-alt").state_dict(), tmp_path / "net.pt")
    encoder = Encoder(name, dim=8, discard_head=True, weights=str(tmp_path / "net.pt")).eval()
    images = torch.rand(2, 3, 224, 224)
    with torch.inference_mode():
        expected = load_model(f"{name},pretrained={tmp_path / 'net.pt'}").module(images)
        torch.testing.assert_close(encoder(images), nn.functional.normalize(expected, dim=1))
    assert "left over" in encoder.notes[0]
    assert not any("token_embedding" in key for key in encoder.state_dict())
    config = read_config(tiny_config(model={"backbone": name, "params": {}, "pretrained": False}, data={"channels": 3}))
    filled = fill_preprocessing(config).data
    assert filled.normalise.mean == open_clip.OPENAI_DATASET_MEAN
    assert filled.interpolation == "area"


@pytest.mark.parametrize("kind", ["dinov2", "clip"])
def test_a_tower_is_tuned_as_timms_backbones_are(kind: str, tmp_path: Path) -> None:
    name = f"transformers:{folder_of(tmp_path, kind)}"
    plain, other = Encoder(name, dim=8), Encoder(name, dim=8)
    other.load_state_dict(plain.state_dict())
    checkpoint_gradients(other, name)
    images = torch.rand(2, 3, 32, 32)
    for encoder in (plain, other):
        encoder.train()(images)[:, 0].sum().backward()
    for first, second in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad)
    assert len({round(scale, 4) for scale in layer_scales(plain, 0.5, name).values()}) == 3
    first = next(key for key, _ in plain.named_parameters() if ".0." in key)
    layer = first.split(".0.")[0].removeprefix("backbone.model.model.")
    freeze(plain, [f"{layer}.0"])
    assert not any(value.requires_grad for key, value in plain.named_parameters() if f"{layer}.0." in key)


def test_a_file_of_open_clip_gives_timms_network_the_same_features(tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    model = open_clip.create_model("ViT-S-32-alt").eval()
    torch.save({"state_dict": {f"module.{key}": value for key, value in model.state_dict().items()}}, tmp_path / "e.pt")
    model.visual.proj = None
    sizes = {"embed_dim": 384, "num_heads": 6, "global_pool": "token"}
    encoder = Encoder("vit_base_patch32_clip_224", weights=str(tmp_path / "e.pt"), params=sizes).eval()
    images = torch.rand(2, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(encoder.backbone(images), model.visual(images), rtol=1e-4, atol=1e-4)
