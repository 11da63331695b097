"""Images are shown to a backbone as it was trained; a checkpoint keeps how, and older ones keep what was usual."""

from pathlib import Path
from typing import Any

import pytest
import timm
from safetensors.torch import save_file
from testing.runs import tiny_config

import aurank
from aurank.commands import evaluate_model
from aurank.config import ConfigError
from aurank.config.schema import Transform
from aurank.embedding import ImageSelection
from aurank.embedding.build import fill_preprocessing
from aurank.embedding.stored.checkpoint import load_checkpoint, save_checkpoint
from aurank.errors import UserError
from aurank.training.components import read_config

HALF, IMAGENET = ((0.5,) * 3, (0.5,) * 3), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
BACKBONE = "test_resnet"  # trained with mean and deviation 0.5, bilinear


def filled(model: dict[str, Any], **data: Any) -> tuple[tuple[float, ...], tuple[float, ...], str | None]:
    config = fill_preprocessing(read_config(tiny_config(model={"params": {}, **model}, data={"channels": 3, **data})))
    return tuple(config.data.normalise.mean), tuple(config.data.normalise.std), config.data.interpolation


def weights_of(folder: Path) -> str:
    save_file(timm.create_model(BACKBONE, pretrained=False).state_dict(), folder / "weights.safetensors")
    return str(folder / "weights.safetensors")


def test_of_other_channels_pretrained_weights_take_the_mean_of_the_colours(tmp_path):
    own, weights = timm.get_pretrained_cfg("resnet18"), weights_of(tmp_path)
    learnt = filled({"backbone": "resnet18", "pretrained": True}, channels=1)
    assert learnt == ((sum(own.mean) / 3,), (sum(own.std) / 3,), "bicubic")
    assert filled({"backbone": "resnet18"}, channels=4) == ((0.5,) * 4, (0.5,) * 4, "area")
    assert filled({"backbone": BACKBONE, "weights": weights}) == (*HALF, "bilinear")
    (tmp_path / "config.json").write_text('{"pretrained_cfg": {"mean": [0.1, 0, 0], "std": [1, 1, 1]}}')
    assert filled({"backbone": BACKBONE, "weights": str(tmp_path)}) == ((0.1, 0.0, 0.0), (1.0,) * 3, "bilinear")
    (tmp_path / "config.json").unlink()
    own = '{"image_mean": [0.2, 0, 0], "image_std": [1, 1, 1], "resample": 3}'
    (tmp_path / "preprocessor_config.json").write_text(own)
    assert filled({"backbone": BACKBONE, "weights": str(tmp_path)}) == ((0.2, 0.0, 0.0), (1.0,) * 3, "bicubic")


def crop_of(model: dict[str, Any], **data: Any) -> Transform | None:
    config = tiny_config(model={"params": {}, **model}, data={"channels": 3, "test_transform": None, **data})
    return fill_preprocessing(read_config(config)).data.test_transform


def test_trained_weights_are_measured_by_timms_crop_and_random_ones_by_256_of_224(tmp_path):
    weights = weights_of(tmp_path)
    own = Transform(name="timm", params={"crop_pct": 0.95, "crop_mode": "center"})
    assert crop_of({"backbone": BACKBONE, "pretrained": True}) == crop_of({"weights": weights}) == own
    assert crop_of({"backbone": BACKBONE}) == Transform(name="center")
    squashed = crop_of({"backbone": "dm_nfnet_f0", "pretrained": True})
    assert squashed == Transform(name="timm", params={"crop_pct": 0.9, "crop_mode": "squash"})
    own_crop = '"mean": [0.5, 0.5, 0.5], "std": [1, 1, 1], "crop_pct": 0.9, "crop_mode": "border"'
    (tmp_path / "config.json").write_text(f'{{"pretrained_cfg": {{{own_crop}}}}}')
    folder = crop_of({"backbone": BACKBONE, "weights": str(tmp_path)})
    assert folder == Transform(name="timm", params={"crop_pct": 0.9, "crop_mode": "border"})
    for given in ({"name": "resize"}, {"params": {"margin": 1.5}}):  # without a name: center
        component = crop_of({"backbone": BACKBONE, "pretrained": True}, test_transform=given)
        assert component == Transform(**{"name": "center", **given})


def test_the_configuration_overrides_the_backbone():
    own = {"mean": [0.1, 0.2, 0.3], "std": [1, 0.5, 2]}
    found = filled({"backbone": BACKBONE, "pretrained": True}, normalise=own)
    assert found == ((0.1, 0.2, 0.3), (1, 0.5, 2), "bilinear")
    assert filled({"backbone": BACKBONE, "pretrained": True}, interpolation="lanczos") == (*HALF, "lanczos")
    for text, message in (
        ("data.normalise.std=[1, 1, 0]", "data.normalise.std"),
        ("data.normalise={mean: [0.5, 0.5, 0.5]}", "data.normalise.std: missing"),
        ("data.interpolation=cubic", "expected .*bicubic"),
        ("data.test_transform.params.mean=[0.5, 0.5, 0.5]", "unknown key.*'data.normalise.mean'"),
        ("data.train_transform.params.interpolation=box", "unknown key.*'data.interpolation'"),
    ):
        overrides = ["data.channels=3", "data.normalise={mean: [0.5, 0.5, 0.5], std: [1, 1, 1]}", text]
        with pytest.raises(ConfigError, match=message):
            read_config(tiny_config(), overrides)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A configuration whose weights are gone, and its run, to be copied before it is changed."""
    folder = tmp_path_factory.mktemp("trained")
    model = {"backbone": BACKBONE, "weights": weights_of(folder)}
    train, optim = {"steps": 2, "validate_every": 2}, {"warmup_steps": 0}
    config = tiny_config(model=model, data={"channels": 3}, train=train, optim=optim)
    aurank.train(config, folder / "run")
    (folder / "weights.safetensors").unlink()
    return config, folder / "run"


def changed(run: Path, out: Path, **data: Any) -> Path:
    """A copy of the run whose checkpoints say other things of their data; None leaves a key out."""
    out.mkdir()
    for name in ("best.safetensors", "last.safetensors"):
        content = load_checkpoint(run / name)
        held = {**content["config"]["data"], **data}
        content["config"]["data"] = {key: value for key, value in held.items() if value is not None or key not in data}
        save_checkpoint(out / name, content)
    return out


@pytest.mark.slow
def test_a_run_its_checkpoint_and_what_loads_it_show_images_alike(trained, monkeypatch):
    config, run = trained
    # An upgrade of timm, and weights that are gone, change nothing of what was trained.
    monkeypatch.setattr("aurank.embedding.build.preprocessing", None)
    transform = aurank.load(run).transform
    assert (transform.mean, transform.std, transform.interpolation) == (*HALF, "bilinear")
    saved = load_checkpoint(run / "last.safetensors")["config"]["data"]
    assert (saved["normalise"], saved["interpolation"]) == ({"mean": [0.5] * 3, "std": [0.5] * 3}, "bilinear")
    assert read_config(run / "config.yaml").data.interpolation == "bilinear"
    report = aurank.Report.load(run / "report.json")
    for overrides in ([], ["data.normalise=null", "data.interpolation=null"]):
        again = evaluate_model(f"aurank:{run / 'best'}", ImageSelection(overrides=overrides))
        assert again.metrics == report.metrics
    aurank.train(config, run, resume=True)
    other = ["data.normalise={mean: [0.1, 0.1, 0.1], std: [0.5, 0.5, 0.5]}"]
    with pytest.raises(UserError, match=r"data.normalise.mean: \[0.5, 0.5, 0.5\] != \[0.1, 0.1, 0.1\]"):
        aurank.train(config, run, resume=True, overrides=other)


@pytest.mark.slow
def test_first_weights_of_a_checkpoint_bring_what_they_were_trained_with(trained, tmp_path):
    run = changed(trained[1], tmp_path / "run", normalise={"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]})
    model = {"backbone": BACKBONE, "pretrained": True, "init_from": str(run)}
    assert filled(model) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bilinear")
