"""A list of losses in a configuration: what it is built to, what is logged, resumed and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.tiny import SUM, tiny_config

import aurank
from aurank.config import ConfigError, dump_config
from aurank.losses import LOSSES, MultipleLosses
from aurank.training import read_config
from aurank.training.build import build_loss, build_optimiser, build_splits
from aurank.training.trainer import Trainer


def listed(*terms: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    return tiny_config(list(terms), **sections)


def test_a_list_is_built_to_a_sum_with_weights_widths_and_miners() -> None:
    config = read_config(tiny_config(SUM))
    splits = build_splits(config.data, seed=config.seed)
    loss = build_loss(config, splits.train)
    assert isinstance(loss, MultipleLosses)
    assert loss.weights == {"soprc@4": 0.5, "soprc@8": 1.0, "proxy_anchor": 0.1, "multi_similarity": 0.3}
    assert loss.widths == {"soprc@4": 4, "soprc@8": 8}
    assert list(loss.miners) == ["multi_similarity"]
    assert loss.losses["proxy_anchor"].loss.proxies.shape == (len(splits.train.classes), 8)


def test_a_loss_alone_is_no_sum_and_one_of_a_width_is() -> None:
    for term, kind in ({"name": "smooth_ap"}, False), ({"name": "smooth_ap", "weight": 2.0}, True):
        for loss in (term, [term]):
            config = read_config(tiny_config(loss))
            built = build_loss(config, build_splits(config.data, seed=3).train)
            assert isinstance(built, MultipleLosses) == kind
            assert isinstance(built, type(LOSSES["smooth_ap"]())) != kind


def test_each_loss_has_groups_of_its_own_in_the_optimiser() -> None:
    terms = [*SUM[:2], {"name": "clip", "weight_decay": 0.5}]
    config = read_config(tiny_config(terms, optim={"temperature_lr": 1e-4}))
    loss = build_loss(config, build_splits(config.data, seed=3).train)
    optimiser = build_optimiser(config, torch.nn.Linear(2, 2), loss)
    groups = {group["name"]: group for group in optimiser.param_groups if group["name"].startswith("loss")}
    proxies = groups["loss proxy_anchor decayed"]
    assert (proxies["lr_multiplier"], proxies["weight_decay"]) == (100, 0.01)
    (temperature,) = [group for name, group in groups.items() if "proxy" not in name]
    assert temperature["lr_multiplier"] == pytest.approx(0.1)
    assert temperature["weight_decay"] == 0
    assert sum(len(group["params"]) for group in groups.values()) == len(list(loss.parameters()))


def test_what_a_loss_has_no_use_for_is_told_once() -> None:
    unused = {"lr_multiplier": 10.0, "weight_decay": 0.5}
    terms = [{"name": "soprc", "matryoshka": [4, 8], **unused}, {"name": "clip", **unused}, {**SUM[1], **unused}]
    config = read_config(tiny_config(terms))
    notices = Trainer(config, build_splits(config.data, seed=3)).notices
    assert [notice for notice in notices if "no effect" in notice] == [
        "lr_multiplier=10 of soprc has no effect: it learns nothing itself",
        "weight_decay=0.5 of soprc has no effect: it learns no vectors",
        "weight_decay=0.5 of clip has no effect: it learns no vectors",
    ]


@pytest.mark.slow
def test_the_logged_losses_add_up(tmp_path: Path) -> None:
    result = aurank.train(tiny_config(SUM, train={"steps": 3, "log_every": 3}), tmp_path / "run")
    assert [code["dim"] for code in result.report.codes] == [4]  # beside all 8 numbers
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    terms = {name: value for name, value in line.items() if name.startswith("loss ")}
    assert list(terms) == ["loss soprc@4", "loss soprc@8", "loss proxy_anchor", "loss multi_similarity"]
    assert sum(terms.values()) == pytest.approx(line["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ([{"name": "soprc"}, {"name": "sprc"}], r"loss\[1\].name: got 'sprc', expected one of .* did you mean 'soprc'"),
        ([{"name": "soprc"}, {"name": "soprc"}], r"loss\[1\].name: got 'soprc' more than once"),
        ([{"name": "soprc", "weight": 0}], r"loss\[0\].weight: got 0, expected greater than 0"),
        ({"name": "soprc", "weight": -1.0}, r"loss.weight: got -1.0, expected greater than 0"),
        ([{"name": "soprc", "wieght": 1}], r"loss\[0\].wieght: unknown key .* did you mean 'loss.weight'"),
        ([{"name": "soprc", "params": {"tau": 1.0}}], r"loss\[0\].params.tau: unknown key"),
        ([{"name": "cosface", "params": {"num_classes": 3}}], r"loss\[0\].params.num_classes: unknown key"),
        ([{"name": "soprc", "miner": {"name": "hardest"}}], r"loss\[0\].miner.name: got 'hardest', expected one of"),
        ([], r"loss: got \[\], expected at least one loss"),
        (["soprc"], r"loss\[0\]: got 'soprc', expected a mapping"),
        ("soprc", r"loss: got 'soprc', expected a mapping; write loss.name=soprc"),
        (
            [{"name": "soprc", "matryoshka": [8, 4]}],
            r"loss\[0\].matryoshka: .* expected a list of rising whole numbers",
        ),
        ([{"name": "soprc", "matryoshka": [4, 64]}], r"loss\[0\].matryoshka: got 64, expected at most model.dim = 8"),
        (
            {"name": "soprc", "matryoshka": [4, 8], "matryoshka_weights": [1.0]},
            "loss.matryoshka_weights: got 1 weights, expected one for each width",
        ),
        (
            [{"name": "smooth_ap"}, {"name": "clip", "params": {"two_way": True}}],
            r"loss\[1\].params.two_way: got True: ",
        ),
    ],
)
def test_a_mistake_in_a_list_is_told_by_its_place(loss: Any, message: str) -> None:
    content = {**tiny_config(), "loss": loss}
    with pytest.raises(ConfigError, match=message):
        read_config(content)


def test_with_texts_every_loss_of_a_list_is_of_both_ways() -> None:
    content = {**listed({"name": "clip"}, {"name": "soprc"}), "sampler": {"name": "shuffled", "batch": 16}}
    content["model"] = {**content["model"], "text": {}}
    with pytest.raises(ConfigError, match=r"loss\[1\].name: got 'soprc', which compares images alone; with model.text"):
        read_config(content)


def test_a_list_is_written_and_read_back(tmp_path: Path) -> None:
    config = read_config(tiny_config(SUM))
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    assert read_config(tmp_path / "config.yaml") == config
    assert [term.name for term in config.terms] == ["soprc", "proxy_anchor", "multi_similarity"]
