"""YAML files and overrides: what is read, and what is refused because it could run, look up or surprise."""

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.configs import CHOICES, MINIMAL, VALID, read_yaml

from aurank.config import Config, ConfigError, load_config
from aurank.training.components import read_config


def _load(tmp_path: Path, text: str | bytes, *overrides: str) -> Config:
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_config(path, overrides, choices=CHOICES)


def _error(tmp_path: Path, text: str | bytes, *overrides: str) -> str:
    """The only line of the error, after the path of the file."""
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text, *overrides)
    (line,) = caught.value.errors
    assert str(caught.value) == line
    assert "\n" not in line
    return line.removeprefix(str(tmp_path / "config.yaml"))


def test_scalars_are_those_of_yaml_1_2(tmp_path):
    text = "[1e-4, 1E3, .5, -2., 0, 1_000, 1:30, no, on, yes, True, null, ~, 2020-01-01, '1', <<, =, '${oc.env:HOME}']"
    assert _load(tmp_path, VALID.replace("drop_rate: 0.1", f"drop_rate: {text}")).model.params["drop_rate"] == [
        1e-4, 1e3, 0.5, -2.0, 0, 1000, "1:30", "no", "on", "yes", True, None, None, "2020-01-01", "1", "<<", "=",
        "${oc.env:HOME}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "attempt",
    [
        "!!python/object/apply:os.system ['touch {marker}']",
        "!!int x",
        "!local 3",
        "&anchor 3",
        "&loop [*loop]",
        "*anchor",
    ],
)
def test_nothing_in_a_file_or_an_override_runs_or_is_looked_up(tmp_path, attempt):
    marker = tmp_path / "marker"
    attempt = attempt.format(marker=marker) if "{marker}" in attempt else attempt
    written = VALID.replace("drop_rate: 0.1", f"drop_rate: {attempt} ")
    for text, overrides in ((written, ()), (VALID, [f"model.params.drop_rate={attempt}"])):
        line = _error(tmp_path, text, *overrides)
        assert any(said in line for said in ("refused", "undefined alias", "cannot be read"))
    assert not marker.exists()


def test_every_mistake_is_told_with_the_place_that_it_came_from(tmp_path):
    text = VALID.replace("lr: 1e-2", "lrr: 1e-2").replace("[50, 80]", "[50, x]").replace("seed: 7", "seed: -7")
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text, "train.ema=2", "data.workers=-1", "data={name: table, params: {file: 3}}")
    places = {line.removeprefix(f"{tmp_path / 'config.yaml'}:").split(": got")[0] for line in caught.value.errors}
    assert places == {
        "2:1: seed",
        "18:1: optim.lr: missing",  # at the section that lacks it
        "20:3: optim.lrr: unknown key (got 0.01), expected one of name, params, lr, weight_decay, batch_rule, "
        "temperature_lr, head_lr_multiplier, layer_decay, schedule, warmup_steps, clip_norm; did you mean 'optim.lr'?",
        "22:58: optim.schedule.params.milestones[1]",
        "override 'train.ema=2': train.ema",
        "override 'data={name: table, params: {file: 3}}': data.params.file",
    }
    assert str(caught.value).startswith(f"{tmp_path / 'config.yaml'}: {len(places)} errors\n  ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1\nb: 2", ":2:2: expected ',' or ']'"),
        ("a: b: c", ":1:5: mapping values are not allowed here"),
        ("a: \x07", ": cannot be read as a configuration"),
        ("", ": got null, expected a mapping"),
        (b"\xff\xfe\x00a", ": cannot be read as a configuration ('utf-8'"),
        ("a: " + "{b: " * 5000, ": cannot be read as a configuration"),
        (VALID + "seed: 2\n", ":26:1: seed is given twice"),
        (VALID + "? [a]\n: x\n", ":26:3: a key must be text"),
        (VALID + "7: x\n", ":26:1: 7: unknown key"),
    ],
)
def test_a_file_that_is_no_mapping_of_texts_gives_one_line(tmp_path, text, expected):
    assert _error(tmp_path, text).startswith(expected)


def test_a_byte_order_mark_is_no_error_and_a_missing_file_names_one_like_it(tmp_path):
    assert _load(tmp_path, b"\xef\xbb\xbf" + VALID.encode()).seed == 7
    with pytest.raises(ConfigError, match=r"cnfig\.yaml: no such file; did you mean '.*config\.yaml'\?"):
        load_config(tmp_path / "cnfig.yaml", choices=CHOICES)


def test_a_dict_may_hold_paths_tuples_and_components():
    held = {"data": {"name": "digits", "root": Path("/x")}, "evaluate": {"recall_at": (1, 2)}}
    config = load_config({**MINIMAL, **held}, choices=CHOICES)
    assert config.data.root == Path("/x")
    assert load_config({**MINIMAL, "loss": config.loss}, choices=CHOICES).loss == config.loss


@pytest.mark.parametrize(
    "odd",
    [object(), b"x", {1, 2}, {(1, 2): 3}, 10**5000, Fraction(10**400), float("nan")],
    ids=lambda odd: type(odd).__name__,
)
def test_a_dict_that_holds_what_yaml_has_not_is_refused_in_one_line(odd):
    with pytest.raises(ConfigError) as caught:
        load_config({**MINIMAL, "seed": odd}, choices=CHOICES)
    assert len(caught.value.errors) == 1
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ConfigError):
        load_config({**MINIMAL, "model": {"params": {"loop": loop}}}, choices=CHOICES)


def test_overrides_set_values_lists_null_and_paths_through_params(tmp_path):
    config = _load(
        tmp_path, VALID, "optim.lr=1e-4", "evaluate.recall_at=[1, 2]", "miner=null", "loss.params.semi_variance=null",
        "model.params.extra.deep=true", "train.ema=", "data.root=a=b", "optim.schedule.params.milestones=[20]",
    )  # fmt: skip
    assert config.optim.lr == 1e-4
    assert config.evaluate.recall_at == (1, 2)
    assert config.miner is None
    assert config.loss.params == {"tau1": 0.2, "prior": "frequency", "semi_variance": None}
    assert config.model.params == {"drop_rate": 0.1, "extra": {"deep": True}}
    assert config.train.ema is None
    assert config.data.root == Path("a=b")
    assert config.optim.schedule.params["milestones"] == [20]


def test_an_override_makes_the_sections_it_needs_and_the_last_of_a_key_counts(tmp_path):
    assert _load(tmp_path, VALID, "seed=1", "seed=2").seed == 2
    assert load_config(MINIMAL, "seed=9", choices=CHOICES).seed == 9  # one may be plain text
    made = ["miner.name=margin", "miner.params.margin=0.3", "data.train_transform.params.scale=[0.1,1]"]
    config = load_config(MINIMAL, made, choices=CHOICES)
    assert config.miner.params == {"margin": 0.3}
    assert config.data.train_transform.name == "crop_flip"


def test_naming_another_component_drops_the_params_of_the_file_and_says_so(tmp_path):
    said = r"^loss\.name=smooth leaves out the loss\.params of rank: tau1=0\.2, prior='frequency', semi_variance="
    given = "loss.params.temperature=1"
    for overrides in (["loss.name=smooth"], ["loss.name=smooth", given], [given, "loss.name=smooth"]):
        with pytest.warns(UserWarning, match=said):
            config = _load(tmp_path, VALID, *overrides)
        assert config.loss.params == ({"temperature": 1.0} if given in overrides else {})
    with pytest.warns(UserWarning, match=r"^sampler\.name=shuffled leaves out .* of pk: per_class=2$"):
        load_config({**MINIMAL, "sampler": {"params": {"per_class": 2}}}, ["sampler.name=shuffled"], choices=CHOICES)
    load_config(MINIMAL, ["loss.name=rank", "sampler.name=shuffled"], choices=CHOICES)  # nothing is dropped
    assert _load(tmp_path, VALID, "loss.name=rank").loss.params["tau1"] == 0.2
    assert _load(tmp_path, VALID, "loss.name=smooth", "loss.name=rank").loss.params["tau1"] == 0.2


SCRAPS = [
    "a", "lr", "optim", ": ", ":\n  ", "\n", "- ", "[", "]", "{", "}", ", ", "'", '"', "!!int ", "&a ", "*a", "? ",
    "|\n", ">-\n", "#", "%YAML 1.2\n", "---\n", "...\n", "\t", "\\", "1e4", ".nan", "~", "${x}", "<<", "\x85", "\ufeff",
    "@", "`", "=",
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(SCRAPS) | st.text(max_size=3), max_size=25).map("".join))
def test_any_text_as_file_or_override_ends_valid_or_in_a_config_error(tmp_path_factory, text):
    path, tree = tmp_path_factory.getbasetemp() / "random.yaml", read_yaml(VALID)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for source, overrides in ((path, []), (tree, [text]), (tree, [f"model.params.x={text}"]), ({text: text}, [])):
        lines = [""]
        try:
            load_config(source, overrides, choices=CHOICES)
            assert source is tree  # a file of scraps is no whole configuration
        except ConfigError as error:
            lines = error.errors
        assert lines
        assert all(line.isprintable() and len(line) < 800 for line in lines)


# -- Wrong configurations: all mistakes of each at once, with what was expected and what was meant


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
