"""Where the time of a step goes: the phases add up, and the part that is slow is the one that is named."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.processes import ended, launch
from testing.runs import tiny_config, write_config

from aurank.data import ImageDataset
from aurank.errors import AurankError, UserError
from aurank.losses import SOPRCLoss
from aurank.training import profile_training, read_config
from aurank.training.profile import PHASES

SLOW = 100.0  # seconds by which the clock is put on: longer than any step, however busy the machine is


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aurank.training.profile.WARM_UP", 1)
    monkeypatch.setattr("aurank.training.profile.TRACED", 1)


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Waits as `time.sleep` does, by the clock alone."""
    late, clock = [0.0], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late[0])

    def wait() -> None:
        late[0] += SLOW

    return wait


@pytest.mark.slow
@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"accumulate": 2, "ema": 0.9}, "optim": {"clip_norm": 1.0}, "memory": {"size": 60}},
        {
            "train": {"micro_batch": 8},
            "sampler": {"name": "hard_negative", "params": {"per_class": 2, "refresh_every": 3, "num_neighbours": 5}},
        },
    ],
)
def test_phases_add_up_to_the_step(sections: dict[str, Any]) -> None:
    profile = profile_training(read_config(tiny_config(**sections)), steps=3)
    assert sum(profile.share(name) for name in PHASES) == pytest.approx(1, rel=1e-9)
    measured = {name for name, phase in profile.phases.items() if phase["mean"] > 0}
    mining = {"sampler"} if sections.get("sampler") else set()
    assert measured == {"data", "forward", "loss", "backward", "optimiser", "rest", "step"} | mining
    assert 2 < profile.images / sections["train"].get("accumulate", 1) <= 16
    assert f"{profile.bottleneck} takes most; try " in str(profile)
    assert json.loads(json.dumps(profile.to_json()))["bottleneck"] == profile.bottleneck


def test_a_slow_reader_is_named(monkeypatch: pytest.MonkeyPatch, pause: Callable[[], None]) -> None:
    read = ImageDataset.__getitems__
    monkeypatch.setattr(ImageDataset, "__getitems__", lambda data, keys: (pause(), read(data, keys))[1])
    profile = profile_training(read_config(tiny_config()), steps=2)
    assert profile.bottleneck == "data"
    assert profile.phases["data"]["mean"] >= SLOW
    assert "data takes most; try more data.workers" in str(profile)


def test_a_slow_loss_is_named(monkeypatch: pytest.MonkeyPatch, pause: Callable[[], None]) -> None:
    forward = SOPRCLoss.forward
    monkeypatch.setattr(SOPRCLoss, "forward", lambda *given, **named: (pause(), forward(*given, **named))[1])
    profile = profile_training(read_config(tiny_config()), steps=1)
    assert profile.bottleneck == "loss"
    assert profile.phases["loss"]["mean"] >= SLOW


def test_nothing_is_written_but_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    profile_training(read_config(tiny_config()), steps=1, trace=Path("trace.json"))
    assert [path.name for path in tmp_path.rglob("*")] == ["trace.json"]
    names = {event.get("name") for event in json.loads(Path("trace.json").read_bytes())["traceEvents"]}
    assert {f"aurank: {name}" for name in ("data", "forward", "loss", "backward", "optimiser")} <= names


def test_a_loss_that_is_not_finite_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SOPRCLoss, "forward", lambda loss, embeddings, *args, **options: embeddings.sum() * torch.nan)
    with pytest.raises(AurankError, match=r"^the loss is nan at step \d+"):
        profile_training(read_config(tiny_config()), steps=1)


def test_what_cannot_be_measured_or_written_is_refused(tmp_path: Path) -> None:
    config = read_config(tiny_config())
    with pytest.raises(UserError, match=r"--trace .*trace\.html: the file written is of type \.json"):
        profile_training(config, trace=tmp_path / "trace.html")


@pytest.mark.slow
def test_the_process_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    config = write_config(tmp_path, tiny_config())
    slow = (  # of the second process the clock is put on by each batch
        "import os, time\nfrom aurank.data import ImageDataset\n"
        f"late, each, clock = [0.0], {SLOW} * int(os.environ['RANK']), time.perf_counter\n"
        "def slowly(data, keys, read=ImageDataset.__getitems__, late=late, each=each):\n"
        "    late[0] += each\n    return read(data, keys)\n"
        "ImageDataset.__getitems__ = slowly\n"
        "time.perf_counter = lambda clock=clock, late=late: clock() + late[0]"
    )
    results = ended(launch([["profile", config, "--steps", 2, "--json"]] * 2, setup=slow))
    assert [code for code, _, _ in results] == [0, 0], results
    assert results[1][1] == ""
    profile = json.loads(results[0][1])
    assert profile["own_seconds"][1] > SLOW
    assert profile["notices"][0].startswith("rank 1 is the slowest")
