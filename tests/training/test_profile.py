"""Where the time of a step goes: the phases add up, and the part that is slow is the one that is named."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from testing.processes import ended, launch
from testing.tiny import tiny_config
from torch import nn

from aurank.data import ImageDataset
from aurank.errors import AurankError, UserError
from aurank.losses import SOPRCLoss
from aurank.training import TrainingProfile, profile_training, read_config
from aurank.training.profiling import advice
from aurank.training.profiling import steps as profiled_steps
from aurank.training.profiling.phases import PHASES, Phases
from aurank.training.profiling.report import PhaseTime
from aurank.training.trainer import Trainer

SLOW = 100.0  # seconds by which the clock is put on: longer than any step, however busy the machine is


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps, and no other number of workers tried: what a profile says is tested, not how sure it is."""
    profile = "aurank.training.profiling.profile"
    monkeypatch.setattr(f"{profile}.WARM_UP", 1)
    monkeypatch.setattr(f"{profile}.TRACED", 1)
    monkeypatch.setattr(f"{profile}.workers_to_try", lambda found: None)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is a second later whenever it is looked at."""
    seconds: Iterator[float] = iter(map(float, range(1000)))
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Waits as `time.sleep` does, by the clock alone."""
    late, clock = [0.0], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late[0])

    def wait() -> None:
        late[0] += SLOW

    return wait


@pytest.mark.usefixtures("ticks")
def test_a_phase_within_another_takes_its_time_away_from_it() -> None:
    phases = Phases(torch.device("cpu"))
    phases.begin()  # 0
    with phases("loss"), phases("forward"), phases("collectives"):  # 1, 2, 3
        pass  # and back: 4, 5, 6
    phases.end_step()  # 7
    with phases("data"):  # 8
        pass  # 9
    phases.end_step()  # 10
    first, second = phases.seconds()
    assert first == {**dict.fromkeys(PHASES, 0.0), "rest": 2.0, "loss": 2.0, "forward": 2.0, "collectives": 1.0}
    assert second == {**dict.fromkeys(PHASES, 0.0), "rest": 2.0, "data": 1.0}


@pytest.mark.usefixtures("ticks")
def test_an_error_ends_its_phase_and_a_new_beginning_forgets() -> None:
    phases = Phases(torch.device("cpu"))
    phases.begin()
    with pytest.raises(ValueError, match="broken"), phases("loss"):
        raise ValueError("broken")
    phases.begin()
    phases.end_step()
    assert phases.seconds() == [{**dict.fromkeys(PHASES, 0.0), "rest": 1.0}]


@pytest.mark.usefixtures("ticks")
def test_what_follows_the_last_gradient_is_another_phase_unless_one_came_between() -> None:
    phases = Phases(torch.device("cpu"))
    phases.begin()  # 0
    with phases("backward"):  # 1
        point = phases.point()  # 2
        phases.since(point, "collectives")
        # 3
    phases.end_step()  # 4
    with phases("backward"):  # 5
        point = phases.point()  # 6
        with phases("collectives"):  # 7
            pass  # 8
        phases.since(point, "optimiser")
        # 9
    phases.end_step()  # 10
    first, second = phases.seconds()
    assert (first["backward"], first["collectives"], first["rest"]) == (1.0, 1.0, 2.0)
    assert (second["backward"], second["collectives"], second["optimiser"]) == (3.0, 1.0, 0.0)


@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"accumulate": 2, "ema": 0.9}, "optim": {"clip_norm": 1.0}, "memory": {"size": 60}},
        {
            "train": {"micro_batch": 8},
            "sampler": {"name": "hard_negative", "params": {"per_class": 2, "refresh_every": 7, "num_neighbours": 5}},
        },
    ],
)
def test_phases_add_up_to_the_step(sections: dict[str, Any]) -> None:
    # Steps 0 to 5 are measured: of the batches that are read after them, the first alone is before the next refresh.
    found = profile_training(read_config(tiny_config(**sections)), steps=2)
    assert sum(phase.mean for phase in found.phases.values()) == pytest.approx(found.step.mean, rel=1e-9)
    assert sum(found.share(name) for name in PHASES) == pytest.approx(1, rel=1e-9)
    measured = {name for name, phase in found.phases.items() if phase.mean > 0}
    mining = {"sampler"} if sections.get("sampler") else set()
    assert measured == {"data", "forward", "loss", "backward", "optimiser", "rest"} | mining
    assert any("it adds" in notice for notice in found.notices) == bool(mining)
    assert 2 < found.images / sections["train"].get("accumulate", 1) <= 16
    assert found.bound == max(found.data_alone, found.step_alone)
    assert 1 <= len(found.advice) <= 3


@pytest.mark.slow
def test_a_slow_reader_is_named_and_more_workers_are_tried(
    monkeypatch: pytest.MonkeyPatch, pause: Callable[[], None]
) -> None:
    read = ImageDataset.__getitems__

    def slowly(data: ImageDataset, keys: Any) -> Any:
        pause()
        return read(data, keys)

    monkeypatch.setattr(ImageDataset, "__getitems__", slowly)
    monkeypatch.setattr("aurank.training.profiling.profile.workers_to_try", advice.workers_to_try)
    monkeypatch.setattr("aurank.training.profiling.advice.processors", lambda: 2)
    found = profile_training(read_config(tiny_config()), steps=2)
    assert found.bottleneck == "data"
    assert found.data_alone >= SLOW
    assert found.phases["data"].mean >= SLOW
    assert list(found.tried_workers) == [2, 0]
    assert found.advice[0].startswith("data: ")
    assert "with data.workers=2 (now 0) a step took " in found.advice[0]  # theirs is another clock
    assert found.tried_workers[2] < SLOW <= found.tried_workers[0]


def test_a_slow_loss_is_named(monkeypatch: pytest.MonkeyPatch, pause: Callable[[], None]) -> None:
    forward = SOPRCLoss.forward

    def slowly(loss: SOPRCLoss, *args: Any, **options: Any) -> Any:
        pause()
        return forward(loss, *args, **options)

    monkeypatch.setattr(SOPRCLoss, "forward", slowly)
    found = profile_training(read_config(tiny_config()), steps=1)
    assert found.bottleneck == "loss"
    assert found.step_alone >= SLOW
    assert found.advice[0].startswith("loss: ")
    assert " soprc, with its miner: a smaller sampler.batch (now 16), or another loss" in found.advice[0]


def test_nothing_is_written_but_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    profile_training(read_config(tiny_config()), steps=1, trace=Path("trace.json"))
    assert [path.name for path in tmp_path.rglob("*")] == ["trace.json"]
    names = {event.get("name") for event in json.loads(Path("trace.json").read_bytes())["traceEvents"]}
    assert {f"aurank: {name}" for name in ("data", "forward", "loss", "backward", "optimiser")} <= names


def test_a_trace_that_torch_could_not_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "torch.profiler.profile.export_chrome_trace", lambda profile, path: Path(path).write_text('{"a": [', "utf-8")
    )
    trace = tmp_path / "trace.json"
    trace.write_text("before", encoding="utf-8")
    one = profiled_steps.Trace(trace, Phases(torch.device("cpu")))
    one.start()
    with pytest.raises(AurankError, match=r"cannot save .*trace\.json: torch could not write"):
        one.stop()
    assert trace.read_text(encoding="utf-8") == "before"


def test_the_trainer_and_torch_are_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[profiled_steps.MeasuredLoop] = []
    measure = profiled_steps.MeasuredLoop.measure
    monkeypatch.setattr(profiled_steps.MeasuredLoop, "measure", lambda loop: (kept.append(loop), measure(loop))[1])
    profile_training(read_config(tiny_config(train={"ema": 0.9})), steps=1)
    trainer = kept[0].trainer
    assert not {"embed", "forward", "backward", "update"} & vars(trainer).keys()
    assert "update" not in vars(trainer.average)


def test_a_loss_that_is_not_finite_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SOPRCLoss, "forward", lambda loss, embeddings, *args, **options: embeddings.sum() * torch.nan)
    with pytest.raises(AurankError, match=r"^the loss is nan at step \d+ of the profile; aurank train, which stops"):
        profile_training(read_config(tiny_config()), steps=1)


def test_what_cannot_be_measured_or_written_is_refused(tmp_path: Path) -> None:
    config = read_config(tiny_config())
    with pytest.raises(UserError, match="steps must be at least 1, got 0"):
        profile_training(config, steps=0)
    with pytest.raises(UserError, match=r"--trace .*trace\.html: the file written is of type \.json"):
        profile_training(config, trace=tmp_path / "trace.html")


def made_up(**values: Any) -> TrainingProfile:
    phases = dict.fromkeys(PHASES, PhaseTime(0.01, 0.01, 0.01))
    given: dict[str, Any] = {
        "device": "cpu",
        "processes": 1,
        "rank": 0,
        "own_seconds": [0.09],
        "workers": 0,
        "unit": "images",
        "images": 90.0,
        "steps": 5,
        "warm_up": 5,
        "step": PhaseTime(0.09, 0.09, 0.1),
        "phases": phases,
        "data_alone": 0.01,
        "step_alone": 0.08,
        "tried_workers": {},
        "memory": {"in a process": 2**30},
    }
    return TrainingProfile(**{**given, **values})


def test_a_report_fits_a_terminal_of_80_columns() -> None:
    text = str(made_up(advice=["data: " + "word " * 40], notices=["a notice"]))
    assert max(map(len, text.splitlines())) <= 80
    assert "waiting for data              10.0     11 %       10.0       10.0" in text
    assert "bound                         80.0        1,125  the step itself; 1.12 × as fast" in text
    assert json.loads(json.dumps(made_up().to_json()))["bottleneck"] != "data"
    assert made_up(data_alone=0.2).bottleneck == "data"


def test_a_gpu_that_computes_without_a_compiler_is_told_of_it() -> None:
    config = read_config(tiny_config())
    trainer = Mock(spec=Trainer, config=config, accelerator=Mock(device=torch.device("cuda")), model=nn.Linear(2, 2))
    trainer.cache = None
    assert "train.mixed_precision=bf16, train.compile=true, whose first" in advice.advise(made_up(), trainer)[0]
    trainer.config = config.model_copy(update={"train": config.train.model_copy(update={"compile": True})})
    assert "train.compile" not in advice.advise(made_up(), trainer)[0]


@pytest.mark.slow
def test_the_process_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(tiny_config()), encoding="utf-8")
    slow = (  # of the second process the clock is put on by each batch
        "import os, time\nfrom aurank.data import ImageDataset\nfrom aurank.training.profiling import profile\n"
        f"late, each, clock = [0.0], {SLOW} * int(os.environ['RANK']), time.perf_counter\n"
        "def slowly(data, keys, read=ImageDataset.__getitems__, late=late, each=each):\n"
        "    late[0] += each\n    return read(data, keys)\n"
        "ImageDataset.__getitems__ = slowly\nprofile.workers_to_try = lambda found: None\n"
        "time.perf_counter = lambda clock=clock, late=late: clock() + late[0]"
    )
    results = ended(launch([["profile", config, "--steps", 2, "--json"]] * 2, setup=slow))
    assert [code for code, _, _ in results] == [0, 0], results
    assert results[1][1] == ""
    found = json.loads(results[0][1])
    assert (found["processes"], found["rank"]) == (2, 1)
    assert found["own_seconds"][1] > SLOW
    assert found["advice"][0].startswith("processes: rank 1 is the slowest, with ")
    assert found["phases"]["collectives"]["mean"] > 0
    means = sum(phase["mean"] for phase in found["phases"].values())
    assert means == pytest.approx(found["step"]["mean"], rel=1e-9)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="of Linux")
def test_processors_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from aurank.training.profiling.advice import processors

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    assert processors() == 6
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert processors() == 1
