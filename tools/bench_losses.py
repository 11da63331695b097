"""Time and memory of each loss, forward and backward, beside the plain similarity product and PML's SmoothAPLoss.

    python tools/bench_losses.py [--batch 896] [--dim 512] [--per-class 4] [--pml-batch 448]

Each line is measured in a process of its own. Time: the least of several rounds, in which the products and the loss
take turns, so that another load on the machine hits all of them. `/ product`: divided by E @ E.T, forward only, of the
same embeddings; `/ product f+b`: divided by E @ E.T with its backward. Growth: how far the resident memory of the
process rose above what it held before its first step at full size, after the imports and one small step.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable

import torch
from measuring import forget_peak, resident_megabytes, seconds
from pytorch_metric_learning.losses import SmoothAPLoss as PMLSmoothAPLoss
from torch import Tensor

from aurank.losses import SmoothAPLoss, SOPRCLoss

LOSSES: dict[str, Callable[[int], Callable[[Tensor, Tensor], Tensor]]] = {
    "E @ E.T": lambda classes: lambda embeddings, labels: (embeddings @ embeddings.T).sum(),
    "SmoothAPLoss": lambda classes: SmoothAPLoss(),
    "SOPRCLoss": lambda classes: SOPRCLoss(torch.full((classes,), 6)),
    "PML SmoothAPLoss": lambda classes: PMLSmoothAPLoss(),
}


def measure(name: str, batch: int, dim: int, per_class: int, rounds: int) -> dict[str, float]:
    """Seconds and megabytes of one loss on a shuffled batch of random embeddings."""
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randn(batch, dim, generator=random, requires_grad=True)
    labels = (torch.arange(batch) // per_class)[torch.randperm(batch, generator=random)]
    if name.startswith("PML"):
        labels = labels.sort().values  # it needs blocks
    loss = LOSSES[name](batch // per_class + 1)
    small = (torch.arange(32) // per_class).clamp(max=batch // per_class)
    loss(embeddings[: len(small)], small).backward()  # loads kernels, starts threads
    embeddings.grad = torch.zeros_like(embeddings)

    def step() -> None:
        loss(embeddings, labels).backward()

    def product() -> None:
        with torch.no_grad():
            embeddings @ embeddings.T

    def product_and_backward() -> None:
        (embeddings @ embeddings.T).sum().backward()

    forget_peak()
    before = resident_megabytes("VmRSS")
    first = seconds(step)
    growth = resident_megabytes("VmHWM") - before
    times: list[tuple[float, float, float]] = [(first, float("inf"), float("inf"))]
    for _ in range(rounds if first < 2 else 1):
        times.append((seconds(step), seconds(product), seconds(product_and_backward)))
    best = [min(column) for column in zip(*times, strict=True)]
    return {"seconds": best[0], "product": best[1], "product_and_backward": best[2], "growth": growth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=896)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--per-class", type=int, default=4)
    parser.add_argument("--pml-batch", type=int, default=448, help="PML's loss takes 15 GB and 44 s at 896")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        print(json.dumps(measure(given.one, given.batch, given.dim, given.per_class, given.rounds)))
        return
    print(f"torch {torch.__version__}, {given.threads} threads, dim {given.dim}, {given.per_class} per class, float32")
    print(f"{'':18}{'batch':>6}{'ms':>10}{'/ product':>11}{'/ product f+b':>15}{'growth, MB':>12}")
    for name in LOSSES:
        batch = min(given.pml_batch, given.batch) if name.startswith("PML") else given.batch
        result = run_alone(name, batch, given)
        print(
            f"{name:18}{batch:6}{result['seconds'] * 1e3:10.1f}{result['seconds'] / result['product']:11.1f}"
            f"{result['seconds'] / result['product_and_backward']:15.1f}{result['growth']:12.0f}",
            flush=True,
        )


def run_alone(name: str, batch: int, given: argparse.Namespace) -> dict[str, float]:
    """The measurement made in a new process."""
    options = {"one": name, "batch": batch, "dim": given.dim, "per-class": given.per_class}
    options |= {"rounds": given.rounds, "threads": given.threads}
    words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    main()
