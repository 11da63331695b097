"""What a configuration holds, and that it survives being written and read."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from testing.configs import CHOICES, MINIMAL, VALID, read_yaml

from aurank.config import Config, ConfigError, LossTerm, config_difference, dump_config, load_config, shipped_configs
from aurank.config.schema import DataConfig, OptimConfig, TrainConfig, known_keys
from aurank.errors import UserError


def _valid(tmp_path: Path, *overrides: str) -> Config:
    path = tmp_path / "config.yaml"
    path.write_text(VALID)
    return load_config(path, overrides, choices=CHOICES)


def test_a_valid_file_gives_its_values_and_documented_defaults(tmp_path: Path) -> None:
    config = _valid(tmp_path)
    found = (config.seed, config.data.root, config.optim.lr, config.train.mixed_precision, config.sampler.name)
    assert found == (7, Path("/data"), 0.01, "no", "pk")
    assert (config.data.test_transform, config.train.log_every, config.data.cache) == (None, 10, "1GiB")
    least = load_config(MINIMAL, choices=CHOICES)
    assert (least.sampler.name, least.optim.name, least.optim.schedule.name) == ("pk", "adamw", "constant")
    assert (least.train.validate_every, least.data.train_transform.name) == (500, "crop_flip")


def test_an_image_size_is_a_number_or_height_and_width(tmp_path: Path) -> None:
    for text, sides in (("96", 96), ("[96, 96]", 96), ("[256, 128]", (256, 128))):
        config = _valid(tmp_path, f"data.image_size={text}", "data.resize=pad")
        assert (config.data.image_size, config.data.resize) == (sides, "pad")
        assert load_config(config.model_dump(mode="json"), choices=CHOICES) == config
    for text in ("0", "[96, 0]", "[1, 2, 3]", "256x128", "true", "9000", "null", "[8.0, 8]"):
        with pytest.raises(ConfigError, match=r"image_size: got .*, or two of them, \[height, width\]") as caught:
            _valid(tmp_path, f"data.image_size={text}")
        assert len(caught.value.errors) == 1


def test_loading_leaves_the_dict_given_and_the_defaults_alone() -> None:
    source = copy.deepcopy(MINIMAL) | {"loss": {"name": "rank", "params": {"semi_variance": [1, 2]}}}
    before = copy.deepcopy(source)
    load_config(source, ["data.train_transform.params.scale=[0.1, 0.2]", "loss.params.tau1=0.3"], choices=CHOICES)
    assert source == before
    assert load_config(MINIMAL, choices=CHOICES).data.train_transform.params == {}


def test_a_dump_holds_every_key_and_reads_the_same_in_yaml_1_1_and_1_2(tmp_path: Path) -> None:
    config = _valid(tmp_path, "data.root=no", "model.init_from='1e-4'")
    assert read_yaml(dump_config(config), version=(1, 1)) == config.model_dump(mode="json")
    (tmp_path / "again.yaml").write_text(dump_config(config))
    for source in (tmp_path / "again.yaml", config.model_dump(mode="json"), config.model_dump()):
        assert load_config(source, choices=CHOICES) == config


_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.dictionaries(_text, _plain, max_size=4))
@example({"": [{"?0": None}]})
def test_whatever_is_written_reads_back_the_same(tmp_path_factory: pytest.TempPathFactory, params: Any) -> None:
    config = load_config({**MINIMAL, "model": {"params": params}}, choices=CHOICES)
    path = tmp_path_factory.getbasetemp() / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path, choices=CHOICES).model.params == params


def test_differences_are_listed_by_dotted_path(tmp_path: Path) -> None:
    config = _valid(tmp_path)
    other = _valid(tmp_path, "optim.lr=0.2", "loss.params.tau2=0.01", "miner=null", "evaluate.recall_at=[1]")
    assert config_difference(config, config) == []
    assert config_difference(config, other) == [
        "evaluate.recall_at: [1, 5] != [1]",
        "loss.params.tau2: (absent) != 0.01",
        'miner: {"name": "margin", "params": {"margin": 0.1}} != null',
        "optim.lr: 0.01 != 0.2",
    ]


@pytest.mark.parametrize(
    "bad",
    [
        "data.cache=much", "model.backbone=''", "train.trackers=[paper]", "train.timeout=0.5s", "data=3",
        "evaluate.recall_at=[1, 1]", "evaluate.max_memory=0", "model.text.name=clip", "loss.matryoshka=[8, 4]",
        "loss=[]",
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_under_its_key(bad: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(MINIMAL, [bad], choices=CHOICES)
    (line,) = caught.value.errors
    assert line.startswith(f"override {bad!r}: {bad.split('=')[0]}" if "'" not in bad else "override ")
    assert "got" in line


def test_whole_numbers_are_floats_and_bare_numbers_are_sizes() -> None:
    config = load_config(MINIMAL, ["optim.lr=1", "data.cache=0", "evaluate.max_memory=1000"], choices=CHOICES)
    assert isinstance(config.optim.lr, float)
    assert config.data.cache == "0"
    assert config.evaluate.max_memory == "1000"


def test_a_config_is_frozen_and_checks_its_keys_together_in_python_too() -> None:
    parts: dict[str, Any] = {"data": DataConfig(name="digits"), "loss": LossTerm(name="smooth")}
    config = Config(**parts, optim=OptimConfig(lr=0.1), train=TrainConfig(steps=5))
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match=r"expected less than train\.steps = 5"):
        Config(**parts, optim=OptimConfig(lr=0.1, warmup_steps=5), train=TrainConfig(steps=5))


def test_every_key_is_described() -> None:
    keys = known_keys()
    assert "optim.schedule.params" in keys
    assert [path for path, key in keys.items() if not key.description or "\n" in str(key.description)] == []
    assert keys["loss.name"].is_required()
    assert keys["data.workers"].default == 0


def test_a_shipped_config_is_found_by_its_name() -> None:
    found = shipped_configs()
    assert all(path.is_file() and path.suffix == ".yaml" for path in found.values())
    folder = Path(__file__).parents[2] / "configs"
    assert set(found) == {path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.yaml")}


def test_a_config_error_is_a_users_error_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ConfigError(["a: x", "b: y"], "file.yaml")))
    assert isinstance(error, UserError)
    assert error.errors == ["a: x", "b: y"]
    assert str(error) == "file.yaml: 2 errors\n  a: x\n  b: y"
    assert str(ConfigError(["a: x"])) == "a: x"
