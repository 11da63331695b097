"""Weights of local files: every layout fills the same network, and what does not fit is told in one line."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from oracles import efficientnet
from safetensors.torch import save_file
from testing.refusals import refused
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.models import Encoder
from aurank.models.adapters.by_name import load_model

NAME = "test_resnet"


def network(name: str = NAME, seed: int = 1, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = timm.create_model(name, pretrained=False, **options)
    for value in model.parameters():
        nn.init.normal_(value)
    return model


WHOLE = network().state_dict()
BODY = {key: value for key, value in WHOLE.items() if not key.startswith("fc.")}


def prefixed(prefix: str) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in WHOLE.items()}


LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": WHOLE,
    "without classifier": BODY,
    "compiled in parallel": {"model": prefixed("module._orig_mod.")},
    "lightning": {"state_dict": prefixed("model."), "epoch": 3, "optimizer_states": [{"state": {0: {"x": BODY}}}]},
    "timm's training": {
        "state_dict": network(seed=2).state_dict(),
        "state_dict_ema": WHOLE,
        "args": argparse.Namespace(),
    },
    "a backbone with a head": {
        **{f"backbone.{key}": value for key, value in BODY.items()},
        "head.weight": torch.ones(2),
    },
    "distilled": {"student": prefixed("module.backbone."), "teacher": prefixed("backbone."), "epoch": 3},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_behind_any_wrapper_fill_the_backbone(layout: str, tmp_path: Path) -> None:
    torch.save(LAYOUTS[layout], tmp_path / "net.pth")
    encoder = Encoder(NAME, weights=str(tmp_path / "net.pth"))
    for key, value in encoder.backbone.state_dict().items():
        assert torch.equal(value, BODY[key]), key
    (said,) = encoder.notes
    assert said.startswith(f"model.weights: {len(BODY)} tensors of {tmp_path}/net.pth")
    assert ("left over" in said) == (layout != "without classifier")
    if layout == "timm's training":
        both = "below 'state_dict_ema' fill test_resnet; left over: 2 (fc.weight, fc.bias)"
        assert said.endswith(both)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "mine.ckpt", "parts"])
def test_a_folder_is_read_as_libraries_write_it(file: str, tmp_path: Path) -> None:
    if file == "parts":
        keys = sorted(WHOLE)
        parts = {"a.safetensors": keys[:9], "b.safetensors": keys[9:]}
        for name, held in parts.items():
            save_file({key: WHOLE[key] for key in held}, tmp_path / name)
        index = {"weight_map": {key: name for name, held in parts.items() for key in held}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    elif file.endswith(".safetensors"):
        save_file(WHOLE, tmp_path / file)
    else:
        torch.save(WHOLE, tmp_path / file)
    module = load_model(f"timm:{NAME},weights={tmp_path}")
    assert all(torch.equal(value, BODY[key]) for key, value in module.module.state_dict().items())
    assert "fc.weight" in module.notes[0]


def test_the_first_layer_is_adapted_to_other_channels(tmp_path: Path) -> None:
    torch.save(WHOLE, tmp_path / "net.pth")
    encoder = Encoder(NAME, weights=str(tmp_path / "net.pth"), channels=1)
    name = next(iter(WHOLE))
    adapted = encoder.backbone.state_dict()[name]
    torch.testing.assert_close(adapted, WHOLE[name].sum(dim=1, keepdim=True))
    # Drawn anew each time, one number in many would be a small difference of large ones.
    grey = torch.rand(2, 1, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        whole = Encoder(NAME, weights=str(tmp_path / "net.pth")).double().eval()
        colour = whole.backbone(grey.expand(-1, 3, -1, -1))
        torch.testing.assert_close(encoder.double().eval().backbone(grey), colour, rtol=1e-5, atol=1e-5)


def test_position_embeddings_are_resized_and_a_pooling_of_another_kind_is_named(tmp_path: Path) -> None:
    torch.save(network("test_vit").state_dict(), tmp_path / "net.pth")
    token = {"global_pool": "token", "img_size": 64}
    said = Encoder("test_vit", weights=str(tmp_path / "net.pth"), params=token).notes[0]
    assert "head.weight" in said
    own = network("test_vit", global_pool="token").state_dict()
    torch.save(own, tmp_path / "net.pth")
    with pytest.raises(UserError, match=r"fc_norm.*; they were trained to be pooled otherwise: set model\.params"):
        Encoder("test_vit", weights=str(tmp_path / "net.pth"), params={"fc_norm": True})


@pytest.mark.parametrize(
    ("name", "width", "depth", "squeeze"),
    [
        ("tf_efficientnet_lite0", 1.0, 1.0, False),
        ("tf_efficientnet_lite1", 1.0, 1.1, False),
        ("tf_efficientnet_lite2", 1.1, 1.2, False),
        ("tf_efficientnet_b0", 1.0, 1.0, True),
    ],
)
def test_efficientnet_pytorch_gives_its_features(
    name: str, width: float, depth: float, squeeze: bool, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = efficientnet.lite_blocks(width, depth)
    weights = efficientnet.draw(blocks, squeeze=squeeze, generator=generator)
    torch.save(weights, tmp_path / "net.pth")
    model = load_model(f"timm:{name},weights={tmp_path}/net.pth")
    (note,) = model.notes
    assert note.startswith(f"{len(weights) - 2} tensors of {tmp_path}/net.pth fill {name}; left over: 2 (classifier.")
    images = torch.randn(2, 3, 72, 72, generator=generator)  # odd sizes further in
    with torch.inference_mode():
        expected = efficientnet.pooled_features(weights, blocks, images)
        torch.testing.assert_close(model.module.eval()(images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_blocks.7._bn0.bias", r"1 of 294 tensors are missing \(blocks\.3\.2\.bn1\.bias\), 1 unexpected"),
        ("_blocks.7._project_conv.weight", r"1 of another shape \(blocks\.3\.2\.conv_pwl\.weight \[80, 479, 1, 1\]"),
        ("_blocks.7._se_reduce.weight", r"1 unexpected \(blocks\.3\.2\.se\.conv_reduce\.weight\)"),  # a B0's
        ("_blocks.16._bn0.bias", r"1 unexpected \(blocks\.16\._bn0\.bias\)"),
    ],
)
def test_a_wrong_tensor_of_efficientnet_pytorch_is_named(name: str, wrong: str, tmp_path: Path) -> None:
    blocks = efficientnet.lite_blocks(1.0, 1.0)
    weights = efficientnet.draw(blocks, squeeze=False, generator=torch.Generator().manual_seed(0))
    if name.endswith("bias") and name in weights:
        weights[f"{name}es"] = weights.pop(name)
    else:
        weights[name] = weights[name][:, 1:] if name in weights else torch.ones(480)
    torch.save(weights, tmp_path / "net.pth")
    refused(wrong, load_model, f"timm:tf_efficientnet_lite0,weights={tmp_path}/net.pth")
