"""What a small batch's gradient is off by in the mean, of all batches that there are."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

from aurank.losses import SogCLRLoss, make_pairs
from aurank.losses.core.pairs import read_inputs
from aurank.losses.core.temperature import log_mean_exp

IMAGES = 8  # of two views, 16 rows in 70 batches of 8
LABELS = torch.arange(IMAGES).repeat(2)
BATCHES = [torch.tensor([*some, *(one + IMAGES for one in some)]) for some in combinations(range(IMAGES), 4)]


def data() -> Tensor:
    random = torch.Generator().manual_seed(0)
    images, noise = (torch.randn(size, 16, generator=random, dtype=torch.float64) for size in (IMAGES, 2 * IMAGES))
    return (images.repeat(2, 1) + 0.5 * noise).requires_grad_()


def at_rest(gamma: float, embeddings: Tensor, **given: object) -> SogCLRLoss:
    """A loss whose average is, of each row, the mean over all batches: where γ → 0 leads at fixed embeddings."""
    loss = SogCLRLoss(2 * IMAGES, temperature=0.1, gamma=gamma, views=2 * IMAGES, **given).double().eval()
    total, count = torch.zeros(2, 2 * IMAGES, dtype=torch.float64)
    for rows in BATCHES:
        pairs = make_pairs(read_inputs(embeddings.detach()[rows], LABELS[rows]), distance=loss.distance)
        log_mean = log_mean_exp(pairs, 0.1)
        total[rows] += (log_mean - (0 if loss.levels is None else log_mean.mean())).exp()
        count[rows] += 1
    loss.tables[0].rows[:, 0], loss.tables[0].seen[:] = (total / count).log(), True
    return loss


def mean_gradient(loss: SogCLRLoss, embeddings: Tensor) -> Tensor:
    values = [loss(embeddings[rows], LABELS[rows], ids=rows) for rows in BATCHES]
    return torch.autograd.grad(torch.stack(values).mean(), embeddings)[0]


@pytest.mark.slow
def test_only_the_paper_s_average_takes_the_bias_of_small_batches_away_as_gamma_falls() -> None:
    embeddings = data()
    whole = SogCLRLoss(2 * IMAGES, temperature=0.1, gamma=1.0, views=2 * IMAGES).double()
    exact = torch.autograd.grad(whole(embeddings, LABELS, ids=torch.arange(2 * IMAGES)), embeddings)[0]

    def error(gamma: float, **given: object) -> float:
        found = mean_gradient(at_rest(gamma, embeddings, **given), embeddings)
        return float((found - exact).norm() / exact.norm())

    errors = {
        "decoupled": error(1.0),
        "0.9": error(0.9),
        "0": error(1e-9),
        "plain 0.9": error(0.9, average="plain"),
        "plain 0": error(1e-9, average="plain"),
        "official 0": error(1e-9, official=True),
    }
    assert errors["decoupled"] > errors["0.9"] > errors["0"] > errors["plain 0"]
    assert errors["plain 0.9"] < errors["decoupled"]
    expected = {"decoupled": 0.338, "0.9": 0.248, "0": 0.111, "plain 0.9": 0.281}  # in docs/losses.md
    assert {name: errors[name] for name in expected} == pytest.approx(expected, abs=5e-4)
    assert errors["plain 0"] < 1e-6
    assert errors["official 0"] == errors["plain 0"]
