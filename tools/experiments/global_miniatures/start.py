"""The start of the normaliser: small trainings without labels, at learning rates that validation chooses.

Drawings of Omniglot at 16 pixels, evenly from all background classes, in views that are drawn once; a small network
from random weights, whose first embeddings are much alike, so that ḡ falls by orders of magnitude at first, as that of
larger networks does. "exact" divides by the normaliser over all of the data under the weights of each step: what an
estimator could come to.
"""

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, normalize

from aurank.data import ImageDataset, Manifest
from aurank.data.dataset import Key
from aurank.embedding.from_config import build_dataset, fill_preprocessing
from aurank.embedding.manifest_from_config import read_manifest
from aurank.evaluation import evaluate
from aurank.losses import DCLLoss, EMC2Loss, InfoNCELoss, ISogCLRLoss, NeuCLIPLoss, Pairs, SogCLRLoss
from aurank.losses.core.pair_loss import PairLoss
from aurank.training import read_config
from global_miniatures.store import Line, Run, Store
from global_miniatures.training import DRAWINGS, EPOCHS, part_of

TEMPERATURE, DIM, VIEWS, TESTED = 0.1, 128, 2, 150
BATCHES = (8, 32, 64, 256)
RATES = (5e-3, 1e-2, 2e-2)


class ExactSogCLR(SogCLRLoss):
    """SogCLR whose u is the exact normaliser, over embeddings of all of the data that were set before the call."""

    everything: Tensor  # [sample, dim]

    def log_normalizer(self, pairs: Pairs, log_mean: Tensor, **_: Any) -> Tensor:
        assert pairs.query_ids is not None
        scores = pairs.query.detach() @ self.everything.T / TEMPERATURE
        scores[torch.arange(len(scores)), pairs.query_ids] = -torch.inf
        return scores.logsumexp(dim=1) - math.log(scores.shape[1] - 1)


METHODS: dict[str, Callable[[int], PairLoss]] = {
    "simclr": lambda _: InfoNCELoss(temperature=TEMPERATURE),
    "dcl": lambda _: DCLLoss(temperature=TEMPERATURE),
    "sogclr": lambda _: SogCLRLoss(DRAWINGS, TEMPERATURE),
    "sogclr plain": lambda _: SogCLRLoss(DRAWINGS, TEMPERATURE, average="plain"),
    "isogclr": lambda _: ISogCLRLoss(DRAWINGS, 2.0, temperature=TEMPERATURE),
    "isogclr plain": lambda _: ISogCLRLoss(DRAWINGS, 2.0, temperature=TEMPERATURE, average="plain"),
    "emc2": lambda _: EMC2Loss(DRAWINGS, TEMPERATURE),
    "neuclip": lambda batch: NeuCLIPLoss(
        DIM,
        1024,
        temperature=TEMPERATURE,
        learn_temperature=False,
        restart_every=DRAWINGS // batch,
        inner_lr=0.01,
        two_way=False,
    ),
    "exact": lambda _: ExactSogCLR(DRAWINGS, TEMPERATURE),
}


def runs(seeds: int) -> Iterator[Run]:
    """All rates at the first seed; of further seeds `is_wanted` leaves the rate that validation then chose."""
    for seed in range(seeds):
        for batch in BATCHES:
            for name in METHODS:
                # a forward of all of the data each step; four times as many steps as at 32
                if (name == "exact" and batch != 32) or (batch == 8 and name not in ("dcl", "sogclr")):
                    continue
                for rate in RATES:
                    yield Run("start", name, {"batch": batch, "lr": rate}, seed)


def chosen_rate(store: Store, name: str, batch: int) -> float | None:
    """The rate with the highest validation mAUPRC at the first seed; None before all are there."""
    lines = [line for line in store.of("start", name) if line["seed"] == 0 and line["settings"]["batch"] == batch]
    if len(lines) < len(RATES):
        return None
    return float(max(lines, key=lambda line: line["val_mauprc"])["settings"]["lr"])


def is_wanted(run: Run, store: Store) -> bool:
    """Whether a run is of the first seed, or of the chosen rate."""
    return run.seed == 0 or run.settings["lr"] == chosen_rate(store, run.name, run.settings["batch"])


@cache
def data() -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Views of the training drawings [drawing, view, 1, 16, 16]; drawings and labels of validation and of test."""
    config = fill_preprocessing(read_config("omniglot_unlabelled/sogclr", []))
    whole = read_manifest(config.data, seed=0)
    drawn = build_dataset(config.data, part_of(whole, DRAWINGS).split("train"), train=True, seed=0)
    views = [images(drawn, [(row, epoch, view) for row in range(DRAWINGS)]) for epoch, view in epochs_and_views()]
    test = whole.split("test")
    parts = {"val": whole.split("val"), "test": test.select(test.labels < TESTED)}
    return torch.stack(views, dim=1), {name: shown(config.data, part) for name, part in parts.items()}


def epochs_and_views() -> Iterator[tuple[int, int]]:
    """The views in the order in which they are kept."""
    return ((epoch, view) for epoch in range(EPOCHS) for view in range(VIEWS))


def shown(config: Any, part: Manifest) -> tuple[Tensor, Tensor]:
    """Drawings as they are measured, and their labels."""
    dataset = build_dataset(config, part, train=False)
    return images(dataset, [(row, 0, 0) for row in range(len(dataset))]), torch.as_tensor(part.labels)


def images(dataset: ImageDataset, keys: list[Key]) -> Tensor:
    """Images of half the side."""
    found = dataset.__getitems__(keys).image
    assert isinstance(found, Tensor)
    return avg_pool2d(dataset.to_input(found), 2)


def network(seed: int) -> nn.Module:
    """Three convolutions, the mean over places, and a projection."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in ((1, 32), (32, 64), (64, 128)):
        convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, DIM))


@torch.no_grad()
def embedded(model: nn.Module, rows: Tensor) -> Tensor:
    """Embeddings of unit length, by the statistics that batch norm has gathered."""
    model.eval()
    found = torch.cat([normalize(model(part)) for part in rows.split(512)])
    model.train()
    return found


def factor(step: int, steps: int) -> float:
    """The learning rate's: a rise over a tenth of the training, then a cosine."""
    warm = max(1, steps // 10)
    return min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * max(0, step - warm) / (steps - warm)))


def train(loss: PairLoss, *, batch: int, rate: float, seed: int, epochs: int = EPOCHS) -> nn.Module:
    """The network after the training."""
    views, model, random = data()[0], network(seed), torch.Generator().manual_seed(seed)
    scale = TEMPERATURE if isinstance(loss, DCLLoss | InfoNCELoss) else 1.0
    steps, step = DRAWINGS // batch * epochs, 0
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda done: factor(done, steps))
    for epoch in range(epochs):
        first = VIEWS * (epoch % EPOCHS)
        for rows in torch.randperm(DRAWINGS, generator=random).split(batch):
            embeddings = normalize(model(torch.cat([views[rows, first], views[rows, first + 1]])))
            if isinstance(loss, ExactSogCLR):
                loss.everything = embedded(model, views[:, first])
            ids = {"ids": rows.repeat(VIEWS)} if hasattr(loss, "num_samples") else {}
            optimiser.zero_grad()
            torch.autograd.backward(scale * loss(embeddings, rows.repeat(VIEWS), **ids))
            optimiser.step()
            schedule.step()
            step += 1
    return model


def carry_out(run: Run) -> Line:
    """mAUPRC and Recall@1 on drawings of other alphabets."""
    batch = run.settings["batch"]
    model = train(METHODS[run.name](batch), batch=batch, rate=run.settings["lr"], seed=run.seed)
    found: Line = {}
    for name, (rows, labels) in data()[1].items():
        report = evaluate(embedded(model, rows), labels, recall_at=(1,)).metrics
        before = "" if name == "test" else f"{name}_"
        found |= {f"{before}{key}": report[key] for key in ("mauprc", "recall@1")}
    return found
