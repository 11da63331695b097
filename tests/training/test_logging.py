"""What Python users see of a training: nothing, or the lines of the logger aurank."""

import logging
from pathlib import Path

import pytest
from testing.runs import tiny_config

import aurank
from aurank.commands import RunOptions


@pytest.mark.slow
def test_a_training_tells_the_logger_its_steps_and_notices(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tiny_config(train={"steps": 4, "log_every": 2, "validate_every": 4})
    with caplog.at_level(logging.INFO, logger="aurank"):
        aurank.train(config, tmp_path / "run")
    lines = [record.getMessage() for record in caplog.records if record.name == "aurank"]
    assert [line.partition(":")[0] for line in lines] == [
        "step 2 of 4, train", "step 4 of 4, train", "step 4 of 4, val",
    ]  # fmt: skip
    assert "loss " in lines[0]
    assert "mauprc " in lines[2]
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="aurank"):
        aurank.train(config, tmp_path / "run", resume=True)
        RunOptions().tell("4 of 9 images were read from the cache (100%)")
    assert "finished already at step 4" in caplog.text
    assert "(100%)" in caplog.text


def test_a_library_is_silent_until_somebody_asks() -> None:
    (handler,) = [one for one in logging.getLogger("aurank").handlers if isinstance(one, logging.NullHandler)]
    assert handler.level == logging.NOTSET
    assert logging.getLogger("aurank").propagate
