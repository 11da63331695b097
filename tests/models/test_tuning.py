"""What is trained of a backbone: frozen parts stay as they are, gradients are the same, rates fall by layer."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.runs import tiny_config
from torch import nn

import aurank
from aurank.embedding.build import build_encoder
from aurank.models import Encoder
from aurank.models.encoder import parameter_groups
from aurank.models.tuning import add_lora, checkpoint_gradients, freeze, layer_scales, merge_lora
from aurank.training.components import read_config

VIT: dict[str, Any] = {"backbone": "test_vit", "params": {"img_size": 32, "global_pool": "token"}}


def vit(**params: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder("test_vit", dim=8, pretrained=False, params={**VIT["params"], **params})


def changed_by_a_step(encoder: nn.Module) -> set[str]:
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    optimiser = torch.optim.SGD([one for one in encoder.parameters() if one.requires_grad], lr=0.1)
    encoder.train()
    encoder(torch.rand(4, 3, 32, 32))[:, 0].sum().backward()
    optimiser.step()
    return {name for name, value in encoder.state_dict().items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("parts", [["backbone"], ["conv1", "bn1", "layer1", "layer2.", "layer3.0"]])
def test_frozen_parts_and_their_batch_norms_stay_as_they_are(parts: Any) -> None:
    encoder = Encoder("test_resnet", dim=8, pretrained=False)
    freeze(encoder, parts)
    frozen = ("backbone.",) if parts == ["backbone"] else tuple(f"backbone.{part.rstrip('.')}." for part in parts)
    for network in (encoder, copy.deepcopy(encoder)):  # as a moving average is
        changed = changed_by_a_step(network)
        assert not any(name.startswith(frozen) for name in changed)
        assert any(name.startswith("head.") for name in changed)
        assert any(name.endswith("running_mean") for name in changed) == (parts != ["backbone"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_activations_that_are_made_anew_give_the_same_gradient(name: str) -> None:
    torch.manual_seed(0)
    plain = Encoder(name, dim=8, pretrained=False, params={"drop_rate": 0.1}).double()
    other = copy.deepcopy(plain)
    checkpoint_gradients(other, name)
    images = torch.rand(4, 3, 160, 160, dtype=torch.float64)
    for network in (plain, other):
        torch.manual_seed(1)
        network(images)[:, 0].sum().backward()
    for first, second in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad)


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_efficientnet"])
def test_rates_fall_by_layer_from_the_last(name: str) -> None:
    encoder = Encoder(name, dim=8, pretrained=False)
    scales = layer_scales(encoder, 0.5, name)
    groups = parameter_groups(encoder, weight_decay=0.1, head_lr_multiplier=3.0, scales=scales)
    assert sum(len(group["params"]) for group in groups) == len(list(encoder.parameters()))
    rate = {id(one): group["lr_multiplier"] for group in groups for one in group["params"]}
    of = {key: rate[id(value)] for key, value in encoder.named_parameters()}
    assert of["head.weight"] == of["head.bias"] == 3.0
    first = next(iter(of))
    assert of[first] == min(of.values()) < 0.5
    assert max(value for key, value in of.items() if key.startswith("backbone.")) == 1.0
    if name == "test_vit":
        blocks = [of[f"backbone.blocks.{block}.mlp.fc1.weight"] for block in range(len(encoder.backbone.blocks))]
        assert blocks == [0.5 ** (len(blocks) - block) for block in range(len(blocks))]
    assert all(group["weight_decay"] == 0.1 * (group["params"][0].ndim > 1) for group in groups)


# peft is an optional extra.


def adapted() -> Encoder:
    pytest.importorskip("peft")
    encoder = vit()
    add_lora(encoder, rank=2, alpha=4.0)
    return encoder


def test_adapters_alone_are_trained_and_begin_as_nothing() -> None:
    encoder = adapted()
    plain = vit()
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(encoder.eval()(images), plain.eval()(images))
    trained = {name for name, value in encoder.named_parameters() if value.requires_grad}
    assert all("lora_" in name or name.startswith("head.") for name in trained)
    changed = changed_by_a_step(encoder)
    assert {name.split(".")[-3] for name in changed if "lora_" in name} == {"lora_B"}
    assert changed <= trained
    convolutional = Encoder("test_resnet", dim=8, pretrained=False)
    add_lora(convolutional, rank=2, alpha=4.0, targets=["conv2"])
    changed = changed_by_a_step(convolutional)  # batch norms keep their statistics
    assert all("lora_" in name or name.startswith("head.") for name in changed)


def test_merged_adapters_give_the_same_embeddings_and_the_plain_network() -> None:
    encoder = adapted()
    changed_by_a_step(encoder)
    images = torch.rand(2, 3, 32, 32)
    expected = encoder.eval()(images)
    merge_lora(encoder)
    torch.testing.assert_close(encoder(images), expected, rtol=1e-5, atol=1e-5)
    assert encoder.state_dict().keys() == vit().state_dict().keys()


@pytest.mark.slow
def test_a_run_of_adapters_resumes_is_loaded_merged_and_is_a_start(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    model = {**VIT, "lora": {"rank": 2, "targets": ["qkv", "fc1"]}}
    size = {"channels": 3, "image_size": 32}
    config = tiny_config(model=model, data=size, train={"ema": 0.9}, optim={"layer_decay": 0.8})
    aurank.train(config, tmp_path / "run")
    aurank.train(config, tmp_path / "run", resume=True)
    image_model = aurank.load(tmp_path / "run")
    loaded, transform = image_model.module, image_model.transform
    assert loaded.state_dict().keys() == vit().state_dict().keys()
    start = tiny_config(model={**VIT, "init_from": str(tmp_path / "run")}, data=size)
    first = build_encoder(read_config(start).model, channels=3)
    for name, value in loaded.state_dict().items():
        assert torch.equal(first.state_dict()[name], value), name
    assert transform.image_size == 32
