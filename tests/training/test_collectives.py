"""How often the processes of a run talk to each other in a step."""

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from testing.processes import run_ranks
from testing.tiny import tiny_config
from torch.profiler import ProfilerActivity, profile

from aurank.distributed import joined
from aurank.training import read_config
from aurank.training.build import build_splits
from aurank.training.loop import Loop
from aurank.training.state import Progress, seed_everything
from aurank.training.trainer import Trainer

STEPS, FAR = 2, 10**6
CASES: dict[str, tuple[dict[str, Any], int]] = {  # how many more than DistributedDataParallel's own are allowed
    "plain": ({}, 2),
    "all at once": ({"memory": {"size": 40}, "optim": {"clip_norm": 0.5}, "train": {"ema": 0.9, "accumulate": 2}}, 3),
    "unreadable images are skipped": ({"data": {"on_error": "skip"}}, 4),
    "a miner": ({"miner": {"name": "multi_similarity"}}, 4),
}


def counted(work: Callable[[], object]) -> int:
    """Collectives that this process takes part in, those of C++ too."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    return Counter(event.name.partition(":")[0] for event in found.events())["gloo"]


def steps(loop: Loop, batches: Any) -> None:
    for _ in range(STEPS):
        loop._step(batches)


def bare(trainer: Trainer, images: torch.Tensor) -> None:
    for _ in range(STEPS):
        for part in range(accumulate := trainer.config.train.accumulate):
            with contextlib.nullcontext() if part == accumulate - 1 else trainer.encoder.no_sync():
                trainer.encoder((images,)).square().sum().backward()


def measure(rank: int, port: int, out: str) -> None:
    shared = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update({name: str(value) for name, value in shared.items()})
    torch.set_num_threads(1)
    with joined("5min"):
        for name, (sections, allowed) in CASES.items():
            train = {"steps": FAR, "validate_every": FAR, "checkpoint_every": FAR, "log_every": FAR}
            plain = tiny_config("smooth_ap", **{**sections, "train": {**train, **sections.get("train", {})}})
            config = read_config(plain)
            seed_everything(0)
            trainer = Trainer(config, build_splits(config), Path(out))
            loop = Loop(trainer, Path(out), {}, progress=Progress())
            batches = loop._batches()

            steps(loop, batches)
            images = trainer.train_data.to_input(next(batches).batch.image)
            bare(trainer, images)
            own, of_ddp = counted(partial(steps, loop, batches)), counted(partial(bare, trainer, images))
            assert of_ddp >= STEPS, name
            assert own == of_ddp + allowed * STEPS, (name, own, of_ddp)


@pytest.mark.slow
def test_a_step_has_two_collectives_beside_those_of_data_parallel_training(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run_ranks(measure, 2, port, str(tmp_path))
