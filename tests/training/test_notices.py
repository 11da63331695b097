"""What a run says once: where it went on, why it ended, what began anew; and failures of the machine in one line."""

import errno
import logging
import os
import signal

import pytest
from testing.runs import notices_of, tiny_config, train_and_listen

import aurank
from aurank.cli import drawing
from aurank.data import BatchLoader, view_keys
from aurank.embedding.build import build_dataset, fill_preprocessing
from aurank.errors import AurankError, UserError, explained
from aurank.training import read_config
from aurank.training.build import build_splits


@pytest.mark.slow
def test_a_projection_that_begins_anew_is_said(tiny_run, tmp_path):
    source, anew = str(tiny_run / "best"), "model.init_from: the projection of {} has another shape; it begins"
    for name, model in {"same": {}, "width": {"dim": 12}, "layers": {"head_layers": 2, "head_width": 16}}.items():
        config = tiny_config(model={"init_from": source, **model}, train={"steps": 3})
        said, expected = notices_of(config, tmp_path / name), [anew.format(source)] if model else []
        assert [line[: len(start)] for line, start in zip(said, expected, strict=True)] == expected


@pytest.mark.slow
def test_a_training_tells_the_listener_how_far_it_is_and_the_logger_its_steps_and_notices(tmp_path, caplog):
    config = tiny_config(train={"steps": 4, "log_every": 2, "validate_every": 4})
    with caplog.at_level(logging.INFO, logger="aurank"):
        _, events = train_and_listen(config, tmp_path / "run")
        aurank.train(config, tmp_path / "run", resume=True)
    lines = [record.getMessage() for record in caplog.records if record.name == "aurank"]
    said = ["step 2 of 4, train", "step 4 of 4, train", "step 4 of 4, val", "finished already at step 4; measuring"]
    assert [line[: len(start)] for line, start in zip(lines, said, strict=True)] == said
    assert "loss " in lines[0]
    assert "mauprc " in lines[2]
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("aurank").handlers)
    told = [(values["stage"], values["done"], values["total"]) for values in events["measuring"]]
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == ["embedding", "ranking"]
    assert all(done <= total for _, done, total in told)
    assert {stage for stage, done, total in told if done == total} == {"embedding", "ranking"}


@pytest.mark.parametrize("terminal", [True, False])
def test_a_model_that_runs_long_draws_a_bar_or_without_a_terminal_tells_its_stages(capsys, monkeypatch, terminal):
    now = [0.0]
    monkeypatch.setattr(drawing.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(drawing.progress_line, "next_time", drawing.QUIET)
    monkeypatch.setattr(drawing, "stderr_console", drawing.Terminal(stderr=True, force_terminal=terminal))
    with drawing.draw_measuring({"batch": None, "device": None, "cache": None, "no_cache": True}) as running:
        embedding, ranking = running.stage("embedding"), running.stage("ranking")
        for now[0] in (4.0, 9.0, 11.0, 15.0, 20.0, 22.0):
            embedding(int(now[0]) * 100, 2_943)
        for now[0] in (32.0, 33.0):
            ranking(int(now[0]) - 31, 9)
    lines = capsys.readouterr().err.splitlines()
    if terminal:
        assert not any(" of " in line for line in lines)
    else:
        expected = ["embedding: 1,100 of 2,943, 0:00:19 left", "embedding: 2,200 of 2,943, 0:00:08 left"]
        assert lines == [*expected, "ranking: 1 of 9"]


def test_a_killed_data_worker_is_one_line_with_a_remedy():
    config = fill_preprocessing(read_config(tiny_config(data={"workers": 1})))
    splits = build_splits(config)
    data = build_dataset(config.data, splits.train, train=True)
    batches = iter(BatchLoader(data, (view_keys([0, 1], 0, 1) for _ in range(1000)), workers=1))
    next(batches)
    os.kill(batches._batches._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(AurankError, match=r"reads images has ended .*; use fewer data\.workers") as caught:
        for _ in batches:
            pass
    assert not isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)


def test_what_a_machine_runs_short_of_is_told_with_the_path_and_the_remedy():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/a")
    remedy = "free some space, use fewer data.workers, or raise the limits (ulimit)"
    assert explained(full) == f"No space left on device: runs/a; {remedy}"
    assert explained(ValueError("no")) is explained(RuntimeError("no")) is explained(FileNotFoundError(2, "no")) is None
