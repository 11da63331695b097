"""Where the time of a step goes: the phases add up, and the part that is slow is the one that is named."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from testing.processes import launch, succeeded
from testing.runs import tiny_config, write_config

from aurank.data import ImageDataset
from aurank.errors import AurankError, UserError
from aurank.losses import SOPRCLoss
from aurank.training import profile_training, read_config

SLOW = 100.0  # seconds by which the clock is put on: longer than any step, however busy the machine is


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aurank.training.profile.WARM_UP", 1)
    monkeypatch.setattr("aurank.training.profile.TRACED", 1)


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    late, clock = [0.0], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late[0])

    def wait() -> None:
        late[0] += SLOW

    return wait


MEMORY = {"train": {"accumulate": 2, "ema": 0.9}, "optim": {"clip_norm": 1.0}, "memory": {"size": 60}}
HARD = {"name": "hard_negative", "params": {"per_class": 2, "refresh_every": 3, "num_neighbours": 5}}


@pytest.mark.slow
@pytest.mark.parametrize("sections", [MEMORY, {"train": {"micro_batch": 8}, "sampler": HARD}])
def test_a_slow_loss_is_named_and_every_phase_is_measured(sections, monkeypatch, pause):
    per_query = SOPRCLoss.per_query
    monkeypatch.setattr(SOPRCLoss, "per_query", lambda *given, **named: (pause(), per_query(*given, **named))[1])
    profile = profile_training(read_config(tiny_config(**sections)), steps=3)
    batches = sections["train"].get("accumulate", 1)
    assert profile.phases["loss"] == pytest.approx(SLOW * batches, abs=SLOW / 2)
    assert profile.bottleneck == "loss"
    measured = {name for name, seconds in profile.phases.items() if seconds > 0}
    mining = {"sampler"} if "sampler" in sections else set()
    assert measured == {"data", "forward", "loss", "backward", "optimiser", "rest"} | mining
    assert 2 < profile.images / batches <= 16


def test_a_slow_reader_is_named_and_nothing_is_written_but_the_trace(tmp_path, monkeypatch, pause):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    read = ImageDataset.__getitems__
    monkeypatch.setattr(ImageDataset, "__getitems__", lambda data, keys: (pause(), read(data, keys))[1])
    profile = profile_training(read_config(tiny_config()), steps=2, trace=Path("trace.json"))
    assert profile.phases["data"] >= SLOW
    assert "data takes most; try more data.workers" in str(profile)
    assert [path.name for path in tmp_path.rglob("*")] == ["trace.json"]
    names = {event.get("name") for event in json.loads(Path("trace.json").read_bytes())["traceEvents"]}
    assert {f"aurank: {name}" for name in ("data", "forward", "loss", "backward", "optimiser")} <= names


def test_mistakes_are_named(tmp_path, monkeypatch):
    config = read_config(tiny_config())
    with pytest.raises(UserError, match=r"--trace .*trace\.html"):
        profile_training(config, trace=tmp_path / "trace.html")
    monkeypatch.setattr(SOPRCLoss, "forward", lambda loss, embeddings, *args, **options: embeddings.sum() * torch.nan)
    with pytest.raises(AurankError, match=r"^the loss is nan at step \d+"):
        profile_training(config, steps=1)


@pytest.mark.slow
def test_the_main_process_alone_tells_the_images_of_all(tmp_path):
    config = write_config(tmp_path, tiny_config())
    results = succeeded(launch([["profile", config, "--steps", 2]] * 2))
    assert results[1][1] == ""
    images = int(re.match(r"2 steps of (\d+) images", results[0][1])[1])  # type: ignore[index]
    assert 8 < images <= 16  # of each process at most 8
