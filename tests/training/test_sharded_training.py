"""With weights, gradients and state shared out a run is that of whole ones."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import PartialState
from testing.few_digits import few_digits
from testing.processes import run_ranks
from testing.runs import records
from testing.tiny import tiny_config
from torch import nn
from torch.distributed.tensor import DTensor

import aurank
from aurank.data import READERS
from aurank.embedding.stored.checkpoint import load_checkpoint
from aurank.training import run, trainer
from aurank.training.sharding import ShardedCopy, load_state

# Single numbers, weights in another layout, statistics of batches, neighbours of the weights as they stand. Every
# weight moves by its gradient: Adam would turn the last digits of one that is zero into a whole step.
LOSS = [{"name": "normalized_softmax", "params": {"temperature": 1.0}}]
SECTIONS: dict[str, dict[str, Any]] = {
    "model": {"pooling": "gem", "channels_last": True},
    "optim": {
        "lr": 0.002,
        "warmup_steps": 0,
        "params": {"eps": 1e-3},
        "clip_norm": 0.5,
        "schedule": {"name": "constant"},
    },
    "sampler": {"name": "hard_negative", "params": {"per_class": 2, "refresh_every": 1, "num_neighbours": 5}},
    "train": {"steps": 5, "validate_every": 2, "checkpoint_every": 4, "accumulate": 2},
}
RUNS: list[tuple[str, list[str], bool]] = [
    ("whole", [], False),
    ("sharded", ["train.sharded=true", "train.steps=4"], False),
    ("sharded", ["train.sharded=true"], True),
]


class Checked(ShardedCopy):
    """One whose processes begin with other weights, of which the first keeps the state of the optimiser alone."""

    def __init__(self, whole: nn.Module) -> None:
        with torch.no_grad():
            for value in whole.state_dict().values():
                value += int(os.environ["RANK"])
        super().__init__(whole)

    def optimiser_state(self, optimiser: Any, *, keep: bool) -> dict[str, Any]:
        found = super().optimiser_state(optimiser, keep=keep)
        assert bool(found) == keep == (os.environ["RANK"] == "0")
        return found


def load_checked(optimiser: Any, saved: dict[str, Any]) -> None:
    """Load it, and see that a process holds no more than its parts."""
    load_state(optimiser, saved)
    values = [value for state in optimiser.state.values() for value in state.values() if isinstance(value, DTensor)]
    parts = [value.to_local() for value in values]
    assert parts
    assert all(part.untyped_storage().nbytes() == part.nbytes for part in parts)
    assert sum(part.numel() for part in parts) < 0.6 * sum(value.numel() for value in values)


@contextmanager
def one_of_two(rank: int, port: int) -> Iterator[None]:
    shared = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update({name: str(value) for name, value in shared.items()})
    yield
    PartialState._reset_state()


def train_all(rank: int, ports: list[int], folder: str) -> None:
    torch.set_num_threads(1)
    READERS["digits"] = few_digits
    trainer.ShardedCopy = Checked  # type: ignore[misc]
    run.load_state = load_checked  # for the run that goes on: it is the only one
    for port, (name, overrides, goes_on) in zip(ports, RUNS, strict=True):
        with one_of_two(rank, port):
            aurank.train(tiny_config(LOSS, **SECTIONS), Path(folder) / name, overrides=overrides, resume=goes_on)


def assert_alike(folder: Path) -> None:
    for file in ("last.safetensors", "best.safetensors"):
        first, second = (load_checkpoint(folder / name / file) for name in ("whole", "sharded"))
        torch.testing.assert_close(second["encoder"], first["encoder"], rtol=1e-5, atol=1e-5, msg=file)
        if file == "last.safetensors":
            torch.testing.assert_close(second["optimiser"]["state"], first["optimiser"]["state"], rtol=1e-3, atol=1e-6)
    for split in ("train", "val"):
        first, second = (records(folder / name, split) for name in ("whole", "sharded"))
        for one, other in zip(first, second, strict=True):
            assert other.pop("split") == one.pop("split")
            assert other == pytest.approx(one, rel=1e-4)


@pytest.mark.slow
def test_a_run_with_shared_out_weights_is_that_of_whole_ones(tmp_path: Path) -> None:
    """It stops and goes on, too, and begins with the weights of the first process."""
    with ExitStack() as probes:
        found = [probes.enter_context(socket.socket()) for _ in RUNS]
        for probe in found:
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in found]
    run_ranks(train_all, 2, ports, str(tmp_path))
    assert_alike(tmp_path)
