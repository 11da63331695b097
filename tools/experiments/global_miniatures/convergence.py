"""Where each estimator converges to: EMC² (ICML 2024), Fig. 7, in miniature.

500 photos in two fixed augmentations each, so that the global loss and its gradient can be computed exactly: every view
against the 998 views of other photos. A small network without batch norm, plain SGD whose rate falls to 0 by a cosine,
so that what remains is the error of the estimator and not the noise of its last steps.
"""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from aurank.data import ImageDataset
from aurank.data.dataset import Key
from aurank.data.transforms.views import SimCLR
from aurank.embedding.manifest_from_config import read_manifest
from aurank.losses import DCLLoss, EMC2Loss, InfoNCELoss, NegativeCacheLoss, SogCLRLoss
from aurank.training import read_config
from global_miniatures.store import Line, Run

IMAGES, VIEWS, SIDE, DIM = 500, 2, 32, 64
TEMPERATURE = 0.2  # β = 5, as in the paper's table
SAMPLES_SEEN = 96_000  # images drawn, equal for all batch sizes
LR = 0.03
CHECKS = 12

Loss = Callable[..., Tensor]


def scaled(loss: nn.Module) -> Loss:
    """A loss in units of 1/τ brought into those of similarity, so that one learning rate serves all."""
    return lambda *given, ids: TEMPERATURE * loss(*given)


# Each takes embeddings and labels (photos), and ids: photo · 2 + view, one chain or average for each fixed view.
METHODS: dict[str, Callable[[float], Loss]] = {
    "simclr": lambda _: scaled(InfoNCELoss(temperature=TEMPERATURE)),
    "dcl": lambda _: scaled(DCLLoss(temperature=TEMPERATURE)),
    "sogclr_v1": lambda _: by_photo(SogCLRLoss(IMAGES, temperature=TEMPERATURE, average="plain")),
    "sogclr_v2": lambda _: by_photo(SogCLRLoss(IMAGES, temperature=TEMPERATURE, normalizer="shared", average="plain")),
    "sogclr_view": lambda _: SogCLRLoss(IMAGES * VIEWS, temperature=TEMPERATURE, average="plain"),
    "emc2": lambda burn_in: EMC2Loss(IMAGES * VIEWS, temperature=TEMPERATURE, burn_in=burn_in, out_of_batch="reencode"),
    "emc2_stored": lambda burn_in: EMC2Loss(IMAGES * VIEWS, temperature=TEMPERATURE, burn_in=burn_in),
    "negative_cache": lambda _: NegativeCacheLoss(
        IMAGES * VIEWS, temperature=TEMPERATURE, out_of_batch="reencode", refresh=0.1, positive_in_denominator=False
    ),
}
TITLES = {
    "simclr": "SimCLR (InfoNCE)",
    "dcl": "decoupled (DCL)",
    "sogclr_v1": "SogCLR, V1",
    "sogclr_v2": "SogCLR, V2",
    "sogclr_view": "SogCLR, u for each view",
    "emc2": "EMC²",
    "emc2_stored": "EMC², stored states",
    "negative_cache": "negative cache",
}


def by_photo(loss: nn.Module) -> Loss:
    """A loss whose state is keyed by the photo, both views together."""
    return lambda *given, ids: loss(*given, ids=ids // VIEWS)


def runs(seeds: int) -> Iterator[Run]:
    """All runs, most valuable first: every method at batch 4, SimCLR's floor by batch, EMC²'s burn-in."""
    for seed in range(seeds):
        for name in (name for name in METHODS if name != "negative_cache"):
            yield Run("convergence", name, {"batch": 4}, seed)
        for batch in (8, 16, 32):
            yield Run("convergence", "simclr", {"batch": batch}, seed)
        for name in ("sogclr_v1", "emc2"):
            yield Run("convergence", name, {"batch": 32}, seed)
        for steps in (0, 2, 4, 6):  # of 2b − 2 = 6 proposals, one of which must count; 3 are burnt in by default
            yield Run("convergence", "emc2", {"batch": 4, "burn_in": min(steps, 5) / 6}, seed)
        yield Run("convergence", "negative_cache", {"batch": 4}, seed)


@cache
def views() -> Tensor:
    """The photos [photo, view, channel, side, side]: the first of Grocery's, in two SimCLR augmentations each."""
    config = read_config("grocery/soprc", [f"data.image_size={SIDE}", "data.validation_fraction=0"])
    manifest = read_manifest(config.data, seed=0).split("train").select(list(range(IMAGES)))
    transform = SimCLR(SIDE, 3, strength=0.5, blur=0.0)
    data = ImageDataset(manifest, transform, channels=3)
    keys: list[Key] = [(row, 0, view) for row in range(IMAGES) for view in range(VIEWS)]
    images = data.__getitems__(keys).image
    assert isinstance(images, Tensor)
    return data.to_input(images).reshape(IMAGES, VIEWS, *images.shape[1:])


def network(seed: int) -> nn.Module:
    """Four convolutions and a projection, without batch norm: 32 pixels to unit vectors."""
    torch.manual_seed(seed)
    widths = [3, 32, 64, 128, 128]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    found = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4, DIM))
    for layer in found:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return found


def exact_loss(embeddings: Tensor) -> Tensor:
    """−s⁺ + τ·log mean over the views of other photos of exp(s/τ), over all views [photo · view, dim]."""
    similarity = embeddings @ embeddings.T
    photo = torch.arange(len(embeddings)) // VIEWS
    same = photo[:, None] == photo
    partner = (similarity * (same & ~torch.eye(len(photo), dtype=torch.bool))).sum(dim=1) / (VIEWS - 1)
    count = torch.tensor(float(len(photo) - VIEWS))
    log_mean = torch.logsumexp((similarity / TEMPERATURE).masked_fill(same, -torch.inf), dim=1) - count.log()
    return (TEMPERATURE * log_mean - partner).mean()


def check(model: nn.Module) -> tuple[float, float]:
    """The exact loss and the squared norm of its gradient."""
    model.zero_grad()
    loss = exact_loss(normalize(model(views().flatten(0, 1))))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return loss.item(), sum(float(gradient.square().sum()) for gradient in gradients)


def carry_out(run: Run) -> Line:
    """The exact loss and squared gradient norm along one training."""
    batch = run.settings["batch"]
    model, random = network(run.seed), torch.Generator().manual_seed(run.seed)
    burn_in = run.settings.get("burn_in", 0.5)
    loss = METHODS[run.name](burn_in)
    for part in loss.modules() if isinstance(loss, nn.Module) else ():
        if getattr(part, "wants_reencode", False):  # with its graph, as the authors do
            setattr(part, "reencode", lambda ids: normalize(model(views().flatten(0, 1)[ids])))  # noqa: B010
    steps = SAMPLES_SEEN // batch
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    when = {round(steps * part / CHECKS) for part in range(CHECKS + 1)}
    course: list[dict[str, Any]] = []
    order = torch.empty(0, dtype=torch.int64)
    for step in range(steps + 1):
        if step in when:
            value, norm = check(model)
            course.append({"images": step * batch, "loss": value, "squared_gradient_norm": norm})
        if step == steps:
            break
        if len(order) < batch:
            order = torch.randperm(IMAGES, generator=random)
        photos, order = order[:batch], order[batch:]
        ids = (photos * VIEWS + torch.arange(VIEWS)[:, None]).flatten()  # view 0 of all, view 1 of all
        embeddings = model(views().flatten(0, 1)[ids])
        optimiser.zero_grad()
        torch.autograd.backward(loss(embeddings, photos.repeat(VIEWS), ids=ids))
        optimiser.step()
        schedule.step()
    return {"lr": LR, "steps": steps, "course": course}
