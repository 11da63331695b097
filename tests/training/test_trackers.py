"""Pictures of every validation go to the trackers, and change nothing else of a run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testing.tiny import tiny_config

import aurank
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.training.watch import log_pictures


def images_of(out: Path) -> dict[str, list[int]]:
    """The steps of every image that TensorBoard got, by its name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = {path.parent for path in out.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder), size_guidance={"images": 0})
    events.Reload()
    return {tag: [event.step for event in events.Images(tag)] for tag in events.Tags()["images"]}


@pytest.mark.slow
def test_pictures_of_each_validation_change_nothing_else(tmp_path: Path) -> None:
    for name, trackers in (("plain", []), ("tracked", ["tensorboard"])):
        aurank.train(tiny_config(train={"trackers": trackers}), tmp_path / name)
    assert images_of(tmp_path / "tracked") == {"val/grid": [4, 8], "val/precision_recall": [4, 8]}
    for file in ("metrics.jsonl", "report.json"):
        plain, tracked = ((tmp_path / name / file).read_bytes() for name in ("plain", "tracked"))
        assert plain == tracked, file
    first, second = (load_checkpoint(tmp_path / name / "last.safetensors") for name in ("plain", "tracked"))
    for one, other in zip(first["random"], second["random"], strict=True):
        # Python's own generator is drawn from by imports and by the type checks of the tests, never by a run.
        assert all(str(one[name]) == str(other[name]) for name in ("numpy", "torch", "cuda"))
    assert all(torch.equal(value, second["encoder"][name]) for name, value in first["encoder"].items())


class Tracker:
    """Keeps what it is given, as a tracker of Accelerate would take it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.given: dict[str, Any] = {}

    def log_images(self, values: dict[str, Any], step: int, **options: Any) -> None:
        self.given = {name: np.shape(value) for name, value in values.items()} | {"step": step, **options}


def test_each_tracker_gets_pictures_in_its_own_shape() -> None:
    class Numbers:
        name = "mlflow"

    trackers: Any = [Tracker("tensorboard"), Tracker("wandb"), Tracker("aim"), Numbers()]
    log_pictures(trackers, {"val/grid": np.zeros((4, 5, 3), np.uint8)}, step=7)
    tensorboard, wandb, aim, _ = trackers
    assert tensorboard.given == {"val/grid": (1, 4, 5, 3), "step": 7, "dataformats": "NHWC"}
    assert wandb.given == {"val/grid": (1, 4, 5, 3), "step": 7}
    assert aim.given == {"val/grid": (4, 5, 3), "step": 7}
