"""Bias and noise of each estimator's gradient at fixed weights: what its normaliser is worth once nothing moves.

The embeddings of one training stay as they are while batches go by; each loss is given them and asked for its gradient
in them. The mean of those gradients, against the exact gradient of −s⁺ + τ·log g over all of the data, is what the
estimator is biased by; their spread is its noise.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from aurank.losses import DCLLoss, InfoNCELoss
from aurank.losses.core.pair_loss import PairLoss
from global_miniatures import start
from global_miniatures.store import Line, Run

BATCHES = (8, 32)
LEFT_OUT, KEPT = 3, 10  # epochs
EPOCHS_BEFORE = 4  # of the training whose embeddings these are
SHOWN = {"noise": 2, "one batch": 3, "400 batches": 4, "cosine": 4}  # and their digits
NAMES = ("simclr", "dcl", "sogclr", "sogclr plain", "emc2", "neuclip", "exact")


def runs(seeds: int) -> Any:
    """All runs."""
    for seed in range(seeds):
        for batch in BATCHES:
            for name in NAMES:
                yield Run("steady", name, {"batch": batch}, seed)


@cache
def embeddings(seed: int) -> Tensor:
    """Embeddings [view · drawing, dim] after half a training by the decoupled loss."""
    model = start.train(DCLLoss(temperature=start.TEMPERATURE), batch=32, rate=1e-2, seed=seed, epochs=EPOCHS_BEFORE)
    first = start.VIEWS * EPOCHS_BEFORE
    views = start.data()[0][:, first : first + start.VIEWS]
    return start.embedded(model, views.transpose(0, 1).flatten(0, 1))


def exact_gradient(rows: Tensor) -> Tensor:
    """The gradient of the objective over all of the data in its embeddings."""
    rows = rows.clone().requires_grad_()
    number = len(rows) // start.VIEWS
    scores = normalize(rows) @ normalize(rows).T
    same = torch.arange(len(rows))[:, None] % number == torch.arange(len(rows)) % number
    pull = scores[torch.arange(len(rows)), torch.arange(len(rows)).roll(number)]
    count = math.log(len(rows) - start.VIEWS)
    log_mean = (scores / start.TEMPERATURE).masked_fill(same, -torch.inf).logsumexp(dim=1) - count
    return torch.autograd.grad((start.TEMPERATURE * log_mean - pull).mean(), rows)[0]


def gradient(loss: PairLoss, rows: Tensor, drawings: Tensor) -> Tensor:
    """The loss's gradient in the embeddings of a batch."""
    rows = rows.clone().requires_grad_()
    scale = start.TEMPERATURE if isinstance(loss, DCLLoss | InfoNCELoss) else 1.0
    labels = drawings.repeat(start.VIEWS)
    ids = {"ids": labels} if hasattr(loss, "num_samples") else {}
    return scale * torch.autograd.grad(loss(rows, labels, **ids), rows)[0]


def carry_out(run: Run) -> Line:
    """The noise, and cosines with the exact gradient: the mean of two halves of the batches tells bias from noise."""
    batch, rows = run.settings["batch"], embeddings(run.seed)
    loss, number = start.METHODS[run.name](batch), len(rows) // start.VIEWS
    if isinstance(loss, start.ExactSogCLR):
        loss.everything = rows  # both views
    wanted, sums, counts, squares = exact_gradient(rows), [torch.zeros_like(rows) for _ in range(2)], [0, 0], 0.0
    random = torch.Generator().manual_seed(run.seed)
    for epoch in range(LEFT_OUT + KEPT):
        for drawings in torch.randperm(number, generator=random).split(batch):
            places = torch.cat([drawings + view * number for view in range(start.VIEWS)])
            found = gradient(loss, rows[places], drawings)
            if epoch >= LEFT_OUT:
                sums[epoch % 2].index_add_(0, places, found)
                counts[epoch % 2] += 1
                squares += float(found.square().sum())
    first, second = (total / count for total, count in zip(sums, counts, strict=True))
    length, along = float((first * second).sum()), float(((first + second) * wanted).sum()) / 2
    whole = float(wanted.square().sum())
    variance = squares / sum(counts) - length
    after = {"one batch": 1.0, "400 batches": 400.0, "cosine": math.inf}
    return {
        "scale": along / whole,
        "noise": math.sqrt(variance / whole),
        **{name: along / math.sqrt(whole * (length + variance / batches)) for name, batches in after.items()},
    }
