"""Nothing that stands in a file or in a model's name runs code, unless the flag says so."""

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from aurank.commands import RunOptions, evaluate_model
from aurank.config import ConfigError
from aurank.embedding import ImageSelection
from aurank.embedding.stored.checkpoint import save_checkpoint
from aurank.errors import UserError
from aurank.models import Encoder
from aurank.models.adapters.by_name import load_model, load_text_model
from aurank.training.components import read_config

REMOTE = "trust_remote_code=true"
CONFIG: dict[str, Any] = {
    "data": {"name": "table", "params": {"file": "rows.csv"}},
    "loss": {"name": "sogclr"},
    "optim": {"lr": 1e-3},
    "train": {"steps": 2},
}


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
        with pytest.raises(UserError, match=f"unknown option '{key}'.*add --allow-code"):
            load_model(name)
        with pytest.raises(UserError, match=f"unknown option '{key}'(?!.*--allow-code)"):
            load_text_model(name)
        with pytest.raises(ConfigError, match=f"model.text.name: .*unknown option '{key}'"):
            read_config({**CONFIG, "model": {"text": {"name": name}}})
    with pytest.raises(UserError, match=f"takes no option '{key}'"):
        load_model(f"timm:resnet10t,pretrained=false,{option}")
    assert asked == []


def test_code_of_a_hub_is_trusted_behind_the_flag_alone(asked: list[dict[str, Any]]) -> None:
    with pytest.raises(UserError, match="asked"):
        load_model("transformers:some/model")
    with pytest.raises(UserError, match="asked"):
        load_text_model("transformers:some/model")
    with pytest.raises(UserError, match="asked"):
        load_model(f"transformers:some/model,{REMOTE}", allow_code=True)
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
        with pytest.raises(UserError, match=r"cannot be built: it would run code of .*evil"):
            load("open_clip:hf-hub:evil/repo,pretrained=false")
        assert not ran.exists()
    trusting()  # what others do afterwards is theirs
    assert ran.exists()


@pytest.mark.parametrize("option", ["pretrained_filter_fn", "pretrained_cfg"])
def test_timms_builders_are_given_arguments_of_the_model_alone(option: str) -> None:
    for call in (
        lambda: Encoder("resnet10t", pretrained=False, params={option: "x"}),
        lambda: load_model(f"timm:resnet10t,pretrained=false,{option}=x"),
        lambda: read_config({**CONFIG, "model": {"backbone": "resnet10t", "params": {option: "x"}}}),
    ):
        with pytest.raises(UserError, match=f"resnet10t takes no option '{option}'"):
            call()
    with pytest.raises(UserError, match="got url, expected a mapping with keys among mean"):
        Encoder("resnet10t", pretrained=False, params={"pretrained_cfg_overlay": {"url": "http://x"}})
    for params in ({"file": "x"}, {"checkpoint_path": "x"}):
        with pytest.raises(ConfigError, match=r"weights of a file are model\.weights=x; leave it out here"):
            read_config({**CONFIG, "model": {"backbone": "resnet10t", "params": params}})


def test_a_file_of_weights_is_read_as_data_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    content = {"conv1.weight": Loaded(ran)}
    torch.save(content, tmp_path / "pickled.pth")
    (tmp_path / "pickle.bin").write_bytes(pickle.dumps(content))
    # Whatever the surroundings say.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    for file in ("pickled.pth", "pickle.bin"):
        with pytest.raises(UserError, match=f"{file}: cannot be read as a file of weights alone"):
            Encoder("resnet10t", weights=str(tmp_path / file))
        with pytest.raises(UserError, match=f"{file}: cannot be read as a file of weights alone"):
            load_model(f"timm:resnet10t,weights={tmp_path / file}")
    assert not ran.exists()


def test_a_checkpoint_with_such_a_name_runs_nothing(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    config = {**CONFIG, "model": {"text": {"name": f"transformers:some/model,{REMOTE}"}}}
    empty: dict[str, Any] = {"data": None, "progress": {}, "encoder": {}, "average": None, "tokeniser": None}
    save_checkpoint(tmp_path / "best.safetensors", {**empty, "manifest": "", "config": config})
    with pytest.raises(UserError, match="unknown option 'trust_remote_code'"):
        evaluate_model(f"aurank:{tmp_path}", ImageSelection(f"folder:{tmp_path}"), running=RunOptions(allow_code=True))
    assert asked == []
