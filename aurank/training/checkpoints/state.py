"""How far a run is, and the state of every global random generator: with the weights, all that a resumed run needs."""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass
class Progress:
    """How far a run is. ``epoch`` and ``batch`` name the next batch to consume; all of it is in the checkpoint.

    ``term_sums``: of a loss that is a sum, each loss in it, over the same batches as ``loss_sum``.
    ``metrics_sha256`` is of the first ``metrics_bytes`` of metrics.jsonl, ``best_sha256`` the fingerprint of best.pt,
    empty before there is one; None in checkpoints from before these were recorded. ``validation_owed``: one is due at
    this step, and was not done when the checkpoint was written.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    loss_count: int = 0
    term_sums: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    without_improvement: int = 0
    metrics_bytes: int = 0
    metrics_sha256: str | None = ""
    best_sha256: str | None = ""
    validation_owed: bool = False


def random_state() -> dict[str, Any]:
    """Return the state of every global random generator, in plain types that ``weights_only`` loading accepts."""
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 (libraries draw from the global generator)
    return {
        "python": random.getstate(),
        "numpy": {
            **{key: value for key, value in numpy_state.items() if key != "state"},
            "state": {key: np.asarray(value).tolist() for key, value in numpy_state["state"].items()},
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Put every global random generator back to what ``random_state`` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
