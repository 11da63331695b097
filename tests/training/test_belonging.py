"""A run goes on from its last checkpoint, to the same end as one that never stopped."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from testing.runs import assert_equal
from testing.tiny import tiny_config

import aurank
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.errors import UserError
from aurank.training.run import Loop

pytestmark = pytest.mark.slow

EVERY = {"steps": 6, "validate_every": 2, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    for split, classes in (("train", range(8)), ("test", range(8, 11))):
        for label in classes:
            folder = root / split / f"c{label}"
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = (torch.rand(16, 16, generator=torch.Generator().manual_seed(31 * label + number)) * 99).byte()
                Image.fromarray((pixels + 12 * label).numpy()).save(folder / f"{number}.png")
    return root


def config_of(images: Path, **train: Any) -> dict[str, Any]:
    data = {"name": "folder", "root": str(images), "validation_fraction": 0.5}
    sampler = {"batch": 8, "params": {"per_class": 2}}
    optim = {"schedule": {"name": "constant"}, "warmup_steps": 0}
    return tiny_config("smooth_ap", data=data, sampler=sampler, optim=optim, train={**EVERY, **train})


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps."""
    out = tmp_path_factory.mktemp("whole") / "run"
    aurank.train(config_of(images), out)
    return out


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def resume(config: dict[str, Any], out: Path) -> list[str]:
    notices: list[str] = []
    listen: Callable[[str, dict[str, Any]], None] = lambda kind, values: (  # noqa: E731
        notices.append(values["text"]) if kind == "notice" else None
    )
    aurank.train(config, out, resume=True, listener=listen)
    return notices


def assert_same(out: Path, whole: Path) -> None:
    for name in ("metrics.jsonl", "report.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    for name in ("last.safetensors", "best.safetensors"):
        assert_equal(load_checkpoint(out / name), load_checkpoint(whole / name), ignore=("python", "root", "steps"))


def test_best_holds_the_weights_alone(whole: Path) -> None:
    best = load_checkpoint(whole / "best.safetensors")
    assert not {"optimiser", "random", "loss"} & set(best)
    assert (whole / "best.safetensors").stat().st_size < 0.4 * (whole / "last.safetensors").stat().st_size


@pytest.mark.parametrize(("gone", "there"), [("last", "best"), ("best", "last")])
def test_a_checkpoint_that_is_gone_is_missed(images: Path, out: Path, gone: str, there: str) -> None:
    kept = (out / f"{there}.safetensors").read_bytes()
    (out / f"{gone}.safetensors").unlink()
    with pytest.raises(UserError, match=rf"{gone}\.safetensors is missing, which the run wrote; put it back"):
        aurank.train(config_of(images), out, resume=True)
    assert (out / f"{there}.safetensors").read_bytes() == kept


def test_moved_images_are_accepted_and_others_under_their_names_refused(
    images: Path, out: Path, tmp_path: Path
) -> None:
    shutil.copytree(images, tmp_path / "moved", copy_function=shutil.copyfile)
    resume(config_of(tmp_path / "moved"), out)
    Image.new("L", (16, 16), 200).save(tmp_path / "moved" / "train" / "c0" / "0.png")
    with pytest.raises(UserError, match=r"last\.safetensors was trained on other images of .* changed"):
        aurank.train(config_of(tmp_path / "moved"), out, resume=True)


def test_a_validation_that_fails_loses_no_step(
    images: Path, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, validate = tmp_path / "run", Loop._validate

    def failing(self: Loop) -> bool:
        if self.progress.step == 4:
            raise RuntimeError("no memory")
        return validate(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_validate", failing)
        with pytest.raises(RuntimeError, match="no memory"):
            aurank.train(config_of(images), out)
    progress = load_checkpoint(out / "last.safetensors")["progress"]
    assert (progress["step"], progress["validation_owed"]) == (4, True)
    resume(config_of(images), out)
    assert_same(out, whole)


def test_a_best_that_was_written_after_last_is_taken_over(images: Path, tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"

    def interrupt(kind: str, values: dict[str, Any]) -> None:
        if kind == "saved" and values["name"] == "best":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        aurank.train(config_of(images), out, listener=interrupt)
    resume(config_of(images), out)
    assert_same(out, whole)


def test_a_finished_run_is_extended_where_only_the_horizon_grows(images: Path, tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "run"
    aurank.train(config_of(images, steps=4), out)
    with pytest.raises(UserError, match=r"train\.steps: 4 != 2"):
        aurank.train(config_of(images, steps=2), out, resume=True)
    with pytest.raises(UserError, match=r"another configuration .*: train\.ema: null != 0\.9; use the same"):
        aurank.train(config_of(images, ema=0.9), out, resume=True)
    notices = resume(config_of(images), out)
    assert "train.steps=6 extends a run of 4" in notices[0]
    assert "the same as of the longer run" in notices[0]
    assert_same(out, whole)
    shorter = config_of(images, steps=8)
    shorter["optim"]["schedule"] = {"name": "cosine"}
    with pytest.raises(UserError, match=r"optim\.schedule\.name"):
        aurank.train(shorter, out, resume=True)


def test_an_extended_cosine_is_told_and_early_stopping_has_to_grow_too(images: Path, tmp_path: Path) -> None:
    config = config_of(images, early_stopping=1, validate_every=1)
    config["optim"] |= {"schedule": {"name": "cosine"}, "lr": 1e-12}
    done = aurank.train(config, tmp_path / "run")
    assert done.steps < 6
    with pytest.raises(UserError, match=r"ended by early stopping at step \d.*raise train\.early_stopping=1"):
        aurank.train(config | {"train": config["train"] | {"steps": 9}}, tmp_path / "run", resume=True)
    notices = resume(config | {"train": config["train"] | {"steps": 9, "early_stopping": 2}}, tmp_path / "run")
    assert "a run of 9 steps from its start would differ" in notices[0]
    assert load_checkpoint(tmp_path / "run" / "last.safetensors")["progress"]["step"] > done.steps
