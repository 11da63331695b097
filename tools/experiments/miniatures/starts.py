"""Where v starts: the first batch copied, as Remark 1 suggests, against 0, 0.01 … 0.99, as the authors' code has it.

Trained on scikit-learn's digits: the 64 pixels, a network with one hidden layer, half of the drawings for training and
half for the test, 250 steps of 8 drawings of each of the 10 classes (a class is met in each of them; on Stanford Online
Products the paper's schedule meets a class 247 times).
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import normalize

import aurank
from aurank.losses import RowTable, SOPRCLoss

BETAS = (0.001, 0.01, 0.1)
SEEDS = (0, 1, 2)
CLASSES, PER_CLASS, NUM_QUANTILES = 10, 8, 100
STEPS = 250
WATCHED = (1, 10, 25, 50, 100, 150, 250)


def split() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Pixels in [0, 1] and labels of the first and of the second half."""
    digits = load_digits()
    pixels, labels = torch.from_numpy(digits.data / 16).float(), torch.from_numpy(digits.target).long()
    half = len(labels) // 2
    return (pixels[:half], labels[:half]), (pixels[half:], labels[half:])


def train(start: str, beta: float, seed: int, *, steps: int = STEPS) -> dict[str, Any]:
    """Test mAUPRC after training, and by step the mean |v − quantiles of all positive training scores|."""
    (pixels, labels), (test_pixels, test_labels) = split()
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    loss = SOPRCLoss(torch.bincount(labels), beta=beta, num_quantiles=NUM_QUANTILES)
    if start == "arange":
        loss.table = RowTable(CLASSES, NUM_QUANTILES, start=torch.arange(NUM_QUANTILES) / NUM_QUANTILES)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    rows = [(labels == label).nonzero().flatten() for label in range(CLASSES)]
    chance = np.random.default_rng(seed)
    distances: dict[str, float] = {}
    for step in range(1, steps + 1):
        chosen = torch.cat([row[chance.choice(len(row), PER_CLASS, replace=False)] for row in rows])
        before = class_quantiles(network, pixels, rows) if step in WATCHED else None
        optimiser.zero_grad()
        loss(network(pixels[chosen]), labels[chosen]).backward()
        optimiser.step()
        if before is not None:  # v of this step holds scores of the weights before it
            distances[str(step)] = float((loss.v - before).abs().mean())
    with torch.no_grad():
        report = aurank.evaluate(network(test_pixels), test_labels)
    return {"mauprc": report.mauprc, "distance": distances}


@torch.no_grad()
def class_quantiles(network: nn.Module, pixels: Tensor, rows: list[Tensor]) -> Float[Tensor, "class quantile"]:
    """The quantiles, at the levels of v, of the cosines of all pairs of a class."""
    levels = torch.arange(1, NUM_QUANTILES + 1) / (NUM_QUANTILES + 1)
    embeddings = normalize(network(pixels))
    found = []
    for row in rows:
        similarity = embeddings[row] @ embeddings[row].T
        found.append(similarity[~torch.eye(len(row), dtype=torch.bool)].quantile(levels))
    return torch.stack(found)


def measure() -> dict[str, Any]:
    """Every start and β with every seed."""
    runs = {
        start: {f"{beta:g}": [train(start, beta, seed) for seed in SEEDS] for beta in BETAS}
        for start in ("copied", "arange")
    }
    return {"seeds": list(SEEDS), "steps": STEPS, "runs": runs}
