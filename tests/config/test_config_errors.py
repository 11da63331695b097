"""Wrong configurations: all mistakes of each at once, with what was expected and what was meant."""

import re
from collections.abc import Sequence
from unittest.mock import Mock

import pytest
from testing.configs import CHOICES, MINIMAL, VALID, read_yaml

from aurank.config import ConfigError, load_config
from aurank.training.components import read_config


def errors_of(edits: str, overrides: Sequence[str] = ()) -> list[str]:
    """The errors of the valid configuration with the mappings in ``edits`` laid over it."""

    def lay(under: dict[str, object], over: dict[str, object]) -> None:
        for key, value in over.items():
            below = under.get(key)
            if isinstance(below, dict) and isinstance(value, dict):
                lay(below, value)
            else:
                under[key] = value

    tree = read_yaml(VALID)
    lay(tree, read_yaml(edits))
    with pytest.raises(ConfigError) as caught:
        load_config(tree, overrides, choices=CHOICES)
    assert all("\n" not in line for line in caught.value.errors)
    return caught.value.errors


WRONG = {
    "misspelt keys at any depth": (
        "{modle: {dim: 3}, optim: {lrr: 0.1}, data: {train_transform: {nme: x}},"
        " loss: {params: {tau_1: 1}}, miner: {params: {margn: 1}}}",
        {
            "modle: unknown key": "did you mean 'model'?",
            "optim.lrr: unknown key (got 0.1)": "did you mean 'optim.lr'?",
            "data.train_transform.nme: unknown key (got 'x')": "did you mean 'data.train_transform.name'?",
            "loss.params.tau_1: unknown key (got 1), expected one of tau1, tau2,": "did you mean 'loss.params.tau1'?",
            "miner.params.margn: unknown key": "did you mean 'miner.params.margin'?",
        },
    ),
    "keys in the wrong section": (
        "{lr: 0.1, per_class: 4, train: {batch: 3}, loss: {tau1: 0.1},"
        " sampler: {params: {dim: 3}}, optim: {params: {lr: 0.1}}}",
        {
            "lr: unknown key (got 0.1)": "did you mean 'optim.lr'?",
            "per_class: unknown key": "did you mean 'sampler.params.per_class'?",
            "train.batch: unknown key": "did you mean 'evaluate.batch' or 'sampler.batch'?",
            "loss.tau1: unknown key": "did you mean 'loss.params.tau1'?",
            "sampler.params.dim: unknown key": "did you mean 'model.dim'?",
            "optim.params.lr: unknown key (got 0.1)": "did you mean 'optim.lr'?",
        },
    ),
    "wrong types and values": (
        "{seed: 1.5, optim: {lr: '0.1', clip_norm: .inf}, data: {validation_fraction: 0.7},"
        " evaluate: {recall_at: [1, 1]}, loss: {params: {semi_variance: [1, .nan]}}}",
        {
            "seed: got 1.5": "expected a valid integer",
            "optim.lr: got '0.1'": "expected a valid number",
            "optim.clip_norm: got Infinity": "expected a finite number",
            "data.validation_fraction: got 0.7": "expected less than or equal to 0.5",
            "evaluate.recall_at: got [1, 1]": "expected a list of different whole numbers >= 1",
            "loss.params.semi_variance[1]: got NaN": "expected a finite number",
        },
    ),
    "misspelt choices": (
        "{loss: {name: rnk}, data: {name: tabel, on_error: skp}, train: {trackers: [wandbb]}}",
        {
            "loss.name: got 'rnk', expected one of 'rank', 'smooth'": "did you mean 'rank'?",
            "data.name: got 'tabel'": "did you mean 'table'?",
            "data.on_error: got 'skp', expected 'raise' or 'skip'": "did you mean 'skip'?",
            "train.trackers[0]: got 'wandbb'": "did you mean 'wandb'?",
        },
    ),
    "what is missing": (
        "{memory: {start_at: 3}, optim: null, data: {params: {file: null}}, loss: smooth}",
        {
            "memory.size: missing": "",
            "optim: missing": "",
            "data.params.file: got null": "expected a valid string",
            "loss: got 'smooth', expected a mapping": "write loss.name=smooth",
        },
    ),
    "keys that contradict each other": (
        "{memory: {size: 16}, data: {train_labels: image}}",
        {
            "memory.size: got 16, expected more than sampler.batch * data.views = 16": "",
            "sampler.name: got 'pk', which draws images of one class": "set sampler.name=shuffled",
            "data.views: got 1, expected at least 2": "",
        },
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_configuration_yields_all_its_errors_with_suggestions(name):
    edits, expected = WRONG[name]
    errors = errors_of(edits)
    for start, end in expected.items():
        assert [line for line in errors if line.startswith(start) and end in line], (start, errors)
    assert len(errors) == len(expected), errors


def test_a_misspelt_argument_is_not_taken_for_a_key_of_another_section():
    (line,) = errors_of("{loss: {params: {temperatur: 1}}}")  # optim.temperature_lr is like it
    assert "did you mean" not in line


def test_a_run_made_shorter_is_right_with_the_overrides_that_its_errors_name():
    optim = {"lr": 0.1, "warmup_steps": 10}
    source = {**MINIMAL, "optim": optim, "memory": {"size": 113, "start_at": 20}}
    with pytest.raises(ConfigError) as caught:
        load_config(source, ["train.steps=7"], choices=CHOICES)
    remedies = [line.split("; set ")[1].removesuffix(" or raise train.steps") for line in caught.value.errors]
    assert remedies == ["optim.warmup_steps=0", "memory.start_at=0"]
    assert load_config(source, ["train.steps=7", *remedies], choices=CHOICES).train.steps == 7


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps", "expected key.path=value, for example optim.lr=1e-4"),
        ("a..b=1", "expected key.path=value"),
        ("train.steps=[", "expected the node content, but found"),
        ("seed.x=1", "seed is 7, not a mapping; set it as a whole"),
        ("lr=2", r"lr: unknown key \(got 2\)"),
    ],
)
def test_a_mistake_in_an_override_names_it(override, message):
    (line,) = errors_of("{}", [override])
    assert re.match(f"override '{re.escape(override)}'.*: .*{message}", line)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.backbone=resnet81"], "model.backbone: timm has no model 'resnet81'; did you mean 'resnet18'"),
        (["model.params.drop_rat=0.1"], "model.params.drop_rat: resnet18 takes no option .* did you mean 'drop_rate'"),
        (["model.params.in_chans=1"], "model.params.in_chans: resnet18 takes no option 'in_chans'"),
        (["evaluate.metrics=[mauprcc]"], "evaluate.metrics: .*mauprcc"),
    ],
)
def test_backbones_and_their_options_are_checked_without_their_weights(overrides, message, monkeypatch):
    monkeypatch.setattr("timm.models._builder.load_pretrained", Mock(side_effect=AssertionError("loaded")))
    with pytest.raises(ConfigError, match=f"override '.*': {message}"):
        read_config("grocery/soprc", overrides)
