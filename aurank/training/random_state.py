"""The state of every global random generator."""

import random
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """The state of every global random generator, in plain types that ``weights_only`` loading accepts."""
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
    numpy_state = dict(state["numpy"])
    inner = dict(numpy_state["state"])
    inner["key"] = np.array(inner["key"], dtype=np.uint32)
    numpy_state["state"] = inner
    np.random.set_state(numpy_state)  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
