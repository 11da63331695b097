"""How well each estimator knows the log-normaliser: NeuCLIP, Fig. 2c, in miniature.

Two small towers learn image-text pairs of the Grocery archive at a fixed temperature. At five points of the training
the estimate of each image's and each text's log-normaliser is compared with the exact one, over all negatives of the
training set under the weights of that moment (Eq. 9).
"""

import csv
import io
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from grocery_texts import read, table
from pytorch_metric_learning.distances import CosineSimilarity
from torch import Tensor, nn

from aurank.data import ImageDataset, open_source
from aurank.data.captions import Tokeniser
from aurank.data.manifest import build_manifest
from aurank.data.transforms.standard import Center
from aurank.losses import FastCLIPLoss, NeuCLIPLoss, Pairs, make_pairs
from aurank.losses.core.log_mean_exp import log_mean_exp
from aurank.losses.core.loss_inputs import read_inputs
from aurank.models.text_encoder import TextTower
from global_miniatures.convergence import network
from global_miniatures.store import Line, Run

TEMPERATURE, DIM, SIDE, LENGTH = 0.07, 64, 32, 24
BATCH, PAIRS, PROTOTYPES = 128, 2560, 1024
SAMPLES_SEEN = 51_200
CHECKS = 5
NEUCLIP: dict[str, Any] = {"inner_lr": 0.01, "inner_steps": 10, "restart_every": 50, "num_prototypes": PROTOTYPES}
ESTIMATORS = ("mini-batch", "FastCLIP", "NeuCLIP")
FEWER = "NeuCLIP, m = 102"  # for the tenth of the data: as many prototypes for each pair of it
VARIANTS: dict[str, dict[str, Any] | None] = {
    "inner_lr 1 (the paper's)": {"inner_lr": 1.0},
    # measured with options that the loss had until commit 3e272cc: docs/miniatures_global/runs.jsonl keeps the results
    "separate objective": None,
    "MLP": None,
    "separate objective, MLP (AmorLIP)": None,
    "simultaneous": None,
    "T_r = 10": {"restart_every": 10},
    "T_r = 200": {"restart_every": 200},
    "never restarted": {"restart_every": None},
    "T_u = 0": {"inner_steps": 0},
    "T_u = 1": {"inner_steps": 1},
    "T_u = 50": {"inner_steps": 50},
    "m = 256": {"num_prototypes": 256},
    "m = 2048": {"num_prototypes": 2048},
    FEWER: {"num_prototypes": 102},
}


def runs(seeds: int) -> Iterator[Run]:
    """All runs: three estimators at two batch sizes and two sizes of the data, then NeuCLIP's own choices."""
    for seed in range(seeds):
        for batch, pairs in ((BATCH, PAIRS), (BATCH // 2, PAIRS), (BATCH, PAIRS // 10)):
            for name in ESTIMATORS:
                yield Run("normalizers", name, {"batch": batch, "pairs": pairs}, seed)
        for title, options in VARIANTS.items():
            if options is not None:
                pairs = PAIRS // 10 if title == FEWER else PAIRS
                yield Run("normalizers", title, {"batch": BATCH, "pairs": pairs}, seed)


class Towers(nn.Module):
    """A small image tower and a small text tower."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        super().__init__()
        self.image = network(seed)
        self.text = TextTower(vocabulary, length=LENGTH, dim=DIM, layers=1, width=128)

    def forward(self, images: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return nn.functional.normalize(self.image(images)), self.text(tokens)


@cache
def data() -> tuple[Tensor, Tensor, Tensor, int]:
    """Images, tokens and labels of the training pairs, and the number of tokens there are."""
    archive = Path(os.environ.get("AURANK_DATA") or "data") / "grocery_128.zip"
    lines = list(csv.DictReader(io.StringIO(table(read(archive), unseen=0, seed=0))))[: 2 * PAIRS]
    lines = [line for line in lines if line["split"] == "train"][:PAIRS]
    texts, paths = [line["text"] for line in lines], [line["path"] for line in lines]
    labels = [line["label"] for line in lines]
    source = open_source(archive, prefix="grocery/images")
    manifest = build_manifest("grocery", source, paths=paths, labels=labels, splits=["train"] * len(paths))
    data = ImageDataset(manifest, Center(SIDE, 3, margin=1), channels=3)
    images = data.__getitems__(list(range(len(paths)))).image
    assert isinstance(images, Tensor)
    tokeniser = Tokeniser.learn(texts, length=LENGTH)
    return data.to_input(images), tokeniser.encode(texts), torch.tensor(manifest.labels), tokeniser.vocabulary


def loss_of(run: Run, pairs: int) -> FastCLIPLoss | NeuCLIPLoss:
    """The loss; the mini-batch estimate is FastCLIP's without a memory."""
    if run.name in ("mini-batch", "FastCLIP"):
        gamma: dict[str, Any] = {"gamma": 1.0, "gamma_schedule": "constant"} if run.name == "mini-batch" else {}
        return FastCLIPLoss(pairs, version="v1", temperature=TEMPERATURE, **gamma)
    options = NEUCLIP | (VARIANTS.get(run.name) or {})
    return NeuCLIPLoss(DIM, temperature=TEMPERATURE, learn_temperature=False, **options)


def pairs_of(images: Tensor, texts: Tensor, labels: Tensor) -> Pairs:
    """The pairs of images with texts."""
    inputs = read_inputs(images, labels, ref_emb=texts, ref_labels=labels)
    return make_pairs(inputs, distance=CosineSimilarity(), two_way=True)


@torch.no_grad()
def errors(run: Run, loss: FastCLIPLoss | NeuCLIPLoss, towers: Towers, pairs: int, batch: int) -> dict[str, float]:
    """The mean squared error of the estimated log-normaliser, over images and texts, and that of the batch alone."""
    images, tokens, labels, _ = data()
    embedded = [torch.cat(parts) for parts in zip(*embed_all(towers, images[:pairs], tokens[:pairs]), strict=True)]
    whole = pairs_of(embedded[0], embedded[1], labels[:pairs])
    exact = [log_mean_exp(side, TEMPERATURE, relative=True) for side in (whole, whole.other_way())]
    order = torch.randperm(pairs, generator=torch.Generator().manual_seed(0))
    squares: list[Tensor] = []
    for rows in torch.split(order, batch):
        some = pairs_of(embedded[0][rows], embedded[1][rows], labels[rows])
        for side, wanted in zip((some, some.other_way()), exact, strict=True):
            # what a batch of a few classes cannot say: a query without a negative in it
            found = log_mean_exp(side, TEMPERATURE, relative=True)[side.valid]
            squares.append((found - wanted[rows][side.valid]).square())
    alone = float(torch.cat(squares).mean())
    if run.name == "mini-batch":
        return {"error": alone, "alone": alone}
    if isinstance(loss, NeuCLIPLoss):
        estimates = [loss.alpha(side) for side in (whole, whole.other_way())]
    else:
        estimates = list(loss.log_u)
    known = [estimate != 0 if isinstance(loss, FastCLIPLoss) else estimate.isfinite() for estimate in estimates]
    own = [(e - x)[k].square() for e, x, k in zip(estimates, exact, known, strict=True)]
    return {"error": float(torch.cat(own).mean()), "alone": alone}


def embed_all(towers: Towers, images: Tensor, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Embeddings of both sides, some at a time."""
    for rows in torch.split(torch.arange(len(images)), 512):
        yield towers(images[rows], tokens[rows])


def carry_out(run: Run) -> Line:
    """The error of the estimate at five points of one training."""
    batch, pairs = run.settings["batch"], run.settings["pairs"]
    images, tokens, labels, vocabulary = data()
    towers, random = Towers(vocabulary, run.seed), torch.Generator().manual_seed(run.seed)
    loss = loss_of(run, pairs)
    steps = SAMPLES_SEEN // batch
    optimiser = torch.optim.AdamW(towers.parameters(), lr=1e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    when = {round(steps * part / CHECKS) for part in range(1, CHECKS + 1)}
    course: list[dict[str, Any]] = []
    order = torch.empty(0, dtype=torch.int64)
    for step in range(steps):
        if isinstance(loss, FastCLIPLoss):
            loss.gamma.set_progress(step=step, steps=steps, epoch=step * batch // pairs, epochs=SAMPLES_SEEN / pairs)
        if len(order) < batch:
            order = torch.randperm(pairs, generator=random)
        rows, order = order[:batch], order[batch:]
        left, right = towers(images[rows], tokens[rows])
        value = loss(left, labels[rows], ref_emb=right, ref_labels=labels[rows], ids=rows, ref_ids=rows)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        schedule.step()
        if step + 1 in when:
            loss.eval()
            course.append({"samples": (step + 1) * batch, **errors(run, loss, towers, pairs, batch)})
            loss.train()
    return {"steps": steps, "course": course}
