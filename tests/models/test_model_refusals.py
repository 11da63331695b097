"""What cannot be meant is told in one line, which names the thing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants as hub
import pytest
import timm
import torch
from huggingface_hub import utils
from testing.runs import tiny_config

from aurank.config import ConfigError
from aurank.errors import UserError
from aurank.models import Encoder
from aurank.models.adapters.by_name import load_model, load_text_model
from aurank.models.adapters.weights import read_weights
from aurank.models.tuning import add_lora, checkpoint_gradients, freeze, layer_scales
from aurank.training.components import read_config


def encoder(name: str = "resnet10t", **given: Any) -> Encoder:
    return Encoder(name, dim=8, pretrained=False, **given)


def vit() -> Encoder:
    return encoder("test_vit", params={"img_size": 32})


def without_layers() -> Encoder:
    built = encoder()
    built.backbone = torch.nn.Linear(2, 2)
    return built


CALLS: dict[str, Callable[[], object]] = {
    "no model 'resnet18'; expected one of timm:…": lambda: load_model("resnet18"),
    "did you mean .*resnet18'": lambda: load_model("timm:resnet_18,pretrained=false"),
    "unknown option 'pretrained', expected option=value": lambda: load_model("timm:resnet18,pretrained"),
    "takes no option .input_sise.; did you mean .input_size.": lambda: load_model(
        "timm:resnet10t,pretrained=false,input_sise=64"
    ),
    "takes no option .colour.; it takes .*drop_rate": lambda: load_model("timm:resnet10t,pretrained=false,colour=red"),
    "python:os:getcwd .*--allow-code": lambda: load_model("python:os:getcwd"),
    "no model 'timm:resnet18'; expected one of open_clip:…, transformers:…": lambda: load_text_model("timm:resnet18"),
    "timm has no model 'resnet81'; did you mean .*resnet18": lambda: encoder("resnet81"),
    "timm has no weights 'resnet18.tv'; did you mean .*resnet18.tv_in1k": lambda: Encoder("resnet18.tv"),
    "resnet10t takes no option 'no_such'": lambda: encoder(params={"no_such": 1}),
    "pit_ti_224 .* cannot be built: .*model.params.global_pool=avg or token": lambda: encoder("pit_ti_224"),
    "pooling=gem .* use model.pooling=avg": lambda: encoder(
        "vit_tiny_patch16_224", pooling="gem", params={"img_size": 32}
    )(torch.randn(2, 3, 32, 32)),
    "model.freeze: no parameter begins with 'block'.* did you mean 'blocks'": lambda: freeze(vit(), ["block"]),
    "model.gradient_checkpointing: dla46_c cannot": lambda: checkpoint_gradients(encoder("dla46_c"), "dla46_c"),
    "optim.layer_decay: x has no layers that are known": lambda: layer_scales(without_layers(), 0.5, "x"),
    "model.lora.targets: .*nothing.* not found": lambda: add_lora(vit(), rank=2, alpha=4.0, targets=["nothing"]),
    "model.lora.targets: .* no linear layer": lambda: add_lora(encoder("test_resnet"), rank=2, alpha=4.0),
}


@pytest.mark.parametrize("message", CALLS)
def test_what_cannot_be_meant_is_told_in_one_line(message: str) -> None:
    if "lora" in message:
        pytest.importorskip("peft")
    with pytest.raises(UserError, match=message) as caught:
        CALLS[message]()
    assert "\n" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_asked_once_and_its_cache_then_looked_at_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    class Client:
        def head(self, url: str, **_: object) -> None:
            asked.append(url)
            raise OSError("no route to host")

    monkeypatch.setattr(utils, "get_session", Client)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    for name in ("timm:test_resnet", "timm:hf-hub:timm/none"):
        with pytest.raises(UserError, match=r"not answer: no route to host\); connect to the network once, name a"):
            load_model(name)
    assert len(asked) == 2
    assert not hub.HF_HUB_OFFLINE
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        load_model("timm:test_resnet")
    assert len(asked) == 2


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "model.freeze: got .*backbone.*: with model.lora": {"model": {"freeze": "backbone", "lora": {}}},
    "model.gradient_checkpointing: got True": {"model": {"freeze": "backbone", "gradient_checkpointing": True}},
    "optim.layer_decay: got 0.7.* model.freeze": {"model": {"freeze": "backbone"}, "optim": {"layer_decay": 0.7}},
    "model.discard_head: got True.* model.freeze=backb": {"model": {"freeze": "backbone", "discard_head": True}},
    "model.freeze: got 'layer1', ": {"model": {"freeze": "layer1"}},
    "model.pooling: got 'gem'.*transf": {"model": {"params": {}, "backbone": "transformers:x", "pooling": "gem"}},
    "data.channels: got 1": {"model": {"params": {}, "backbone": "transformers:x"}},
    "model.params: got {'a': 1}.*after commas": {"model": {"backbone": "open_clip:x", "params": {"a": 1}}},
    "model.backbone: open_clip:x,a=1: unknown option 'a'": {"model": {"params": {}, "backbone": "open_clip:x,a=1"}},
    "no model .transformers:,": {"model": {"params": {}, "backbone": "transformers:,revision=1"}},
}


@pytest.mark.parametrize("message", CONFIGURATIONS)
def test_a_configuration_that_nothing_can_be_built_from_is_refused(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(tiny_config(**CONFIGURATIONS[message]))


def network(name: str) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = timm.create_model(name, pretrained=False).state_dict()
    return weights


WHOLE = network("test_resnet")
FILES: dict[str, tuple[str, Callable[[], Any]]] = {
    r"\d+ of 120 tensors are missing \(conv1.weight, .*\)": ("resnet18", lambda: WHOLE),
    r"\d+ unexpected \(layer": ("resnet10t", lambda: network("resnet14t")),
    r"1 of another shape \(layer": ("test_resnet", lambda: {**WHOLE, "layer1.0.conv1.weight": torch.ones(1)}),
    "holds no tensors by name; name a file that holds": ("test_resnet", lambda: {"lr": 0.1}),
}


@pytest.mark.parametrize("message", FILES)
def test_weights_that_do_not_fit_are_told_in_one_line(message: str, tmp_path: Path) -> None:
    name, content = FILES[message]
    torch.save(content(), tmp_path / "net.pth")
    for call in (
        lambda: Encoder(name, weights=f"{tmp_path}/net.pth"),
        lambda: load_model(f"timm:{name},weights={tmp_path}/net.pth"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_files_that_are_no_weights_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "parts").mkdir()
    index = tmp_path / "parts/model.safetensors.index.json"
    for name, content in (("a.pth", b"x" * 100), ("b.safetensors", b"\xff" * 100), ("c.pth", b"")):
        (tmp_path / name).write_bytes(content)
    for path, written, message in (
        ("a.pth", "", r"cannot be read as a file of weights alone \(torch cannot read it\); name a file"),
        ("b.safetensors", "", r"a file of weights alone \(.*\); name a file"),
        ("c.pth", "", r"a file of weights alone \(.*\); name a file"),
        ("none", "", "none: cannot be read .*No such file"),
        (".", "", "holds several files of weights"),
        ("empty", "", "holds no file of weights"),
        ("parts", "{", "index of files of weights"),
        ("parts", '{"weight_map": {"a": "../a.pth"}}', "Invalid name"),
    ):
        index.write_text(written)
        with pytest.raises(UserError, match=message) as caught:
            read_weights(tmp_path / path)
        assert "\n" not in str(caught.value)
