"""What cannot be meant is told in one line, which names the thing."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import huggingface_hub.constants as hub
import pytest
import timm
import torch
from huggingface_hub import utils
from testing.refusals import refused
from testing.runs import tiny_config

from aurank.commands import RunOptions, evaluate_model
from aurank.config import ConfigError
from aurank.embedding import ImageSelection
from aurank.embedding.stored.checkpoint import save_checkpoint
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
    "resize=squish: expected one of crop, squash, pad": lambda: load_model(
        "timm:test_resnet,pretrained=false,resize=squish"
    ),
    "takes no option .colour.; it takes .*drop_rate": lambda: load_model("timm:resnet10t,pretrained=false,colour=red"),
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
    refused(message, CALLS[message])


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
        refused(r"not answer: no route to host\); connect to the network once, name a", load_model, name)
    assert len(asked) == 2
    assert not hub.HF_HUB_OFFLINE
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    refused("HF_HUB_OFFLINE is set", load_model, "timm:test_resnet")
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


def test_weights_that_do_not_fit_are_told_in_one_line(tmp_path: Path) -> None:
    others = timm.create_model("test_resnet", pretrained=False).state_dict()
    missing = r"\d+ of 120 tensors are missing \(conv1.weight, .*\)"
    for content, said in ((others, missing), ({"lr": 0.1}, "holds no tensors by name; name a file that holds")):
        torch.save(content, tmp_path / "net.pth")
        refused(said, Encoder, "resnet18", weights=f"{tmp_path}/net.pth")
        refused(said, load_model, f"timm:resnet18,weights={tmp_path}/net.pth")


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
        refused(message, read_weights, tmp_path / path)


# -- Nothing that stands in a file or in a model's name runs code, unless the flag says so


REMOTE = "trust_remote_code=true"


class Loaded:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a stand-in for transformers, whose models cannot be built, was asked for."""
    found: list[dict[str, Any]] = []

    class Asked:
        @staticmethod
        def from_pretrained(what: str, **options: Any) -> None:
            found.append(options)
            raise ValueError("asked")

    library = ModuleType("transformers")
    vars(library).update(AutoImageProcessor=Asked, AutoTokenizer=Asked, AutoModel=Asked, AutoConfig=Asked)
    monkeypatch.setitem(sys.modules, "transformers", library)
    monkeypatch.setitem(sys.modules, "open_clip", library)
    return found


@pytest.mark.parametrize("option", [REMOTE, "weights_only=false", "attn_implementation=someone/kernel", "foo=1"])
def test_an_option_that_is_not_known_reaches_no_library(option: str, asked: list[dict[str, Any]]) -> None:
    key = option.partition("=")[0]
    for name in (f"transformers:some/model,{option}", f"open_clip:ViT-B-32,pretrained=x,{option}"):
        refused(f"unknown option '{key}'.*add --allow-code", load_model, name)
        refused(f"unknown option '{key}'(?!.*--allow-code)", load_text_model, name)
        with pytest.raises(ConfigError, match=f"model.text.name: .*unknown option '{key}'"):
            read_config(tiny_config(model={"text": {"name": name}}))
    refused(f"takes no option '{key}'", load_model, f"timm:resnet10t,pretrained=false,{option}")
    assert asked == []


def test_code_of_a_hub_is_trusted_behind_the_flag_alone(asked: list[dict[str, Any]]) -> None:
    refused("asked", load_model, "transformers:some/model")
    refused("asked", load_text_model, "transformers:some/model")
    refused("asked", load_model, f"transformers:some/model,{REMOTE}", allow_code=True)
    assert [options["trust_remote_code"] for options in asked] == [False, False, True]


@pytest.mark.slow
def test_a_repository_cannot_have_its_own_code_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """open_clip hands what a repository's configuration says of its tokeniser to transformers, trust included."""
    import transformers
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    ran = tmp_path / "ran"
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil/config.json").write_text('{"model_type": "evil", "auto_map": {"AutoConfig": "code.Evil"}}')
    (tmp_path / "evil/code.py").write_text(
        "import pathlib\nfrom transformers import PretrainedConfig\n"
        f"pathlib.Path({str(ran)!r}).touch()\nclass Evil(PretrainedConfig):\n    model_type = 'evil'\n"
    )

    def trusting(*_: object, **__: object) -> Any:
        return transformers.AutoConfig.from_pretrained(tmp_path / "evil", trust_remote_code=True)

    library = ModuleType("open_clip")
    vars(library).update(
        list_pretrained=list, create_model=trusting, get_tokenizer=trusting, create_model_and_transforms=trusting
    )
    monkeypatch.setitem(sys.modules, "open_clip", library)
    for load in (load_text_model, load_model):
        refused(r"cannot be built: it would run code of .*evil", load, "open_clip:hf-hub:evil/repo,pretrained=false")
        assert not ran.exists()
    trusting()  # what others do afterwards is theirs
    assert ran.exists()


@pytest.mark.parametrize("option", ["pretrained_filter_fn", "pretrained_cfg"])
def test_timms_builders_are_given_arguments_of_the_model_alone(option: str) -> None:
    for call in (
        lambda: Encoder("resnet10t", pretrained=False, params={option: "x"}),
        lambda: load_model(f"timm:resnet10t,pretrained=false,{option}=x"),
        lambda: read_config(tiny_config(model={"backbone": "resnet10t", "params": {option: "x"}})),
    ):
        refused(f"resnet10t takes no option '{option}'", call)
    with pytest.raises(UserError, match="got url, expected a mapping with keys among mean"):
        Encoder("resnet10t", pretrained=False, params={"pretrained_cfg_overlay": {"url": "http://x"}})
    for params in ({"file": "x"}, {"checkpoint_path": "x"}):
        with pytest.raises(ConfigError, match=r"weights of a file are model\.weights=x; leave it out here"):
            read_config(tiny_config(model={"backbone": "resnet10t", "params": params}))


def test_a_file_of_weights_is_read_as_data_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    content = {"conv1.weight": Loaded(ran)}
    torch.save(content, tmp_path / "pickled.pth")
    (tmp_path / "pickle.bin").write_bytes(pickle.dumps(content))
    # Whatever the surroundings say.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    for file in ("pickled.pth", "pickle.bin"):
        said = f"{file}: cannot be read as a file of weights alone"
        refused(said, Encoder, "resnet10t", weights=str(tmp_path / file))
        refused(said, load_model, f"timm:resnet10t,weights={tmp_path / file}")
    assert not ran.exists()


def test_a_checkpoint_with_such_a_name_runs_nothing(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    config = tiny_config(model={"text": {"name": f"transformers:some/model,{REMOTE}"}})
    empty: dict[str, Any] = {"data": None, "progress": {}, "encoder": {}, "average": None, "tokeniser": None}
    save_checkpoint(tmp_path / "best.safetensors", {**empty, "manifest": "", "config": config})
    with pytest.raises(UserError, match="unknown option 'trust_remote_code'"):
        evaluate_model(f"aurank:{tmp_path}", ImageSelection(f"folder:{tmp_path}"), running=RunOptions(allow_code=True))
    assert asked == []
