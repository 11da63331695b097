"""The recipes for published networks: each is built and takes two steps, at a small size and from random weights."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from aurank.training import read_config, rehearse

PAGE = Path(__file__).parents[2] / "docs/configurations.md"
SECTION = PAGE.read_text(encoding="utf-8").split("## Fine-tuning published networks")[1]
RECIPES = [shlex.split(command) for command in re.findall(r"`aurank train ([^`]+)`", SECTION)]
SMALL = ["model.pretrained=false", "sampler.batch=16", "optim.warmup_steps=0"]
SIZES = {"vit_small_patch14": 56, "vit_base_patch16": 64}


def test_there_is_a_recipe_for_each_kind_of_network() -> None:
    for name in (
        "resnet50",
        "dinov2",
        "dinov3",
        "siglip",
        "freeze",
        "lora",
        "layer_decay",
        "transformers:",
        "open_clip:",
    ):
        assert any(name in " ".join(recipe) for recipe in RECIPES), name


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=[" ".join(recipe[1:3])[:60] for recipe in RECIPES])
def test_a_recipe_takes_two_steps(recipe: list[str]) -> None:
    config = read_config(recipe[0], recipe[1:])
    if ":" in config.model.backbone:
        pytest.skip("its configuration is fetched")
    if config.model.lora is not None and importlib.util.find_spec("peft") is None:
        pytest.skip("peft is not installed")
    transformer = next((size for name, size in SIZES.items() if config.model.backbone.startswith(name)), None)
    size = transformer or 64
    small = [*SMALL, f"data={{name: digits, image_size: {size}, channels: 3, validation_fraction: 0.0}}"]
    if transformer is not None:
        small += ["model.params.depth=2", f"model.params.img_size={size}"]
    rehearsal = rehearse(read_config(recipe[0], [*recipe[1:], *small]))
    total, trained = rehearsal.parts["backbone"]
    if config.model.freeze == ("backbone",):
        assert trained == 0
    elif config.model.freeze is not None or config.model.lora is not None:
        assert 0 < trained < total
    assert rehearsal.parts["head"][1] == rehearsal.parts["head"][0]
