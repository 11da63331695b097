"""A training step of aurank's loop beside one of a bare loop over the same tensors, in turns, in one process.

    python tools/bench_train.py [omniglot/soprc] [KEY=VALUE …] [--workers 1 0] [--steps 20] [--turns 7]

The bare loop does forward, loss, backward and step on batches that stand in memory, and nothing else: no image is read
or transformed, nothing is logged or looked at. Model, loss, optimiser and batches are those of the configuration. The
training loop is the whole of it, `Loop.run`; its listener stops it after every turn for one of the bare loop, so that
another load on the machine hits both. Of each turn the first steps, in which caches warm up and batches that were read
ahead are used up, are not counted. Ratios are medians over the turns, by the clock and by this process's CPU time.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measuring import parser_of, timed

from aurank.data import Batch, view_keys
from aurank.sizes import keep_memory
from aurank.training import read_config
from aurank.training.build import build_splits
from aurank.training.loop import Loop
from aurank.training.state import Progress, seed_everything
from aurank.training.trainer import Trainer

WARM = 4  # steps of a turn that do not count
FAR = 10**6  # neither validations nor checkpoints are measured

Clock = tuple[float, float]  # seconds by the clock, and of this process's processor time


def clock() -> Clock:
    return time.perf_counter(), time.process_time()


class Bare:
    def __init__(self, trainer: Trainer, batches: list[Batch]) -> None:
        self.trainer, self.batches = trainer, itertools.cycle(batches)
        self.optimiser = trainer.optimiser

    def steps(self, count: int) -> None:
        trainer = self.trainer
        for batch in itertools.islice(self.batches, count):
            trainer.loss(trainer.model(batch.image), batch.label, trainer.miner, ids=batch.id).backward()
            self.optimiser.step()
            self.optimiser.zero_grad()

    def turn(self, steps: int) -> Clock:
        self.steps(WARM)
        return timed(self.steps, steps)[0]


class Enough(Exception):
    """Enough turns have been measured."""


class Turns:
    def __init__(self, bare: Bare, steps: int, turns: int) -> None:
        self.bare, self.steps, self.turns = bare, steps, turns
        self.found: list[tuple[Clock, Clock]] = []
        self.start = clock()
        self.done = 0

    def __call__(self, kind: str, values: dict[str, Any]) -> None:
        if kind != "step":
            return
        self.done += 1
        if self.done == WARM:
            self.start = clock()
        elif self.done == WARM + self.steps:
            spent = tuple(now - then for now, then in zip(clock(), self.start, strict=True))
            self.found.append((spent, self.bare.turn(self.steps)))
            self.done = 0
            if len(self.found) == self.turns:
                raise Enough


def trainer_of(given: argparse.Namespace, workers: int, folder: Path) -> Trainer:
    far = [f"train.{key}={FAR}" for key in ("steps", "validate_every", "checkpoint_every")]
    config = read_config(given.config, [*given.override, *far, f"data.workers={workers}"])
    seed_everything(0)
    return Trainer(config, build_splits(config), folder)


def as_model_sees(trainer: Trainer, batch: Batch) -> Batch:
    assert isinstance(batch.image, torch.Tensor), "the bare loop takes views of one size"
    return batch._replace(image=trainer.train_data.to_input(batch.image))


def compared(given: argparse.Namespace, workers: int) -> list[tuple[Clock, Clock]]:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        plain = trainer_of(given, workers, out)
        rows = itertools.islice(plain.sampler.iterate(0, 0), given.steps)
        keys = (view_keys(keys, epoch, plain.views) for epoch, _, keys in rows)
        batches = [as_model_sees(plain, plain.train_data.__getitems__(wanted)) for wanted in keys]
        turns = Turns(Bare(plain, batches), given.steps, given.turns)
        loop = Loop(trainer_of(given, workers, out), out, {}, progress=Progress(), listener=turns)
        try:
            loop.run()
        except Enough:
            return turns.found
    raise AssertionError("the run ended before the last turn")


def tell(name: str, found: list[tuple[Clock, Clock]], steps: int) -> None:
    for kind, column in (("clock", 0), ("processor", 1)):
        pairs = [(loop[column], bare[column]) for loop, bare in found]
        ratios = [loop / bare for loop, bare in pairs]
        own, other = (statistics.median(pair[side] for pair in pairs) / steps * 1e3 for side in (0, 1))
        print(
            f"{name:10} {kind:10}{own:8.1f} ms{other:8.1f} ms   {statistics.median(ratios):5.3f}"
            f"   ({min(ratios):.3f} to {max(ratios):.3f})"
        )


def main() -> None:
    parser = parser_of(__doc__, steps=20, turns=7, threads=1, workers=[1, 0])
    parser.add_argument("config", nargs="?", default="omniglot/soprc")
    parser.add_argument("override", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    about = " ".join((given.config, *given.override))
    print(
        f"{about}: {given.turns} turns of {given.steps} steps, torch {torch.__version__}, "
        f"glibc keeps memory: {keep_memory()}"
    )
    print(f"{'workers':10} {'time':10}{'loop':>11}{'bare':>11}   ratio")
    for workers in given.workers:
        tell(str(workers), compared(given, workers), given.steps)


if __name__ == "__main__":
    main()
