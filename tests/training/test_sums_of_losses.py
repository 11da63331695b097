"""A list of losses in a configuration: what it is built to, what is logged, resumed and refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.tiny import SUM, tiny_config

import aurank
from aurank.config import dump_config
from aurank.losses import LOSSES, MultipleLosses
from aurank.training import read_config
from aurank.training.build import build_loss, build_optimiser, build_splits


def listed(*terms: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    return tiny_config(list(terms), **sections)


def test_a_list_is_built_to_a_sum_with_weights_widths_and_miners() -> None:
    config = read_config(tiny_config(SUM))
    splits = build_splits(config)
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
            built = build_loss(config, build_splits(config).train)
            assert isinstance(built, MultipleLosses) == kind
            assert isinstance(built, type(LOSSES["smooth_ap"]())) != kind


def test_each_loss_has_groups_of_its_own_in_the_optimiser() -> None:
    terms = [*SUM[:2], {"name": "clip", "weight_decay": 0.5}]
    config = read_config(tiny_config(terms, optim={"temperature_lr": 1e-4}))
    loss = build_loss(config, build_splits(config).train)
    optimiser = build_optimiser(config, torch.nn.Linear(2, 2), loss)
    groups = {group["name"]: group for group in optimiser.param_groups if group["name"].startswith("loss")}
    proxies = groups["loss proxy_anchor decayed"]
    assert (proxies["lr_multiplier"], proxies["weight_decay"]) == (100, 0.01)
    (temperature,) = [group for name, group in groups.items() if "proxy" not in name]
    assert temperature["lr_multiplier"] == pytest.approx(0.1)
    assert temperature["weight_decay"] == 0
    assert sum(len(group["params"]) for group in groups.values()) == len(list(loss.parameters()))


@pytest.mark.slow
def test_the_logged_losses_add_up(tmp_path: Path) -> None:
    result = aurank.train(tiny_config(SUM, train={"steps": 3, "log_every": 3}), tmp_path / "run")
    assert [code["dim"] for code in result.report.codes] == [4]  # beside all 8 numbers
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[0])
    terms = {name: value for name, value in line.items() if name.startswith("loss ")}
    assert list(terms) == ["loss soprc@4", "loss soprc@8", "loss proxy_anchor", "loss multi_similarity"]
    assert sum(terms.values()) == pytest.approx(line["loss"], rel=1e-5)


def test_a_list_is_written_and_read_back(tmp_path: Path) -> None:
    config = read_config(tiny_config(SUM))
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    assert read_config(tmp_path / "config.yaml") == config
    assert [term.name for term in config.terms] == ["soprc", "proxy_anchor", "multi_similarity"]
