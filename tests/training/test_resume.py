"""A run that is killed and resumed ends with the weights, metrics and report of one that never stopped."""

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from testing.processes import run_aurank, steps_done
from testing.runs import STEPS, SUM, assert_same_run, notices_of, tiny_config, write_config
from testing.trees import write_tree

import aurank
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.errors import UserError
from aurank.files import claimed
from aurank.training.loop import collecting_signals
from aurank.training.run import Loop

LARGE = {
    "sampler": {"name": "hard_negative", "params": {"per_class": 2, "refresh_every": 7, "num_neighbours": 5}},
    "memory": {"size": 50, "start_at": 2},
    "train": {"micro_batch": 6, "checkpoint_every": 3, "log_every": 2},
}


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit_with_any_number_of_workers(tmp_path):
    loss = [*SUM, {"name": "blackbox_ap", "weight": 0.1}]  # whose margin is random
    config, out, log_every = write_config(tmp_path, tiny_config(loss, **LARGE)), tmp_path / "killed", 2
    before, after = random.sample([0, 2], 2)
    overrides = ["train.ema=0.9", f"data.workers={before}"]
    lines = random.randint(1, STEPS // log_every - 1)
    print("killed after", lines, "lines; workers", before, after)
    process = run_aurank("train", config, *overrides, "--out", out)
    try:
        steps_done(out, [process], lines)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    overrides[1] = f"data.workers={after}"
    aurank.train(config, tmp_path / "whole", overrides=overrides)
    aurank.train(config, out, resume=True, overrides=overrides)
    # Checking types in this process draws from Python's own generator; nothing of the training does.
    assert_same_run(tmp_path / "whole", out, ignore=("python", "workers"), log_every=log_every)


@pytest.mark.slow
def test_signals_save_and_the_run_that_is_resumed_after_each_with_any_workers_is_the_whole_one(tmp_path):
    numbers = {1: signal.SIGINT, 3: signal.SIGTERM, 5: signal.SIGHUP, 7: signal.SIGUSR1}
    config = tiny_config(
        [*SUM, {"name": "blackbox_ap", "weight": 0.1}],  # whose margin is random
        sampler={"name": "hard_negative", "params": {"per_class": 2, "refresh_every": 7, "num_neighbours": 5}},
        memory={"size": 50, "start_at": 2},
        train={"micro_batch": 6, "accumulate": 2, "ema": 0.9, "checkpoint_every": 100, "log_every": 2},
    )

    def interrupt(kind: str, values: dict[str, Any]) -> None:
        if kind == "step" and values["step"] in numbers:
            os.kill(os.getpid(), numbers[values["step"]])

    assert aurank.train(config, tmp_path / "whole").stopped_by is None
    for step, number in numbers.items():
        workers = [f"data.workers={2 * (step in (3, 7))}"]
        stopped = aurank.train(config, tmp_path / "stopped", step > 1, overrides=workers, listener=interrupt)
        assert (stopped.stopped_by, stopped.steps, stopped.report) == (number, step, None)
    assert aurank.train(config, tmp_path / "stopped", resume=True).steps == STEPS
    # Checking types in this process draws from Python's own generator; nothing of the training does.
    assert_same_run(tmp_path / "whole", tmp_path / "stopped", ignore=("python", "workers"), log_every=2)


# Half of the first checkpoint is written.
HALF = """
import os, signal
import safetensors.torch
def half(tensors, filename, metadata, save=safetensors.torch.save_file):
    save(tensors, filename, metadata)
    os.truncate(filename, os.path.getsize(filename) // 2)
    os.kill(os.getpid(), signal.SIGKILL)
safetensors.torch.save_file = half
"""


@pytest.mark.slow
def test_a_job_that_is_killed_in_its_first_checkpoint_is_submitted_again_as_it_is(images, whole):
    out = images.parent / "killed"
    config = write_config(images.parent, config_of(images))
    assert run_aurank("train", config, "--out", out, "--resume", setup=HALF).wait() == -signal.SIGKILL
    assert list(out.glob(".last.safetensors.*.part"))
    resume(config_of(images), out)
    assert not list(out.glob(".*"))
    assert_same(out, whole)


def test_an_occupied_folder_is_refused_without_resume(tmp_path):
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"is not empty; add --resume"):
        aurank.train(tiny_config(), tmp_path)
    with pytest.raises(UserError, match="holds no aurank run"):
        aurank.train(tiny_config(), tmp_path, resume=True)
    (tmp_path / "notes.txt").rename(tmp_path.parent / "file")
    with pytest.raises(UserError, match="file"):
        aurank.train(tiny_config(), tmp_path.parent / "file")


EVERY = {"steps": 6, "validate_every": 2, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = [f"{'train' if label < 8 else 'test'}/c{label}/{number}.png" for label in range(11) for number in range(6)]
    return write_tree(tmp_path_factory.mktemp("images"), names, height=16, width=16)


def config_of(images: Path, **train: Any) -> dict[str, Any]:
    data = {"name": "folder", "root": str(images), "validation_fraction": 0.5}
    sampler = {"batch": 8, "params": {"per_class": 2}}
    optim = {"schedule": {"name": "constant"}, "warmup_steps": 0}
    return tiny_config("smooth_ap", data=data, sampler=sampler, optim=optim, train={**EVERY, **train})


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    aurank.train(config_of(images), out)
    return out


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def resume(config: dict[str, Any], out: Path) -> list[str]:
    return notices_of(config, out, resume=True)


def assert_same(out: Path, whole: Path) -> None:
    assert_same_run(whole, out, ignore=("python", "root", "steps"), steps=EVERY["steps"])


@pytest.mark.slow
@pytest.mark.parametrize(("gone", "there"), [("last", "best"), ("best", "last")])
def test_a_checkpoint_that_is_gone_is_missed(images, out, gone, there):
    kept = (out / f"{there}.safetensors").read_bytes()
    (out / f"{gone}.safetensors").unlink()
    with pytest.raises(UserError, match=rf"{gone}\.safetensors is missing, which the run wrote; put it back"):
        aurank.train(config_of(images), out, resume=True)
    assert (out / f"{there}.safetensors").read_bytes() == kept


@pytest.mark.slow
def test_a_finished_run_is_measured_again_on_moved_images_and_not_on_others_of_their_names(
    images, out, tmp_path, whole
):
    shutil.copytree(images, tmp_path / "moved", copy_function=shutil.copyfile)
    resume(config_of(images), out)
    assert_same(out, whole)
    resume(config_of(tmp_path / "moved"), out)
    Image.new("L", (16, 16), 200).save(tmp_path / "moved" / "train" / "c0" / "0.png")
    with pytest.raises(UserError, match=r"last\.safetensors was trained on other images of .* changed"):
        aurank.train(config_of(tmp_path / "moved"), out, resume=True)


@pytest.mark.slow
def test_a_validation_that_fails_loses_no_step(images, tmp_path, whole, monkeypatch):
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


@pytest.mark.slow
def test_a_best_that_was_written_after_last_is_taken_over(images, tmp_path, whole):
    out = tmp_path / "run"

    def interrupt(kind: str, values: dict[str, Any]) -> None:
        if kind == "saved" and values["name"] == "best":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        aurank.train(config_of(images), out, listener=interrupt)
    resume(config_of(images), out)
    assert_same(out, whole)


@pytest.mark.slow
def test_a_finished_run_is_extended_where_only_the_horizon_grows(images, tmp_path, whole):
    out = tmp_path / "run"
    aurank.train(config_of(images, steps=4), out)
    with pytest.raises(UserError, match=r"train\.steps: 4 != 2"):
        aurank.train(config_of(images, steps=2), out, resume=True)
    with pytest.raises(UserError, match=r"another configuration .*: train\.ema: null != 0\.9; use the same"):
        aurank.train(config_of(images, ema=0.9), out, resume=True)
    notices = resume(config_of(images), out)
    assert "train.steps=6 extends a run of 4" in notices[0]
    assert_same(out, whole)
    shorter = config_of(images, steps=8)
    shorter["optim"]["schedule"] = {"name": "cosine"}
    with pytest.raises(UserError, match=r"optim\.schedule\.name"):
        aurank.train(shorter, out, resume=True)


@pytest.mark.slow
def test_early_stopping_is_said_once_and_to_go_on_after_it_it_has_to_grow_too(images, tmp_path):
    out, config = tmp_path / "run", config_of(images, early_stopping=1, validate_every=1)
    config["optim"] |= {"schedule": {"name": "cosine"}, "lr": 1e-12}
    (said,) = notices_of(config, out)
    step = int(said.removeprefix("stopped early at step ").split()[0])
    assert step < 6
    assert " of 6: 1 validation(s) without improvement (train.early_stopping), the best is that of step " in said
    assert resume(config, out) == [f"finished already at step {step}; measuring the test split again", said]
    notices = resume(config | {"train": config["train"] | {"steps": 9}}, out)
    assert notices[-1].startswith(f"stopped early at step {step} of 9")
    resume(config | {"train": config["train"] | {"steps": 9, "early_stopping": 2}}, out)
    assert load_checkpoint(out / "last.safetensors")["progress"]["step"] > step


FORK = multiprocessing.get_context("fork")


def hold(out: Path, pids: Any) -> None:
    """Claim the folder, and start a worker that outlives this process."""
    with claimed(out):
        worker = FORK.Process(target=time.sleep, args=(60,))
        worker.start()
        pids.put((os.getpid(), worker.pid))
        time.sleep(60)


def test_a_second_run_is_refused_and_a_killed_owner_gives_way_at_once(tmp_path):
    out = tmp_path / "out"
    pids = FORK.SimpleQueue()
    process = FORK.Process(target=hold, args=(out, pids))
    process.start()
    pid, worker = pids.get()
    try:
        with pytest.raises(UserError, match=r"out is in use by another process; wait for"):
            aurank.train(tiny_config(), out)
        os.kill(pid, signal.SIGSTOP)  # stopped, it still owns the folder
        with pytest.raises(UserError, match="is in use"), claimed(out):
            pass
        process.kill()
        process.join()
        os.kill(worker, signal.SIGKILL)  # as loaders' workers end with their process
        for _ in range(100):  # until it is gone
            with suppress(UserError), claimed(out):
                break
            time.sleep(0.05)
        else:
            pytest.fail("the folder is still in use")
    finally:
        process.kill()


def test_a_refused_run_leaves_no_empty_folder(tmp_path):
    config = tiny_config(model={"init_from": "none.pt"})
    with pytest.raises(UserError):
        aurank.train(config, tmp_path / "runs" / "out")
    assert not list(tmp_path.iterdir())
    (tmp_path / "own").mkdir()  # somebody made it, who may want it
    with pytest.raises(UserError):
        aurank.train(config, tmp_path / "own")
    assert (tmp_path / "own").is_dir()


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_is_remembered_and_a_second_that_insists_interrupts():
    """A closed terminal sends its signal twice, and a scheduler warns before it ends a run."""
    received: list[int] = []
    with collecting_signals(received):
        for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            signal.raise_signal(number)
        assert received[0] == signal.SIGUSR1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_nohup_stays_in_force():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    received: list[int] = []
    with collecting_signals(received):
        signal.raise_signal(signal.SIGHUP)
    assert not received
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
