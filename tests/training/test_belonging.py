"""On resume, last.pt, best.pt, metrics.jsonl and the images have to be of one run; an older last may stand in."""

import errno
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
from aurank.embedding.stored.checkpoint import load_checkpoint, save_checkpoint
from aurank.errors import UserError
from aurank.training.run import Loop

pytestmark = pytest.mark.slow

EVERY = {"steps": 6, "validate_every": 2, "checkpoint_every": 2, "keep_last": 2}


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
    """A run of six steps, with last.pt of step 6, last.1.pt of step 4, and the best of some validation."""
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
    for name in ("last.pt", "best.pt"):
        assert_equal(load_checkpoint(out / name), load_checkpoint(whole / name), ignore=("python", "root", "steps"))


def test_best_holds_the_weights_alone(whole: Path) -> None:
    best = load_checkpoint(whole / "best.pt")
    assert not {"optimiser", "random", "loss"} & set(best)
    assert (whole / "best.pt").stat().st_size < 0.4 * (whole / "last.pt").stat().st_size


def test_a_log_that_was_deleted_or_changed_is_refused(images: Path, out: Path) -> None:
    log = out / "metrics.jsonl"
    written = log.read_bytes()
    for content in (b"x" + written[1:], written[:-1], None):
        log.unlink() if content is None else log.write_bytes(content)
        with pytest.raises(UserError, match=r"metrics\.jsonl does not begin with .*last\.pt recorded.*put it back"):
            aurank.train(config_of(images), out, resume=True)


def test_the_best_of_another_run_or_none_is_refused(images: Path, out: Path, whole: Path) -> None:
    best = load_checkpoint(whole / "best.pt")
    best["encoder"]["head.weight"] += 1
    save_checkpoint(out / "best.pt", best)
    with pytest.raises(UserError, match=r"best\.pt is not of this run: .*last\.pt recorded another"):
        aurank.train(config_of(images), out, resume=True)
    (out / "best.pt").unlink()
    with pytest.raises(UserError, match=r"best\.pt is missing, which .*last\.pt recorded"):
        aurank.train(config_of(images), out, resume=True)


def test_a_best_that_cannot_be_read_is_told_with_a_remedy(images: Path, out: Path) -> None:
    (out / "best.pt").write_bytes(b"damaged")
    told = r"best\.pt: .*\), which .*last\.pt recorded; put it back, or train into another --out$"
    with pytest.raises(UserError, match=told):
        aurank.train(config_of(images), out, resume=True)


def test_a_run_whose_checkpoint_is_gone_is_not_begun_anew(images: Path, out: Path) -> None:
    (out / "last.pt").unlink()
    (out / "last.1.pt").unlink()
    log = (out / "metrics.jsonl").read_bytes()
    for name in ("", "timing.json", "report.json"):  # without these it was killed
        (out / name).unlink() if name else None
        with pytest.raises(UserError, match=r"last\.pt is missing, which the run in .* wrote; put it back, or train"):
            aurank.train(config_of(images), out, resume=True)
        assert (out / "metrics.jsonl").read_bytes() == log
    lines = log.splitlines(keepends=True)  # of steps 1, 2, the validation of 2, and so on
    (out / "metrics.jsonl").write_bytes(b"".join(lines[:3]))
    with pytest.raises(UserError, match=r"last\.pt is missing"):
        aurank.train(config_of(images), out, resume=True)
    (out / "metrics.jsonl").write_bytes(b"".join(lines[:2]) + b'{"split": "tr')  # killed before it wrote one
    assert "the run starts anew" in resume(config_of(images), out)[0]
    assert (out / "metrics.jsonl").read_bytes() == log


def test_a_log_is_read_no_further_than_it_goes(images: Path, out: Path) -> None:
    state = load_checkpoint(out / "last.pt")
    for claimed in (10**15, 10**19):
        state["progress"]["metrics_bytes"] = claimed
        save_checkpoint(out / "last.pt", state)
        with pytest.raises(UserError, match=rf"metrics\.jsonl does not begin with the {claimed:,} bytes"):
            aurank.train(config_of(images), out, resume=True)


def test_a_longer_run_does_not_take_over_a_later_best_of_the_shorter(images: Path, out: Path) -> None:
    """Killed between best.pt of step 6 and last.pt of it; the log that best.pt knows is there."""
    best = load_checkpoint(out / "best.pt")
    last = load_checkpoint(out / "last.pt")
    for name in ("encoder", "average"):
        best[name] = last[name]
    best["progress"] = last["progress"] | {"best_sha256": None}
    save_checkpoint(out / "best.pt", best)
    (out / "last.pt").unlink()
    with pytest.raises(UserError, match=r"best\.pt is of step 6, .*last\.1\.pt of step 4.*with the old train\.steps"):
        aurank.train(config_of(images, steps=8), out, resume=True)
    resume(config_of(images), out)
    assert "train.steps=8 extends a run of 6" in resume(config_of(images, steps=8), out)[0]


def test_keeping_fewer_checkpoints_removes_the_older_ones(images: Path, out: Path, whole: Path) -> None:
    shutil.copy(out / "last.1.pt", out / "last.7.pt")
    shutil.copy(out / "last.1.pt", out / "last.mine.pt")
    resume(config_of(images), out)
    assert sorted(path.name for path in out.glob("last*")) == ["last.1.pt", "last.mine.pt", "last.pt"]
    resume(config_of(images, keep_last=1), out)
    assert sorted(path.name for path in out.glob("last*")) == ["last.mine.pt", "last.pt"]


def test_the_checkpoint_before_stands_in_for_one_that_the_disk_does_not_give(
    images: Path, out: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failing = Path.open, [out / "last.pt"]

    def broken(self: Path, *arguments: Any, **options: Any) -> Any:
        if self in failing:
            failing.remove(self)
            raise OSError(errno.EIO, "Input/output error")
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", broken)
    reason = "cannot be read as a checkpoint of aurank (Input/output error); use another one"
    told = f"{out / 'last.pt'}: {reason}: the run goes on from "
    assert resume(config_of(images), out)[0] == f"{told}{out / 'last.1.pt'}, step 4"
    assert_same(out, whole)


def test_moved_images_are_accepted_and_others_under_their_names_refused(
    images: Path, out: Path, tmp_path: Path
) -> None:
    shutil.copytree(images, tmp_path / "moved", copy_function=shutil.copyfile)
    resume(config_of(tmp_path / "moved"), out)
    Image.new("L", (16, 16), 200).save(tmp_path / "moved" / "train" / "c0" / "0.png")
    with pytest.raises(UserError, match=r"last\.pt was trained on other images of .* changed; point data\.root"):
        aurank.train(config_of(tmp_path / "moved"), out, resume=True)


def test_the_checkpoint_before_stands_in_for_a_damaged_one(images: Path, out: Path, whole: Path) -> None:
    """The best may be of a step after that checkpoint, and the run may be killed again before it gets there."""
    assert load_checkpoint(out / "last.1.pt")["progress"]["step"] == 4
    damaged = bytearray((out / "last.pt").read_bytes())
    damaged[len(damaged) // 2] ^= 4
    (out / "last.pt").write_bytes(damaged)

    def interrupt(kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        aurank.train(config_of(images), out, resume=True, listener=interrupt)
    assert load_checkpoint(out / "last.pt")["progress"]["step"] == 4
    notices = resume(config_of(images), out)
    assert not any("damaged" in text for text in notices)  # told by the first
    assert_same(out, whole)
    (out / "last.pt").unlink()
    told = f"{out / 'last.pt'} is missing: the run goes on from {out / 'last.1.pt'}, step 4"
    assert resume(config_of(images), out)[0] == told
    assert_same(out, whole)


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
    progress = load_checkpoint(out / "last.pt")["progress"]
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
    assert load_checkpoint(tmp_path / "run" / "last.pt")["progress"]["step"] > done.steps


def test_a_run_of_before_checkpoints_had_sums_goes_on_to_the_same_end(images: Path, out: Path, whole: Path) -> None:
    state = load_checkpoint(out / "last.1.pt")
    del state["data"], state["config"]["train"]["keep_last"]
    for name in ("best_sha256", "metrics_sha256", "validation_owed"):
        del state["progress"][name]
    torch.save({**state, "format": 1}, out / "last.pt")
    resume(config_of(images), out)
    for name in ("metrics.jsonl", "report.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    after, expected = load_checkpoint(out / "last.pt"), load_checkpoint(whole / "last.pt")
    for name in ("encoder", "optimiser", "loss"):
        assert_equal(after[name], expected[name], ignore=())
