"""What state per sample costs: a step of SogCLR with tables of N rows, beside the step of the encoder it belongs to.

    python tools/bench_state.py [--rows 1000 1000000 10000000] [--batch 128] [--dim 128] [--rounds 20] [--threads N]

A step is what `aurank train` does with the loss: its value, its gradient, and the update of the table. The encoder's
step is forward and backward of timm's resnet18 on two views of `batch` images of 32 x 32. `added / step`: the time
above that of the smallest table, divided by the encoder's step. All tables take turns, and the least of the rounds
counts, so that another load on the machine hits all of them alike. Saving and loading are of the loss's whole
state_dict, in and out of one file.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import timm
import torch
from measuring import seconds

from aurank.losses import SogCLRLoss

SIDE = 32


def loss_step(rows: int, batch: int, dim: int) -> tuple[SogCLRLoss, Callable[[], None]]:
    """A loss with a table of so many rows, and a step of it on two views of random samples."""
    random = torch.Generator().manual_seed(0)
    loss = SogCLRLoss(num_samples=rows)
    embeddings = torch.randn(2 * batch, dim, generator=random, requires_grad=True)

    def step() -> None:
        ids = torch.randint(rows, (batch,), generator=random).repeat(2)
        labels = torch.arange(batch).repeat(2)
        torch.autograd.backward(loss(embeddings, labels, ids=ids))

    return loss, step


def encoder_step(batch: int) -> Callable[[], None]:
    """Forward and backward of a ResNet-18 on two views."""
    network, images = timm.create_model("resnet18", num_classes=0), torch.randn(2 * batch, 3, SIDE, SIDE)
    return lambda: torch.autograd.backward(network(images).sum())


def save_and_load(loss: SogCLRLoss) -> tuple[float, float, float]:
    """Seconds to save and to load the state, and its megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.pt"
        saving = seconds(lambda: torch.save(loss.state_dict(), file))
        loading = seconds(lambda: loss.load_state_dict(torch.load(file, weights_only=True)))
        return saving, loading, file.stat().st_size / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 1_000_000, 10_000_000])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    losses, steps = zip(*(loss_step(rows, given.batch, given.dim) for rows in sorted(given.rows)), strict=True)
    encoder = encoder_step(given.batch)
    rounds = [[seconds(step) for step in (encoder, *steps)] for _ in range(given.rounds)]
    whole, *own = [min(column) for column in zip(*rounds, strict=True)]
    print(f"torch {torch.__version__}, {given.threads} threads, {given.batch} images in two views, dim {given.dim}")
    print(f"encoder's step {whole * 1e3:.1f} ms")
    print(f"{'rows':>12}{'loss, ms':>10}{'added / step':>14}{'save, s':>9}{'load, s':>9}{'file, MB':>10}")
    for rows, loss, time in zip(sorted(given.rows), losses, own, strict=True):
        saving, loading, size = save_and_load(loss)
        added = (time - own[0]) / whole
        print(f"{rows:>12,}{time * 1e3:>10.2f}{added:>14.2%}{saving:>9.2f}{loading:>9.2f}{size:>10.1f}")


if __name__ == "__main__":
    main()
