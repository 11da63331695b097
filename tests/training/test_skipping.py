"""Unreadable images under data.on_error=skip: counted, told, and no batch fails for want of them."""

from pathlib import Path
from typing import Any

import pytest
from testing.photos import broken_photos

import aurank
from aurank.errors import UserError

# batches of two images of two classes, on purpose
pytestmark = pytest.mark.filterwarnings("ignore:no query of the batch")


@pytest.mark.slow
def test_a_run_passes_over_batches_of_fewer_than_two_images_and_tells_what_it_skipped(tmp_path: Path) -> None:
    """Whether images are kept in memory or read by workers changes neither."""
    config = broken_photos(tmp_path / "photos")
    logs = set()
    for name, data in {"a": {"cache": "0"}, "b": {"workers": 2, "cache": "0"}, "c": {}}.items():
        told: dict[str, int] = {}

        def listen(kind: str, values: dict[str, Any], told: dict[str, int] = told) -> None:
            if "skipped" in values:
                told[kind] = values["skipped"]

        result = aurank.train({**config, "data": {**config["data"], **data}}, tmp_path / name, listener=listen)
        assert result.steps == 12
        assert result.skipped == {"train": 8, "validation": 1, "test": 1}
        assert told == {"step": 8, "validation": 1, "tested": 1}
        logs.add((tmp_path / name / "metrics.jsonl").read_bytes())
    assert len(logs) == 1


def test_a_training_set_without_readable_images_ends_the_run(tmp_path: Path) -> None:
    config = broken_photos(tmp_path / "photos")
    config["data"]["cache"] = "0"
    for path in (tmp_path / "photos" / "train").rglob("*.png"):
        path.write_bytes(b"broken")
    with pytest.raises(UserError, match=r"no batch of a whole epoch of photos has two readable images \(16 of 16"):
        aurank.train(config, tmp_path / "out")
