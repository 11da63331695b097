"""How far a run is, and the global random generators: with the weights, all that a resumed run needs."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge

Count = Annotated[int, Ge(0)]


@dataclass
class Progress:
    """How far a run is, as checkpoints hold it; ``epoch`` and ``batch`` name the next batch to consume."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    step: Count = 0
    epoch: Count = 0
    batch: Count = 0
    loss_sum: float = 0.0  # since the last line of metrics.jsonl
    loss_count: Count = 0
    term_sums: dict[str, float] = field(default_factory=dict)  # the same for each term of a sum of losses
    best: dict[str, float] = field(default_factory=dict)
    without_improvement: Count = 0
    metrics_bytes: Count = 0  # length of metrics.jsonl in bytes
    validation_owed: bool = False  # a validation was due when the checkpoint was written


def random_state() -> dict[str, Any]:
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 (libraries draw from the global generator)
    return {
        "python": random.getstate(),
        "numpy": {
            **{key: value for key, value in numpy_state.items() if key != "state"},
            "state": {key: np.asarray(value).tolist() for key, value in numpy_state["state"].items()},
        },
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],  # of this process's device
    }


def restore_random_state(state: dict[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0])


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 150 times as long
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


def seed_stream(*names: int) -> None:
    seed_everything(int(np.random.SeedSequence(names).generate_state(1, np.uint64)[0] >> np.uint64(1)))


_OF_STREAMS = np.random.MT19937()


@contextmanager
def stream(*names: int) -> Iterator[None]:
    """Draw from the stream of these numbers while the context lasts; leave every generator as it was."""
    of_numpy: Any = np.random
    before = random.getstate(), of_numpy.get_bit_generator(), torch.get_rng_state()
    device = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    of_numpy.set_bit_generator(_OF_STREAMS)  # quicker than saving and restoring the global state
    seed_stream(*names)
    try:
        yield
    finally:
        random.setstate(before[0])
        of_numpy.set_bit_generator(before[1])
        torch.set_rng_state(before[2])
        if device is not None:
            torch.cuda.set_rng_state(device)
