"""Steps a second of training a head on saved embeddings, beside a bare loop over the same tensors, in one process.

    python tools/bench_heads.py [--width 1280] [--dim 128] [--batch 112] [--loss soprc] [--steps 300] [--rounds 5]

The bare loop does forward, loss, backward and step on the batches of the same sampler, and nothing else: no log, no
check of the loss, no count of images, no checkpoint. Both take turns, round by round, so that another load on the
machine hits both; of each the fastest round counts. Processor time, that of all threads, is told beside the clock's: on
a busy machine it says what a quiet one would take. `--profile` prints where the training loop's own goes.
"""

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aurank.data import view_keys
from aurank.training import read_config
from aurank.training.build import build_splits
from aurank.training.checkpoints.state import Progress, seed_everything
from aurank.training.loop import Loop
from aurank.training.trainer import Trainer

CLASSES, PER_CLASS = 64, 60


def write_rows(path: Path, width: int) -> None:
    """Writes embeddings of classes that can be told apart, with their splits."""
    chance = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    rows = chance.normal(size=(CLASSES, width))[labels] * 0.3 + chance.normal(size=(len(labels), width))
    splits = np.where(labels < 40, "train", np.where(labels < 50, "val", "test"))
    np.savez(path, embeddings=rows.clip(0).astype(np.float32), labels=labels, splits=splits)


def trainer_of(given: argparse.Namespace, folder: Path) -> Trainer:
    """The components of a run, as `aurank train` makes them."""
    far = 10**6  # validations and checkpoints are not what is measured
    config = read_config(
        {
            "data": {"name": "embeddings", "root": str(folder), "params": {"file": "rows.npz"}},
            "sampler": {"batch": given.batch, "params": {"per_class": 4}},
            "model": {"dim": given.dim, "head_layers": given.layers},
            "loss": {"name": given.loss},
            "optim": {
                "lr": 1e-4,
                "params": {"fused": True} if given.fused else {},
                "schedule": {"name": "cosine"},
                "warmup_steps": 10,
            },
            "train": {"steps": far, "validate_every": far, "checkpoint_every": far, "log_every": given.log_every},
        }
    )
    seed_everything(0)
    return Trainer(config, build_splits(config.data, seed=0), folder)


class Bare:
    """Forward, loss, backward and step, on the rows of the same sampler."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.batches = trainer, trainer.sampler.iterate(0, 0)
        self.seconds: dict[str, float] = {}

    def step(self) -> None:
        """One step, its parts timed."""
        trainer, times = self.trainer, [time.perf_counter()]
        epoch, _, rows = next(self.batches)
        batch = trainer.train_data.__getitems__(view_keys(rows, epoch))
        times.append(time.perf_counter())
        embeddings = trainer.model(batch.image)
        times.append(time.perf_counter())
        loss = trainer.loss(embeddings, batch.label, None, ids=batch.id)
        times.append(time.perf_counter())
        loss.backward()
        times.append(time.perf_counter())
        own = trainer.optimiser
        own.step()
        own.zero_grad()
        times.append(time.perf_counter())
        for name, start, end in zip(("batch", "head", "loss", "backward", "optimiser"), times, times[1:], strict=False):
            self.seconds[name] = self.seconds.get(name, 0.0) + end - start


def stepper(trainer: Trainer, out: Path) -> Callable[[], None]:
    """One step of the training loop."""
    loop = Loop(trainer, out, {}, progress=Progress(), listener=lambda kind, values: None)
    batches: Iterator[Any] = loop._batches()
    return lambda: loop._step(batches)


def seconds_of(step: Callable[[], None], steps: int) -> tuple[float, float]:
    """Seconds of so many steps: by the clock, and those that the processor spent on them."""
    started, spent = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    return time.perf_counter() - started, time.process_time() - spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, value in {"width": 1280, "dim": 128, "batch": 112, "layers": 1, "steps": 300, "rounds": 5}.items():
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--loss", default="soprc")
    parser.add_argument("--fused", action="store_true", help="torch's fused AdamW: optim.params.fused=true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--profile", action="store_true", help="print where the loop's own time goes")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.npz", given.width)
        bare, loop = Bare(trainer_of(given, folder)), stepper(trainer_of(given, folder), folder)
        for step in (bare.step, loop):
            seconds_of(step, 20)
        bare.seconds.clear()
        rounds = [(*seconds_of(bare.step, given.steps), *seconds_of(loop, given.steps)) for _ in range(given.rounds)]
        plain, plain_cpu, whole, whole_cpu = (min(column) / given.steps for column in zip(*rounds, strict=True))
        total = sum(bare.seconds.values())
        parts = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in bare.seconds.items())
        about = f"{given.loss}, {given.width} -> {given.dim}, {given.layers} layer(s), batch {given.batch}"
        print(f"{about}, {given.threads} thread(s), torch {torch.__version__}, {given.rounds} rounds of {given.steps}")
        for name, clock, cpu in (("bare loop", plain, plain_cpu), ("training loop", whole, whole_cpu)):
            own = f"{cpu * 1e3:7.2f} ms of processor time"
            print(f"{name:14}{1 / clock:8.1f} steps/s {clock * 1e3:7.2f} ms a step; {own}")
        print(
            f"bare loop by part: {parts}; the training loop adds {(whole_cpu - plain_cpu) * 1e3:.2f} ms of the latter"
        )
        if given.profile:
            profile = cProfile.Profile(time.process_time)
            profile.runcall(seconds_of, loop, given.steps)
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
