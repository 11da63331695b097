"""What a run logs: metrics.jsonl, without wall-clock values, so that equal runs write equal bytes; pictures."""

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aurank.errors import AurankError
from aurank.losses.core.training_protocols import LearnsTemperature
from aurank.reporting.snapshots import Pixels

NEIGHBOURS = 10  # of a query, in the grid that trackers get


class MetricsFile:
    """Appends records; of an existing file it keeps the first ``keep`` bytes, those a checkpoint knows.

    Raises:
        AurankError: the disk is full or the file cannot be written.
    """

    def __init__(self, path: Path, *, keep: int = 0) -> None:
        self._path = path
        with self._complaining():
            path.touch(exist_ok=True)
            os.truncate(path, min(keep, path.stat().st_size))
            self._file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; NaN and infinity, which JSON has not, become null."""
        odd = (key for key, value in record.items() if isinstance(value, float) and not math.isfinite(value))
        line = json.dumps({**record, **dict.fromkeys(odd)}) + "\n"
        with self._complaining():
            self._file.write(line)
            self._file.flush()

    def position(self) -> int:
        """Return the bytes written so far, safe on disk."""
        with self._complaining():
            self._file.flush()
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        # Every record has been flushed; one that could not be has raised already, and fails once more here.
        with contextlib.suppress(OSError):
            self._file.close()

    @contextlib.contextmanager
    def _complaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AurankError(
                f"cannot write {self._path}: {error.strerror or error}; free some space, then --resume"
            ) from error


def log_pictures(trackers: Sequence[Any], pictures: Mapping[str, Pixels], *, step: int) -> None:
    """Give each tracker that Accelerate has `log_images` for the pictures; the others get numbers only."""
    for tracker in trackers:
        if tracker.name == "tensorboard":  # wants a batch, and to be told where the channels are
            batches = {name: picture[None] for name, picture in pictures.items()}
            tracker.log_images(batches, step=step, dataformats="NHWC")
        elif tracker.name in ("wandb", "swanlab"):
            tracker.log_images({name: [picture] for name, picture in pictures.items()}, step=step)
        elif hasattr(tracker, "log_images"):
            tracker.log_images(dict(pictures), step=step)


def learned_temperature(loss: nn.Module) -> dict[str, float]:
    """Return ``temperature``, the first that the loss learns, the mean of individual ones; empty without one."""
    held = [part.learned_temperature for part in loss.modules() if isinstance(part, LearnsTemperature)]
    found = [float(value) for value in held if value is not None]
    return {"temperature": found[0]} if found else {}


@torch.no_grad()
def collapse_signs(embeddings: Float[Tensor, "batch dim"]) -> dict[str, float]:
    """Return two signs of collapse of unit-length embeddings.

    ``mean_similarity`` is the mean cosine over pairs of different rows, 1 when all are equal.
    ``effective_rank`` is exp of the entropy of the normalised singular values, from 1 to min(batch, dim); it falls to 1
    when all embeddings lie on a line.

    Source: Roy and Vetterli, The effective rank (EUSIPCO 2007), https://ieeexplore.ieee.org/document/7098875
    """
    rows = embeddings.detach().float()
    count = rows.shape[0]
    total = rows.sum(dim=0)
    similarity = (total @ total - rows.square().sum()) / max(1, count * (count - 1))
    singular = torch.linalg.svdvals(rows)
    share = singular / singular.sum().clamp(min=1e-12)
    entropy = -(share * share.clamp(min=1e-12).log()).sum()
    return {"mean_similarity": float(similarity), "effective_rank": float(entropy.exp())}
