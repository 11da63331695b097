"""The whole way through a benchmark of published size: seconds and peak memory of every step, as a table.

    python tools/make_benchmark_tree.py sop --root trees
    python tools/full_size.py sop --root trees --out walked [--only doctor resume] [data.workers=1 …]

Every step is a command of its own on the shipped configuration, at 32 pixels with a ResNet-18 from random weights, so
that it ends on a CPU; all else is as shipped. Training is killed once a checkpoint is there, and resumed. CPU: seconds
of the process and its children; peak: the largest resident memory of any. A step that failed ends the walk.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CONFIGS = {"sop": "sop/soprc", "inaturalist2018": "inaturalist/soprc", "vehicleid": "vehicleid/soprc"}
PROTOCOLS = {"sop": "sop", "inaturalist2018": "inaturalist2018", "vehicleid": "vehicleid-large"}
SMALL = (
    *("data.image_size=32", "data.workers=0", "data.cache=0"),  # photos of the published size would not fit a cache
    *("model.backbone=resnet18", "model.pretrained=false"),
    *("train.steps=20", "train.validate_every=20", "train.checkpoint_every=5", "train.log_every=1"),
    "optim.schedule.params.milestones=[]",
)
AURANK = (sys.executable, "-m", "aurank")


def run(
    command: list[str], log: Path, *, watch: Callable[[], bool] | None = None, accept: tuple[int, ...] = (0,)
) -> tuple[float, float, float]:
    start = time.perf_counter()
    with log.open("wb") as written:
        process = subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT)
    while True:
        found, status, used = os.wait4(process.pid, os.WNOHANG)
        if found:
            break
        if watch is not None and watch():
            os.kill(process.pid, signal.SIGKILL)
            watch, accept = None, (-signal.SIGKILL,)
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in accept:
        sys.exit(f"{' '.join(command)}\nended with {process.returncode}:\n{log.read_text()[-3000:]}")
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


class Steps:
    def __init__(self, metrics: Path, enough: int) -> None:
        self.metrics, self.enough = metrics, enough
        self.start, self.first = time.perf_counter(), 0.0

    def reached(self) -> bool:
        done = self.metrics.read_bytes().count(b'"split": "train"') if self.metrics.exists() else 0
        if done and not self.first:
            self.first = time.perf_counter() - self.start
        return done >= self.enough


def walk(name: str, root: Path, out: Path, overrides: list[str]) -> Iterator[tuple[str, list[str]]]:
    config, run_folder = CONFIGS[name], out / "run"
    data = [one for one in (*SMALL, *overrides) if one.startswith("data.")]
    model = f"aurank:{run_folder / 'best'}"
    small, cache = [*SMALL, *overrides], ["--cache", str(out / "cache")]
    yield "data check", [*AURANK, "data", "check", name, "--root", str(root)]
    yield "doctor", [*AURANK, "doctor", config, *data]
    yield "config", [*AURANK, "config", config, *small]
    yield "dry run", [*AURANK, "train", config, *small, "--dry-run"]
    yield "train, killed", [*AURANK, "train", config, *small, "--out", str(run_folder)]
    yield "resume", [*AURANK, "train", config, *small, "--out", str(run_folder), "--resume"]
    yield "embed", [*AURANK, "embed", "--model", model, "--out", str(out / "test.npz"), *cache]
    protocol = ["--protocol", PROTOCOLS[name], "--root", str(root)]
    yield "evaluate", [*AURANK, "evaluate", "--model", model, *protocol, "--out", str(out / "measured"), *cache]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONFIGS)
    parser.add_argument("--root", type=Path, required=True, help="where tools/make_benchmark_tree.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the run, results and what is printed")
    parser.add_argument("--only", nargs="*", help="these steps alone")
    parser.add_argument("overrides", nargs="*", help="of the configuration, such as data.workers=1")
    args = parser.parse_args()
    os.environ["AURANK_DATA"] = str(args.root.resolve())
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"| {args.name} | seconds | CPU seconds | peak MB |\n|---|---|---|---|", flush=True)
    for step, command in walk(args.name, args.root, args.out, args.overrides):
        if args.only and step not in args.only:
            continue
        log = args.out / f"{step.replace(', ', '_').replace(' ', '_')}.txt"
        steps = Steps(args.out / "run" / "metrics.jsonl", enough=8) if step == "train, killed" else None
        watch = steps.reached if steps else None
        # The doctor's exit code tells what it found, of which the tree has some.
        wall, cpu, peak = run(command, log, watch=watch, accept=(0, 1, 2) if step == "doctor" else (0,))
        noted = f" (first step ended after {steps.first:.1f})" if steps else ""
        print(f"| {step} | {wall:.1f}{noted} | {cpu:.1f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
