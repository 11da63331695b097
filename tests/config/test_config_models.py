"""What a configuration says of models, told before anything is loaded."""

import re
from typing import Any

import pytest

from aurank.config import ConfigError
from aurank.training.components import read_config


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        (["model.backbone=resnet81"], ["model.backbone: timm has no model 'resnet81'; did you mean 'resnet18'"]),
        (["model.params.foo=1"], ["model.params.foo: resnet18 takes no option 'foo'"]),
        (
            ["model.params.drop_rat=0.1"],
            ["model.params.drop_rat: resnet18 takes no option .* did you mean 'drop_rate'"],
        ),
        (["model.params.in_chans=1"], ["model.params.in_chans: resnet18 takes no option 'in_chans'"]),
        (["model.backbone=resnet81", "optim.lr=x"], ["model.backbone: timm has no", "optim.lr: got 'x'"]),
    ],
)
def test_backbones_and_their_options_are_checked_without_their_weights(
    overrides: list[str], messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("timm.models._builder.load_pretrained", never)
    with pytest.raises(ConfigError) as caught:
        read_config("grocery/soprc", overrides)
    assert len(caught.value.errors) == len(messages)
    for message in messages:
        assert any(re.match(f"override '.*': {message}", line) for line in caught.value.errors), caught.value.errors


def test_what_timm_takes_is_taken() -> None:
    model: dict[str, Any] = {"backbone": "tf_efficientnet_lite0", "params": {"drop_path_rate": 0.1, "bn_eps": 1e-3}}
    overrides = [f"model.backbone={model['backbone']}", "model.params={drop_path_rate: 0.1, bn_eps: 0.001}"]
    assert read_config("grocery/soprc", overrides).model.params == model["params"]
